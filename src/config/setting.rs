//! A setting: one row for each configuration key, from which flag, variable, key in the file, default,
//! `walpost config`, `--help` and the reference page come.

use std::cmp::Ordering;
use std::fmt;

/// How a setting's value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string.
    Text,
    /// A PostgreSQL connection string.
    Conninfo,
    /// A boolean, or a string that holds one.
    Boolean,
    /// An integer, or a string that holds one.
    Number,
    /// A number of bytes: an integer, or a string with a unit.
    Bytes,
    /// A string with a unit of time.
    Duration,
    /// One table name or several.
    Tables,
    /// An array of strings.
    List,
    /// A table of names and values.
    Properties,
}

/// What is declared of a setting.
pub(crate) struct Row {
    key: &'static str,
    kind: Kind,
    help: &'static str,
    details: &'static str,
    flag: Option<(&'static str, &'static str)>,
    has_variable: bool,
    ambient: Option<&'static str>,
    default: Option<&'static str>,
    is_secret: bool,
    is_hidden: bool,
    check: fn(&str) -> Result<(), String>,
}

/// A setting that can only be set in the file and has no default. `help` is shown by `--help` and
/// starts the entry on the reference page.
pub(crate) const fn row(key: &'static str, kind: Kind, help: &'static str) -> Row {
    Row {
        key,
        kind,
        help,
        details: "",
        flag: None,
        has_variable: false,
        ambient: None,
        default: None,
        is_secret: false,
        is_hidden: false,
        check: |_| Ok(()),
    }
}

impl Row {
    /// Text that follows `help` on the reference page.
    pub(crate) const fn details(self, details: &'static str) -> Self {
        Self { details, ..self }
    }

    /// A flag, with the name of its value in `--help`, and a variable named after the key.
    pub(crate) const fn flag(self, flag: &'static str, value: &'static str) -> Self {
        Self { flag: Some((flag, value)), has_variable: true, ..self }
    }

    /// A variable named after the key.
    pub(crate) const fn variable(self) -> Self {
        Self { has_variable: true, ..self }
    }

    /// A standard variable, used if nothing else sets the value.
    pub(crate) const fn ambient(self, variable: &'static str) -> Self {
        Self { ambient: Some(variable), ..self }
    }

    /// The default, written as in a variable. An empty one is an empty list.
    pub(crate) const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// A file that holds the value must not be readable by everyone.
    pub(crate) const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }

    /// A secret of which no part is shown.
    #[allow(dead_code, reason = "Kafka has none")]
    pub(crate) const fn hidden(self) -> Self {
        Self { is_secret: true, is_hidden: true, ..self }
    }

    /// What tells why a text is invalid, for a setting of a destination: it is asked while the
    /// configuration is read. Other settings are parsed then.
    #[allow(dead_code, reason = "Kafka's are parsed then")]
    pub(crate) const fn valid_if(self, check: fn(&str) -> Result<(), String>) -> Self {
        Self { check, ..self }
    }
}

/// Declares settings, and the list of all of them: as constants of the module, or of `Setting`.
macro_rules! declare_settings {
    ($(#[$doc:meta])* impl $list:ident: $($name:ident = $row:expr;)*) => {
        #[allow(missing_docs, reason = "each is named after its key: see `Setting::key`")]
        impl $crate::config::Setting {
            $(pub const $name: Self = {
                const ROW: &$crate::config::Row = &$row;
                Self::new(ROW)
            };)*
            $(#[$doc])*
            pub(crate) const $list: &[Self] = &[$(Self::$name),*];
        }
    };
    ($list:ident: $($name:ident = $row:expr;)*) => {
        $(const $name: $crate::config::Setting = {
            const ROW: &$crate::config::Row = &$row;
            $crate::config::Setting::new(ROW)
        };)*
        const $list: &[$crate::config::Setting] = &[$($name),*];
    };
}
pub(crate) use declare_settings;

/// A configuration setting.
#[derive(Clone, Copy)]
pub struct Setting(&'static Row);

impl Setting {
    pub(crate) const fn new(row: &'static Row) -> Self {
        Self(row)
    }

    /// The key in the file, dotted: `source.slot`.
    pub const fn key(self) -> &'static str {
        self.0.key
    }

    /// The table of the file that it is in: `source`.
    pub fn table(self) -> &'static str {
        self.key().split('.').next().unwrap_or_default()
    }

    /// The flag, with its dashes.
    pub fn flag(self) -> Option<&'static str> {
        self.0.flag.map(|(flag, _)| flag)
    }

    /// The name of the flag's value in `--help`.
    pub fn value_name(self) -> Option<&'static str> {
        self.0.flag.map(|(_, value)| value)
    }

    /// The environment variable of its own, named after the key.
    pub fn variable(self) -> Option<String> {
        let name = || format!("WALPOST_{}", self.key().replace('.', "_").to_uppercase());
        self.0.has_variable.then(name)
    }

    /// The standard variable, used if nothing else sets the value.
    pub const fn ambient(self) -> Option<&'static str> {
        self.0.ambient
    }

    /// The default, written as in a variable.
    pub const fn default(self) -> Option<&'static str> {
        self.0.default
    }

    /// The setting's description for `--help`.
    pub const fn help(self) -> &'static str {
        self.0.help
    }

    /// Additional text for the reference page; may be empty.
    pub const fn details(self) -> &'static str {
        self.0.details
    }

    /// Whether its flag can be repeated.
    pub fn is_repeatable(self) -> bool {
        matches!(self.kind(), Kind::Tables | Kind::List | Kind::Properties)
    }

    pub(crate) const fn kind(self) -> Kind {
        self.0.kind
    }

    pub(crate) const fn is_secret(self) -> bool {
        self.0.is_secret
    }

    pub(crate) const fn is_hidden(self) -> bool {
        self.0.is_hidden
    }

    /// Why the value is invalid, as far as it was declared.
    pub(super) fn check(self, value: &str) -> Result<(), String> {
        (self.0.check)(value)
    }
}

/// No two settings have the same key.
impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Setting {}

impl Ord for Setting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl PartialOrd for Setting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The setting's key.
impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// The name among `known` that is most similar to `wrong`.
///
/// The last part of a dotted name counts as the name itself, so that `slot`
/// finds `source.slot`.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    // As other programs call them.
    let wrong = wrong.replace("brokers", "bootstrap_servers");
    let wrong = wrong.replace("BROKERS", "BOOTSTRAP_SERVERS");
    let wrong = wrong.as_str();
    let wrong_last = last(wrong);
    if let Some(same) = known.clone().find(|name| last(name) == wrong_last) {
        return Some(same);
    }
    let mut longer = known.clone().filter(|name| name.starts_with(wrong));
    if let (Some(only), None) = (longer.next(), longer.next()) {
        return Some(only);
    }
    known
        .map(|name| {
            let whole = strsim::damerau_levenshtein(wrong, name);
            let part = strsim::damerau_levenshtein(&wrong_last, &last(name));
            // If two are equally similar, the one in the same table wins.
            (whole.min(part), whole, name)
        })
        .min()
        .filter(|(distance, ..)| *distance <= 2 || *distance * 3 <= wrong_last.len())
        .map(|(.., name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_settings_share_a_name() {
        let all = Setting::all();
        let keys: BTreeSet<_> = all.clone().map(Setting::key).collect();
        assert_eq!(keys.len(), all.clone().count());
        let variables: Vec<_> = all.clone().filter_map(Setting::variable).collect();
        assert_eq!(variables.iter().collect::<BTreeSet<_>>().len(), variables.len());
        let flags: Vec<_> = all.filter_map(Setting::flag).collect();
        assert_eq!(flags.iter().collect::<BTreeSet<_>>().len(), flags.len());
    }

    #[test]
    fn a_variable_is_named_after_its_key() {
        assert_eq!(Setting::SOURCE_SLOT.variable().as_deref(), Some("WALPOST_SOURCE_SLOT"));
        assert_eq!(Setting::RECORD_KEY.variable(), None);
    }

    #[test]
    fn every_setting_is_in_a_titled_table_and_described_in_sentences() {
        for setting in Setting::all() {
            assert!(Setting::tables().any(|(name, _)| name == setting.table()), "{setting:?}");
            assert!(setting.help().ends_with('.'), "{setting:?}");
            assert!(setting.details().is_empty() || setting.details().ends_with('.'));
        }
    }

    #[test]
    fn a_misspelt_name_yields_the_nearest_known_one() {
        let keys = Setting::all().map(Setting::key);
        assert_eq!(nearest("source.slto", keys.clone()), Some("source.slot"));
        assert_eq!(nearest("slot", keys.clone()), Some("source.slot"));
        assert_eq!(
            nearest("kafka.bootstrap.servers", keys.clone()),
            Some("kafka.bootstrap_servers")
        );
        assert_eq!(nearest("colour", keys), None);
    }
}
