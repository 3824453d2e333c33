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
//!   the rows too.
//! - Publication and configuration of the outbox are those of the state. Rows of a table that was added
//!   may have been written before, and a publication that was changed may not have sent them.

use std::sync::Arc;

use super::error::{PruneError, Unproved};
use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::sink::KafkaConfig;
use crate::source::{self, ConfirmedSlots, SourceConfig, SqlClient};
use crate::state::{Delivered, State, StateFailure, StateKey, read_newest};

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
    /// The time of `from`, in milliseconds since 1970.
    pub(super) from_ms: u64,
    pub(super) below: u64,
    /// When that was noted, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The slot that keeps newer rows from being deleted, and what it has confirmed.
    pub(crate) held_by: Option<(String, Lsn)>,
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
        let server = ConfirmedSlots::read(client).await?.ok_or(PruneError::Standby)?;
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
        let state = read.map_err(failed)?.ok_or_else(|| {
            PruneError::Unproved(Unproved::NoPosition { topic: wanted.topic.to_owned() })
        })?;
        if (state.skips || !state.skipped.is_empty()) && !wanted.skipped_too {
            return Err(PruneError::Skips);
        }
        let later = ConfirmedSlots::read(client).await?.ok_or(PruneError::Standby)?;
        let server = ConfirmedSlots { slots: server.slots, ..later };
        let (fingerprint, tables) = source::published(client, wanted.source).await?;
        let layout = fingerprint.digest(wanted.layout);
        let proof = proof(&server, &state, slot, (&layout, wanted.ignored));
        let proof = proof.map_err(PruneError::Unproved)?;
        let from = if wanted.before_slot_too { 0 } else { proof.from };
        Ok((Self { from, ..proof }, tables))
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
    let counted = server.slots.iter().filter(|found| {
        let is_ignored = found.is_lost || ignored.contains(&found.name);
        found.name == slot || !is_ignored
    });
    // While it is created, a slot has confirmed nothing.
    let last = counted
        .map(|found| (found.confirmed.unwrap_or_default(), &found.name))
        .min()
        .ok_or(Unproved::NoBookmark)?;
    let (confirmed, name) = (last.0, last.1.clone());
    let Delivered { from, from_ms, ref bookmarks } = *delivered;
    let found = bookmarks.iter().find(|bookmark| bookmark.lsn <= confirmed);
    let found = found.ok_or(Unproved::HeldBack { slot: name.clone(), confirmed })?;
    let held_by = (found != newest).then_some((name, confirmed));
    Ok(Proof { from, from_ms, below: found.below, at_ms: found.at_ms, held_by })
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
        // walpost's own counts in any case.
        assert_eq!(below(&server, &state(), &["own".to_owned(), "other".to_owned()]), Ok(800));
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
