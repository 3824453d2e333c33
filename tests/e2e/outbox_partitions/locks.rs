//! Sessions that have locks, and sessions that wait for them.

use std::time::{Duration, Instant};

use walpost_bed::eventually;
use walpost_bed::fixture::{SHORT_TIMEOUT, stop};

use super::{Parts, Prober, insert_of};

/// What an insert may take beyond the time that it waits for a lock, on a busy machine.
const MARGIN: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_transactions_keep_a_partition_and_writers_wait_only_briefly() {
    let parts = Parts::with_periods(3, 60, "at-least-once").await;
    let walpost = parts.kept.run().await;
    let first = parts.insert(20).await;
    parts.is_oldest(&first).await;
    parts.kept.delivered().await;
    parts.is_over(&first).await;
    let other = parts.postgres().client().await;
    other.batch_execute(&format!("BEGIN; {}", insert_of("other"))).await.expect("it writes");
    let prober = Prober::start(parts.postgres()).await;
    let (code, said) = parts.prune(&["--lock-timeout", "100ms"]).await;
    let left = format!("{first}: partition left: other sessions keep the table locked");
    assert!(code == Some(1) && said.contains(&left), "{code:?} {said}");
    assert!(parts.exists(&first).await);
    other.batch_execute("COMMIT").await.expect("committed");
    let (code, said) = parts.prune(&["--lock-timeout", "100ms"]).await;
    assert!(code == Some(0) && !parts.exists(&first).await, "{code:?} {said}");
    let (slowest, count) = prober.stop().await;
    // It did wait, since prune waited for the table's lock.
    assert!(slowest > Duration::from_millis(50), "{slowest:?}");
    assert!(slowest < Duration::from_millis(100) + MARGIN, "{slowest:?} of {count}");
    parts.is_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_of_an_old_partition_keeps_it_and_the_others_are_dropped() {
    let parts = Parts::with_periods(3, 60, "at-least-once").await;
    let walpost = parts.kept.run().await;
    let first = parts.insert(20).await;
    parts.is_oldest(&first).await;
    parts.is_over(&first).await;
    let second = parts.insert(20).await;
    parts.kept.delivered().await;
    parts.is_over(&second).await;
    let other = parts.postgres().client().await;
    let lock = format!("BEGIN; LOCK TABLE ONLY {first} IN ROW EXCLUSIVE MODE");
    other.batch_execute(&lock).await.expect("it writes");
    let (code, said) = parts.prune(&["--lock-timeout", "50ms"]).await;
    let left = format!("{first}: partition left: other sessions write to it");
    assert!(code == Some(1) && said.contains(&left), "{code:?} {said}");
    assert!(parts.exists(&first).await && !parts.exists(&second).await, "{said}");
    let update = format!("UPDATE {first} SET event_type = 'x'; COMMIT");
    other.batch_execute(&update).await.expect("committed");
    // Its rows have the id of that transaction now.
    let (code, said) = parts.prune(&[]).await;
    assert!(code == Some(0) && said.contains("20 rows are not proved"), "{code:?} {said}");
    parts.kept.delivered().await;
    let (code, said) = parts.prune(&[]).await;
    assert!(code == Some(0) && !parts.exists(&first).await, "{code:?} {said}");
    stop(walpost).await;
}

/// The server ends the transaction of a prune that is frozen with a lock on an old partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_prune_blocks_only_writers_of_the_old_partition_and_not_for_long() {
    let parts = Parts::with_periods(3, 60, "at-least-once").await;
    let walpost = parts.kept.run().await;
    let first = parts.insert(20).await;
    parts.is_oldest(&first).await;
    parts.kept.delivered().await;
    parts.is_over(&first).await;
    let prune = parts.kept.fixture.command("prune").args(["--older-than", "0s"]);
    let prune = prune.args(["--partitions-ahead", "60s"]);
    let prune = prune.args(["--state-topic", &parts.kept.topic]);
    let prune = prune.env("FAILPOINTS", "partition_checked=sleep(60000)").start();
    let locked = format!(
        "SELECT count(*) FROM pg_locks WHERE relation = '{first}'::regclass AND mode = 'ShareLock'"
    );
    eventually(SHORT_TIMEOUT, "it has locked the partition", async || {
        parts.postgres().query_text(&locked).await.as_deref() == Some("1")
    })
    .await;
    let prober = Prober::start(parts.postgres()).await;
    let began = Instant::now();
    let late = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, created_at)
         SELECT 'order', 'late', 'placed', created_at FROM {first} LIMIT 1"
    );
    parts.postgres().execute(&late).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let (slowest, _) = prober.stop().await;
    assert!(slowest < MARGIN, "{slowest:?}");
    prune.kill9().await;
    assert!(parts.exists(&first).await);
    parts.is_exact().await;
    stop(walpost).await;
}
