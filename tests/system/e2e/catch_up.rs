//! Backlogs that are read by catch-up reads, and backlogs that are streamed instead.

use walpost_bed::{Kafka, Major, Postgres, Stop, WalpostBuilder, eventually};

use walpost_bed::fixture::{
    Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, assert_in_log_order, insert, stop,
};

/// The log messages about batches.
pub(crate) const IN_BATCHES: &str = "starting a catch-up read";
pub(crate) const STREAMING: &str = "streaming from PostgreSQL";

/// A run to which the least that waits is a backlog.
pub(crate) fn catching_up(fixture: &Fixture) -> WalpostBuilder {
    fixture.command("run").env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB")
}

/// Commits this many rows, each in a transaction of its own.
pub(crate) async fn one_by_one(fixture: &Fixture, count: u32) {
    transactions(fixture, count, 1).await;
}

/// Commits this many transactions with this many rows each.
pub(crate) async fn transactions(fixture: &Fixture, count: u32, rows: u32) {
    let sql = format!(
        "DO $$ BEGIN FOR t IN 1..{count} LOOP
           INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', (i % 10)::text, 'placed', jsonb_build_object('t', t, 'i', i)
               FROM generate_series(1, {rows}) i;
           COMMIT;
         END LOOP; END $$"
    );
    fixture.postgres.execute(&sql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_publishes_many_and_large_transactions_in_order() {
    let fixture = Fixture::new().await;
    one_by_one(&fixture, 10_000).await;
    fixture.postgres.execute(&insert(100_000, 100)).await;
    one_by_one(&fixture, 1000).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    one_by_one(&fixture, 1000).await;
    walpost.await_line(STREAMING, LONG_TIMEOUT).await;
    one_by_one(&fixture, 100).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    assert_in_log_order(&fixture.records().await);
    let copies = "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name <> 'walpost'";
    assert_eq!(fixture.postgres.query_text(copies).await.as_deref(), Some("0"));
    stop(walpost).await;
    fixture.judge().await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_repeats_nothing_after_a_stop_and_loses_nothing_after_a_kill() {
    let fixture = Fixture::new().await;
    transactions(&fixture, 10_000, 20).await;
    let slowly = || catching_up(&fixture).args(["--in-flight-bytes", "64KiB"]).start();
    let more_than = async |count| {
        eventually(SHORT_TIMEOUT, "some records arrive", async || {
            fixture.records().await.len() > count
        })
        .await;
    };
    let walpost = slowly();
    more_than(500).await;
    let last = stop(walpost).await;
    let count = fixture.records().await.len();
    assert!(count < 200_000, "in the middle");
    assert_eq!(last["delivered"].as_u64(), u64::try_from(count).ok(), "{last}");
    let walpost = slowly();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    more_than(count + 500).await;
    walpost.kill9().await;
    let records = fixture.records().await;
    assert!(records.len() < 200_000, "in the middle");
    let mut ids: Vec<_> = records.iter().map(|record| record.header("id")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), records.len(), "the stop was in order");
    let walpost = catching_up(&fixture).start();
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_waits_during_catch_up_and_takes_over() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    one_by_one(&fixture, 10_000).await;
    kafka.pause();
    let first = catching_up(&fixture).start();
    first.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    for second in [catching_up(&fixture), fixture.command("run")] {
        let second = second.start();
        second.await_line("is in use by server process", SHORT_TIMEOUT).await;
        assert!(!second.said(IN_BATCHES) && !second.said(STREAMING), "{:?}", second.stderr());
    }
    let second = catching_up(&fixture).start();
    second.await_line("is in use by server process", SHORT_TIMEOUT).await;
    first.kill9().await;
    second.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    kafka.resume();
    fixture.assert_ok(LONG_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlog_is_streamed_without_a_free_slot_for_the_copy() {
    let postgres = Postgres::builder(Major::V15).setting("max_replication_slots", "1");
    let fixture = Fixture::with(postgres).await;
    one_by_one(&fixture, 1000).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line("cannot read the backlog in SQL batches", SHORT_TIMEOUT).await;
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lagging_stream_switches_to_catch_up() {
    let fixture = Fixture::new().await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    walpost.pause();
    one_by_one(&fixture, 100_000).await;
    walpost.resume();
    walpost.await_line(IN_BATCHES, LONG_TIMEOUT).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    assert_in_log_order(&fixture.records().await);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_resumes_after_a_server_restart() {
    let fixture = Fixture::new().await;
    one_by_one(&fixture, 10_000).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 500)
        .await;
    assert!(fixture.postgres.stop(Stop::Immediate, SHORT_TIMEOUT).await);
    fixture.postgres.start_again().await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    // A fast shutdown does not wait for clients.
    one_by_one(&fixture, 10_000).await;
    assert!(fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await);
    fixture.postgres.start_again().await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_holds_the_slot_while_kafka_is_unavailable() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    fixture.postgres.execute(&insert(20_000, 10)).await;
    one_by_one(&fixture, 10_000).await;
    kafka.pause();
    let options = ["--in-flight-bytes", "64KiB"];
    let walpost = catching_up(&fixture).args(options).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    kafka.resume();
    eventually(SHORT_TIMEOUT, "the large one is over", async || {
        fixture.records().await.len() > 20_500
    })
    .await;
    kafka.pause();
    walpost.await_line(STREAMING, LONG_TIMEOUT).await;
    kafka.resume();
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_advanced_during_catch_up_ends_the_run() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    one_by_one(&fixture, 10_000).await;
    kafka.pause();
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    let moved = "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    fixture.postgres.query_text(moved).await;
    kafka.resume();
    let (code, said) = walpost_bed::fixture::ended(&walpost).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("was confirmed up to"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_dropped_during_catch_up_ends_the_run() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    one_by_one(&fixture, 10_000).await;
    kafka.pause();
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    fixture.postgres.query_text("SELECT pg_drop_replication_slot('walpost')").await;
    kafka.resume();
    let (code, said) = walpost_bed::fixture::ended(&walpost).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("does not exist; for a new outbox run"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_open_during_catch_up_is_published_on_commit() {
    let fixture = Fixture::new().await;
    let old = fixture.postgres.client().await;
    // Of other keys: a row's place in the table is not the order of commits.
    let rows = insert(2000, 7).replace("(i %", "'old' || (i %");
    old.batch_execute(&format!("BEGIN; {rows}")).await.expect("rows");
    one_by_one(&fixture, 5000).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "what has committed comes", async || {
        fixture.records().await.len() == 5000
    })
    .await;
    old.batch_execute("COMMIT").await.expect("committed");
    fixture.assert_exact(SHORT_TIMEOUT).await;
    stop(walpost).await;
}
