//! The record in the state topic: its key and its value, in JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::delivered::{Bookmark, Delivered, text};
use super::layout::Layout;
use crate::lsn::Lsn;
use crate::outbox::RowId;
use crate::pgoutput::PgTimestamp;
use crate::position::{Checkpoint, EventPosition};
use crate::source::LastTransaction;

/// The version of the format that this walpost writes, and the newest that it reads.
const VERSION: u32 = 1;

/// How many positions [`State::earlier`] keeps.
const EARLIER_MAX: usize = 240;

/// Whose position it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateKey {
    /// `delivery.id`: tells a copy of the server from the original.
    pub delivery_id: String,
    /// The system identifier of the server.
    pub system_identifier: String,
    /// The oid of the database.
    pub database_oid: u32,
    /// The replication slot.
    pub slot: String,
}

impl StateKey {
    /// The record's key.
    pub(crate) fn record_key(&self) -> String {
        serde_json::json!(["state", self.names()]).to_string()
    }

    /// The key that [`StateKey::record_key`] has written, if it is one.
    pub(crate) fn of_record_key(json: &[u8]) -> Option<Self> {
        let (kind, names): (String, (String, String, u32, String)) =
            serde_json::from_slice(json).ok()?;
        let (delivery_id, system_identifier, database_oid, slot) = names;
        (kind == "state").then_some(Self { delivery_id, system_identifier, database_oid, slot })
    }

    /// The key of the record that an opening writes, and must read back.
    pub(crate) fn claim_key(&self) -> String {
        serde_json::json!(["claim", self.names()]).to_string()
    }

    /// The `transactional.id` of its writer.
    pub fn transactional_id(&self) -> String {
        let Self { delivery_id, system_identifier, database_oid, slot } = self;
        format!("{delivery_id}-{system_identifier}-{database_oid}-{slot}-state")
    }

    /// Whose it is, as a list.
    pub(crate) fn names(&self) -> serde_json::Value {
        let Self { delivery_id, system_identifier, database_oid, slot } = self;
        serde_json::json!([delivery_id, system_identifier, database_oid, slot])
    }
}

/// walpost's position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Rises with each opening of the store that writes.
    pub generation: u64,
    /// The timeline of the server's WAL.
    pub timeline: u32,
    /// The id of the Kafka cluster that has acknowledged, if the brokers report one.
    pub cluster: Option<String>,
    /// The brokers have acknowledged every event that committed before this LSN.
    pub acked_upto: Lsn,
    /// The last of these transactions that has events, if this walpost has seen one.
    pub last: Option<LastTransaction>,
    /// The positions that were written before [`State::acked_upto`] and are behind the last transaction:
    /// PostgreSQL may have forgotten later ones in a crash. In order, the newest ones.
    pub earlier: Vec<Lsn>,
    /// Each position from this one on that was ever confirmed is in [`State::earlier`], as long as that
    /// has place; `None` in a record of an earlier version.
    pub known_from: Option<Lsn>,
    /// The transaction that is published in part in exactly-once mode, if there is one.
    pub partial: Option<Partial>,
    /// Events that are not to be published, by `walpost skip`: those that are still to come, and the
    /// newest of those before. In order.
    pub skipped: Vec<EventPosition>,
    /// The rows of those of them that were read, if they are known by an id; `None`: it has none.
    pub skipped_rows: BTreeMap<EventPosition, Option<RowId>>,
    /// Which rows are delivered, once that is known.
    pub delivered: Option<Delivered>,
    /// Set while rows of the tables are published that the slot does not send.
    pub rows: Option<UnfinishedRows>,
    /// Events of such rows may have positions before this one.
    pub rows_upto: Lsn,
    /// The start time of the postmaster whose history `walpost run` has compared with this state, in
    /// microseconds since 1970; 0: none.
    pub server_started: i64,
    /// Whether an event may have been skipped by a policy.
    pub skips: bool,
    /// What numbers the events; `None` if an operator has accepted the position since.
    pub layout: Option<Layout>,
    /// The layout with which the last run began. [`State::layout`] is that of the position.
    pub begun: Option<Layout>,
    /// How the last run ended; `None`: it was killed, or could not write that.
    pub ending: Option<Ending>,
    /// When it was written, in milliseconds since 1970.
    pub at_ms: u64,
}

/// How a run has ended, as far as that concerns the publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// In order: the publication was the one of the layout up to then.
    Stopped,
    /// The publication was changed, or hid rows.
    Changed,
}

/// A transaction that is published in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    /// The transaction's first event that is not published.
    pub next: EventPosition,
    /// The transaction's id, the lower 32 bits, and its commit time; `None` in a record of an
    /// earlier version.
    pub identity: Option<(u32, PgTimestamp)>,
}

/// Rows are published that the slot does not send: until they are, the slot must not be read.
/// Meanwhile [`State::acked_upto`] is the position of the rows, which is before the slot's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedRows {
    /// When that began, in milliseconds since 1970.
    pub since_ms: u64,
    /// Events may have positions before this one.
    #[serde(with = "text")]
    pub next: Lsn,
    /// The position from which the slot is to be read afterwards.
    #[serde(with = "text")]
    pub then: Lsn,
    /// Which rows.
    pub chosen: ChosenRows,
}

/// Which rows are published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChosenRows {
    /// All from before the slot, of which none was published before.
    Existing,
    /// All that are missing in Kafka.
    All,
    /// The rows that were written since that time.
    Since(String),
    /// The rows of transactions that a bookmark does not prove to be delivered.
    Bookmark(Bookmark),
}

/// A record that this walpost cannot read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableState {
    /// A record of a newer walpost.
    #[error("its format has version {0}, and this walpost reads {VERSION}: upgrade walpost")]
    Newer(u32),
    /// A record that is not walpost's.
    #[error("it is not a record of walpost's: {0}")]
    Invalid(String),
}

#[derive(Serialize, Deserialize)]
struct Value {
    version: u32,
    generation: u64,
    timeline: u32,
    kafka_cluster_id: Option<String>,
    acked_upto: String,
    last: Option<LastValue>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    known_from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partial: Option<PartialValue>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<String>,
    /// The skipped rows by position.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    skipped_rows: BTreeMap<String, Option<RowId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delivered: Option<Delivered>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rows: Option<UnfinishedRows>,
    #[serde(default, with = "text", skip_serializing_if = "is_zero")]
    rows_upto: Lsn,
    #[serde(default)]
    server_started: i64,
    #[serde(default)]
    skips: bool,
    layout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layout_parts: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ending: Option<Ending>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    begun: Option<serde_json::Value>,
    at_ms: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(lsn: &Lsn) -> bool {
    lsn.is_zero()
}

#[derive(Serialize, Deserialize)]
struct LastValue {
    commit_lsn: String,
    end_lsn: String,
    xid: u32,
    /// Microseconds since 2000, as PostgreSQL sends it.
    commit_time: i64,
}

#[derive(Serialize, Deserialize)]
struct PartialValue {
    commit_lsn: String,
    /// How many of its events are published.
    events: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    xid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit_time: Option<i64>,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl State {
    /// The rows of skipped events; `None` if one may be unknown.
    pub(crate) fn rows_of_skipped(&self) -> Option<impl Iterator<Item = &RowId>> {
        let is_known = |position: &EventPosition| {
            // What is still to come is not delivered either.
            position.commit_lsn >= self.acked_upto || self.skipped_rows.contains_key(position)
        };
        let all_known = !self.skips && self.skipped.iter().all(is_known);
        all_known.then(|| self.skipped_rows.values().flatten())
    }

    /// A position that an operator accepts: nothing is known of what was published before it.
    pub fn accepted(timeline: u32, acked_upto: Lsn) -> Self {
        Self {
            generation: 0,
            timeline,
            cluster: None,
            acked_upto,
            last: None,
            earlier: Vec::new(),
            // A crash may take the slot back to one from before.
            known_from: Some(acked_upto),
            partial: None,
            skipped: Vec::new(),
            skipped_rows: BTreeMap::new(),
            delivered: None,
            rows: None,
            rows_upto: Lsn::ZERO,
            server_started: 0,
            skips: false,
            layout: None,
            begun: None,
            ending: None,
            at_ms: 0,
        }
    }

    /// The same for a destination that ends with the event at `reached`: only what commits before that
    /// one is acknowledged.
    #[cfg_attr(
        not(feature = "destinations"),
        allow(dead_code, reason = "a build may have no such destination")
    )]
    pub(crate) fn set_back(self, reached: EventPosition) -> Self {
        let acked_upto = self.acked_upto.min(reached.commit_lsn);
        let last = self.last.filter(|last| last.commit_lsn < acked_upto);
        let mut earlier = self.earlier;
        earlier.retain(|position| *position < acked_upto);
        let mut delivered = self.delivered;
        if let Some(delivered) = &mut delivered {
            delivered.bookmarks.retain(|bookmark| bookmark.lsn <= acked_upto);
        }
        Self { acked_upto, last, earlier, delivered, ..self }
    }

    /// The state of a position that has moved, behind this last transaction.
    #[must_use]
    pub fn moved(&self, acked_upto: Lsn, last: Option<LastTransaction>) -> Self {
        let mut earlier = self.earlier.clone();
        if acked_upto > self.acked_upto {
            earlier.push(self.acked_upto);
        }
        earlier.retain(|position| last.is_none_or(|last| *position > last.commit_lsn));
        earlier.drain(..earlier.len().saturating_sub(EARLIER_MAX));
        // What is written from here on is complete.
        let known_from = self.known_from.or(Some(acked_upto));
        Self { acked_upto, last, earlier, known_from, ..self.clone() }
    }

    /// Whether a slot with this position, which is behind the last transaction and before
    /// [`State::acked_upto`], has one that walpost has never confirmed.
    pub fn is_unknown(&self, slot: Lsn) -> bool {
        let is_between =
            slot < self.acked_upto && self.last.is_none_or(|last| last.commit_lsn < slot);
        let is_judged = self.known_from.is_some_and(|known_from| known_from <= slot);
        let is_its_end = self.last.is_some_and(|last| last.end_lsn == slot);
        is_between && is_judged && !is_its_end && !self.earlier.contains(&slot)
    }

    /// Takes the position of a slot that was accepted for one that was confirmed.
    pub fn learn(&mut self, slot: Lsn) {
        if self.is_unknown(slot) {
            let at = self.earlier.partition_point(|position| *position < slot);
            self.earlier.insert(at, slot);
        }
    }

    /// Whether rows may have been committed without the publication, or with one that hides them, while a
    /// run worked with it, where `now` is the layout.
    pub fn may_lack_rows(&self, now: &Layout) -> bool {
        if let Some(ending) = self.ending {
            return ending == Ending::Changed;
        }
        self.begun.as_ref().is_some_and(|known| known.has_other_publication(now))
    }

    /// The position behind the committed events.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { upto: self.acked_upto, partial: self.partial.map(|partial| partial.next) }
    }

    /// The record's value.
    pub(crate) fn to_json(&self) -> String {
        let last = self.last.map(|last| LastValue {
            commit_lsn: last.commit_lsn.to_string(),
            end_lsn: last.end_lsn.to_string(),
            xid: last.xid,
            commit_time: last.commit_time.micros(),
        });
        serde_json::json!(Value {
            version: VERSION,
            generation: self.generation,
            timeline: self.timeline,
            kafka_cluster_id: self.cluster.clone(),
            acked_upto: self.acked_upto.to_string(),
            last,
            earlier: self.earlier.iter().map(ToString::to_string).collect(),
            known_from: self.known_from.map(|position| position.to_string()),
            partial: self.partial.map(|Partial { next, identity }| PartialValue {
                commit_lsn: next.commit_lsn.to_string(),
                events: next.ordinal,
                xid: identity.map(|(xid, _)| xid),
                commit_time: identity.map(|(_, commit_time)| commit_time.micros()),
            }),
            skipped: self.skipped.iter().map(ToString::to_string).collect(),
            skipped_rows: self
                .skipped_rows
                .iter()
                .map(|(at, id)| (at.to_string(), id.clone()))
                .collect(),
            delivered: self.delivered.clone(),
            rows: self.rows.clone(),
            rows_upto: self.rows_upto,
            server_started: self.server_started,
            skips: self.skips,
            layout: self.layout.as_ref().map(|layout| layout.digest.clone()).unwrap_or_default(),
            layout_parts: self.layout.as_ref().and_then(Layout::parts),
            ending: self.ending,
            begun: self.begun.as_ref().and_then(Layout::parts),
            at_ms: self.at_ms,
        })
        .to_string()
    }

    /// Reads a record's value.
    pub(crate) fn of_json(json: &[u8]) -> Result<Self, UnreadableState> {
        let invalid = |error: &dyn ToString| UnreadableState::Invalid(error.to_string());
        let Version { version } = serde_json::from_slice(json).map_err(|error| invalid(&error))?;
        if version > VERSION {
            return Err(UnreadableState::Newer(version));
        }
        let value: Value = serde_json::from_slice(json).map_err(|error| invalid(&error))?;
        let lsn = |text: &str| text.parse::<Lsn>().map_err(|error| invalid(&error));
        let last = value.last.map(|last| {
            Ok(LastTransaction {
                commit_lsn: lsn(&last.commit_lsn)?,
                end_lsn: lsn(&last.end_lsn)?,
                xid: last.xid,
                commit_time: PgTimestamp::from_micros(last.commit_time),
            })
        });
        let partial = value.partial.map(|partial| {
            let commit_lsn = lsn(&partial.commit_lsn)?;
            let commit_time = partial.commit_time.map(PgTimestamp::from_micros);
            Ok(Partial {
                next: EventPosition { commit_lsn, ordinal: partial.events },
                identity: partial.xid.zip(commit_time),
            })
        });
        let event = |text: &str| {
            EventPosition::from_text(text).ok_or_else(|| invalid(&format!("position {text}")))
        };
        let skipped = value.skipped.iter().map(|text| event(text));
        let skipped_rows = value.skipped_rows.into_iter().map(|(at, id)| Ok((event(&at)?, id)));
        let earlier = value.earlier.iter().map(|text| lsn(text));
        let acked_upto = lsn(&value.acked_upto)?;
        // An older one is of a transaction that was published since, at least once.
        let partial = partial.transpose()?.filter(|partial| partial.next.commit_lsn >= acked_upto);
        Ok(Self {
            generation: value.generation,
            timeline: value.timeline,
            cluster: value.kafka_cluster_id,
            acked_upto,
            last: last.transpose()?,
            earlier: earlier.collect::<Result<_, _>>()?,
            known_from: value.known_from.as_deref().map(lsn).transpose()?,
            partial,
            skipped: skipped.collect::<Result<_, _>>()?,
            skipped_rows: skipped_rows.collect::<Result<_, _>>()?,
            delivered: value.delivered,
            rows: value.rows,
            rows_upto: value.rows_upto,
            server_started: value.server_started,
            skips: value.skips,
            layout: Layout::of_record(value.layout_parts, value.layout),
            ending: value.ending,
            begun: Layout::of_record(value.begun, String::new()),
            at_ms: value.at_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::PublicationFingerprint;
    use crate::state::{Bookmark, ConfiguredLayout};

    fn state(last: Option<LastTransaction>) -> State {
        State {
            generation: 3,
            cluster: Some("c".to_owned()),
            last,
            server_started: 9,
            skips: true,
            ending: Some(Ending::Stopped),
            layout: Some(ConfiguredLayout::default().with(&PublicationFingerprint::default())),
            at_ms: 7,
            ..State::accepted(2, Lsn::new(0x1_0000_00A0))
        }
    }

    #[test]
    fn what_is_set_back_tells_nothing_of_what_was_lost() {
        let bookmark = |lsn| Bookmark { below: lsn, lsn: Lsn::new(lsn), at_ms: 0 };
        let bookmarks = [90, 60, 30].map(bookmark).to_vec();
        let delivered = Some(Delivered { bookmarks, ..Delivered::new(5, 6) });
        let before = State { delivered, ..State::accepted(1, Lsn::new(100)) };
        let reached = EventPosition { commit_lsn: Lsn::new(60), ordinal: 3 };
        let after = before.set_back(reached);
        let left = after.delivered.expect("as before").bookmarks;
        assert_eq!((after.acked_upto, left), (Lsn::new(60), vec![bookmark(60), bookmark(30)]));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let last = LastTransaction {
            commit_lsn: Lsn::new(16),
            end_lsn: Lsn::new(48),
            xid: u32::MAX,
            commit_time: PgTimestamp::from_micros(-5),
        };
        let event = EventPosition { commit_lsn: Lsn::new(0x1_0000_00A8), ordinal: 7 };
        for (last, partial) in [(None, None), (Some(last), None), (Some(last), Some(event))] {
            let skipped = partial.into_iter().collect();
            let skipped_rows = partial
                .into_iter()
                .map(|at| (at, RowId::new("t".to_owned(), "id", "ö\"".as_bytes())))
                .collect();
            let identity = Some((u32::MAX, PgTimestamp::from_micros(-6)));
            let delivered = last.map(|last| Delivered::new(last.xid.into(), 8));
            let rows = partial.map(|partial| UnfinishedRows {
                since_ms: 9,
                next: partial.commit_lsn,
                then: Lsn::new(u64::MAX),
                chosen: ChosenRows::Since("now".to_owned()),
            });
            let rows_upto = partial.map_or(Lsn::ZERO, |partial| partial.commit_lsn);
            let partial = partial.map(|next| Partial { next, identity });
            let earlier = partial.into_iter().map(|partial| partial.next.commit_lsn).collect();
            let state = State {
                earlier,
                partial,
                skipped,
                skipped_rows,
                delivered,
                rows,
                rows_upto,
                ..state(last)
            };
            assert_eq!(State::of_json(state.to_json().as_bytes()), Ok(state));
        }
    }

    #[test]
    fn positions_are_kept_that_the_slot_may_still_have() {
        let last = |commit| LastTransaction {
            commit_lsn: Lsn::new(commit),
            end_lsn: Lsn::new(commit + 8),
            xid: 1,
            commit_time: PgTimestamp::from_micros(1),
        };
        let earlier = |state: &State| -> Vec<u64> {
            state.earlier.iter().map(|position| position.as_u64()).collect()
        };
        let start = State { acked_upto: Lsn::new(100), ..state(None) };
        let quiet = start.moved(Lsn::new(110), None).moved(Lsn::new(120), None);
        assert_eq!(earlier(&quiet), [100, 110]);
        // Once more, as a sign of life.
        assert_eq!(earlier(&quiet.moved(Lsn::new(120), None)), [100, 110]);
        let later = quiet.moved(Lsn::new(138), Some(last(115)));
        assert_eq!(earlier(&later), [120]);
        let mut many = later.clone();
        for position in 0..1000 {
            many = many.moved(Lsn::new(200 + position), Some(last(115)));
        }
        assert_eq!((many.earlier.len(), many.earlier[0]), (EARLIER_MAX, Lsn::new(959)));
    }

    #[test]
    fn record_of_an_earlier_version_has_less() {
        let json = r#"{"version":1,"generation":3,"timeline":2,"kafka_cluster_id":"c",
            "acked_upto":"1/A0","last":null,"partial":{"commit_lsn":"1/A8","events":7},
            "server_started":9,"skips":true,"layout":"0123456789abcdef","at_ms":7}"#;
        let next = EventPosition { commit_lsn: Lsn::new(0x1_0000_00A8), ordinal: 7 };
        let layout = Layout::of_record(None, "0123456789abcdef".to_owned());
        let partial = Some(Partial { next, identity: None });
        let former = State { partial, layout, known_from: None, ending: None, ..state(None) };
        assert_eq!(State::of_json(json.as_bytes()), Ok(former.clone()));
        assert!(!former.is_unknown(Lsn::new(5)), "nobody has noted what was confirmed");
        // An operator has accepted the position.
        let accepted = State { layout: None, ..state(None) };
        assert_eq!(State::of_json(accepted.to_json().as_bytes()), Ok(accepted));
    }

    #[test]
    fn a_record_of_a_newer_walpost_or_of_another_program_is_an_error() {
        // A transaction that was published in part, and since then at least once.
        let older = EventPosition { commit_lsn: Lsn::new(0x1_0000_009F), ordinal: 7 };
        let older = Partial { next: older, identity: None };
        let json = State { partial: Some(older), ..state(None) }.to_json();
        assert_eq!(State::of_json(json.as_bytes()), Ok(state(None)));
        // Written by a walpost without exactly-once delivery.
        assert!(!state(None).to_json().contains("partial"));
        assert!(!state(None).to_json().contains("skipped"));
        let newer = state(None).to_json().replace("\"version\":1", "\"version\":2");
        assert_eq!(State::of_json(newer.as_bytes()), Err(UnreadableState::Newer(2)));
        // A newer format may lack what this one has.
        assert_eq!(State::of_json(b"{\"version\":9}"), Err(UnreadableState::Newer(9)));
        let bad = state(None).to_json().replace("1/A0", "here");
        for json in [&b""[..], b"1", b"{}", b"{\"version\":1}", bad.as_bytes(), b"\xff"] {
            let found = State::of_json(json);
            assert!(matches!(found, Err(UnreadableState::Invalid(_))), "{json:?}: {found:?}");
        }
    }

    #[test]
    fn keys_of_different_owners_differ() {
        let key = |delivery_id: &str, slot: &str| StateKey {
            delivery_id: delivery_id.to_owned(),
            system_identifier: "7".to_owned(),
            database_oid: 5,
            slot: slot.to_owned(),
        };
        let (one, other) = (key("a", "b"), key("a\",7,5,\"b", ""));
        assert_ne!(one.record_key(), other.record_key());
        assert_ne!(one.record_key(), one.claim_key());
        assert_eq!(one.record_key(), r#"["state",["a","7",5,"b"]]"#);
        for key in [&one, &other] {
            assert_eq!(StateKey::of_record_key(key.record_key().as_bytes()).as_ref(), Some(key));
        }
        for none in [one.claim_key(), r#"["state",["a","7",5]]"#.to_owned(), String::new()] {
            assert_eq!(StateKey::of_record_key(none.as_bytes()), None, "{none}");
        }
        assert_eq!(one.transactional_id(), "a-7-5-b-state");
    }
}
