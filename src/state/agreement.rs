//! Whether delivery may continue from a position that was kept: one decision from what is known.
//!
//! A position means nothing on a server with another history, and such a server need not look
//! different: one that was restored to an earlier state has the same identifier and timeline, and WAL
//! that has grown past the position. Events that it committed since would count as delivered, and events
//! that it lacks are published. So delivery continues only if
//!
//! - the server's history cannot be another one: the postmaster is the one whose history was compared
//!   before, or the slot has confirmed everything that is published. The slot is a part of the server: a
//!   restored one confirms no more than what its history has;
//! - or the history is compared: see [`PublishedHistory`]. It must have the last transaction that was
//!   published, whole or in part, and no rows that were not published. What the slot does not send cannot
//!   be compared: a slot behind the last transaction must have a position that walpost has confirmed, and
//!   one that was made again has another one.
//!
//! Neither depends on the layout, which tells whether positions of single events still mean the same ones,
//! and whether the publication was changed while a run worked with it: then rows may lack. What cannot be
//! compared is refused. Pure: no I/O, no clock.

use super::layout::Layout;
use super::record::{Ending, State, UnfinishedRows};
use crate::lsn::Lsn;
use crate::position::EventPosition;
use crate::source::{PublishedHistory, RequiredTransaction};

/// What is known of server, slot and destination.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The start time of the postmaster, in microseconds since 1970.
    pub server_started: i64,
    /// The timeline of the server's WAL.
    pub timeline: u32,
    /// The end of the state's timeline in the server's history, if it is an earlier one.
    pub fork: Option<Lsn>,
    /// The end of flushed WAL; on a standby, of what is replayed.
    pub flushed: Lsn,
    /// Whether the server is a standby.
    pub is_standby: bool,
    /// The slot's position.
    pub slot: Lsn,
    /// The id of the destination's cluster, if it reports one.
    pub cluster: Option<&'a str>,
    /// What numbers the events now.
    pub layout: &'a Layout,
    /// The last event at a destination that does not take an event at or before it once more.
    pub published: Option<EventPosition>,
    /// The rows that are to be published instead of what the slot sends.
    pub rows: Option<&'a UnfinishedRows>,
    /// Whether this process has published everything up to the position, or began there.
    pub is_own: bool,
    /// The WAL position for which another session was awaited.
    pub awaited: Option<Lsn>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Continue: the history is known to be the same.
    Continue(Reason),
    /// Continue, and confirm nothing until the stream was compared.
    Compare(PublishedHistory),
    /// Open another session: the WAL does not reach this position yet.
    Wait(Lsn),
    /// An operator has to decide.
    Refuse(Refusal),
}

/// Why the history is known to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// This process has received it from the same postmaster.
    OwnSession,
    /// The position is one of rows, not of the slot.
    Rows,
    /// The slot sends nothing that is published.
    SlotConfirmed,
    /// The postmaster is the one whose history was compared before.
    SameServer,
}

/// Why delivery does not continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Rows that the slot does not send are not all published.
    UnfinishedRows,
    /// Another walpost has written the state while rows were published.
    TakenOver,
    /// The server was promoted at `fork`, before the end of what is published.
    LostInFailover {
        /// The end of the state's timeline in the server's history.
        fork: Lsn,
        /// The end of what is published.
        published: Lsn,
    },
    /// The state is of a newer timeline.
    OtherTimeline,
    /// The state is of another cluster.
    OtherCluster {
        /// The state's cluster.
        known: String,
        /// The cluster that is connected.
        found: String,
    },
    /// The slot has confirmed more than is published.
    SlotAhead,
    /// The slot's position was never confirmed: the slot was created again on a restored server.
    SlotMadeAgain,
    /// The WAL ends before the end of what is published.
    Behind {
        /// The end of what is published.
        published: Lsn,
    },
    /// The event to skip may be another one now.
    SkipOutdated(EventPosition),
    /// The events of a transaction that is published in part may have other numbers now: the first one
    /// that is not published.
    PartlyPublished(EventPosition),
    /// A transaction that is published in part cannot be recognised.
    Unidentified(Lsn),
    /// The publication was changed, and the last run was not stopped in order before that ([`super::Ending`]).
    OtherPublication,
}

/// Whether delivery may continue from `state`.
pub fn decide(state: &State, facts: &Facts<'_>) -> Decision {
    if let Err(refusal) = belongs(state, facts) {
        return Decision::Refuse(refusal);
    }
    let end = end_of_published(state, facts.published);
    // A standby may replay the WAL, and the switch to the timeline, that it lacks now.
    let is_behind = facts.flushed < end || facts.is_standby && state.timeline > facts.timeline;
    if is_behind && (facts.is_standby || facts.awaited != Some(end)) {
        return Decision::Wait(end);
    }
    let judged = reaches(state, facts, end).and_then(|()| has_same_publication(state, facts));
    if let Err(refusal) = judged.and_then(|()| numbers_events(state, facts)) {
        return Decision::Refuse(refusal);
    }
    if state.rows.is_some() {
        return Decision::Continue(Reason::Rows);
    }
    // A promotion does not change what the postmaster has.
    let is_same_server = state.server_started != 0
        && state.server_started == facts.server_started
        && state.timeline <= facts.timeline;
    let history = history(state, facts);
    // A promoted server has the whole history up to the position, and tools that keep slots on standbys
    // may move them to others.
    let is_made_again = !is_same_server
        && state.timeline == facts.timeline
        && history.required.is_empty()
        && state.is_unknown(facts.slot);
    if is_made_again {
        return Decision::Refuse(Refusal::SlotMadeAgain);
    }
    if facts.is_own && is_same_server {
        return Decision::Continue(Reason::OwnSession);
    }
    let is_sent_again = facts.slot < state.acked_upto
        || state.partial.is_some()
        || beyond(state, facts.published).is_some();
    if !is_sent_again {
        return Decision::Continue(Reason::SlotConfirmed);
    }
    let is_recognised = state.partial.is_none_or(|partial| partial.identity.is_some());
    // Otherwise comparing costs nothing, and sees what a postmaster cannot know: that the machine was
    // reset to a snapshot with its memory.
    if is_same_server && (is_other_layout(state, facts) || !is_recognised) {
        return Decision::Continue(Reason::SameServer);
    }
    if let Some(partial) = state.partial.filter(|_| !is_recognised) {
        return Decision::Refuse(Refusal::Unidentified(partial.next.commit_lsn));
    }
    Decision::Compare(history)
}

/// The state once an operator has accepted the publication as it is now, if nothing else is known to stand
/// against its position: that stays, so that nothing is published again. `None` also if it ends inside a
/// transaction, since the publication may number the events of that otherwise.
pub fn with_publication(state: &State, facts: &Facts<'_>) -> Option<State> {
    let is_inside = state.partial.is_some() || beyond(state, facts.published).is_some();
    if is_inside || decide(state, facts) != Decision::Refuse(Refusal::OtherPublication) {
        return None;
    }
    let passed = |position: &EventPosition| position.commit_lsn < state.acked_upto;
    let skipped = state.skipped.iter().copied().filter(passed).collect();
    let begun = Some(facts.layout.clone());
    let accepted = State { skipped, begun, ending: None, delivered: None, ..state.clone() };
    let is_alone = matches!(decide(&accepted, facts), Decision::Continue(_) | Decision::Compare(_));
    is_alone.then_some(accepted)
}

/// Whether the position is of what is connected.
fn belongs(state: &State, facts: &Facts<'_>) -> Result<(), Refusal> {
    if state.rows.as_ref() != facts.rows {
        let is_unfinished = facts.rows.is_none();
        return Err(if is_unfinished { Refusal::UnfinishedRows } else { Refusal::TakenOver });
    }
    match (&state.cluster, facts.cluster) {
        (Some(known), Some(found)) if known != found => {
            Err(Refusal::OtherCluster { known: known.clone(), found: found.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Whether the server has the WAL that was published, and the slot sends what was not.
fn reaches(state: &State, facts: &Facts<'_>, end: Lsn) -> Result<(), Refusal> {
    if let Some(fork) = facts.fork.filter(|fork| *fork < end) {
        return Err(Refusal::LostInFailover { fork, published: end });
    }
    if state.timeline > facts.timeline {
        return Err(Refusal::OtherTimeline);
    }
    if facts.slot > state.acked_upto {
        return Err(Refusal::SlotAhead);
    }
    if facts.flushed < end {
        return Err(Refusal::Behind { published: end });
    }
    Ok(())
}

/// Whether PostgreSQL has sent everything that was committed since the position. It never sends what is
/// committed while a table is not in the publication, and only a running walpost sees that.
fn has_same_publication(state: &State, facts: &Facts<'_>) -> Result<(), Refusal> {
    // This process ends once it has found a change: that one is another's.
    let is_seen = facts.is_own && state.ending != Some(Ending::Changed);
    if is_seen || state.rows.is_some() || !state.may_lack_rows(facts.layout) {
        return Ok(());
    }
    Err(Refusal::OtherPublication)
}

/// Whether positions of events mean the same events still.
fn numbers_events(state: &State, facts: &Facts<'_>) -> Result<(), Refusal> {
    // Rows have positions of their own, before the slot's.
    if state.rows.is_some() || !is_other_layout(state, facts) {
        return Ok(());
    }
    let is_pending = |position: &&EventPosition| position.commit_lsn >= state.acked_upto;
    if let Some(pending) = state.skipped.iter().find(is_pending) {
        return Err(Refusal::SkipOutdated(*pending));
    }
    let behind =
        |last: EventPosition| EventPosition { ordinal: last.ordinal.saturating_add(1), ..last };
    let partial = state.partial.map(|partial| partial.next);
    match partial.or(beyond(state, facts.published).map(behind)) {
        Some(next) => Err(Refusal::PartlyPublished(next)),
        None => Ok(()),
    }
}

fn is_other_layout(state: &State, facts: &Facts<'_>) -> bool {
    state.layout.as_ref().is_some_and(|layout| !layout.is_same(facts.layout))
}

/// The last event at the destination, if the position does not cover it.
fn beyond(state: &State, published: Option<EventPosition>) -> Option<EventPosition> {
    published.filter(|published| published.commit_lsn >= state.acked_upto)
}

/// The position up to which something is published.
pub(crate) fn end_of_published(state: &State, published: Option<EventPosition>) -> Lsn {
    let partial = state.partial.map(|partial| behind(partial.next.commit_lsn));
    let published = published.map(|last| behind(last.commit_lsn));
    state.acked_upto.max(partial.max(published).unwrap_or_default())
}

/// What the server has to send from the slot's position on.
fn history(state: &State, facts: &Facts<'_>) -> PublishedHistory {
    let partial = state.partial.map(|partial| RequiredTransaction {
        commit_lsn: partial.next.commit_lsn,
        identity: partial.identity,
    });
    // With another layout it may be one that the position had passed.
    let published = facts
        .published
        .map(|last| RequiredTransaction { commit_lsn: last.commit_lsn, identity: None });
    let last = state.last.map(RequiredTransaction::from);
    let mut required: Vec<_> = [last, partial, published]
        .into_iter()
        .flatten()
        .filter(|one| one.commit_lsn >= facts.slot)
        .collect();
    // Stable: of two, the one with an identity is first.
    required.sort_by_key(|one| one.commit_lsn);
    required.dedup_by_key(|one| one.commit_lsn);
    let last = last.filter(|last| last.commit_lsn >= facts.slot);
    PublishedHistory {
        quiet_from: last.map_or(facts.slot, |last| behind(last.commit_lsn)),
        // Events were published from the position up to the last one at the destination.
        quiet_upto: partial.map_or(state.acked_upto, |partial| partial.commit_lsn),
        required,
        layout_changed: is_other_layout(state, facts),
    }
}

/// The LSN behind the start of the record at `lsn`.
fn behind(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.as_u64().saturating_add(1))
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::PublicationFingerprint;
    use crate::state::{ChosenRows, ConfiguredLayout, Delivered, Partial};

    const AT: EventPosition = EventPosition { commit_lsn: Lsn::new(90), ordinal: 3 };

    fn layout(publication: &str) -> Layout {
        ConfiguredLayout::default().with(&PublicationFingerprint::of(publication))
    }

    fn facts(layout: &Layout) -> Facts<'_> {
        Facts {
            server_started: 0,
            timeline: 1,
            fork: None,
            flushed: Lsn::new(100),
            is_standby: false,
            slot: Lsn::new(80),
            cluster: Some("own"),
            layout,
            published: None,
            rows: None,
            is_own: false,
            awaited: None,
        }
    }

    fn before() -> State {
        let mut state = State::accepted(1, Lsn::new(90));
        state.learn(Lsn::new(80));
        let delivered = Some(Delivered::new(7, 1));
        let former = Some(layout("former"));
        State { layout: former.clone(), begun: former, delivered, ..state }
    }

    #[test]
    fn changed_publication_is_accepted_only_after_an_orderly_stop_or_by_an_operator() {
        let (now, refused) = (layout("now"), Decision::Refuse(Refusal::OtherPublication));
        assert_eq!(decide(&before(), &facts(&now)), refused);
        for other in [
            State { ending: Some(Ending::Stopped), ..before() },
            State { begun: None, ..before() },
            State { begun: Some(now.clone()), ..before() },
        ] {
            assert_ne!(decide(&other, &facts(&now)), refused, "{other:?}");
            assert_eq!(with_publication(&other, &facts(&now)), None);
        }
        assert_ne!(decide(&before(), &Facts { is_own: true, ..facts(&now) }), refused);
        // A publication that hid rows for a while.
        let former = layout("former");
        let hid = State { ending: Some(Ending::Changed), ..before() };
        assert_eq!(decide(&hid, &facts(&former)), refused);
        assert_eq!(decide(&hid, &Facts { is_own: true, ..facts(&former) }), refused);
        let accepted = State { delivered: None, ..before() };
        assert_eq!(with_publication(&hid, &facts(&former)), Some(accepted));
    }

    #[test]
    fn accepted_publication_leaves_the_position_if_nothing_else_stands_against_it() {
        let now = layout("now");
        let kept = State { begun: Some(now.clone()), delivered: None, ..before() };
        assert_eq!(with_publication(&before(), &facts(&now)), Some(kept.clone()));
        let ordered = State { skipped: vec![AT], ..before() };
        assert_eq!(with_publication(&ordered, &facts(&now)), Some(kept), "the order is given up");
        let (next, then) = (Lsn::new(85), Lsn::new(90));
        let rows = UnfinishedRows { since_ms: 1, next, then, chosen: ChosenRows::All };
        for state in [
            State { partial: Some(Partial { next: AT, identity: None }), ..before() },
            State { rows: Some(rows), ..before() },
            State { cluster: Some("other".to_owned()), ..before() },
            State { timeline: 2, ..before() },
            State { acked_upto: Lsn::new(70), ..before() },
            State { acked_upto: Lsn::new(110), ..before() },
        ] {
            assert_eq!(with_publication(&state, &facts(&now)), None, "{state:?}");
        }
        let published = Facts { published: Some(AT), ..facts(&now) };
        assert_eq!(with_publication(&before(), &published), None);
    }
}
