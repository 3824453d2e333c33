//! The values of one layer (flags, variables, the file, the defaults) for each setting: as written,
//! each with its origin, before validation.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::error::ConfigError;
use super::origin::Origin;
use super::schema::Schema;
use super::setting::{Kind, Setting};

/// A value as written.
#[derive(Clone)]
pub(crate) enum Raw {
    Text(String),
    List(Vec<String>),
    /// Names and values, each with its origin.
    Properties(Vec<(String, String, Origin)>),
}

/// A value as written, and its origin.
#[derive(Clone)]
pub(crate) struct LayerValue {
    pub(crate) raw: Raw,
    pub(crate) origin: Origin,
}

impl LayerValue {
    /// A value from a single text, such as a variable.
    pub(crate) fn of_text(
        setting: Setting,
        text: &str,
        origin: Origin,
    ) -> Result<Self, ConfigError> {
        let raw = match setting.kind() {
            // An empty list is a value too: an outbox without a table.
            Kind::Tables if text.trim().is_empty() => Raw::List(Vec::new()),
            Kind::Tables | Kind::List => Raw::List(split_outside_quotes(text)),
            Kind::Properties => {
                let lines = text.lines().map(str::trim);
                let pairs = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
                properties(setting, pairs, &origin)?
            }
            _ => Raw::Text(text.to_owned()),
        };
        Ok(Self { raw, origin })
    }

    /// A value from a flag's texts; `None` if there are none.
    fn of_flag(setting: Setting, texts: &[String]) -> Result<Option<Self>, ConfigError> {
        let origin = Origin::Flag(setting.flag().unwrap_or("command line"));
        let raw = match (setting.kind(), texts) {
            (_, []) => return Ok(None),
            (Kind::Tables | Kind::List, _) => Raw::List(texts.to_vec()),
            (Kind::Properties, _) => {
                properties(setting, texts.iter().map(String::as_str), &origin)?
            }
            (_, [.., last]) => Raw::Text(last.clone()),
        };
        Ok(Some(Self { raw, origin }))
    }
}

/// The values of one layer.
pub(crate) type Layer = BTreeMap<Setting, LayerValue>;

/// The lowest layer.
pub(crate) fn defaults(schema: &Schema) -> Result<Layer, ConfigError> {
    let mut layer = Layer::new();
    for setting in schema.settings() {
        let given = match setting.default() {
            None => continue,
            Some("") => LayerValue { raw: Raw::List(Vec::new()), origin: Origin::Default },
            Some(text) => LayerValue::of_text(setting, text, Origin::Default)?,
        };
        layer.insert(setting, given);
    }
    Ok(layer)
}

/// Merges layers, highest first: each setting comes from the highest layer that sets it. Properties
/// of all layers are combined, the highest last.
pub(crate) fn merge<const N: usize>(layers: [Layer; N]) -> Layer {
    let mut merged = Layer::new();
    for (setting, given) in layers.into_iter().rev().flatten() {
        match (merged.get_mut(&setting), given) {
            (
                Some(LayerValue { raw: Raw::Properties(all), .. }),
                LayerValue { raw: Raw::Properties(more), .. },
            ) => all.extend(more),
            (_, given) => drop(merged.insert(setting, given)),
        }
    }
    merged
}

/// The command line's values: carries them from the arguments to
/// [`Config::load`](super::Config::load).
#[derive(Clone, Default)]
pub struct Flags {
    pub(crate) config: Option<PathBuf>,
    /// The values, in the order in which they were added.
    pub(super) values: Vec<(Setting, Vec<String>)>,
}

impl Flags {
    /// No flags except, optionally, `--config FILE`.
    pub fn new(config: Option<PathBuf>) -> Self {
        Self { config, values: Vec::new() }
    }

    /// Adds a flag's values; a repeatable flag keeps all of them.
    #[must_use]
    pub fn with(mut self, setting: Setting, values: impl IntoIterator<Item = String>) -> Self {
        match self.values.iter_mut().find(|(known, _)| *known == setting) {
            Some((_, known)) => known.extend(values),
            None => self.values.push((setting, values.into_iter().collect())),
        }
        self
    }

    /// The layer of these flags.
    pub(crate) fn layer(&self) -> Result<Layer, ConfigError> {
        let given = self.values.iter().map(|(setting, texts)| {
            Ok(LayerValue::of_flag(*setting, texts)?.map(|given| (*setting, given)))
        });
        given.filter_map(Result::transpose).collect()
    }
}

/// Values may be secrets.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.iter().map(|(setting, _)| setting)).finish()
    }
}

/// Parses `name=value` pairs; whitespace around both is removed.
fn properties<'a>(
    setting: Setting,
    pairs: impl Iterator<Item = &'a str>,
    origin: &Origin,
) -> Result<Raw, ConfigError> {
    let pairs = pairs.map(|pair| match pair.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned(), origin.clone()))
        }
        _ => Err(ConfigError::Invalid {
            origin: origin.clone(),
            key: setting.key().to_owned(),
            reason: "write a property as name=value".to_owned(),
        }),
    });
    pairs.collect::<Result<_, _>>().map(Raw::Properties)
}

/// Splits at commas outside double quotes, as in `public.outbox,"Odd, name".outbox`.
pub(crate) fn split_outside_quotes(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        quoted ^= c == '"';
        match parts.last_mut() {
            Some(part) if quoted || c != ',' => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_inside_quotes_does_not_separate_names() {
        assert_eq!(
            split_outside_quotes(r#"a.b , "Odd, na""me"."x",c"#),
            ["a.b", r#""Odd, na""me"."x""#, "c"]
        );
        assert_eq!(split_outside_quotes(""), [""]);
    }
}
