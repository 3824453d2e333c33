//! Switchovers and failovers under load.

use std::time::Instant;

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert};
use walpost_bed::writer::Writer;
use walpost_bed::{Major, Patroni, Walpost, eventually};

use crate::fixture::{Fixture, commits, seconds};

const FOLLOWS: &str = "the server was promoted, and lacks nothing";
const LACKS: &str = "the server was promoted from timeline";
const TIMES: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Switchover,
    Kill,
}

/// What walpost did after a change of the leader.
enum Outcome {
    Continued,
    /// It exited with 3; its last words.
    Refused(String),
}

/// Changes the leader, and awaits what walpost does. Prints both.
async fn change(fixture: &Fixture, walpost: &Walpost, writer: &Writer, how: How) -> Outcome {
    let patroni = &fixture.patroni;
    commits(writer, 100).await;
    let mark = walpost.mark();
    let begin = Instant::now();
    let change = match how {
        How::Switchover => patroni.switch_over().await,
        How::Kill => patroni.fail_over().await,
    };
    let led = begin.elapsed();
    if how == How::Kill {
        // As its supervisor does.
        patroni.start_again(&change.from);
    }
    let wrote = commits(writer, 1).await - begin;
    let outcome = match fixture.confirmed(walpost).await {
        Ok(()) => {
            walpost.await_line_after(mark, FOLLOWS, SHORT_TIMEOUT).await;
            Outcome::Continued
        }
        Err(code) => {
            assert_eq!(code, Some(3), "{:?}", walpost.stderr());
            Outcome::Refused(last_error(walpost))
        }
    };
    let what = match &outcome {
        Outcome::Continued => format!("walpost continued after {}", seconds(begin.elapsed())),
        Outcome::Refused(why) => format!("walpost exited with 3: {why}"),
    };
    println!(
        "PostgreSQL {}, {how:?} from {} to {}: leader after {}, first commit after {}, {what}",
        patroni.major().number(),
        change.from,
        change.to,
        seconds(led),
        seconds(wrote)
    );
    outcome
}

/// Why it exited.
fn last_error(walpost: &Walpost) -> String {
    let last = walpost.stderr().pop().unwrap_or_default();
    let line: serde_json::Value = serde_json::from_str(&last).unwrap_or_default();
    line["message"].as_str().map_or(last, str::to_owned)
}

/// With `synchronized_standby_slots` walpost continues each time.
async fn each_change_is_followed(major: Major) {
    let patroni = Patroni::builder(major).awaits_standbys().start().await;
    let fixture = Fixture::over(patroni, &["--failover"]).await;
    let walpost = fixture.run().await;
    let writer = fixture.write(100);
    for how in [How::Switchover, How::Kill] {
        for _ in 0..TIMES {
            fixture.synchronized().await;
            let outcome = change(&fixture, &walpost, &writer, how).await;
            assert!(matches!(outcome, Outcome::Continued), "{:?}", walpost.stderr());
        }
    }
    assert_delivered(&fixture, writer, &walpost).await;
}

/// Every committed row was delivered, in order.
async fn assert_delivered(fixture: &Fixture, writer: Writer, walpost: &Walpost) {
    let verdict = fixture.judge_after(writer, walpost).await;
    println!(
        "PostgreSQL {}: {} rows, {} duplicates",
        fixture.patroni.major().number(),
        verdict.expected,
        verdict.duplicates.len()
    );
    verdict.assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "patroni: make patroni"]
async fn switchovers_and_failovers_are_followed_17() {
    each_change_is_followed(Major::V17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "patroni: make patroni"]
async fn switchovers_and_failovers_are_followed_18() {
    each_change_is_followed(Major::V18).await;
}

/// Without `synchronized_standby_slots` walpost may have received what the new leader lacks, or not.
/// It refuses or continues; after `walpost adopt --apply` nothing that is committed is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "patroni: make patroni"]
async fn failovers_to_members_that_are_not_awaited_lose_nothing() {
    let fixture = Fixture::over(Patroni::builder(Major::V17).start().await, &["--failover"]).await;
    let mut walpost = fixture.run().await;
    let writer = fixture.write(100);
    let mut refused = 0;
    for how in [How::Switchover, How::Kill, How::Kill, How::Kill, How::Kill, How::Kill] {
        fixture.synchronized().await;
        let Outcome::Refused(why) = change(&fixture, &walpost, &writer, how).await else {
            continue;
        };
        assert!(how == How::Kill, "a switchover loses nothing: {why}");
        assert!(why.contains(LACKS), "{why}");
        refused += 1;
        walpost = fixture.run_again().await;
    }
    let mut verdict = fixture.judge_after(writer, &walpost).await;
    println!(
        "{refused} refused; {} rows, {} duplicates, {} records of rows that the failover discarded",
        verdict.expected,
        verdict.duplicates.len(),
        verdict.unexpected.len()
    );
    // What only the former leader had: no COMMIT of it has returned.
    assert!(refused > 0 || verdict.unexpected.is_empty(), "{verdict}");
    verdict.unexpected.clear();
    verdict.assert_ok();
}

/// The leader fails before a standby has what walpost has published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "patroni: make patroni"]
async fn new_leader_that_lacks_what_was_published_is_refused_until_adopted() {
    let fixture = Fixture::over(Patroni::builder(Major::V17).start().await, &["--failover"]).await;
    let walpost = fixture.run().await;
    fixture.patroni.execute(&insert(20, 3)).await;
    fixture.synchronized().await;
    fixture.confirmed(&walpost).await.expect("walpost runs");
    let published = eventually_records(&fixture, 27);
    let change = fixture.patroni.fail_over_and_lose(&insert(7, 3), async || published.await).await;
    fixture.patroni.start_again(&change.from);
    let status = walpost.wait(LONG_TIMEOUT).await.and_then(|status| status.code());
    let why = last_error(&walpost);
    assert!(status == Some(3) && why.contains(LACKS), "{status:?} {why}");
    println!("walpost exited with 3: {why}");
    fixture.patroni.settled().await;
    // The next start refuses too.
    let again = fixture.command("run").start();
    let status = again.wait(LONG_TIMEOUT).await.and_then(|status| status.code());
    assert_eq!(status, Some(3), "{:?}", again.stderr());
    assert_eq!(fixture.records().await.len(), 27, "nothing is published from it");
    let walpost = fixture.run_again().await;
    fixture.patroni.execute(&insert(5, 3)).await;
    let verdict = fixture.judge(&[], &[], &walpost).await;
    assert!(verdict.missing.is_empty() && verdict.expected == 25, "{verdict}");
    assert!(verdict.unexpected.len() == 7 && verdict.out_of_order.is_empty(), "{verdict}");
}

async fn eventually_records(fixture: &Fixture, count: usize) {
    eventually(LONG_TIMEOUT, "walpost has published", async || {
        let records = fixture.records().await.len();
        if records == count { Ok(()) } else { Err(records) }
    })
    .await;
}

/// Before PostgreSQL 17 Patroni copies the slots that its configuration names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "patroni: make patroni"]
async fn permanent_slot_of_patroni_is_followed_16() {
    let fixture = Fixture::over(Patroni::builder(Major::V16).start().await, &[]).await;
    let slot = "slots={walpost: {type: logical, database: postgres, plugin: pgoutput}}";
    fixture.patroni.configure(slot).await;
    let walpost = fixture.run().await;
    let writer = fixture.write(100);
    fixture.copied().await;
    for _ in 0..2 {
        let outcome = change(&fixture, &walpost, &writer, How::Switchover).await;
        assert!(matches!(outcome, Outcome::Continued), "{:?}", walpost.stderr());
        fixture.copied().await;
    }
    assert_delivered(&fixture, writer, &walpost).await;
}

/// Without copies of the slot a switchover ends the run. The former leader keeps its slot, as it is a
/// failover slot: once it is the leader again, walpost continues there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "patroni: make patroni"]
async fn failover_slot_without_copies_is_found_again_on_the_former_leader() {
    let patroni = Patroni::builder(Major::V17).without_synchronization().start().await;
    let fixture = Fixture::over(patroni, &["--failover"]).await;
    let walpost = fixture.run().await;
    let writer = fixture.write(100);
    commits(&writer, 100).await;
    fixture.past_the_setup().await;
    let change = fixture.patroni.switch_over().await;
    assert_slot_is_missing(&walpost).await;
    commits(&writer, 100).await;
    eventually(LONG_TIMEOUT, "the former leader leads again", async || {
        let now = fixture.patroni.switch_over().await.to;
        if now == change.from { Ok(()) } else { Err(now) }
    })
    .await;
    let walpost = fixture.run().await;
    assert_delivered(&fixture, writer, &walpost).await;
}

async fn assert_slot_is_missing(walpost: &Walpost) {
    let status = walpost.wait(LONG_TIMEOUT).await.and_then(|status| status.code());
    let why = last_error(walpost);
    assert_eq!(status, Some(3), "{why}");
    assert!(why.contains("replication slot \"walpost\" does not exist"), "{why}");
    println!("walpost exited with 3: {why}");
}

/// Patroni drops a slot that it does not know and that is no failover slot, on the former leader too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "patroni: make patroni"]
async fn slot_that_is_no_failover_slot_is_lost_with_a_switchover() {
    let fixture = Fixture::over(Patroni::builder(Major::V17).start().await, &[]).await;
    let walpost = fixture.run().await;
    let change = fixture.patroni.switch_over().await;
    assert_slot_is_missing(&walpost).await;
    eventually(LONG_TIMEOUT, "the former leader drops the slot", async || {
        let log = fixture.patroni.log_tail(&change.from, usize::MAX);
        log.contains("Dropped replication slot 'walpost'")
    })
    .await;
}
