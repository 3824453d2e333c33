//! The comparison of a stream with what was received, message by message.

use super::*;
use crate::pgoutput::encode::texts;
use crate::pgoutput::{Commit, Insert};

fn lsn(lsn: u64) -> Lsn {
    Lsn::new(lsn)
}

fn transaction(commit: u64, xid: u32) -> [Message; 3] {
    let commit_time = PgTimestamp::from_micros(i64::from(xid) * 7);
    [
        Message::Begin(Begin { commit_lsn: lsn(commit), commit_time, xid }),
        Message::Insert(Insert { relation: 7, tuple: texts(&[Some("1")]) }),
        Message::Commit(Commit { commit_lsn: lsn(commit), end_lsn: lsn(commit + 5), commit_time }),
    ]
}

/// The state after transactions at 10, 20 and 30, and `wal_end` 40.
fn received() -> ReceivedTransactions {
    let mut received = ReceivedTransactions::default();
    for (commit, xid) in [(10, 1), (20, 2), (30, 3)] {
        for message in &transaction(commit, xid) {
            received.message(message, lsn(0));
        }
    }
    // An incomplete one.
    received.message(&transaction(50, 5)[0], lsn(0));
    received
}

/// The actions on all messages of these transactions, or the error.
fn actions(
    check: &mut HistoryCheck,
    transactions: &[(u64, u32)],
) -> Result<Vec<MessageAction>, SourceError> {
    let messages = transactions.iter().flat_map(|(commit, xid)| transaction(*commit, *xid));
    messages.map(|message| check.message(&message)).collect()
}

fn check(from: u64, start: u64) -> HistoryCheck {
    HistoryCheck::new(lsn(from), lsn(start), &received()).expect("something to compare")
}

#[test]
fn the_same_history_is_skipped_up_to_the_last_received_position() {
    use MessageAction::{Pass, Same, Skip};
    let mut same = check(15, 40);
    let found = actions(&mut same, &[(20, 2), (30, 3)]);
    assert_eq!(found, Ok(vec![Skip; 6]));
    assert_eq!(same.keepalive(lsn(39)), Ok(Skip));
    assert_eq!(same.keepalive(lsn(40)), Ok(Same));
    let found = actions(&mut check(15, 40), &[(20, 2), (30, 3), (40, 4)]);
    assert_eq!(found.map(|found| found[6..].to_vec()), Ok(vec![Same, Pass, Pass]));
    // After a producer replacement, the last transaction is passed on again.
    let found = actions(&mut check(15, 15), &[(20, 2), (30, 3)]);
    assert_eq!(found, Ok(vec![Pass, Pass, Pass, Same, Pass, Pass]));
}

/// Rows up to `upto` are known, the last ones at `last`; of the transaction at `partial` a part.
fn state_check(
    from: u64,
    upto: u64,
    last: Option<(u64, u32)>,
    partial: Option<(u64, u32)>,
) -> HistoryCheck {
    let last = last.filter(|(commit, _)| *commit >= from);
    let required = last.into_iter().chain(partial).map(|(commit, xid)| RequiredTransaction {
        commit_lsn: lsn(commit),
        identity: Some((xid, PgTimestamp::from_micros(i64::from(xid) * 7))),
    });
    let published = PublishedHistory {
        required: required.collect(),
        quiet_from: lsn(last.map_or(from, |(commit, _)| commit + 1)),
        quiet_upto: lsn(upto),
        layout_changed: false,
    };
    HistoryCheck::with_state(lsn(from), published)
}

#[test]
fn the_history_of_the_state_topic_is_passed_on_again() {
    use MessageAction::{Pass, Same};
    let mut same = state_check(15, 40, Some((30, 3)), None);
    assert_eq!(actions(&mut same, &[(20, 2), (30, 3)]), Ok(vec![Pass; 6]));
    assert_eq!(same.keepalive(lsn(39)), Ok(Pass));
    assert_eq!(same.keepalive(lsn(40)), Ok(Same));
    let mut same = state_check(15, 40, Some((30, 3)), None);
    let found = actions(&mut same, &[(20, 2), (30, 3), (40, 4)]);
    assert_eq!(found.map(|found| found[6..].to_vec()), Ok(vec![Same, Pass, Pass]));
    // The slot is confirmed past the last transaction.
    let mut same = state_check(36, 40, Some((30, 3)), None);
    assert_eq!(same.keepalive(lsn(40)), Ok(Same));
    // One that was published in part: nothing behind the quiet part is passed on before it.
    let mut same = state_check(15, 50, Some((30, 3)), Some((50, 5)));
    assert_eq!(actions(&mut same, &[(20, 2), (30, 3)]), Ok(vec![Pass; 6]));
    assert_eq!(same.keepalive(lsn(50)), Ok(Pass));
    assert_eq!(actions(&mut same, &[(50, 5)]), Ok(vec![Same, Pass, Pass]));
}

#[test]
fn another_history_than_the_state_topics_needs_an_operator() {
    for (what, last, transactions) in [
        ("another transaction at the same place", Some((30, 3)), &[(20, 2), (30, 9)][..]),
        ("the last one is missing", Some((30, 3)), &[(20, 2), (41, 4)]),
        ("one after the last", Some((30, 3)), &[(20, 2), (30, 3), (36, 9)]),
        ("one where none was", None, &[(20, 2)]),
        ("one after a confirmed one", Some((10, 1)), &[(20, 2)]),
    ] {
        let mut check = state_check(15, 40, last, None);
        let found = actions(&mut check, transactions);
        assert!(matches!(found, Err(SourceError::Slot(_))), "{what}: {found:?}");
    }
    let mut check = state_check(15, 40, Some((30, 3)), None);
    assert!(check.keepalive(lsn(31)).is_err());
    for transactions in [&[(30, 3), (45, 4)][..], &[(30, 3), (50, 6)], &[(30, 3), (60, 5)]] {
        let mut check = state_check(15, 50, Some((30, 3)), Some((50, 5)));
        let found = actions(&mut check, transactions);
        assert!(matches!(found, Err(SourceError::Slot(_))), "{transactions:?}: {found:?}");
    }
    let mut check = state_check(36, 40, None, Some((50, 5)));
    assert_eq!(check.keepalive(lsn(45)), Ok(MessageAction::Skip), "it would become the position");
    assert!(check.keepalive(lsn(51)).is_err());
}

#[test]
fn a_transaction_received_in_part_is_sent_again() {
    use MessageAction::{Same, Skip};
    let check = || {
        let mut received = received();
        for message in &transaction(50, 5)[..2] {
            received.message(message, lsn(0));
        }
        HistoryCheck::new(lsn(15), lsn(40), &received).expect("something to compare")
    };
    let mut same = check();
    assert_eq!(actions(&mut same, &[(20, 2), (30, 3)]), Ok(vec![Skip; 6]));
    assert_eq!(same.keepalive(lsn(40)), Ok(Skip));
    let found = actions(&mut same, &[(50, 5)]);
    assert_eq!(found.map(|found| found[0]), Ok(Same));
    for other in [&[(20, 2), (30, 3), (50, 9)][..], &[(20, 2), (30, 3), (60, 5)]] {
        let found = actions(&mut check(), other);
        assert!(matches!(found, Err(SourceError::Slot(_))), "{other:?}: {found:?}");
    }
}

#[test]
fn the_last_durable_transaction_has_rows() {
    let mut received = received();
    assert_eq!(received.durable(lsn(10)), None);
    assert_eq!(received.durable(lsn(21)).map(|last| last.xid), Some(2));
    let mut empty = transaction(40, 4).to_vec();
    empty.remove(1);
    for message in &empty {
        received.message(message, lsn(21));
    }
    assert_eq!(received.durable(lsn(99)).map(|last| last.xid), Some(3));
    assert_eq!(received.durable(lsn(99)).map(|last| last.xid), Some(3));
}

#[test]
fn another_history_needs_an_operator() {
    for (what, transactions) in [
        ("another transaction at the same place", &[(20, 2), (30, 9)][..]),
        ("the last one is missing", &[(20, 2), (41, 4)]),
        ("one that was not there", &[(20, 2), (30, 3), (36, 9)]),
    ] {
        let error = actions(&mut check(15, 40), transactions).expect_err(what);
        assert!(matches!(error, SourceError::Slot(_)), "{what}: {error:?}");
    }
    assert!(matches!(check(15, 40).keepalive(lsn(40)), Err(SourceError::Slot(_))));
    // Nothing was received from the slot's position on, but something is sent.
    let error = actions(&mut check(36, 60), &[(50, 9)]).expect_err("unknown");
    assert!(error.to_string().contains("was not there before"), "{error}");
}

fn description(oid: Oid, columns: usize) -> Message {
    let column = crate::pgoutput::Column { name: "c".into(), type_oid: 25, type_modifier: -1 };
    let columns = vec![column; columns];
    let (schema, name) = ("public".to_owned(), "outbox".to_owned());
    Message::Relation(crate::pgoutput::Relation { oid, schema, name, columns })
}

#[test]
fn a_skipped_relation_precedes_the_first_row_without_a_newer_one() {
    let mut skipped = SkippedRelations::default();
    let row = &transaction(50, 5)[1];
    for columns in [1, 2] {
        skipped.skipped(description(7, columns));
    }
    skipped.skipped(row.clone());
    assert_eq!(skipped.before(&transaction(50, 5)[0]), Vec::new());
    assert_eq!(skipped.before(row), [description(7, 2)], "the last one");
    assert_eq!(skipped.before(row), Vec::new(), "once");
    skipped.skipped(description(7, 1));
    assert_eq!(skipped.before(&description(7, 3)), Vec::new());
    assert_eq!(skipped.before(row), Vec::new(), "it was described again");
    skipped.skipped(description(7, 1));
    assert_eq!(skipped.before(&Message::Truncate(vec![9, 7])), [description(7, 1)]);
    let mut check = check(15, 40);
    assert_eq!(check.message(&transaction(20, 2)[0]), Ok(MessageAction::Skip));
    assert_eq!(check.message(&description(7, 1)), Ok(MessageAction::Skip));
}

#[test]
fn a_transaction_read_again_does_not_become_the_last() {
    let mut received = received();
    for message in &transaction(20, 2) {
        received.message(message, lsn(0));
    }
    assert_eq!(received.last().map(|last| last.commit_lsn), Some(lsn(30)));
}

#[test]
fn durable_transactions_and_those_without_rows_are_not_kept() {
    let mut received = received();
    let with_rows = |received: &ReceivedTransactions| {
        received.with_rows.iter().map(|one| one.xid).collect::<Vec<_>>()
    };
    assert_eq!(with_rows(&received), [1, 2, 3]);
    let [begin, _, commit] = transaction(60, 6);
    for message in [&begin, &commit] {
        received.message(message, lsn(20));
    }
    assert_eq!((with_rows(&received), received.last().map(|last| last.xid)), (vec![2, 3], Some(6)));
    for number in 0..u32::try_from(KEPT_TRANSACTIONS).expect("it fits") {
        for message in &transaction(100 + u64::from(number), 100 + number) {
            received.message(message, lsn(20));
        }
    }
    assert_eq!(received.with_rows.len(), KEPT_TRANSACTIONS);
    assert_eq!(received.with_rows.front().map(|one| one.xid), Some(100));
}

#[test]
fn transactions_are_compared_before_they_are_published_again() {
    use MessageAction::Pass;
    // Another transaction in place of a received one, and one between two of them.
    for other in [&[(20, 9)][..], &[(20, 2), (25, 9)]] {
        let error = actions(&mut check(15, 15), other).expect_err("another history");
        assert!(
            error.to_string().contains("was published. The destination") == (other.len() == 1),
            "{error}"
        );
    }
    // A transaction without rows is not kept, so it may be sent.
    let [begin, _, commit] = transaction(25, 9);
    let mut check = check(15, 15);
    let found: Vec<_> = [begin, commit].iter().map(|message| check.message(message)).collect();
    assert_eq!(found, [Ok(Pass), Ok(Pass)]);
}

#[test]
fn nothing_is_compared_if_nothing_is_sent_again() {
    assert!(HistoryCheck::new(lsn(35), lsn(35), &received()).is_none());
    assert!(HistoryCheck::new(lsn(35), lsn(35), &ReceivedTransactions::default()).is_none());
    assert!(HistoryCheck::new(lsn(30), lsn(30), &received()).is_some(), "it is sent again");
}
