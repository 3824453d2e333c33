//! A backlog that is read in batches, and where it is not.

use walpost_bed::{Kafka, Major, Postgres, Stop, WalpostBuilder, eventually};

use walpost_bed::fixture::{
    Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, assert_in_log_order, insert, stop,
};

/// What is said of batches.
pub(crate) const IN_BATCHES: &str = "reading the backlog in batches";
pub(crate) const STREAMING: &str = "streaming from PostgreSQL";

/// A run to which the least that waits is a backlog.
pub(crate) fn catching_up(fixture: &Fixture) -> WalpostBuilder {
    fixture.command("run").env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB")
}

/// Commits so many rows, each in a transaction of its own.
pub(crate) async fn one_by_one(fixture: &Fixture, count: u32) {
    transactions(fixture, count, 1).await;
}

/// Commits so many transactions of so many rows.
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
async fn a_backlog_of_many_and_of_large_transactions_comes_whole_and_in_order() {
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
async fn a_stop_in_the_midst_repeats_nothing_and_a_kill_loses_nothing() {
    let fixture = Fixture::new().await;
    transactions(&fixture, 10_000, 20).await;
    let slowly = || catching_up(&fixture).args(["--in-flight-bytes", "64KiB"]).start();
    let more_than = async |count| {
        eventually(SHORT_TIMEOUT, "some come", async || fixture.records().await.len() > count)
            .await;
    };
    let walpost = slowly();
    more_than(500).await;
    let last = stop(walpost).await;
    let count = fixture.records().await.len();
    assert!(count < 200_000, "in the midst");
    assert_eq!(last["delivered"].as_u64(), u64::try_from(count).ok(), "{last}");
    let walpost = slowly();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    more_than(count + 500).await;
    walpost.kill9().await;
    let records = fixture.records().await;
    assert!(records.len() < 200_000, "in the midst");
    let mut ids: Vec<_> = records.iter().map(|record| record.header("id")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), records.len(), "the stop was in order");
    let walpost = catching_up(&fixture).start();
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge().await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_waits_while_one_catches_up_and_takes_over_when_it_has_gone() {
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
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge().await.assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_free_slot_for_the_copy_it_is_streamed() {
    let postgres = Postgres::builder(Major::V15).setting("max_replication_slots", "1");
    let fixture = Fixture::with(postgres).await;
    one_by_one(&fixture, 1000).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line("does not hand out the backlog in batches", SHORT_TIMEOUT).await;
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_fallen_behind_while_streaming_catches_up_in_batches() {
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
async fn a_server_that_goes_in_the_midst_is_read_on_from_where_it_was_left() {
    let fixture = Fixture::new().await;
    one_by_one(&fixture, 10_000).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "some come", async || fixture.records().await.len() > 500).await;
    assert!(fixture.postgres.stop(Stop::Immediate, SHORT_TIMEOUT).await);
    fixture.postgres.start_again().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge().await.assert_ok();
    // A fast shutdown waits for nobody.
    one_by_one(&fixture, 10_000).await;
    assert!(fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await);
    fixture.postgres.start_again().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge().await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_kafka_is_away_the_slot_is_held_by_a_stream() {
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
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge().await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_somebody_moves_meanwhile_ends_it() {
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
async fn rows_of_a_transaction_that_is_open_meanwhile_come_when_it_commits() {
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
