//! Partitions, and the table, that change while `walpost prune` runs.

use std::collections::HashSet;

use walpost_bed::fixture::{SHORT_TIMEOUT, ended, stop};
use walpost_bed::{Walpost, eventually};

use super::Parts;

/// Two partitions that follow each other, with 20 delivered rows each, whose periods are over.
async fn with_two_old_ones() -> (Parts, Walpost, [String; 2]) {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
    let second = parts.insert(20).await;
    let number = |name: &str| name.strip_prefix("first_").and_then(|rest| rest.parse::<u32>().ok());
    let (from, to) = (number(&first).expect("a number"), number(&second).expect("a number"));
    for between in from + 1..to {
        parts.postgres().execute(&format!("DROP TABLE public.first_{between}")).await;
    }
    parts.kept.delivered().await;
    parts.is_over(&second).await;
    (parts, walpost, [first, second])
}

/// A run that has dropped the first one, and pauses before the second.
async fn between_them(parts: &Parts, first: &str) -> Walpost {
    let prune = parts.kept.pruning().args(["--older-than", "0s", "--partitions-ahead", "0s"]);
    let prune = prune.args(["--sleep", "2s"]).start();
    eventually(SHORT_TIMEOUT, "the first one is dropped", async || !parts.exists(first).await)
        .await;
    prune
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_new_policy_hides_keep_their_partition() {
    let (mut parts, walpost, [first, second]) = with_two_old_ones().await;
    let owner = "CREATE ROLE pruner LOGIN; GRANT CREATE ON SCHEMA public TO pruner;
                 DO $$ DECLARE part regclass; BEGIN
                     FOR part IN SELECT relid FROM pg_partition_tree('public.outbox') LOOP
                         EXECUTE format('ALTER TABLE %s OWNER TO pruner', part);
                     END LOOP;
                 END $$";
    parts.postgres().execute(owner).await;
    parts.kept.fixture.source = parts.postgres().url_for("pruner");
    let prune = between_them(&parts, &first).await;
    let hide =
        format!("ALTER TABLE public.{second} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY");
    parts.postgres().execute(&hide).await;
    let (code, said) = ended(&prune).await;
    assert!(code == Some(1) && said.contains("row-level security hides some"), "{code:?} {said}");
    assert!(parts.exists(&second).await, "{said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_gets_another_period_meanwhile_is_left() {
    let (parts, walpost, [first, second]) = with_two_old_ones().await;
    let prune = between_them(&parts, &first).await;
    let attach = format!(
        "DO $$ DECLARE bound text := pg_get_expr(relpartbound, oid) FROM pg_class
                         WHERE oid = 'public.{second}'::regclass;
                       lower timestamptz := substring(bound from 'FROM [(]''(.*?)''');
         BEGIN
             ALTER TABLE public.outbox DETACH PARTITION public.{second};
             EXECUTE format('ALTER TABLE public.outbox ATTACH PARTITION public.{second} %s',
                            replace(bound, lower::text, (lower - interval '1 s')::text));
         END $$"
    );
    parts.postgres().execute(&attach).await;
    let (_, said) = ended(&prune).await;
    assert!(said.contains("given another period meanwhile"), "{said}");
    assert!(parts.exists(&second).await, "{said}");
    walpost.kill9().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_of_a_table_that_is_renamed_meanwhile_is_left() {
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
    let rename = "ALTER TABLE public.outbox RENAME TO kept;
                  CREATE TABLE public.outbox (LIKE public.kept)";
    parts.postgres().execute(rename).await;
    let (_, said) = ended(&prune).await;
    assert!(said.contains("it, or the table, was"), "{said}");
    assert!(parts.exists(&first).await, "{said}");
    walpost.kill9().await;
}

/// Everything about the partitions is asked before anything is done, and one that is locked for a
/// moment does not end that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_locked_at_the_beginning_is_waited_for() {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
    let postgres = parts.postgres();
    let other = postgres.client().await;
    let lock = format!("BEGIN; LOCK TABLE public.{first} IN ACCESS EXCLUSIVE MODE");
    other.batch_execute(&lock).await.expect("locked");
    let prune = parts.kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--partitions-ahead", "0s"]).start();
    let waits = "SELECT query_start FROM pg_stat_activity
                  WHERE application_name = 'walpost prune' AND wait_event_type = 'Lock'";
    let mut seen = HashSet::new();
    for _ in 0..2 {
        let before = seen.len();
        while seen.len() == before {
            let began = postgres.query_text(waits).await;
            seen.extend(began);
            assert!(
                prune.wait(std::time::Duration::from_millis(5)).await.is_none(),
                "it has ended"
            );
        }
    }
    other.batch_execute("ROLLBACK").await.expect("unlocked");
    let (code, said) = ended(&prune).await;
    assert!(code == Some(0) && !parts.exists(&first).await, "{code:?} {said}");
    stop(walpost).await;
}
