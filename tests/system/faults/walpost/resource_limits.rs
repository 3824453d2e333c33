//! Memory or disk space is short (9, 10).

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, program};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Walpost, eventually};

use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(9, "rows_larger_than_the_budget_keep_memory_bounded", huge),
        Case::new(10, "full_log_disk_loses_no_event", full_log),
        Case::new(10, "closed_stderr_reader_does_not_end_the_relay", no_reader),
    ]
}

const ROWS: u64 = 60;
const ROW_BYTES: u64 = 4 << 20;

/// The budget of 1 MiB, a few copies of the row that exceeds it, and room for
/// the program itself; the rows together have four times as much.
const MEMORY_BYTES: u64 = 64 << 20;

async fn huge(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let limit = (2 * ROW_BYTES).to_string();
    let settings = [("max.message.bytes", limit.as_str())];
    kafka.create_topic_with(&fixture.topic("order"), 3, &settings).await;
    let producer_limit = format!("message.max.bytes={limit}");
    let walpost = fixture.run_with(&["--in-flight-bytes", "1MiB", "-X", &producer_limit]).await;
    fixture.postgres.execute(&insert(30, 30)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let before = walpost.rss_bytes().expect("it runs");
    kafka.pause();
    for _ in 0..ROWS {
        let row = format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('order', '1', 'placed', to_jsonb(repeat('x', {ROW_BYTES})))"
        );
        fixture.postgres.execute(&row).await;
    }
    await_standstill(&walpost, before).await;
    kafka.resume();
    fixture.confirmed(LONG_TIMEOUT).await;
    let peak = walpost.peak_rss_bytes().expect("it runs");
    assert!(peak < MEMORY_BYTES, "{} MiB", peak >> 20);
    report.did(format!("{} MiB at the most", peak >> 20));
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// Awaits that walpost has taken a row and reads no more: its memory has grown
/// and then stays as it is over many looks.
async fn await_standstill(walpost: &Walpost, before: u64) {
    let (mut last, mut looks) = (before, 0);
    eventually(LONG_TIMEOUT, "nothing more is read", async || {
        let now = walpost.rss_bytes().expect("it runs");
        looks = if now == last && now > before + ROW_BYTES { looks + 1 } else { 0 };
        last = now;
        if looks >= 50 { Ok(()) } else { Err((before, now, looks)) }
    })
    .await;
}

/// Each line that it writes fails for want of room.
async fn full_log(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.command("run").env("RUST_LOG", "debug").stderr_to("/dev/full").start();
    let writer = Writer::start(&fixture.postgres, 200);
    writer.commits(100).await;
    // What it has to say a warning of.
    for _ in 0..3 {
        let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
        fixture.postgres.query_rows(terminate).await;
        writer.commits(100).await;
    }
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
    walpost.terminate();
    report.ends(&walpost, 0).await;
}

async fn no_reader(report: CaseReport) {
    let fixture = Fixture::new().await;
    let topic = fixture.topic("{aggregate_type}");
    let mut walpost = Command::new(program())
        .args(["run", "--source", &fixture.source, "--bootstrap-servers", &fixture.bootstrap])
        .args(["--topic", &topic, "-X", "allow.auto.create.topics=true", "--admin-listen", "off"])
        .args(["--state-topic", "off"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(walpost.stdout.take());
    let stderr = walpost.stderr.take().expect("a pipe");
    let first = BufReader::new(stderr).lines().next().expect("a line").expect("text");
    assert!(first.contains("walpost starts"), "{first}");
    fixture.postgres.execute(&insert(100, 10)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let terminate = Command::new("kill").args(["-TERM", &walpost.id().to_string()]).status();
    assert!(terminate.expect("kill is there").success());
    // It has logged several lines by then that nobody reads.
    assert_eq!(walpost.wait().expect("it ended").code(), Some(0));
    report.did("exit 0");
    report.exact(&fixture.judge().await);
}
