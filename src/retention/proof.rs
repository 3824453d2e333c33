//! Which rows are proved to be delivered.
//!
//! A bookmark of the state topic says that every row of a transaction below it is delivered, of those
//! from a transaction on (`state::delivered`). It holds for the history and the tables that the state
//! is about:
//!
//! - The server runs since `walpost run` has compared its history with the state. A restored server was
//!   started since.
//! - The timeline is the one from which was published last.
//! - The slot has confirmed no more than the state has: otherwise it is another one, or was advanced.
//! - Every logical slot of the database has confirmed the bookmark's position: other consumers may need
//!   the rows too, in particular those of a slot that is lost.
//! - The brokers are those to which `walpost run` publishes, by the cluster's id.
//! - Publication and configuration of the outbox are those of the state. Rows of a table that was added
//!   may have been written before, and a publication that was changed may not have sent them.

use std::sync::Arc;

use super::error::{PruneError, Unproved};
use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::sink::KafkaConfig;
use crate::source::{self, ConfirmedSlots, SourceConfig, SqlClient};
use crate::state::{Delivered, Newest, State, StateFailure, StateKey, read_newest};

/// Whose rows.
#[derive(Clone)]
pub(crate) struct Wanted<'a> {
    pub(crate) kafka: &'a KafkaConfig,
    /// `delivery.state_topic`.
    pub(crate) topic: &'a str,
    /// `delivery.id`.
    pub(crate) delivery_id: &'a str,
    /// What the configuration contributes to the state's layout.
    pub(crate) layout: &'a str,
    pub(crate) source: &'a SourceConfig,
    /// Slots whose consumers need no rows.
    pub(crate) ignored: &'a [String],
    /// Whether the rows of skipped events may be deleted.
    pub(crate) skipped_too: bool,
    /// Whether rows from before the slot may be deleted.
    pub(crate) before_slot_too: bool,
}

/// Rows of transactions from `from` on, and below `below`, are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(super) from: u64,
    /// Whether rows from before that, and from before a partition was attached, may be deleted too.
    pub(super) before_slot_too: bool,
    /// The time of `from`, in milliseconds since 1970.
    pub(super) from_ms: u64,
    pub(super) below: u64,
    /// When that was noted, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The slot that keeps newer rows from being deleted, what it has confirmed, and whether it is
    /// lost.
    pub(crate) held_by: Option<(String, Lsn, bool)>,
}

impl Proof {
    /// Reads it from server and brokers, with the published tables. Changes nothing, and does not disturb
    /// a walpost at work.
    pub(crate) async fn read(
        client: &Arc<SqlClient>,
        wanted: Wanted<'_>,
    ) -> Result<(Self, Vec<FoundTable>), PruneError> {
        let slot = &wanted.source.slot;
        // Before the state: walpost writes it before it confirms.
        let mut server = ConfirmedSlots::read(client).await?.ok_or(PruneError::Standby)?;
        let names = || server.slots.iter().map(|found| found.name.clone());
        if !names().any(|name| name == *slot) {
            return Err(PruneError::Unproved(Unproved::NoSlot(slot.clone())));
        }
        if let Some(name) = wanted.ignored.iter().find(|name| !names().any(|found| found == **name))
        {
            let (name, found) = (name.clone(), names().collect());
            return Err(PruneError::UnknownSlot { name, found });
        }
        let key = StateKey {
            delivery_id: wanted.delivery_id.to_owned(),
            system_identifier: server.system_identifier.clone(),
            database_oid: server.database_oid,
            slot: slot.clone(),
        };
        let (kafka, topic) = (wanted.kafka.clone(), wanted.topic.to_owned());
        let read = tokio::task::spawn_blocking(move || read_newest(&kafka, &topic, &key)).await;
        let failed = |failure| PruneError::State { topic: wanted.topic.to_owned(), failure };
        let read = read.map_err(|error| failed(StateFailure::Unavailable(error.to_string())))?;
        let topic = wanted.topic.to_owned();
        let state = match read.map_err(failed)? {
            Newest::NoTopic => Err(Unproved::NoTopic(topic)),
            Newest::NoRecord => Err(Unproved::NoPosition { topic }),
            Newest::Record { state, cluster } => require_cluster(topic, state, cluster),
        };
        let state = state.map_err(PruneError::Unproved)?;
        if (state.skips || !state.skipped.is_empty()) && !wanted.skipped_too {
            return Err(PruneError::Skips);
        }
        // After the state, which may be newer than what was read before it.
        server.end = ConfirmedSlots::end(client).await?;
        let (fingerprint, tables) = source::published(client, wanted.source).await?;
        let layout = fingerprint.digest(wanted.layout);
        let proof = proof(&server, &state, slot, (&layout, wanted.ignored));
        let proof = proof.map_err(PruneError::Unproved)?;
        Ok((Self { before_slot_too: wanted.before_slot_too, ..proof }, tables))
    }
}

/// A state topic may be a copy of one in the cluster that has the events.
fn require_cluster(
    topic: String,
    state: State,
    cluster: Option<String>,
) -> Result<State, Unproved> {
    match (&state.cluster, cluster) {
        (Some(published), Some(found)) if *published != found => {
            Err(Unproved::OtherCluster { topic, published: published.clone(), found })
        }
        _ => Ok(state),
    }
}

fn proof(
    server: &ConfirmedSlots,
    state: &State,
    slot: &str,
    (layout, ignored): (&str, &[String]),
) -> Result<Proof, Unproved> {
    let own = server.slots.iter().find(|found| found.name == slot);
    let own = own.ok_or_else(|| Unproved::NoSlot(slot.to_owned()))?;
    if own.is_lost {
        return Err(Unproved::LostSlot(slot.to_owned()));
    }
    if state.rows.is_some() {
        return Err(Unproved::UnfinishedRows);
    }
    if state.timeline != server.timeline {
        let (published, server) = (state.timeline, server.timeline);
        return Err(Unproved::OtherTimeline { published, server });
    }
    if state.acked_upto > server.end {
        return Err(Unproved::OtherHistory { acked: state.acked_upto, end: server.end });
    }
    if state.server_started != server.server_started {
        return Err(Unproved::NotCompared);
    }
    let own = own.confirmed.unwrap_or_default();
    if own > state.acked_upto {
        return Err(Unproved::SlotAhead { confirmed: own, acked: state.acked_upto });
    }
    if state.layout != layout {
        return Err(Unproved::OtherLayout);
    }
    let delivered = state.delivered.as_ref().ok_or(Unproved::NoBookmark)?;
    let newest = delivered.bookmarks.first().ok_or(Unproved::NoBookmark)?;
    // Lost ones too: their consumers may have to get what they missed from the rows.
    let counted =
        server.slots.iter().filter(|found| found.name == slot || !ignored.contains(&found.name));
    // While it is created, a slot has confirmed nothing.
    let last = counted
        .map(|found| (found.confirmed.unwrap_or_default(), &found.name, found.is_lost))
        .min()
        .ok_or(Unproved::NoBookmark)?;
    let (confirmed, name, is_lost) = (last.0, last.1.clone(), last.2);
    let Delivered { from, from_ms, ref bookmarks } = *delivered;
    let found = bookmarks.iter().find(|bookmark| bookmark.lsn <= confirmed);
    let held_back = |slot| {
        if is_lost {
            Unproved::HeldBackByLost { slot, confirmed }
        } else {
            Unproved::HeldBack { slot, confirmed }
        }
    };
    let found = found.ok_or_else(|| held_back(name.clone()))?;
    let held_by = (found != newest).then_some((name, confirmed, is_lost));
    let (below, at_ms) = (found.below, found.at_ms);
    Ok(Proof { from, before_slot_too: false, from_ms, below, at_ms, held_by })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ConfirmedSlot;
    use crate::state::Bookmark;

    fn slot(name: &str, confirmed: u64) -> ConfirmedSlot {
        ConfirmedSlot {
            name: name.to_owned(),
            confirmed: (confirmed > 0).then(|| Lsn::new(confirmed)),
            is_lost: false,
        }
    }

    fn server(slots: Vec<ConfirmedSlot>) -> ConfirmedSlots {
        ConfirmedSlots {
            system_identifier: "7".to_owned(),
            database_oid: 5,
            timeline: 2,
            end: Lsn::new(1000),
            server_started: 5,
            slots,
        }
    }

    fn state() -> State {
        let bookmark = |at: u64| Bookmark { below: at, lsn: Lsn::new(at), at_ms: at };
        State {
            generation: 1,
            timeline: 2,
            cluster: None,
            acked_upto: Lsn::new(900),
            last: None,
            partial: None,
            skipped: Vec::new(),
            delivered: Some(Delivered {
                from: 10,
                from_ms: 11,
                bookmarks: vec![bookmark(800), bookmark(500), bookmark(100)],
            }),
            rows: None,
            rows_upto: Lsn::ZERO,
            server_started: 5,
            skips: false,
            layout: "l".to_owned(),
            at_ms: 0,
        }
    }

    fn below(server: &ConfirmedSlots, state: &State, ignored: &[String]) -> Result<u64, Unproved> {
        proof(server, state, "own", ("l", ignored)).map(|proof| proof.below)
    }

    #[test]
    fn the_newest_bookmark_counts_that_every_slot_has_confirmed() {
        let held = |slot: &str, confirmed| {
            Err(Unproved::HeldBack { slot: slot.to_owned(), confirmed: Lsn::new(confirmed) })
        };
        for (own, other, expected) in [
            (900, 900, Ok(800)),
            (800, 900, Ok(800)),
            (799, 900, Ok(500)),
            (900, 499, Ok(100)),
            (99, 900, held("own", 99)),
            (900, 0, held("other", 0)),
        ] {
            let server = server(vec![slot("other", other), slot("own", own)]);
            assert_eq!(below(&server, &state(), &[]), expected, "{own} {other}");
        }
        let server = server(vec![slot("other", 1), slot("own", 900)]);
        assert_eq!(below(&server, &state(), &["other".to_owned()]), Ok(800));
        // A lost one keeps rows too.
        let mut lost = server.clone();
        lost.slots[0].is_lost = true;
        let by_lost = Unproved::HeldBackByLost { slot: "other".to_owned(), confirmed: Lsn::new(1) };
        assert_eq!(below(&lost, &state(), &[]), Err(by_lost));
        assert_eq!(below(&lost, &state(), &["other".to_owned()]), Ok(800));
        // walpost's own counts in any case.
        assert_eq!(below(&server, &state(), &["own".to_owned(), "other".to_owned()]), Ok(800));
    }

    #[test]
    fn a_copy_of_the_state_topic_in_another_cluster_proves_nothing() {
        let of = |known: Option<&str>, found: Option<&str>| {
            let state = State { cluster: known.map(str::to_owned), ..state() };
            require_cluster("t".to_owned(), state, found.map(str::to_owned)).is_ok()
        };
        assert!(of(Some("a"), Some("a")) && of(None, Some("a")) && of(Some("a"), None));
        assert!(!of(Some("a"), Some("b")));
    }

    #[test]
    fn a_server_that_may_have_another_history_proves_nothing() {
        let own = || vec![slot("own", 900)];
        let proved = below(&server(own()), &state(), &[]);
        assert_eq!(proved, Ok(800));
        let cases = [
            (server(Vec::new()), state(), Unproved::NoSlot("own".to_owned())),
            (ConfirmedSlots { server_started: 6, ..server(own()) }, state(), Unproved::NotCompared),
            (
                server(vec![slot("own", 901)]),
                state(),
                Unproved::SlotAhead { confirmed: Lsn::new(901), acked: Lsn::new(900) },
            ),
            (server(own()), State { layout: "m".to_owned(), ..state() }, Unproved::OtherLayout),
            (
                ConfirmedSlots { timeline: 3, ..server(own()) },
                state(),
                Unproved::OtherTimeline { published: 2, server: 3 },
            ),
            (
                ConfirmedSlots { end: Lsn::new(899), ..server(own()) },
                state(),
                Unproved::OtherHistory { acked: Lsn::new(900), end: Lsn::new(899) },
            ),
            (server(own()), State { delivered: None, ..state() }, Unproved::NoBookmark),
        ];
        for (server, state, why) in cases {
            assert_eq!(below(&server, &state, &[]), Err(why));
        }
    }
}
