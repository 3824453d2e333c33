//! Which rows are proved to be delivered.
//!
//! Each slot of the server tells up to which transaction its consumer has confirmed everything
//! (`source::confirmed_slots`), and the position that is kept with the events from which transaction on that
//! consumer was walpost. Rows in between are delivered, for the history and the tables that the state is about:
//!
//! - The server runs since `walpost run` has compared its history with the state. A restored server was
//!   started since.
//! - The timeline is the one from which was published last.
//! - The slot has confirmed no more than the state has: otherwise it is another one, or was advanced.
//! - Every logical slot of the database has confirmed the transaction: other consumers may need the rows
//!   too, in particular those of a slot that is lost.
//! - The brokers are those to which `walpost run` publishes, by the cluster's id.
//! - Publication and configuration of the outbox are those of the state. Rows of a table that was added
//!   may have been written before, and a publication that was changed may not have sent them.
//! - No walpost with its position in that place may have skipped events, but those that the state names
//!   by their ids: their rows are kept.
//!
//! Where no position is kept, only what the slot has confirmed is known, and only while walpost works with it:
//! whether the slot was made again, or moved by another client, or the publication was changed, cannot be seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::error::{PruneError, Unproved};
use crate::config::Config;
use crate::destination::of;
use crate::destination::parts::settings::layout;
use crate::lsn::Lsn;
use crate::outbox::{FoundTable, RowId};
use crate::source::{self, ConfirmedSlot, ConfirmedSlots, SourceConfig, SourceError, SqlClient};
use crate::state::{KeptState, Layout, State, StateKey};

/// Whose rows.
#[derive(Clone)]
pub(crate) struct Wanted<'a> {
    /// Of the destination, and of the position there.
    pub(crate) config: &'a Config,
    pub(crate) source: &'a SourceConfig,
    /// Slots whose consumers need no rows.
    pub(crate) ignored: &'a [String],
    /// Whether the rows of skipped events may be deleted.
    pub(crate) skipped_too: bool,
    /// Whether rows from before the slot may be deleted.
    pub(crate) before_slot_too: bool,
}

/// The ids of rows, by their table and column.
pub(crate) type KeptRows = BTreeMap<(String, String), BTreeSet<String>>;

/// Rows of transactions from `from` on, and below `below`, are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(super) from: u64,
    /// Whether rows from before that, and from before a partition was attached, may be deleted too.
    pub(super) before_slot_too: bool,
    /// The time of `from`, in milliseconds since 1970.
    pub(super) from_ms: u64,
    pub(crate) below: u64,
    /// The rows of skipped events, which are all that is left of them.
    pub(crate) kept: KeptRows,
    /// The slot that keeps newer rows from being deleted, what it has confirmed, and whether it is
    /// lost.
    pub(crate) held_by: Option<(String, Lsn, bool)>,
}

/// How far another slot may be behind, in bytes of WAL, before it is named: its consumer confirms a
/// little later, or earlier, than walpost.
const BEHIND: u64 = 16 << 20;

impl Proof {
    /// Reads it from server and destination, with the published tables. Changes nothing, and does not disturb
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
            delivery_id: wanted.config.delivery.id.clone(),
            system_identifier: server.system_identifier.clone(),
            database_oid: server.database_oid,
            slot: slot.clone(),
        };
        let destination = of(wanted.config);
        let place = destination.place_of_position(wanted.config).unwrap_or_default();
        let reading = destination.kept_state(wanted.config, &key);
        let kept_state = match reading.map_err(|error| SourceError::Setup(error.to_string()))? {
            None => None,
            Some(reading) => match reading.await {
                Err(failure) => return Err(PruneError::State { place, failure }),
                Ok(KeptState::NoPlace) => Err(Unproved::NoPlace(place)),
                Ok(KeptState::NoRecord) => Err(Unproved::NoPosition { place }),
                Ok(KeptState::Record { state, cluster, others }) => {
                    require_cluster(place, state, cluster).map(|state| Some((state, others)))
                }
            }
            .map_err(PruneError::Unproved)?,
        };
        let mut kept = KeptRows::new();
        if let Some((state, others)) = &kept_state {
            // Those of other walposts count as long as they have a slot whose consumer needs the rows.
            let needed = |other: &str| {
                names().any(|name| name == other)
                    && !wanted.ignored.iter().any(|name| name == other)
            };
            let others = others.iter().filter(|(other, _)| needed(other));
            let all = others.map(|(other, state)| (other, state)).chain([(slot, state)]);
            for (slot, state) in all.filter(|_| !wanted.skipped_too) {
                let rows =
                    state.rows_of_skipped().ok_or_else(|| PruneError::Skips(slot.clone()))?;
                for RowId { table, column, id } in rows {
                    kept.entry((table.clone(), column.clone())).or_default().insert(id.clone());
                }
            }
        }
        // After the state, which may be newer than what was read before it.
        server.end = ConfirmedSlots::end(client).await?;
        let (fingerprint, tables) = source::published(client, wanted.source).await?;
        let layout = layout(wanted.config).with(&fingerprint);
        let state = kept_state.as_ref().map(|(state, _)| state);
        let proof = proof(&server, state, slot, (&layout, wanted.ignored));
        let proof = proof.map_err(PruneError::Unproved)?;
        let before_slot_too = wanted.before_slot_too || proof.before_slot_too;
        Ok((Self { before_slot_too, kept, ..proof }, tables))
    }
}

/// A state topic may be a copy of one in the cluster that has the events.
fn require_cluster(
    place: String,
    state: State,
    cluster: Option<String>,
) -> Result<State, Unproved> {
    match (&state.cluster, cluster) {
        (Some(published), Some(found)) if *published != found => {
            Err(Unproved::OtherCluster { place, published: published.clone(), found })
        }
        _ => Ok(state),
    }
}

/// From which transaction on walpost was the slot's consumer, and the time of that; an error if the state
/// is not about this server.
fn begin(
    server: &ConfirmedSlots,
    state: &State,
    own: &ConfirmedSlot,
    layout: &Layout,
) -> Result<(u64, u64), Unproved> {
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
    let confirmed = own.confirmed.unwrap_or_default();
    if confirmed > state.acked_upto {
        return Err(Unproved::SlotAhead { confirmed, acked: state.acked_upto });
    }
    if state.layout.as_ref().is_none_or(|known| !known.is_same(layout)) {
        return Err(Unproved::OtherLayout);
    }
    let delivered = state.delivered.as_ref().ok_or(Unproved::NotNoted)?;
    Ok((delivered.from, delivered.from_ms))
}

fn proof(
    server: &ConfirmedSlots,
    state: Option<&State>,
    slot: &str,
    (layout, ignored): (&Layout, &[String]),
) -> Result<Proof, Unproved> {
    let own = server.slots.iter().find(|found| found.name == slot);
    let own = own.ok_or_else(|| Unproved::NoSlot(slot.to_owned()))?;
    if own.is_lost {
        return Err(Unproved::LostSlot(slot.to_owned()));
    }
    let (from, from_ms) = match state {
        Some(state) => begin(server, state, own, layout)?,
        // An operator stops it while a slot that was made again gets its rows published.
        None if !own.is_active => return Err(Unproved::NotAtWork(slot.to_owned())),
        None => (0, 0),
    };
    let own_confirmed = own.confirmed.unwrap_or_default();
    // Lost ones too: their consumers may have to get what they missed from the rows.
    let others = server.slots.iter().filter(|one| one.name != slot && !ignored.contains(&one.name));
    let last = others.min_by_key(|other| other.below).filter(|other| other.below < own.below);
    let below = last.map_or(own.below, |other| other.below);
    if let Some(ConfirmedSlot { name, confirmed, is_lost, .. }) = last
        && below <= from
    {
        let (slot, confirmed) = (name.clone(), confirmed.unwrap_or_default());
        return Err(if *is_lost {
            Unproved::HeldBackByLost { slot, confirmed }
        } else {
            Unproved::HeldBack { slot, confirmed }
        });
    }
    let held_by = last.and_then(|other| {
        let confirmed = other.confirmed.unwrap_or_default();
        let is_behind = own_confirmed.bytes_since(confirmed) >= BEHIND;
        let is_named = other.is_lost || !other.is_active || is_behind;
        is_named.then(|| (other.name.clone(), confirmed, other.is_lost))
    });
    let before_slot_too = state.is_none();
    Ok(Proof { from, before_slot_too, from_ms, below, kept: KeptRows::new(), held_by })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::PublicationFingerprint;
    use crate::state::{ConfiguredLayout, Delivered};

    fn slot(name: &str, below: u64) -> ConfirmedSlot {
        let confirmed = (below > 0).then(|| Lsn::new(below));
        ConfirmedSlot { name: name.to_owned(), confirmed, below, is_lost: false, is_active: true }
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

    fn layout(publication: &str) -> Layout {
        let publication = publication.to_owned();
        ConfiguredLayout { publication, ..ConfiguredLayout::default() }
            .with(&PublicationFingerprint::default())
    }

    fn state() -> State {
        State {
            generation: 1,
            delivered: Some(Delivered::new(10, 11)),
            server_started: 5,
            layout: Some(layout("l")),
            ..State::accepted(2, Lsn::new(900))
        }
    }

    fn below(server: &ConfirmedSlots, state: &State, ignored: &[String]) -> Result<u64, Unproved> {
        proof(server, Some(state), "own", (&layout("l"), ignored)).map(|proof| proof.below)
    }

    #[test]
    fn rows_count_that_every_slot_has_confirmed() {
        let held = |slot: &str, confirmed| {
            Err(Unproved::HeldBack { slot: slot.to_owned(), confirmed: Lsn::new(confirmed) })
        };
        for (own, other, expected) in [
            (900, 900, Ok(900)),
            (800, 900, Ok(800)),
            (900, 800, Ok(800)),
            (900, 11, Ok(11)),
            (900, 10, held("other", 10)),
            (900, 0, held("other", 0)),
            // Nothing was written since.
            (10, 10, Ok(10)),
            (9, 10, Ok(9)),
        ] {
            let server = server(vec![slot("other", other), slot("own", own)]);
            assert_eq!(below(&server, &state(), &[]), expected, "{own} {other}");
        }
        let server = server(vec![slot("other", 1), slot("own", 900)]);
        assert_eq!(below(&server, &state(), &["other".to_owned()]), Ok(900));
        // A lost one keeps rows too.
        let mut lost = server.clone();
        lost.slots[0].is_lost = true;
        let by_lost = Unproved::HeldBackByLost { slot: "other".to_owned(), confirmed: Lsn::new(1) };
        assert_eq!(below(&lost, &state(), &[]), Err(by_lost));
        assert_eq!(below(&lost, &state(), &["other".to_owned()]), Ok(900));
        // walpost's own counts in any case.
        assert_eq!(below(&server, &state(), &["own".to_owned(), "other".to_owned()]), Ok(900));
    }

    #[test]
    fn slot_alone_counts_while_it_is_used() {
        let alone = |server: &ConfirmedSlots| proof(server, None, "own", (&layout("l"), &[]));
        let mut server = server(vec![slot("other", 800), slot("own", 900)]);
        let found = alone(&server).expect("it is used");
        assert_eq!((found.below, found.from, found.before_slot_too), (800, 0, true));
        server.slots[1].is_active = false;
        assert_eq!(alone(&server), Err(Unproved::NotAtWork("own".to_owned())));
    }

    #[test]
    fn a_slot_is_named_whose_consumer_is_gone_or_far_behind() {
        let own = || ConfirmedSlot { confirmed: Some(Lsn::new(BEHIND + 900)), ..slot("own", 900) };
        let state = State { acked_upto: Lsn::new(BEHIND + 900), ..state() };
        let other = |confirmed| ConfirmedSlot {
            confirmed: Some(Lsn::new(confirmed)),
            ..slot("other", 800)
        };
        for (other, is_named) in [
            (other(BEHIND), false),
            (other(900), true),
            (ConfirmedSlot { is_active: false, ..other(BEHIND) }, true),
            (ConfirmedSlot { is_lost: true, ..other(BEHIND) }, true),
            (ConfirmedSlot { is_active: false, ..slot("other", 900) }, false),
        ] {
            let confirmed = other.confirmed.unwrap_or_default();
            let expected = is_named.then(|| ("other".to_owned(), confirmed, other.is_lost));
            let end = Lsn::new(2 * BEHIND);
            let server = ConfirmedSlots { end, ..server(vec![other, own()]) };
            let found =
                proof(&server, Some(&state), "own", (&layout("l"), &[])).map(|proof| proof.held_by);
            assert_eq!(found, Ok(expected), "{server:?}");
        }
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
        assert_eq!(proved, Ok(900));
        let cases = [
            (server(Vec::new()), state(), Unproved::NoSlot("own".to_owned())),
            (ConfirmedSlots { server_started: 6, ..server(own()) }, state(), Unproved::NotCompared),
            (
                server(vec![slot("own", 901)]),
                state(),
                Unproved::SlotAhead { confirmed: Lsn::new(901), acked: Lsn::new(900) },
            ),
            (server(own()), State { layout: Some(layout("m")), ..state() }, Unproved::OtherLayout),
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
            (server(own()), State { delivered: None, ..state() }, Unproved::NotNoted),
        ];
        for (server, state, why) in cases {
            assert_eq!(below(&server, &state, &[]), Err(why));
        }
    }
}
