//! What the files in `sql/` and the consumers' tables guarantee.

use std::process::Command;
use std::time::Duration;

use walpost_bed::{Major, Postgres, eventually, repository};

const TABLES: &str = include_str!("../../../sql/consumer_dedupe.sql");
const SHORT_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_sql_file_runs_in_psql_and_is_idempotent() {
    let postgres = Postgres::start(Major::V14).await;
    let directory = repository().join("sql");
    let listed = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 8, "{files:?}");
    for file in files.iter().chain(&files) {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f"]).arg(file).arg(postgres.url());
        let done = psql.output().expect("psql is of the package postgresql-client");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {said}", file.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruning_deletes_the_oldest_ids_in_bounded_batches_by_index() {
    let postgres = Postgres::start(Major::V15).await;
    postgres.execute(TABLES).await;
    let ages = "INSERT INTO processed_events
                SELECT 'billing', i, now() - i * interval '1 hour' FROM generate_series(1, 2000) AS i;
                ANALYZE processed_events";
    postgres.execute(ages).await;
    let prune = "SELECT prune_processed_events(keep => '630 minutes', at_most => 1500)";
    let oldest = "SELECT max(event_id::int) FROM processed_events";
    for (gone, left) in [("1500", "500"), ("490", "10"), ("0", "10")] {
        assert_eq!(postgres.query_text(prune).await.as_deref(), Some(gone));
        assert_eq!(postgres.query_text(oldest).await.as_deref(), Some(left));
    }
    let scans = "SELECT idx_scan > 0 FROM pg_stat_user_indexes
                  WHERE indexrelname = 'processed_events_processed_at'";
    eventually(SHORT_TIMEOUT, "a scan of the index", async || {
        postgres.query_text(scans).await.as_deref() == Some("t")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_session_with_the_same_id_processes_only_after_a_rollback() {
    let postgres = Postgres::start(Major::V15).await;
    postgres.execute(TABLES).await;
    let insert = "INSERT INTO processed_events (consumer, event_id) VALUES ('billing', $1)
                  ON CONFLICT DO NOTHING";
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    for (end, id, expected) in [("COMMIT", "a", 0), ("ROLLBACK", "b", 1)] {
        let (first, second) = (postgres.client().await, postgres.client().await);
        first.batch_execute("BEGIN").await.unwrap();
        assert_eq!(first.execute(insert, &[&id]).await.unwrap(), 1);
        let second = tokio::spawn(async move { second.execute(insert, &[&id]).await.unwrap() });
        eventually(SHORT_TIMEOUT, "the second waits", async || {
            postgres.query_text(waits).await.as_deref() == Some("1")
        })
        .await;
        first.batch_execute(end).await.unwrap();
        assert_eq!(second.await.unwrap(), expected, "after {end}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn position_not_above_the_last_is_ignored() {
    let postgres = Postgres::start(Major::V15).await;
    postgres.execute(TABLES).await;
    let client = postgres.client().await;
    let insert =
        "INSERT INTO processed_positions AS seen (consumer, topic, partition, last_position)
                  VALUES ('billing', 'outbox.event.order', $1, $2)
                  ON CONFLICT (consumer, topic, partition)
                  DO UPDATE SET last_position = excluded.last_position
                    WHERE seen.last_position < excluded.last_position";
    for (partition, position, changed) in [
        (0, "0000001600B374D8/00000003", 1),
        (0, "0000001600B374D8/00000003", 0),
        (0, "0000001600B374D8/00000002", 0),
        (0, "00000016009FFFFF/0000000A", 0),
        (0, "0000001600B374D8/0000000A", 1),
        (0, "0000001600B374D8/00000009", 0),
        (1, "0000001600B374D8/00000002", 1),
    ] {
        let seen = client.execute(insert, &[&partition, &position]).await.unwrap();
        assert_eq!(seen, changed, "{position} in {partition}");
    }
}
