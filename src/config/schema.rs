//! What the destinations declare: their settings, and which settings have no effect with them. Those of
//! another destination are errors, so that none is ignored silently.

use super::Setting;
use super::general::{FIRST_TABLES, LAST_TABLES};

/// The destinations whose settings a program has.
#[derive(Debug)]
pub(crate) struct Schema {
    /// The values of `sink.kind`, also those that this build does not have.
    pub(crate) kinds: &'static [&'static str],
    /// What those of this build declare.
    pub(crate) declared: &'static [&'static Declared],
}

/// What a kind of destination declares.
#[derive(Debug)]
pub(crate) struct Declared {
    /// The destination's value of `sink.kind`, and its table in the file.
    pub(crate) kind: &'static str,
    /// The title of the table on the reference page.
    pub(crate) title: &'static str,
    /// The settings in that table.
    pub(crate) settings: &'static [Setting],
    /// Settings elsewhere that have an effect with it, and with no kind that does not list them.
    pub(crate) uses: &'static [Setting],
}

impl Schema {
    /// Every setting, in the order of `walpost config`, `--help` and the reference page.
    pub(crate) fn settings(&self) -> impl Iterator<Item = Setting> + Clone {
        let declared = self.declared.iter().flat_map(|one| one.settings);
        let registry = Setting::REGISTRY;
        Setting::FIRST.iter().chain(declared).chain(registry).chain(Setting::LAST).copied()
    }

    /// The tables of the file, with their titles on the reference page.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let declared = self.declared.iter().map(|one| (one.kind, one.title));
        FIRST_TABLES.into_iter().chain(declared).chain(LAST_TABLES)
    }

    /// The setting of that key.
    pub(super) fn of_key(&self, key: &str) -> Option<Setting> {
        self.settings().find(|setting| setting.key() == key)
    }

    /// Why `name`, which no setting has, is none of this build: the kind in whose table it would be.
    pub(super) fn not_built(&self, name: &str) -> Option<String> {
        let table = name.split('.').next();
        let is_known = |kind: &&&str| table == Some(**kind);
        self.kinds
            .iter()
            .find(is_known)
            .filter(|kind| !self.has(kind))
            .map(|kind| lacks(kind) + ", or remove it")
    }

    fn has(&self, kind: &str) -> bool {
        self.declared.iter().any(|one| one.kind == kind)
    }

    /// The value of `sink.kind`.
    pub(super) fn kind(&self, text: &str) -> Result<&'static str, String> {
        let Some(kind) = self.kinds.iter().find(|kind| **kind == text) else {
            let kinds = self.kinds.iter().map(|kind| format!("`{kind}`"));
            let kinds = kinds.collect::<Vec<_>>().join(", ");
            return Err(format!("`{text}` is not one of {kinds}"));
        };
        if self.has(kind) { Ok(kind) } else { Err(lacks(kind)) }
    }

    /// Whether a setting has an effect with destinations of other kinds only.
    pub(super) fn is_others(&self, setting: Setting, kind: &str) -> bool {
        let lists =
            |one: &&&Declared| one.settings.contains(&setting) || one.uses.contains(&setting);
        let mut owners = self.declared.iter().filter(lists).peekable();
        owners.peek().is_some() && owners.all(|owner| owner.kind != kind)
    }

    /// The settings of that kind.
    pub(super) fn own(&self, kind: &str) -> impl Iterator<Item = Setting> {
        let own = self.declared.iter().filter(move |one| one.kind == kind);
        own.flat_map(|one| one.settings).copied()
    }
}

fn lacks(kind: &str) -> String {
    format!(
        "this walpost was built without the feature `{kind}`: use a released program, or build it with \
         `cargo build --release --features {kind}`"
    )
}
