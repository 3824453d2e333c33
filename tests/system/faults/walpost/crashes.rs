//! walpost is killed: at the crash points of its test build, and at any moment.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt as _;
use std::time::SystemTime;

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT};
use walpost_bed::oracle::Verdict;
use walpost_bed::writer::{Writer, lsn};
use walpost_bed::{Consumed, eventually};

use super::commit_lsn;
use crate::case::{Case, CaseReport};

/// SIGABRT: the process aborted.
const ABORTED: Option<i32> = Some(6);

/// Deaths in a case; each costs a start.
const DEATHS: usize = 5;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(1, "kill_with_received_rows_loses_nothing", async |report| {
            killed_at(report, "received", "return").await;
        }),
        Case::new(2, "kill_with_records_in_the_producer_loses_nothing", async |report| {
            killed_at(report, "produced", "return").await;
        }),
        Case::new(2, "kill_at_any_moment_loses_nothing_and_keeps_order", killed),
        Case::new(3, "kill_before_confirming_publishes_again", async |report| {
            let verdict = killed_at(report, "acknowledged", "return").await;
            let again = verdict.duplicates.len();
            assert!(again >= DEATHS, "{again} records came again after {DEATHS} deaths");
        }),
        Case::new(3, "kill_at_each_catch_up_step_loses_nothing", in_batches),
        Case::new(4, "confirmed_events_are_not_repeated_after_a_kill", confirmed),
        Case::new(12, "panic_in_a_callback_aborts_without_confirming", async |report| {
            killed_at(report, "callback", "panic").await;
        }),
    ]
}

/// Under load, several times over: it dies after it has passed the point so many
/// times, and nothing is confirmed that was not published.
async fn killed_at(report: CaseReport, point: &str, how: &str) -> Verdict {
    let fixture = Fixture::new().await;
    let writer = Writer::start(&fixture.postgres, 300);
    for _ in 0..DEATHS {
        let before = random(400);
        let armed = format!("{point}={before}*off->{how}");
        let walpost = fixture.command("run").env("FAILPOINTS", &armed).start();
        let status =
            walpost.wait(SHORT_TIMEOUT).await.unwrap_or_else(|| panic!("{armed}: it still runs"));
        assert_eq!(status.signal(), ABORTED, "{armed}: {:?}", walpost.stderr());
        if how == "panic" {
            assert!(walpost.said("panicked"), "{armed}: {:?}", walpost.stderr());
        }
        let unpublished_ids = writer.unpublished_ids(&fixture).await;
        assert!(
            unpublished_ids.is_empty(),
            "{armed}: confirmed, not published: {unpublished_ids:?}"
        );
        report.did(format!("aborted after {before}"));
    }
    let _walpost = fixture.run().await;
    let verdict = fixture.judge_after(writer).await;
    report.ok(&verdict);
    verdict
}

/// The steps of reading a backlog: the slot is copied, a batch has come, the slot is to be
/// moved, has been moved, a stream is to follow. And how much may be in flight: little where the
/// batches are to last until the slot is moved.
const STEPS: [(&str, &str); 5] = [
    ("copied", "1MiB"),
    ("batch", "1MiB"),
    ("moving", "2KiB"),
    ("moved", "2KiB"),
    ("over", "1MiB"),
];

async fn in_batches(report: CaseReport) {
    let fixture = Fixture::new().await;
    let writer = Writer::start(&fixture.postgres, 300);
    for _ in 0..2 {
        for (step, in_flight) in STEPS {
            writer.commits(1000).await;
            let armed = format!("{step}=return");
            let walpost = fixture
                .command("run")
                .args(["--in-flight-bytes", in_flight])
                .env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB")
                .env("FAILPOINTS", &armed)
                .start();
            let status = walpost.wait(SHORT_TIMEOUT).await;
            let status = status.unwrap_or_else(|| panic!("{armed}: {:?}", walpost.stderr()));
            assert_eq!(status.signal(), ABORTED, "{armed}: {:?}", walpost.stderr());
            let unpublished_ids = writer.unpublished_ids(&fixture).await;
            assert!(
                unpublished_ids.is_empty(),
                "{armed}: confirmed, not published: {unpublished_ids:?}"
            );
            report.did(format!("aborted at {step}"));
        }
    }
    let _walpost = fixture.run().await;
    report.ok(&fixture.judge_after(writer).await);
}

async fn killed(report: CaseReport) {
    let fixture = Fixture::new().await;
    let writer = Writer::start(&fixture.postgres, 300);
    for kill in 0_u32..10 {
        let walpost = fixture.command("run").start();
        // Some die while they connect, most while they stream.
        if kill % 5 != 0 {
            walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        }
        writer.commits(u64::from(random(60))).await;
        walpost.kill9().await;
        let unpublished_ids = writer.unpublished_ids(&fixture).await;
        assert!(unpublished_ids.is_empty(), "confirmed, not published: {unpublished_ids:?}");
    }
    report.did("killed");
    let _walpost = fixture.run().await;
    let verdict = fixture.judge_after(writer).await;
    report.ok(&verdict);
    assert!(verdict.expected > 100, "hardly any load: {verdict}");
}

/// It is killed as soon as the slot is seen to have moved.
async fn confirmed(report: CaseReport) {
    let fixture = Fixture::new().await;
    let writer = Writer::start(&fixture.postgres, 300);
    let mut deaths = Vec::new();
    for _ in 0..DEATHS {
        let walpost = fixture.run().await;
        let before = fixture.confirmed_flush().await;
        eventually(SHORT_TIMEOUT, "a confirmation", async || {
            fixture.confirmed_flush().await != before
        })
        .await;
        walpost.kill9().await;
        let confirmed = lsn(&fixture.confirmed_flush().await.expect("the slot"));
        deaths.push((confirmed, ends(&fixture.records().await)));
    }
    report.did("killed");
    let _walpost = fixture.run().await;
    report.ok(&fixture.judge_after(writer).await);
    let records = fixture.records().await;
    for (confirmed, ends) in deaths {
        let later = records.iter().filter(|one| {
            let end = ends.get(&(one.topic.clone(), one.partition));
            end.is_none_or(|end| one.offset >= *end)
        });
        for record in later {
            let commit = commit_lsn(record);
            assert!(commit >= confirmed, "{commit:X} came after {confirmed:X} was confirmed");
        }
    }
}

/// Where each partition ends.
fn ends(records: &[Consumed]) -> HashMap<(String, i32), i64> {
    let ends = records.iter().map(|one| ((one.topic.clone(), one.partition), one.offset + 1));
    // The last of a partition is last.
    ends.collect()
}

/// A number below `limit`, another each time.
fn random(limit: u32) -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.subsec_micros()) % limit
}
