//! What it needs of its machine is short: memory, or room for its log.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use walpost_bed::scene::{LATER, SOON, Scene, insert, program};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Walpost, eventually};

use crate::case::{Account, Case};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(9, "rows_that_are_huge_beside_the_budget_need_no_more_memory", huge),
        Case::new(10, "a_log_on_a_full_disk_loses_no_event", full_log),
        Case::new(10, "a_reader_of_the_log_that_goes_away_does_not_end_the_relay", no_reader),
    ]
}

const ROWS: u64 = 60;
const ROW_BYTES: u64 = 4 << 20;

/// The budget of 1 MiB, a few copies of the row that exceeds it, and room for
/// the program itself; the rows together have four times as much.
const MEMORY_BYTES: u64 = 64 << 20;

async fn huge(account: Account) {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let limit = (2 * ROW_BYTES).to_string();
    let settings = [("max.message.bytes", limit.as_str())];
    kafka.create_topic_with(&scene.topic("order"), 3, &settings).await;
    let producer_limit = format!("message.max.bytes={limit}");
    let walpost = scene.run_with(&["--in-flight-bytes", "1MiB", "-X", &producer_limit]).await;
    scene.postgres.execute(&insert(30, 30)).await;
    scene.confirmed(SOON).await;
    let before = walpost.rss_bytes().expect("it runs");
    kafka.pause();
    for _ in 0..ROWS {
        let row = format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('order', '1', 'placed', to_jsonb(repeat('x', {ROW_BYTES})))"
        );
        scene.postgres.execute(&row).await;
    }
    await_standstill(&walpost, before).await;
    kafka.resume();
    scene.confirmed(LATER).await;
    let peak = walpost.peak_rss_bytes().expect("it runs");
    assert!(peak < MEMORY_BYTES, "{} MiB", peak >> 20);
    account.did(format!("{} MiB at the most", peak >> 20));
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

/// Awaits that walpost has taken a row and reads no more: its memory has grown
/// and then stays as it is over many looks.
async fn await_standstill(walpost: &Walpost, before: u64) {
    let (mut last, mut looks) = (before, 0);
    eventually(LATER, "nothing more is read", async || {
        let now = walpost.rss_bytes().expect("it runs");
        looks = if now == last && now > before + ROW_BYTES { looks + 1 } else { 0 };
        last = now;
        if looks >= 50 { Ok(()) } else { Err((before, now, looks)) }
    })
    .await;
}

/// Each line that it writes fails for want of room.
async fn full_log(account: Account) {
    let scene = Scene::new().await;
    let walpost = scene.command("run").env("RUST_LOG", "debug").stderr_to("/dev/full").start();
    let writer = Writer::start(&scene.postgres, 200);
    writer.commits(100).await;
    // What it has to say a warning of.
    for _ in 0..3 {
        let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
        scene.postgres.query_rows(terminate).await;
        writer.commits(100).await;
    }
    account.ok(&scene.judge_after(writer).await);
    account.goes_on(&walpost);
    walpost.terminate();
    account.ends(&walpost, 0).await;
}

async fn no_reader(account: Account) {
    let scene = Scene::new().await;
    let topic = scene.topic("{aggregate_type}");
    let mut walpost = Command::new(program())
        .args(["run", "--source", &scene.source, "--bootstrap-servers", &scene.bootstrap])
        .args(["--topic", &topic, "-X", "allow.auto.create.topics=true", "--admin-listen", "off"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(walpost.stdout.take());
    let stderr = walpost.stderr.take().expect("a pipe");
    let first = BufReader::new(stderr).lines().next().expect("a line").expect("text");
    assert!(first.contains("walpost starts"), "{first}");
    scene.postgres.execute(&insert(100, 10)).await;
    scene.confirmed(SOON).await;
    let terminate = Command::new("kill").args(["-TERM", &walpost.id().to_string()]).status();
    assert!(terminate.expect("kill is there").success());
    // It has said several lines to nobody by then.
    assert_eq!(walpost.wait().expect("it ended").code(), Some(0));
    account.did("exit 0");
    account.exact(&scene.judge().await);
}
