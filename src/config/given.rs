//! What one place (the flags, the environment, the file) gives for each setting:
//! texts as they were written, each with its origin, before anything is checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::origin::Origin;
use super::setting::Setting;

/// A value as it was written.
#[derive(Clone)]
pub(crate) enum Raw {
    Text(String),
    List(Vec<String>),
    /// Names and values, each with where it stands.
    Properties(Vec<(String, String, Origin)>),
}

/// A value as it was written, and where.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) raw: Raw,
    pub(crate) origin: Origin,
}

/// What one place gives.
pub(crate) type Layer = BTreeMap<Setting, Given>;

/// What the command line gives: a plain carrier between the arguments and
/// [`Config::load`](super::Config::load).
#[derive(Clone, Default)]
pub struct Flags {
    pub(crate) config: Option<PathBuf>,
    values: BTreeMap<Setting, Vec<String>>,
}

impl Flags {
    /// No flag but `--config FILE`, if that.
    pub fn new(config: Option<PathBuf>) -> Self {
        Self { config, values: BTreeMap::new() }
    }

    /// Adds a flag's value; one that may be repeated keeps them all.
    #[must_use]
    pub fn with(mut self, setting: Setting, values: impl IntoIterator<Item = String>) -> Self {
        let mut values = values.into_iter().peekable();
        if values.peek().is_some() {
            self.values.entry(setting).or_default().extend(values);
        }
        self
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = (Setting, &'static str, &[String])> {
        self.values.iter().map(|(setting, values)| {
            (*setting, setting.flag().unwrap_or("command line"), values.as_slice())
        })
    }
}

/// Values may be secrets.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Splits at commas that stand outside double quotes, as in
/// `public.outbox,"Odd, name".outbox`.
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
    fn a_comma_inside_quotes_does_not_part_names() {
        assert_eq!(
            split_outside_quotes(r#"a.b , "Odd, na""me"."x",c"#),
            ["a.b", r#""Odd, na""me"."x""#, "c"]
        );
        assert_eq!(split_outside_quotes(""), [""]);
    }
}
