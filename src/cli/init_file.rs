//! `walpost init --config-file`: the configuration of the walpost that was set up, as a file.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use secrecy::ExposeSecret as _;

use crate::config::{Config, DisplayValue, Origin, Setting, is_hidden};
use crate::conninfo;
use crate::record::TopicTemplate;

/// Writes what is configured, except secrets, with `role` as the user of the database, and a proposal
/// for the topics. A file that exists is left as it is; returns what to print.
pub(super) fn write(config: &Config, role: Option<&str>, path: &Path) -> io::Result<String> {
    let name = path.display();
    let mut file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Ok(format!("{name}: already there, left as it is\n"));
        }
        Err(error) => return Err(error),
    };
    if let Err(error) = file.write_all(text(config, role).as_bytes()) {
        // A part of it would count as there at the next attempt.
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(format!("{name}: written, without secrets\n"))
}

fn text(config: &Config, role: Option<&str>) -> String {
    let mut text =
        "# Written by `walpost init`. `walpost config` shows the other settings.\n".to_owned();
    for row in config.display() {
        let Some(value) = &row.value else { continue };
        if row.origin == Origin::Default {
            continue;
        }
        let value = match value {
            DisplayValue::List(items) => toml::Value::from(items.clone()),
            _ if row.key == Setting::SOURCE_URL.key() => {
                let Some(url) = source(config, role) else { continue };
                text += "# The password: in WALPOST_SOURCE_URL_FILE or ~/.pgpass.\n";
                url.into()
            }
            DisplayValue::Text(shown) if is_hidden(shown) => {
                let _ = writeln!(text, "# {}: has a secret, which belongs elsewhere.", row.key);
                continue;
            }
            DisplayValue::Text(shown) => shown.as_str().into(),
        };
        let _ = writeln!(text, "{} = {value}", row.key);
    }
    if config.is_kafka() {
        if let Some(pattern) = proposed_topics(config) {
            text += "# Rows name their topics: only these are published to.\n";
            let topics = toml::Value::from(vec![pattern]);
            let _ = writeln!(text, "{} = {topics}", Setting::RECORD_TOPICS_ALLOWED.key());
        }
        if config.kafka.create_topics.is_none() {
            text += "# Creates a topic that does not exist, with 6 partitions and 3 replicas.\n";
            let _ = writeln!(text, "#{} = \"6:3\"", Setting::KAFKA_CREATE_TOPICS.key());
        }
    }
    text
}

/// The pattern of the topics, if the configuration names neither them nor any part of their names.
pub(super) fn proposed_topics(config: &Config) -> Option<String> {
    let record = &config.record;
    let is_template = record.profile.is_none() && record.topic_rewrite.is_none();
    if !config.is_kafka() || !is_template || !record.topics_allowed.is_empty() {
        return None;
    }
    let pattern = record.topic.parse::<TopicTemplate>().ok()?.pattern();
    (pattern != "*").then_some(pattern)
}

/// The connection string of `role`.
fn source(config: &Config, role: Option<&str>) -> Option<String> {
    conninfo::for_user(config.source.url.as_ref()?.expose_secret(), role)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags};

    fn config(flags: &[(Setting, &str)]) -> Config {
        let flags = flags.iter().fold(Flags::default(), |flags, (setting, value)| {
            flags.with(*setting, [(*value).to_owned()])
        });
        let directory = tempfile::tempdir().expect("a directory");
        Config::load(&flags, &Environment::new([], directory.path())).expect("it is valid")
    }

    #[test]
    fn file_has_the_flags_without_secrets_and_is_read_again() {
        let config = config(&[
            (Setting::SOURCE_URL, "postgres://owner:s3cret@db:6432/shop?sslmode=require"),
            (Setting::SOURCE_SLOT, "shop"),
            (Setting::KAFKA_BOOTSTRAP_SERVERS, "kafka:9092"),
            (Setting::KAFKA_CREATE_TOPICS, "6:3"),
            (Setting::KAFKA_PROPERTIES, "sasl.password=s3cret"),
            (Setting::KAFKA_PROPERTIES, "linger.ms=5"),
            (Setting::RECORD_TOPIC, "its.{aggregate_type|kebab}-{event_type}"),
        ]);
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("walpost.toml");
        let said = write(&config, Some("it's me"), &path).expect("it is written");
        assert!(said.ends_with("written, without secrets\n"), "{said}");
        let written = std::fs::read_to_string(&path).expect("a file");
        assert!(!written.contains("s3cret"), "{written}");
        let said = write(&config, None, &path).expect("no error");
        assert!(said.contains("left as it is"), "{said}");
        let environment = Environment::new([], directory.path());
        let read = Config::load(&Flags::default(), &environment).expect(&written);
        let url = read.source.url.expect("a source");
        assert_eq!(
            url.expose_secret(),
            "host='db' port='6432' dbname='shop' sslmode='require' user='it\\'s me'"
        );
        assert_eq!(read.source.slot, "shop");
        assert_eq!(read.kafka.bootstrap_servers, "kafka:9092");
        assert_eq!(read.kafka.create_topics, Some((6, 3)));
        assert_eq!(read.kafka.properties.value("linger.ms"), Some("5"));
        assert_eq!(read.record.topics_allowed, ["its.*-*"]);
    }
}
