//! What numbers the events of a transaction and decides which transactions have events: the outbox
//! tables, the prefixes of messages and the publication.
//!
//! An [`EventPosition`](crate::position::EventPosition) means the same event only with the same layout.
//! Whether a server's history is the one that was published does not depend on it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::outbox::TableName;
use crate::source::PublicationFingerprint;

/// The version of [`Known`]. A record of another version is compared by its digest.
const VERSION: u32 = 1;

/// What the configuration contributes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfiguredLayout {
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// The prefix of logical messages with JSON.
    pub message_prefix: Option<String>,
    /// The prefix of logical messages without.
    pub plain_message_prefix: Option<String>,
    /// The publication.
    pub publication: String,
}

impl ConfiguredLayout {
    /// The layout with this publication.
    pub fn with(&self, fingerprint: &PublicationFingerprint) -> Layout {
        let table = |table: &TableName| (table.schema.clone(), table.name.clone());
        let known = Known {
            version: VERSION,
            tables: self.tables.iter().map(table).collect(),
            message_prefix: self.message_prefix.clone(),
            plain_message_prefix: self.plain_message_prefix.clone(),
            publication: self.publication.clone(),
            catalogs: fingerprint.digest(""),
        };
        Layout { known: Some(known), digest: fingerprint.digest(&self.digested()) }
    }

    /// The text of which records without a [`Known`] have the digest: it must never be worded otherwise.
    fn digested(&self) -> String {
        let table = |table: &TableName| {
            format!("TableName {{ schema: {:?}, name: {:?} }}", table.schema, table.name)
        };
        let tables: Vec<_> = self.tables.iter().map(table).collect();
        format!(
            "[{}] {:?} {:?} {}",
            tables.join(", "),
            self.message_prefix,
            self.plain_message_prefix,
            self.publication
        )
    }
}

/// What numbers the events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// `None`: only the digest is known.
    pub(super) known: Option<Known>,
    /// All of it, as a hash; earlier versions of walpost have and know nothing else.
    pub(super) digest: String,
}

/// The parts of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    version: u32,
    tables: BTreeSet<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message_prefix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plain_message_prefix: Option<String>,
    publication: String,
    /// A hash of the catalog rows of the publication.
    catalogs: String,
}

impl Layout {
    /// The layout of a record: its parts and its digest. `None` if the record is of none.
    pub(super) fn of_record(parts: Option<serde_json::Value>, digest: String) -> Option<Self> {
        let known = parts.and_then(|parts| serde_json::from_value::<Known>(parts).ok());
        let known = known.filter(|known| known.version == VERSION);
        (known.is_some() || !digest.is_empty()).then_some(Self { known, digest })
    }

    /// The parts, for a record.
    pub(super) fn parts(&self) -> Option<serde_json::Value> {
        self.known.as_ref().map(|known| serde_json::json!(known))
    }

    /// Whether events have the same numbers in both.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.known, &other.known) {
            (Some(own), Some(other)) => own == other,
            _ => self.digest == other.digest,
        }
    }

    /// Whether the publication of that name differs for the same tables.
    pub fn has_other_publication(&self, other: &Self) -> bool {
        let (Some(own), Some(other)) = (&self.known, &other.known) else { return false };
        let is_of_same = own.publication == other.publication && own.tables == other.tables;
        is_of_same && own.catalogs != other.catalogs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured() -> ConfiguredLayout {
        let table = |name: &str| TableName { schema: "public".to_owned(), name: name.to_owned() };
        ConfiguredLayout {
            tables: vec![table("outbox"), table("b\"\u{e9}")],
            message_prefix: Some("events".to_owned()),
            plain_message_prefix: None,
            publication: "walpost".to_owned(),
        }
    }

    #[test]
    fn digest_is_the_one_that_earlier_versions_have_written() {
        let ConfiguredLayout { tables, message_prefix, plain_message_prefix, publication } =
            configured();
        let before =
            format!("{tables:?} {message_prefix:?} {plain_message_prefix:?} {publication}");
        assert_eq!(configured().digested(), before);
        let fingerprint = PublicationFingerprint::of("publication 16400 749");
        let layout = configured().with(&fingerprint);
        assert_eq!(layout.digest, fingerprint.digest(&before));
        let recorded = Layout::of_record(None, layout.digest.clone()).expect("a layout");
        assert!(recorded.is_same(&layout));
    }

    #[test]
    fn order_of_tables_and_wording_of_the_digest_do_not_count() {
        let fingerprint = PublicationFingerprint::of("publication 16400 749");
        let layout = configured().with(&fingerprint);
        let mut turned = configured();
        turned.tables.reverse();
        assert!(turned.with(&fingerprint).is_same(&layout));
        let reworded = Layout { digest: "other words".to_owned(), ..layout.clone() };
        assert!(reworded.is_same(&layout));
        for other in [
            ConfiguredLayout { tables: Vec::new(), ..configured() },
            ConfiguredLayout { message_prefix: None, ..configured() },
            ConfiguredLayout { plain_message_prefix: Some(String::new()), ..configured() },
            ConfiguredLayout { publication: String::new(), ..configured() },
        ] {
            let other = other.with(&fingerprint);
            assert!(!other.is_same(&layout) && !other.has_other_publication(&layout), "{other:?}");
        }
        let altered = configured().with(&PublicationFingerprint::of("publication 16400 750"));
        assert!(!altered.is_same(&layout) && altered.has_other_publication(&layout));
        assert!(!turned.with(&fingerprint).has_other_publication(&layout));
    }

    #[test]
    fn parts_of_another_version_are_compared_by_the_digest() {
        let layout = configured().with(&PublicationFingerprint::default());
        let parts = serde_json::json!({ "version": 2, "anything": true });
        let newer = Layout::of_record(Some(parts.clone()), layout.digest.clone());
        assert!(newer.is_some_and(|newer| newer.is_same(&layout)));
        let other = Layout::of_record(Some(parts), "other".to_owned());
        assert!(other.is_some_and(|other| !other.is_same(&layout)));
        assert_eq!(Layout::of_record(None, String::new()), None);
    }
}
