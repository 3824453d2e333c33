//! `walpost config`: every effective value with its origin, secrets hidden.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::config::{Config, DisplayValue, Displayed};
use crate::excerpt::is_harmless;

/// The values in columns, for reading.
pub(super) fn table(config: &Config) -> String {
    let rows = rows(config);
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (keys, values) = (width(0), width(1).min(60));
    rows.iter().fold(String::new(), |mut table, [key, value, origin]| {
        let _ = writeln!(table, "{key:<keys$}  {value:<values$}  {origin}");
        table
    })
}

/// Name, value and origin of each setting.
pub(super) fn rows(config: &Config) -> Vec<[String; 3]> {
    let row = |row: &Displayed| {
        let value = match &row.value {
            None => "-".to_owned(),
            Some(DisplayValue::Text(text)) => one_line(text.clone()),
            Some(DisplayValue::List(items)) => one_line(items.join(", ")),
        };
        [row.key.clone(), value, row.origin.to_string()]
    };
    config.display().iter().map(row).collect()
}

/// Quotes a value that would otherwise be ambiguous.
fn one_line(text: String) -> String {
    let plain = !text.is_empty() && text != "-" && text.chars().all(is_harmless);
    if plain { text } else { format!("{text:?}") }
}

/// The values as one JSON object: key → value and origin.
pub(super) fn json(config: &Config) -> String {
    let rows = config.display().iter().map(|row| {
        let value = match &row.value {
            None => Value::Null,
            Some(DisplayValue::Text(text)) => text.as_str().into(),
            Some(DisplayValue::List(items)) => items.as_slice().into(),
        };
        (row.key.clone(), json!({ "value": value, "origin": row.origin.to_string() }))
    });
    format!("{:#}\n", Value::Object(rows.collect::<Map<_, _>>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags, Setting};
    use std::path::Path;

    fn config() -> Config {
        let flags = Flags::default()
            .with(Setting::SOURCE_URL, ["postgres://u:s3cret@h/db".to_owned()])
            .with(Setting::OUTBOX_MESSAGE_PREFIX, [String::new()])
            .with(
                Setting::KAFKA_PROPERTIES,
                [
                    "sasl.password=s3cret",
                    "sasl.oauthbearer.token.endpoint.url=https://u:s3cret@idp/token",
                    "no.such.property=s3cret",
                ]
                .map(str::to_owned),
            )
            .with(Setting::RECORD_CLOUDEVENTS_SOURCE, ["https://u:s3cret@x/y".to_owned()]);
        let nowhere = tempfile::TempDir::new().unwrap();
        Config::load(
            &flags,
            &Environment::new([("WALPOST_SOURCE_SLOT", "s")], Path::new(nowhere.path())),
        )
        .unwrap()
    }

    #[test]
    fn a_value_with_bidirectional_controls_is_quoted_and_escaped() {
        assert_eq!(one_line("a\u{202e}b".to_owned()), r#""a\u{202e}b""#);
        assert_eq!(one_line("a b".to_owned()), "a b");
    }

    #[test]
    fn an_address_with_a_login_is_rejected_without_showing_it() {
        let flags = Flags::default()
            .with(Setting::KAFKA_BOOTSTRAP_SERVERS, ["SSL://u:s3cret@b:1,b:2".to_owned()]);
        let nowhere = tempfile::TempDir::new().unwrap();
        let environment = Environment::new([], Path::new(nowhere.path()));
        let error = Config::load(&flags, &environment).unwrap_err().to_string();
        assert!(error.contains("bootstrap_servers") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn both_formats_show_every_setting_with_its_origin_and_no_secret() {
        let (table, json) = (table(&config()), json(&config()));
        for text in [&table, &json] {
            assert!(!text.contains("s3cret"), "{text}");
            // The Debezium options are shown only if there are any.
            for setting in Setting::all().filter(|it| *it != Setting::DEBEZIUM) {
                assert!(text.contains(setting.key()), "{}", setting.key());
            }
        }
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["source.slot"], json!({ "value": "s", "origin": "WALPOST_SOURCE_SLOT" }));
        assert_eq!(json["source.url"]["value"], "postgres://[hidden]@h/db");
        assert_eq!(json["outbox.table"]["value"], json!(["public.outbox"]));
        assert_eq!(json["outbox.columns.id"]["value"], Value::Null);
        assert_eq!(json["outbox.message_prefix"]["value"], "");
    }
}
