//! Sessions that have locks, and sessions that wait for them.

use std::time::{Duration, Instant};

use walpost_bed::fixture::{SHORT_TIMEOUT, ended, insert, stop};
use walpost_bed::{eventually, under_load};

use super::{Parts, Prober, insert_of};

/// What an insert may take beyond the time that it waits for a lock, on a busy machine.
const MARGIN: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_transactions_keep_a_partition_and_writers_wait_only_briefly() {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
    // Rows that are deleted one by one all the same.
    let other = insert(5, 5).replace("payload)", "payload, created_at)");
    let other = other.replace("('i', i)", "('i', i), now() - interval '1 year'");
    parts.postgres().execute(&other).await;
    parts.kept.delivered().await;
    let other = parts.postgres().client().await;
    other.batch_execute(&format!("BEGIN; {}", insert_of("other"))).await.expect("it writes");
    let prober = Prober::start(parts.postgres()).await;
    let (code, said) = parts.prune(&["--lock-timeout", "100ms", "--include-before-slot"]).await;
    let left = format!("{first}: partition left: other sessions keep the table locked");
    assert!(code == Some(1) && said.contains(&left), "{code:?} {said}");
    assert!(said.contains("public.outbox_default: 5 rows deleted"), "{said}");
    assert!(said.contains("keep rows or tables locked"), "{said}");
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
async fn partitions_of_a_locked_table_are_tried_until_it_is_hopeless() {
    let parts = Parts::with_periods(1, 60, "at-least-once").await;
    let walpost = parts.kept.run().await;
    parts.insert(1).await;
    parts.kept.delivered().await;
    parts.is_over("first_6").await;
    let other = parts.postgres().client().await;
    let lock = "BEGIN; LOCK TABLE ONLY public.outbox IN ROW EXCLUSIVE MODE";
    other.batch_execute(lock).await.expect("locked");
    let (code, said) = parts.prune(&["--lock-timeout", "10ms", "--partitions-ahead", "0s"]).await;
    assert_eq!(code, Some(1), "{said}");
    let is_left = |why: &str| said.matches(&format!("partition left{why}")).count();
    assert_eq!(is_left(": other sessions keep the table locked"), 3, "{said}");
    assert!(is_left(", as those before it") >= 3, "{said}");
    assert!(said.contains("public.outbox_default: 0 rows deleted"), "{said}");
    // Longer than a writer that waits too may wait.
    let (code, said) = parts.prune(&["--lock-timeout", "600ms"]).await;
    let why = "it must be at most half of deadlock_timeout, which is 1s on this server";
    assert!(code == Some(78) && said.contains(why), "{code:?} {said}");
    other.batch_execute("COMMIT").await.expect("unlocked");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_ends_the_pause_after_a_partition() {
    let parts = Parts::with_periods(1, 60, "at-least-once").await;
    let walpost = parts.kept.run().await;
    parts.insert(1).await;
    parts.kept.delivered().await;
    parts.is_over("first_3").await;
    let prune = parts.kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--partitions-ahead", "0s", "--sleep", "1h"]);
    let prune = prune.start();
    eventually(SHORT_TIMEOUT, "one is dropped", async || !parts.exists("first_1").await).await;
    let asked = Instant::now();
    prune.terminate();
    let (code, said) = ended(&prune).await;
    assert!(code == Some(1) && said.contains("stopped by a signal"), "{code:?} {said}");
    assert!(asked.elapsed() < under_load(Duration::from_secs(5)), "{:?}", asked.elapsed());
    assert!(parts.exists("first_2").await, "{said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_of_an_old_partition_keeps_it_and_the_others_are_dropped() {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
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

/// Rows are deleted from the partitions that are left, and not looked for in those that are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_deleted_by_a_run_that_drops_partitions() {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
    parts.insert(5).await;
    parts.kept.delivered().await;
    let (code, said) = parts.prune(&["--dry-run", "--delete-rows"]).await;
    let of_all = said.split("public.outbox:\n").nth(1).expect("the rows of the table");
    assert!(code == Some(0), "{said}");
    assert!(of_all.starts_with("old and delivered:                   25\n"), "{said}");
    let oldest = "SELECT min(created_at)::text FROM public.outbox";
    let oldest = parts.postgres().query_text(oldest).await.expect("a time");
    let oldest = format!("oldest row:                          {oldest}");
    assert!(of_all.split("\npublic.").next().is_some_and(|rows| rows.contains(&oldest)), "{said}");
    let (code, said) = parts.prune(&["--delete-rows"]).await;
    assert!(code == Some(0) && !parts.exists(&first).await, "{code:?} {said}");
    assert!(said.contains(&format!("{first}: partition with 20 rows dropped")), "{said}");
    assert_eq!(parts.kept.left().await, 0, "{said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn a_locked_table_to_which_foreign_keys_refer_is_named_as_a_reason() {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
    let reference = "CREATE TABLE public.tenant (id int PRIMARY KEY, n int);
                     INSERT INTO public.tenant VALUES (1, 1);
                     ALTER TABLE public.outbox ADD tenant int REFERENCES public.tenant";
    parts.postgres().execute(reference).await;
    parts.kept.delivered().await;
    let other = parts.postgres().client().await;
    other.batch_execute("BEGIN; UPDATE public.tenant SET n = 2").await.expect("updated");
    let (code, said) = parts.prune(&["--partitions-ahead", "10min"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("a table to which its foreign keys refer, locked"), "{said}");
    assert!(!parts.exists(&first).await, "dropping needs no lock of that table: {said}");
    other.batch_execute("COMMIT").await.expect("committed");
    let (code, said) = parts.prune(&["--partitions-ahead", "10min"]).await;
    assert!(code == Some(0) && said.contains("partition made"), "{code:?} {said}");
    stop(walpost).await;
}

/// The server ends the transaction of a prune that is frozen with a lock on an old partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_prune_blocks_only_writers_of_the_old_partition_and_not_for_long() {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
    let prune = parts.kept.pruning().args(["--older-than", "0s"]);
    let prune = prune.args(["--partitions-ahead", "60s"]);
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
    assert!(began.elapsed() < under_load(Duration::from_secs(15)), "{:?}", began.elapsed());
    let (slowest, _) = prober.stop().await;
    assert!(slowest < MARGIN, "{slowest:?}");
    prune.kill9().await;
    assert!(parts.exists(&first).await);
    parts.is_exact().await;
    stop(walpost).await;
}

/// Who detaches a partition wants to keep it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_partition_that_is_detached_meanwhile_are_kept() {
    let parts = Parts::with_periods(3_600, 2, "at-least-once").await;
    let walpost = parts.kept.run().await;
    let first = parts.insert(300).await;
    parts.kept.delivered().await;
    let prune = parts.kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--partitions-ahead", "0s", "--delete-rows"]);
    let prune = prune.args(["--batch", "50", "--sleep", "1s"]).start();
    eventually(SHORT_TIMEOUT, "it has deleted some", async || parts.kept.left().await < 300).await;
    parts
        .postgres()
        .execute(&format!("ALTER TABLE public.outbox DETACH PARTITION public.{first}"))
        .await;
    let left = async || {
        let query = format!("SELECT count(*) FROM public.{first}");
        parts.postgres().query_text(&query).await
    };
    let before = left().await;
    let (code, said) = ended(&prune).await;
    assert!(code == Some(1) && said.contains("was detached"), "{code:?} {said}");
    assert!(left().await == before && before.as_deref() != Some("0"), "{before:?} {said}");
    stop(walpost).await;
}

/// A schema can be renamed whatever locks its tables have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_gets_the_name_meanwhile_is_not_dropped() {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
    let prune = parts.kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--partitions-ahead", "0s"]);
    let prune = prune.env("FAILPOINTS", "partition_checked=sleep(2500)").start();
    let checked = "SELECT count(*) FROM pg_stat_activity
                    WHERE application_name = 'walpost prune' AND state = 'idle in transaction'
                      AND query LIKE 'WITH counted%'";
    eventually(SHORT_TIMEOUT, "the partition is checked", async || {
        parts.postgres().query_text(checked).await.as_deref() == Some("1")
    })
    .await;
    let swap = format!(
        "ALTER SCHEMA public RENAME TO old; CREATE SCHEMA public;
         CREATE TABLE public.outbox (LIKE old.outbox) PARTITION BY RANGE (created_at);
         CREATE TABLE public.{first} PARTITION OF public.outbox DEFAULT;
         CREATE TABLE public.outbox_default (); INSERT INTO public.outbox TABLE old.{first}"
    );
    parts.postgres().execute(&swap).await;
    let (_, said) = ended(&prune).await;
    let said = format!("{} {said}", prune.stdout().join("\n"));
    assert!(said.contains("it, or the table, was detached"), "{said}");
    let both = format!(
        "SELECT (SELECT count(*) FROM old.{first}) || ' ' || (SELECT count(*) FROM public.{first})"
    );
    assert_eq!(parts.postgres().query_text(&both).await.as_deref(), Some("20 20"), "{said}");
    walpost.kill9().await;
}
