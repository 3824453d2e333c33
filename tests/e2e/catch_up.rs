//! A backlog that is read in batches, and where it is not.

use walpost_bed::{Kafka, Major, Postgres, Stop, WalpostBuilder, eventually};

use walpost_bed::scene::{LATER, SOON, Scene, assert_in_log_order, insert, stop};

/// What is said of batches.
pub(crate) const IN_BATCHES: &str = "starting a catch-up read";
pub(crate) const STREAMING: &str = "streaming from PostgreSQL";

/// A run to which the least that waits is a backlog.
pub(crate) fn catching_up(scene: &Scene) -> WalpostBuilder {
    scene.command("run").env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB")
}

/// Commits so many rows, each in a transaction of its own.
pub(crate) async fn one_by_one(scene: &Scene, count: u32) {
    transactions(scene, count, 1).await;
}

/// Commits so many transactions of so many rows.
pub(crate) async fn transactions(scene: &Scene, count: u32, rows: u32) {
    let sql = format!(
        "DO $$ BEGIN FOR t IN 1..{count} LOOP
           INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', (i % 10)::text, 'placed', jsonb_build_object('t', t, 'i', i)
               FROM generate_series(1, {rows}) i;
           COMMIT;
         END LOOP; END $$"
    );
    scene.postgres.execute(&sql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_many_and_of_large_transactions_comes_whole_and_in_order() {
    let scene = Scene::new().await;
    one_by_one(&scene, 10_000).await;
    scene.postgres.execute(&insert(100_000, 100)).await;
    one_by_one(&scene, 1000).await;
    let walpost = catching_up(&scene).start();
    walpost.await_line(IN_BATCHES, SOON).await;
    one_by_one(&scene, 1000).await;
    walpost.await_line(STREAMING, LATER).await;
    one_by_one(&scene, 100).await;
    scene.assert_exact(LATER).await;
    assert_in_log_order(&scene.records().await);
    let copies = "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name <> 'walpost'";
    assert_eq!(scene.postgres.query_text(copies).await.as_deref(), Some("0"));
    stop(walpost).await;
    scene.judge().await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_in_the_midst_repeats_nothing_and_a_kill_loses_nothing() {
    let scene = Scene::new().await;
    transactions(&scene, 10_000, 20).await;
    let slowly = || catching_up(&scene).args(["--in-flight-bytes", "64KiB"]).start();
    let more_than = async |count| {
        eventually(SOON, "some come", async || scene.records().await.len() > count).await;
    };
    let walpost = slowly();
    more_than(500).await;
    let last = stop(walpost).await;
    let count = scene.records().await.len();
    assert!(count < 200_000, "in the midst");
    assert_eq!(last["delivered"].as_u64(), u64::try_from(count).ok(), "{last}");
    let walpost = slowly();
    walpost.await_line(IN_BATCHES, SOON).await;
    more_than(count + 500).await;
    walpost.kill9().await;
    let records = scene.records().await;
    assert!(records.len() < 200_000, "in the midst");
    let mut ids: Vec<_> = records.iter().map(|record| record.header("id")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), records.len(), "the stop was in order");
    let walpost = catching_up(&scene).start();
    scene.confirmed(LATER).await;
    scene.judge().await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_waits_while_one_catches_up_and_takes_over_when_it_has_gone() {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    one_by_one(&scene, 10_000).await;
    kafka.pause();
    let first = catching_up(&scene).start();
    first.await_line(IN_BATCHES, SOON).await;
    for second in [catching_up(&scene), scene.command("run")] {
        let second = second.start();
        second.await_line("is in use by server process", SOON).await;
        assert!(!second.said(IN_BATCHES) && !second.said(STREAMING), "{:?}", second.stderr());
    }
    let second = catching_up(&scene).start();
    second.await_line("is in use by server process", SOON).await;
    first.kill9().await;
    second.await_line(IN_BATCHES, SOON).await;
    kafka.resume();
    scene.confirmed(LATER).await;
    scene.judge().await.assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_free_slot_for_the_copy_it_is_streamed() {
    let postgres = Postgres::builder(Major::V15).setting("max_replication_slots", "1");
    let scene = Scene::with(postgres).await;
    one_by_one(&scene, 1000).await;
    let walpost = catching_up(&scene).start();
    walpost.await_line("cannot read the backlog in SQL batches", SOON).await;
    walpost.await_line(STREAMING, SOON).await;
    scene.assert_exact(SOON).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_fallen_behind_while_streaming_catches_up_in_batches() {
    let scene = Scene::new().await;
    let walpost = catching_up(&scene).start();
    walpost.await_line(STREAMING, SOON).await;
    walpost.pause();
    one_by_one(&scene, 100_000).await;
    walpost.resume();
    walpost.await_line(IN_BATCHES, LATER).await;
    scene.assert_exact(LATER).await;
    assert_in_log_order(&scene.records().await);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_in_the_midst_is_read_on_from_where_it_was_left() {
    let scene = Scene::new().await;
    one_by_one(&scene, 10_000).await;
    let walpost = catching_up(&scene).start();
    walpost.await_line(IN_BATCHES, SOON).await;
    eventually(SOON, "some come", async || scene.records().await.len() > 500).await;
    assert!(scene.postgres.stop(Stop::Immediate, SOON).await);
    scene.postgres.start_again().await;
    scene.confirmed(LATER).await;
    scene.judge().await.assert_ok();
    // A fast shutdown waits for nobody.
    one_by_one(&scene, 10_000).await;
    assert!(scene.postgres.stop(Stop::Fast, SOON).await);
    scene.postgres.start_again().await;
    scene.confirmed(LATER).await;
    scene.judge().await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_kafka_is_away_the_slot_is_held_by_a_stream() {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    scene.postgres.execute(&insert(20_000, 10)).await;
    one_by_one(&scene, 10_000).await;
    kafka.pause();
    let options = ["--in-flight-bytes", "64KiB"];
    let walpost = catching_up(&scene).args(options).start();
    walpost.await_line(IN_BATCHES, SOON).await;
    kafka.resume();
    eventually(SOON, "the large one is over", async || scene.records().await.len() > 20_500).await;
    kafka.pause();
    walpost.await_line(STREAMING, LATER).await;
    kafka.resume();
    scene.confirmed(LATER).await;
    scene.judge().await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_somebody_moves_meanwhile_ends_it() {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    one_by_one(&scene, 10_000).await;
    kafka.pause();
    let walpost = catching_up(&scene).start();
    walpost.await_line(IN_BATCHES, SOON).await;
    let moved = "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    scene.postgres.query_text(moved).await;
    kafka.resume();
    let (code, said) = walpost_bed::scene::ended(&walpost).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("was confirmed up to"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_transaction_that_is_open_meanwhile_come_when_it_commits() {
    let scene = Scene::new().await;
    let old = scene.postgres.client().await;
    // Of other keys: a row's place in the table is not the order of commits.
    let rows = insert(2000, 7).replace("(i %", "'old' || (i %");
    old.batch_execute(&format!("BEGIN; {rows}")).await.expect("rows");
    one_by_one(&scene, 5000).await;
    let walpost = catching_up(&scene).start();
    walpost.await_line(IN_BATCHES, SOON).await;
    eventually(SOON, "what has committed comes", async || scene.records().await.len() == 5000)
        .await;
    old.batch_execute("COMMIT").await.expect("committed");
    scene.assert_exact(SOON).await;
    stop(walpost).await;
}
