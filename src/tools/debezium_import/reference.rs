//! References to values that are stored elsewhere: `${provider:path:key}` in Kafka Connect
//! (<https://kafka.apache.org/documentation/#connect_configproviders>), `${NAME}` in Debezium
//! Server.

use std::fmt;

/// A reference to a value that is stored elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    provider: String,
    path: String,
    key: String,
}

impl Reference {
    /// The first reference in `value`. `${routedByValue}` and other groups of a regular expression
    /// contain no colon, and are not references.
    pub(crate) fn find(value: &str) -> Option<Self> {
        let mut rest = value;
        while let Some((_, after)) = rest.split_once("${") {
            let (inside, tail) = after.split_once('}')?;
            let mut parts = inside.splitn(3, ':').map(str::to_owned);
            match (parts.next(), parts.next(), parts.next()) {
                (Some(provider), Some(key), None) => {
                    return Some(Self { provider, path: String::new(), key });
                }
                (Some(provider), Some(path), Some(key)) => {
                    return Some(Self { provider, path, key });
                }
                _ => rest = tail,
            }
        }
        None
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, path, key } = self;
        match provider.as_str() {
            "env" | "strimzienv" => write!(f, "the environment variable {key}"),
            "file" => write!(f, "the property {key} of the file {path}"),
            "dir" | "directory" => write!(f, "the file {key} in {path}"),
            "secrets" => write!(f, "the key {key} of the Kubernetes Secret {path}"),
            "configmaps" => write!(f, "the key {key} of the Kubernetes ConfigMap {path}"),
            other if path.is_empty() => write!(f, "{key}, as `{other}` gives it"),
            other => write!(f, "{key} of {path}, as the config provider `{other}` gives it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_distinguished_from_groups_of_an_expression() {
        for (value, expected) in [
            (
                "${file:/etc/db.properties:password}",
                "the property password of the file /etc/db.properties",
            ),
            ("x-${env:PGPASSWORD}", "the environment variable PGPASSWORD"),
            ("${secrets:shop/db:user}", "the key user of the Kubernetes Secret shop/db"),
            ("${directory:/mnt/db:user}", "the file user in /mnt/db"),
            ("${vault:db/shop:user}", "user of db/shop, as the config provider `vault` gives it"),
            ("${routedByValue}-${env:SUFFIX}", "the environment variable SUFFIX"),
        ] {
            assert_eq!(Reference::find(value).unwrap().to_string(), expected);
        }
        for value in ["outbox.event.${routedByValue}", "${", "$1", "${a:b", "a:b}", ""] {
            assert_eq!(Reference::find(value), None, "{value}");
        }
    }
}
