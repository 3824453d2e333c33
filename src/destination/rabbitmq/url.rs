//! URLs of RabbitMQ: `amqp://[user:password@]host[:port][/vhost]`, `amqps://…`
//! (<https://www.rabbitmq.com/docs/uri-spec>).

use std::fmt;

use secrecy::SecretString;

use crate::destination::parts::url::{self, decoded};

const FORM: &str = "amqp://[user:password@]host[:port][/vhost], or amqps://… for TLS; write signs such \
                    as @, / and : in a password or a vhost percent-encoded";

/// A parsed URL. Its `Debug` contains no secret.
#[derive(Clone)]
pub(crate) struct RabbitUrl {
    /// Whether to use TLS.
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// User and password.
    pub(crate) user: Option<(String, SecretString)>,
    /// The virtual host.
    pub(crate) vhost: String,
}

impl fmt::Debug for RabbitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RabbitUrl({})", self.address())
    }
}

impl RabbitUrl {
    /// Parses a URL. The error does not repeat it: it may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let is_empty_vhost = text.split_once("://").is_some_and(|(_, rest)| {
            rest.split_once('/').is_some_and(|(_, vhost)| vhost.is_empty())
        });
        if is_empty_vhost {
            return Err(
                "ends with `/`, which names a virtual host without a name: write `/%2F` for \
                        the virtual host `/`, or nothing"
                    .to_owned(),
            );
        }
        if text.contains('?') {
            return Err(
                "has parameters after `?`, which walpost does not support: certificates are \
                        rabbitmq.ca_file, cert_file and key_file"
                    .to_owned(),
            );
        }
        Self::parsed(text).ok_or_else(|| format!("is not of the form {FORM}"))
    }

    fn parsed(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let tls = match scheme {
            "amqp" => false,
            "amqps" => true,
            _ => return None,
        };
        if rest.contains('#') || rest.contains(char::is_whitespace) {
            return None;
        }
        let (authority, vhost) = match rest.split_once('/') {
            Some((authority, vhost)) if !vhost.contains('/') => (authority, decoded(vhost)?),
            Some(_) => return None,
            None => (rest, "/".to_owned()),
        };
        let (user, address) = match authority.rsplit_once('@') {
            Some((login, address)) => {
                let (name, password) = login.split_once(':')?;
                let (name, password) = (decoded(name)?, decoded(password)?);
                if name.is_empty() || password.is_empty() {
                    return None;
                }
                (Some((name, SecretString::from(password))), address)
            }
            None => (None, authority),
        };
        let (host, port) = url::host_and_port(address, if tls { 5671 } else { 5672 })?;
        (vhost.len() <= 255).then_some(Self { tls, host, port, user, vhost })
    }

    /// Host and port, for messages.
    pub(crate) fn address(&self) -> String {
        url::address(&self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn urls_of_the_usual_forms_are_parsed() {
        for (text, tls, address, user, vhost) in [
            ("amqp://h", false, "h:5672", None, "/"),
            ("amqps://h", true, "h:5671", None, "/"),
            ("amqp://u:p%40w@h:7/eu%2Forders", false, "h:7", Some(("u", "p@w")), "eu/orders"),
            ("amqp://u:a@b@[::1]/%2f", false, "[::1]:5672", Some(("u", "a@b")), "/"),
        ] {
            let url = RabbitUrl::parse(text).expect(text);
            let login = url.user.as_ref().map(|(name, word)| (name.as_str(), word.expose_secret()));
            let found = (url.tls, url.address(), login, url.vhost.as_str());
            assert_eq!(found, (tls, address.to_owned(), user, vhost), "{text}");
        }
    }

    #[test]
    fn an_invalid_url_is_an_error_that_does_not_repeat_it() {
        for text in [
            "",
            "h:5672",
            "http://s3cret@h",
            "amqp://",
            "amqp://:5672",
            "amqp://h:x",
            "amqp://h:0",
            "amqp://h/",
            "amqp://h/s3cret/x",
            "amqp://s3cret@h",
            "amqp://u:@h",
            "amqp://u:s3cret%4@h",
            "amqp://u:s3cret@h?heartbeat=1",
            "amqp://u:s3cret@h#x",
            "amqp://u:s3cret@a b",
        ] {
            let error = RabbitUrl::parse(text).expect_err(text);
            assert!(!error.contains("s3cret"), "{text}: {error}");
        }
        let shown = format!("{:?}", RabbitUrl::parse("amqp://u:s3cret@h").expect("valid"));
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
