//! Backlogs that cost the server less by a stream than in batches, and the way back.

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, assert_in_log_order, stop};

use crate::catch_up::{IN_BATCHES, STREAMING, catching_up, one_by_one};

/// The log message if a stream costs the server less.
const STREAM_COSTS_LESS: &str = "PostgreSQL would decode too much WAL again";

/// Commits a transaction of another table with about this many MB of WAL.
async fn lump(fixture: &Fixture, megabytes: u32) {
    let lump = format!(
        "CREATE TABLE IF NOT EXISTS public.other (i int, text text);
         INSERT INTO public.other SELECT i, repeat('y', 1000) FROM generate_series(1, {}) i",
        900 * megabytes
    );
    fixture.postgres.execute(&lump).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlog_behind_the_wal_of_other_tables_is_streamed_after_the_first_batch() {
    let fixture = Fixture::new().await;
    lump(&fixture, 100).await;
    one_by_one(&fixture, 5000).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    walpost.await_line(STREAM_COSTS_LESS, SHORT_TIMEOUT).await;
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    one_by_one(&fixture, 100).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    assert_in_log_order(&fixture.records().await);
    let batches = walpost.stderr().iter().filter(|line| line.contains(IN_BATCHES)).count();
    assert_eq!(batches, 1, "{:?}", walpost.stderr());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlog_behind_an_old_open_transaction_is_streamed_at_once() {
    let fixture = Fixture::new().await;
    let old = fixture.postgres.client().await;
    let sql = "CREATE TABLE public.old (i int); BEGIN; INSERT INTO public.old VALUES (1)";
    old.batch_execute(sql).await.expect("a transaction");
    lump(&fixture, 50).await;
    one_by_one(&fixture, 100).await;
    let walpost = catching_up(&fixture).args(["--catch-up", "stream"]).start();
    fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
    one_by_one(&fixture, 5000).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(STREAM_COSTS_LESS, SHORT_TIMEOUT).await;
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    assert!(!walpost.said(IN_BATCHES), "{:?}", walpost.stderr());
    old.batch_execute("COMMIT").await.expect("committed");
    one_by_one(&fixture, 100).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    assert_in_log_order(&fixture.records().await);
    stop(walpost).await;
}
