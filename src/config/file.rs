//! The configuration file: TOML to [`Layer`], each value with its line.
//!
//! Unknown keys and wrong types are errors here; values are checked later.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::error::ConfigError;
use super::layer::{Layer, LayerValue, Raw};
use super::origin::Origin;
use super::schema::Schema;
use super::setting::{Kind, Setting, nearest};

/// The values in the file at `path`, whose content is `text`.
pub(crate) fn parse(schema: &Schema, path: &Path, text: &str) -> Result<Layer, ConfigError> {
    let reader = Reader { schema, path, text };
    let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        origin: reader.at(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let mut layer = Layer::new();
    reader.table("", document.get_ref(), &mut layer)?;
    Ok(layer)
}

struct Reader<'a> {
    schema: &'a Schema,
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn at(&self, byte: usize) -> Origin {
        let before = self.text.as_bytes().get(..byte).unwrap_or_default();
        // Counting bytes is fast enough for a configuration file.
        #[allow(clippy::naive_bytecount)]
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Origin::File { path: self.path.to_owned(), line }
    }

    /// Whether there are settings below this key.
    fn is_table(&self, key: &str) -> bool {
        self.schema.settings().any(|setting| {
            setting.key().strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        })
    }

    fn table(
        &self,
        prefix: &str,
        table: &DeTable<'_>,
        layer: &mut Layer,
    ) -> Result<(), ConfigError> {
        // In the order of the file, so that the first error is reported.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let key = format!("{prefix}{}", name.get_ref());
            let origin = self.at(name.span().start);
            if let Some(setting) = self.schema.of_key(&key) {
                let raw = self.value(setting, &origin, value)?;
                layer.insert(setting, LayerValue { raw, origin });
            } else if self.is_table(&key) {
                let DeValue::Table(inner) = value.get_ref() else {
                    return Err(wrong_type(origin, &key, "a table", value));
                };
                self.table(&format!("{key}."), inner, layer)?;
            } else {
                if let Some(reason) = self.schema.not_built(&key) {
                    return Err(ConfigError::Invalid { origin, key, reason });
                }
                let known = self.schema.settings().map(Setting::key);
                let nearest = nearest(&key, known).map(str::to_owned);
                return Err(ConfigError::UnknownKey { origin, key, nearest });
            }
        }
        Ok(())
    }

    fn value(
        &self,
        setting: Setting,
        origin: &Origin,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Raw, ConfigError> {
        let wrong = |expected| wrong_type(origin.clone(), setting.key(), expected, value);
        match (setting.kind(), value.get_ref()) {
            (
                Kind::Text
                | Kind::Conninfo
                | Kind::Duration
                | Kind::Boolean
                | Kind::Number
                | Kind::Bytes,
                DeValue::String(text),
            ) => Ok(Raw::Text(text.to_string())),
            (Kind::Text | Kind::Conninfo | Kind::Duration, _) => Err(wrong("a string")),
            (Kind::Boolean, DeValue::Boolean(truth)) => Ok(Raw::Text(truth.to_string())),
            (Kind::Boolean, _) => Err(wrong("true or false")),
            (Kind::Number | Kind::Bytes, DeValue::Integer(number)) => {
                integer(number).map(Raw::Text).ok_or_else(|| wrong("a smaller integer"))
            }
            (Kind::Number, _) => Err(wrong("an integer")),
            (Kind::Bytes, _) => Err(wrong("an integer, or a string with a unit")),
            (Kind::Tables, DeValue::String(name)) => Ok(Raw::List(vec![name.to_string()])),
            (Kind::Tables | Kind::List, DeValue::Array(items)) => {
                let texts = items.iter().map(|item| {
                    let place = self.at(item.span().start);
                    let text = item.get_ref().as_str().map(str::to_owned);
                    text.ok_or_else(|| wrong_type(place, setting.key(), "strings", item))
                });
                texts.collect::<Result<_, _>>().map(Raw::List)
            }
            (Kind::Tables, _) => Err(wrong("a string or an array of strings")),
            (Kind::List, _) => Err(wrong("an array of strings")),
            (Kind::Properties, DeValue::Table(table)) => {
                let mut found = Vec::new();
                self.properties(setting, "", table, &mut found)?;
                Ok(Raw::Properties(found))
            }
            (Kind::Properties, _) => Err(wrong("a table")),
        }
    }

    /// The properties of a table. In TOML, `linger.ms = 5` without quotes is a nested table; here
    /// it means the same as `"linger.ms" = 5`.
    fn properties(
        &self,
        setting: Setting,
        prefix: &str,
        table: &DeTable<'_>,
        found: &mut Vec<(String, String, Origin)>,
    ) -> Result<(), ConfigError> {
        for (name, value) in table {
            let property = format!("{prefix}{}", name.get_ref());
            let origin = self.at(name.span().start);
            let wrong = |expected| {
                let key = format!("{}.{property}", setting.key());
                wrong_type(origin.clone(), &key, expected, value)
            };
            let text = match value.get_ref() {
                DeValue::Table(inner) => {
                    self.properties(setting, &format!("{property}."), inner, found)?;
                    continue;
                }
                DeValue::String(text) => text.to_string(),
                DeValue::Boolean(truth) => truth.to_string(),
                DeValue::Integer(number) => {
                    integer(number).ok_or_else(|| wrong("a smaller integer"))?
                }
                _ => return Err(wrong("a string, an integer or a boolean")),
            };
            found.push((property, text, origin));
        }
        Ok(())
    }
}

/// The number in decimal.
fn integer(number: &DeInteger<'_>) -> Option<String> {
    i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
}

fn wrong_type(
    origin: Origin,
    key: &str,
    expected: &'static str,
    found: &Spanned<DeValue<'_>>,
) -> ConfigError {
    let found = match found.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    };
    ConfigError::WrongType { origin, key: key.to_owned(), expected, found }
}
