//! Tests of what a session may be opened on.

use proptest::prelude::*;

use super::*;
use crate::property;
use crate::source::catalog::Slot;
use crate::source::config::{CatchUp, ConnInfoSource};
use crate::source::{HolderKind, LogicalDecoding, OpenState};

fn facts(confirmed: Lsn, active_pid: Option<i32>) -> CatalogState {
    let slot = Slot {
        slot_type: "logical".into(),
        plugin: Some("pgoutput".into()),
        database: Some("shop".into()),
        active_pid,
        is_walposts: Some(true),
        other_role: None,
        confirmed_flush: Some(confirmed),
        wal_status: Some("reserved".into()),
        invalidation_reason: None,
        synced: false,
        failover: false,
        two_phase: false,
        restart: None,
        restart_is_held: false,
    };
    CatalogState {
        version: 150_000,
        database_oid: 5,
        database: "shop".into(),
        decoding: LogicalDecoding { wal_level: "logical".into(), rises: false, plugins: None },
        wal_sender_timeout_ms: 60_000,
        in_recovery: false,
        flushed: Lsn::new(1 << 40),
        slot: Some(slot),
        halted_by: None,
    }
}

fn identity() -> impl Strategy<Value = ServerIdentity> {
    (0..3_u8, 1..3_u32, 0..2_i64).prop_map(|(system, timeline, postmaster_start)| ServerIdentity {
        system_identifier: system.to_string(),
        timeline,
        postmaster_start,
    })
}

/// Sometimes a position to resume from, sometimes a standby's observations, in a WAL of few
/// positions.
fn resume() -> impl Strategy<Value = Resume> {
    let at = (identity(), 0..20_u64, 0..20_u64, any::<bool>(), any::<bool>(), 0..20_u64);
    let moved_from = proptest::option::of((0..20_u64).prop_map(Lsn::new));
    let waited =
        (identity(), 0..40_u64, moved_from).prop_map(|(identity, confirmed, moved_from)| Waited {
            fingerprint: PublicationFingerprint::default(),
            identity,
            confirmed: Lsn::new(confirmed),
            moved_from,
        });
    prop_oneof![
        1 => Just(Resume::AtSlot { waited: None }),
        2 => waited.prop_map(|waited| Resume::AtSlot { waited: Some(waited) }),
        2 => at.prop_map(|(identity, confirmed, ahead, after_another, own, others)| Resume::At {
            identity,
            fingerprint: PublicationFingerprint::default(),
            walsender: own.then_some(7),
            confirmed: Lsn::new(confirmed),
            ack: Lsn::new(confirmed / 2),
            start: Lsn::new(confirmed + ahead),
            after_another,
            by_others: Lsn::new(others),
            seen: if after_another { Lsn::new(confirmed + ahead / 2) } else { Lsn::ZERO },
            received: crate::source::ReceivedTransactions::default(),
        })
    ]
}

/// The same history, or a standby that was promoted while walpost decoded on it.
fn is_same(known: &ServerIdentity, found: &ServerIdentity) -> bool {
    let is_promoted = known.timeline < found.timeline
        && (&known.system_identifier, known.postmaster_start)
            == (&found.system_identifier, found.postmaster_start);
    known.has_history_of(found) || is_promoted
}

/// I12: no session is opened on another server, or beyond the end of its WAL, or of what a
/// promoted server has of the former timeline.
#[test]
fn reconnecting_requires_the_same_server_with_all_received_wal() {
    let lsn = || (0..40_u64).prop_map(Lsn::new);
    let cases = (resume(), identity(), lsn(), proptest::option::of(lsn()));
    let name = "reconnecting_requires_the_same_server_with_all_received_wal";
    property::holds(name, 2000, &cases, |(resume, found, flushed, fork)| {
        let fork = fork
            .filter(|_| known_server(&resume).is_some_and(|known| found.may_descend_from(known)));
        let same = match &resume {
            Resume::AtSlot { waited: None } => true,
            Resume::AtSlot { waited: Some(Waited { identity, confirmed, .. }) } => {
                (is_same(identity, &found) || fork >= Some(*confirmed)) && *confirmed <= flushed
            }
            Resume::At { identity, start, seen, .. } => {
                let start = (*start).max(*seen);
                (is_same(identity, &found) || fork >= Some(start)) && start <= flushed
            }
        };
        let facts = facts(Lsn::new(1), None);
        match check_identity(&found, fork, flushed, &facts, &resume) {
            Ok(()) => assert!(same, "I12: {resume:?} on {found:?}, flushed to {flushed}"),
            Err(error) => {
                assert!(!same, "I12: refused: {error}");
                assert!(matches!(error, SourceError::Slot(_)), "needs an operator: {error:?}");
            }
        }
    });
}

/// A position that the state does not know would look like that of a slot that was made again.
#[test]
fn a_session_begins_with_a_flush_lsn_that_the_slot_has_or_the_state_knows() {
    let name = "a_session_begins_with_a_flush_lsn_that_the_slot_has_or_the_state_knows";
    property::holds(name, 2000, &(resume(), 0..40_u64), |(resume, at_slot)| {
        let at_slot = Lsn::new(at_slot);
        let StartPosition { ack, start } = StartPosition::of(&resume, at_slot);
        let known = if let Resume::At { ack, .. } = resume { ack } else { at_slot };
        assert!((ack == at_slot || ack <= known) && ack <= start, "{resume:?} at {at_slot}");
    });
}

/// I12: what a promoted server lacks may have been received behind the position to read from.
#[test]
fn a_promotion_before_the_end_of_what_was_received_is_refused() {
    use crate::pgoutput::{Begin, Message, PgTimestamp};
    let server = |timeline: u32| ServerIdentity {
        system_identifier: "1".into(),
        timeline,
        postmaster_start: i64::from(timeline),
    };
    let mut received = crate::source::ReceivedTransactions::default();
    let (commit_lsn, commit_time) = (Lsn::new(30), PgTimestamp::from_micros(7));
    received.message(&Message::Begin(Begin { commit_lsn, commit_time, xid: 5 }), Lsn::ZERO);
    let resume = Resume::At {
        identity: server(1),
        fingerprint: PublicationFingerprint::default(),
        walsender: None,
        confirmed: Lsn::new(10),
        ack: Lsn::new(10),
        start: Lsn::new(10),
        after_another: false,
        by_others: Lsn::ZERO,
        seen: Lsn::ZERO,
        received,
    };
    for (fork, is_refused) in [(10, true), (30, true), (31, false)] {
        let (fork, facts) = (Some(Lsn::new(fork)), facts(Lsn::new(1), None));
        let checked = check_identity(&server(2), fork, Lsn::new(99), &facts, &resume);
        let lost = matches!(checked, Err(SourceError::Slot(SlotError::LostInFailover { .. })));
        assert_eq!(lost, is_refused, "{fork:?}: {checked:?}");
    }
}

/// I12: nor on a slot that is in use, or that was advanced by an unknown client.
#[test]
fn a_slot_that_is_in_use_or_was_advanced_unseen_is_rejected() {
    let cases = (resume(), (0..40_u64).prop_map(Lsn::new), any::<bool>());
    let name = "a_slot_that_is_in_use_or_was_advanced_unseen_is_rejected";
    let config = SourceConfig {
        conninfo: ConnInfoSource::new(|| Err("none".to_owned())),
        slot: "walpost".into(),
        publication: "walpost".into(),
        tables: Vec::new(),
        typed: false,
        temporary_slot: false,
        catch_up: CatchUp::default(),
        open_state: OpenState::default(),
        wait_until_visible: false,
        messages: false,
        text_prefix: None,
    };
    property::holds(name, 2000, &cases, |(resume, confirmed, held)| {
        let facts = facts(confirmed, held.then_some(7));
        let advanced_by_unknown = match &resume {
            Resume::AtSlot { waited: Some(Waited { moved_from: Some(from), .. }) } => {
                confirmed > *from
            }
            Resume::AtSlot { .. } | Resume::At { after_another: true, .. } => false,
            Resume::At { confirmed: ours, by_others, .. } => {
                confirmed > *ours && confirmed > *by_others
            }
        };
        let identity =
            ServerIdentity { system_identifier: "1".into(), timeline: 1, postmaster_start: 1 };
        match check_slot(&config, &facts, &resume, &PublicationFingerprint::default(), &identity) {
            Ok(at) => {
                assert!(!held && !advanced_by_unknown, "I12: {resume:?} on a slot at {confirmed}");
                assert_eq!(at, confirmed);
            }
            Err(SourceError::InUse { pid, holder, .. }) => {
                assert!(held && pid == Some(7));
                let is_own = own_process(&resume, &identity) == Some(7);
                let is_another = holder.is_some_and(|holder| holder.kind == HolderKind::Walpost);
                assert_eq!(
                    is_another, !is_own,
                    "I12: its own last session counts as another walpost"
                );
            }
            Err(SourceError::Slot(
                SlotError::Advanced { found, .. } | SlotError::AdvancedWhileWaiting { found, .. },
            )) => {
                assert!(advanced_by_unknown && !held, "I12: refused on a slot at {confirmed}");
                assert_eq!(found, confirmed);
            }
            Err(other) => panic!("I12: {other:?}"),
        }
    });
}

#[test]
fn the_silence_limit_exceeds_wal_sender_timeout() {
    for seconds in [1, 3, 10, 60, 300, 3600, 86_400] {
        let timeout = Duration::from_secs(seconds);
        assert!(silence_limit(timeout) > timeout, "too soon: {seconds} s");
    }
}
