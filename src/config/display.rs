//! The configuration as it is displayed: every effective value with its origin, without secrets.

use std::collections::BTreeMap;

use super::kafka_properties::canonical;
use super::layer::{Flags, Layer, Raw};
use super::setting::Kind;
use super::{Origin, Schema, Setting, redact, units};
use crate::outbox::TableName;

/// One effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Displayed {
    /// Key in the file, dotted.
    pub key: String,
    /// The value; `None` if there is neither a given one nor a default.
    pub value: Option<DisplayValue>,
    /// The source of the value.
    pub origin: Origin,
}

/// A value to display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DisplayValue {
    /// One text.
    Text(String),
    /// Several.
    List(Vec<String>),
}

/// Every value, in the order of [`Schema::settings`]. They are already validated.
pub(super) fn display(schema: &Schema, values: &Layer) -> Vec<Displayed> {
    let mut rows = Vec::new();
    for setting in schema.settings() {
        let (value, origin) = match values.get(&setting).map(|it| (&it.raw, &it.origin)) {
            Some((Raw::Properties(pairs), _)) => {
                rows.extend(properties(setting, pairs));
                continue;
            }
            None if setting.kind() == Kind::Properties => continue,
            None => (None, Origin::Default),
            Some((Raw::Text(value), origin)) => {
                (Some(DisplayValue::Text(text(setting, value))), origin.clone())
            }
            Some((Raw::List(items), origin)) => {
                let items = items.iter().map(|item| text(setting, item)).collect();
                (Some(DisplayValue::List(items)), origin.clone())
            }
        };
        rows.push(Displayed { key: setting.key().to_owned(), value, origin });
    }
    rows
}

fn text(setting: Setting, text: &str) -> String {
    // Of others, the login alone is secret.
    if setting.is_hidden() {
        return redact::HIDDEN.to_owned();
    }
    let usual_form = match setting.kind() {
        Kind::Conninfo => Some(redact::conninfo(text)),
        Kind::Bytes => units::parse_bytes(text).map(units::show_bytes).ok(),
        Kind::Duration => units::parse_duration(text).map(units::show_duration).ok(),
        Kind::Tables => text.parse().map(|table: TableName| table.to_string()).ok(),
        Kind::Number => text.parse().map(|number: u64| number.to_string()).ok(),
        Kind::Text | Kind::Boolean | Kind::List | Kind::Properties => None,
    };
    redact::logins(usual_form.as_deref().unwrap_or(text))
}

/// One row per name, in the order of names.
fn properties(
    setting: Setting,
    pairs: &[(String, String, Origin)],
) -> impl Iterator<Item = Displayed> {
    let rows = pairs.iter().map(|(name, value, origin)| {
        if setting == Setting::KAFKA_PROPERTIES {
            (canonical(name), (redact::property(name, value), origin.clone()))
        } else {
            (name.as_str(), (redact::logins(value), origin.clone()))
        }
    });
    // Of two values with the same name, the last one wins.
    let rows: BTreeMap<_, _> = rows.collect();
    rows.into_iter().map(move |(name, (value, origin))| Displayed {
        key: format!("{}.{name:?}", setting.key()),
        value: Some(DisplayValue::Text(value)),
        origin,
    })
}

impl Flags {
    /// The flags and their values as words for a shell, for a command that is shown to the user: without secrets.
    pub(crate) fn words(&self) -> Vec<(&'static str, String)> {
        let mut words = Vec::new();
        if let Some(path) = &self.config {
            words.push(("--config", quoted(&path.display().to_string())));
        }
        for (setting, texts) in &self.values {
            for given in texts {
                let name = setting.flag().unwrap_or_default();
                let shown = match given.split_once('=') {
                    Some((key, value)) if *setting == Setting::KAFKA_PROPERTIES => {
                        format!("{key}={}", redact::property(key.trim(), value))
                    }
                    _ if setting.kind() == Kind::Conninfo => redact::conninfo(given),
                    _ => text(*setting, given),
                };
                words.push((name, quoted(&shown)));
            }
        }
        words
    }
}

/// The text as one word of a POSIX shell.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_shown_as_they_were_given_and_without_secrets() {
        let text = |text: &str| [text.to_owned()];
        let flags = Flags::new(Some("/etc/a b.toml".into()))
            .with(Setting::SOURCE_URL, text("postgres://u:secret@h/d"))
            .with(Setting::KAFKA_BOOTSTRAP_SERVERS, text("a:1,b:2"))
            .with(Setting::KAFKA_PROPERTIES, ["sasl.password=secret".to_owned()])
            .with(Setting::KAFKA_PROPERTIES, ["linger.ms=5".to_owned()])
            .with(Setting::RECORD_TOPIC, text("it's {aggregate_type}"));
        let words = flags.words().into_iter().map(|(flag, value)| format!("{flag} {value}"));
        let words = words.collect::<Vec<_>>().join(" ");
        let start = "--config '/etc/a b.toml' --source 'postgres://u:[hidden]@h/d' ";
        assert!(words.starts_with(start), "{words}");
        assert!(words.contains("--bootstrap-servers a:1,b:2"), "{words}");
        assert!(words.contains("-X 'sasl.password=[hidden]' -X linger.ms=5"), "{words}");
        assert!(words.contains(r"--topic 'it'\''s {aggregate_type}'"), "{words}");
        assert!(!words.contains("secret"), "{words}");
        assert_eq!(Flags::default().words(), []);
    }
}
