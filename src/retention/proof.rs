//! Which rows are proved to be delivered.
//!
//! A bookmark of the state topic says that every row of a transaction below it is delivered, of those
//! from a transaction on (`state::delivered`). It holds for the history that this server has:
//!
//! - Every logical slot of the database has confirmed the bookmark's position. walpost confirms only
//!   what is acknowledged, and other consumers may need the rows too. A restored server has the slot
//!   of the time to which it was restored, so newer bookmarks do not count there.
//! - A walpost is at work with the slot: it has compared the server with the state topic, and would
//!   have ended otherwise.
//! - The timeline is the one from which was published last.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::error::{PruneError, Unproved};
use crate::lsn::Lsn;
use crate::sink::KafkaConfig;
use crate::source::{ConfirmedSlots, SqlClient};
use crate::state::{Delivered, State, StateFailure, StateKey, read_newest};

/// How long a walpost may be away that starts again, or connects again.
const AT_WORK_LIMIT: Duration = Duration::from_secs(10);

/// How often it is looked for.
const AT_WORK_INTERVAL: Duration = Duration::from_millis(500);

/// Whose rows.
#[derive(Clone)]
pub(crate) struct Wanted<'a> {
    pub(crate) kafka: &'a KafkaConfig,
    /// `delivery.state_topic`.
    pub(crate) topic: &'a str,
    /// `delivery.id`.
    pub(crate) delivery_id: &'a str,
    pub(crate) slot: &'a str,
    /// Slots whose consumers need no rows.
    pub(crate) ignored: &'a [String],
    /// Whether the rows of skipped events may be deleted.
    pub(crate) skipped_too: bool,
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
    /// Reads it from server and brokers. Changes nothing, and does not disturb the walpost at work.
    pub(crate) async fn read(client: &SqlClient, wanted: Wanted<'_>) -> Result<Self, PruneError> {
        let slots = ConfirmedSlots::read(client, wanted.slot).await?.ok_or(PruneError::Standby)?;
        let key = StateKey {
            delivery_id: wanted.delivery_id.to_owned(),
            system_identifier: slots.system_identifier.clone(),
            database_oid: slots.database_oid,
            slot: wanted.slot.to_owned(),
        };
        let (kafka, topic) = (wanted.kafka.clone(), wanted.topic.to_owned());
        let read = tokio::task::spawn_blocking(move || read_newest(&kafka, &topic, &key)).await;
        let failed = |failure| PruneError::State { topic: wanted.topic.to_owned(), failure };
        let read = read.map_err(|error| failed(StateFailure::Unavailable(error.to_string())))?;
        let no_position = || Unproved::NoPosition { topic: wanted.topic.to_owned() };
        let state = read.map_err(failed)?.ok_or_else(|| PruneError::Unproved(no_position()))?;
        if !state.skipped.is_empty() && !wanted.skipped_too {
            return Err(PruneError::Skips("by `walpost skip`"));
        }
        let deadline = Instant::now() + AT_WORK_LIMIT;
        loop {
            // What was read from the brokers is older than what the slots have confirmed now.
            let slots = ConfirmedSlots::read(client, wanted.slot).await?;
            let slots = slots.ok_or(PruneError::Standby)?;
            match proof(&slots, &state, wanted.slot, wanted.ignored) {
                Err(Unproved::NotRunning(_)) if Instant::now() < deadline => {
                    sleep(AT_WORK_INTERVAL).await;
                }
                proof => return proof.map_err(PruneError::Unproved),
            }
        }
    }
}

fn proof(
    server: &ConfirmedSlots,
    state: &State,
    slot: &str,
    ignored: &[String],
) -> Result<Proof, Unproved> {
    let own = server.slots.iter().find(|found| found.name == slot);
    let own = own.ok_or_else(|| Unproved::NoSlot(slot.to_owned()))?;
    if own.is_lost {
        return Err(Unproved::LostSlot(slot.to_owned()));
    }
    if !server.is_in_use {
        return Err(Unproved::NotRunning(slot.to_owned()));
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
            is_active: true,
        }
    }

    fn server(slots: Vec<ConfirmedSlot>) -> ConfirmedSlots {
        ConfirmedSlots {
            system_identifier: "7".to_owned(),
            database_oid: 5,
            timeline: 2,
            end: Lsn::new(1000),
            slots,
            is_in_use: true,
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
            layout: String::new(),
            at_ms: 0,
        }
    }

    fn below(server: &ConfirmedSlots, state: &State, ignored: &[String]) -> Result<u64, Unproved> {
        proof(server, state, "own", ignored).map(|proof| proof.below)
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
            (
                ConfirmedSlots { is_in_use: false, ..server(own()) },
                state(),
                Unproved::NotRunning("own".to_owned()),
            ),
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
