//! Bookmarks: whenever walpost dies, every row below the newest one in the state topic is in Kafka.

use std::collections::HashSet;

use tokio_postgres::Client;
use walpost_bed::fixture::{AGREES, Fixture, LONG_TIMEOUT};
use walpost_bed::writer::Writer;
use walpost_bed::{Major, Postgres, eventually};

use super::state_topic::{newest_state, topic};

/// A row of its own aggregate: nothing else shares its key.
fn row(key: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('order', '{key}', 'placed', '1');"
    )
}

/// Rows of a transaction and of its savepoints, one of which is rolled back.
fn with_savepoints(key: &str) -> String {
    let row = row(key);
    format!(
        "BEGIN; {row} SAVEPOINT a; {row} RELEASE a; SAVEPOINT b; {row} ROLLBACK TO b; {row} COMMIT"
    )
}

/// The transactions whose rows are delivered, as the newest record in the state topic has them.
async fn bookmark(fixture: &Fixture, topic: &str) -> Option<(u64, u64)> {
    let state = newest_state(fixture, topic).await?;
    let delivered = &state["delivered"];
    Some((delivered["from"].as_u64()?, delivered["bookmarks"][0]["below"].as_u64()?))
}

/// Every row of these transactions is in Kafka; returns how many there are.
async fn assert_delivered(fixture: &Fixture, (from, below): (u64, u64)) -> usize {
    let query = format!(
        "SELECT id FROM public.outbox
          WHERE xmin::text::bigint >= {from} AND xmin::text::bigint < {below}"
    );
    let rows = fixture.postgres.query_rows(&query).await;
    let records = fixture.records().await;
    let published: HashSet<_> = records.iter().filter_map(|one| one.header("id")).collect();
    for row in &rows {
        let id = row[0].as_deref().expect("an id");
        assert!(published.contains(id), "row {id} is below {below} and was not published");
    }
    rows.len()
}

/// Begins a transaction with a row, and leaves it open.
async fn open(fixture: &Fixture, key: &str) -> Client {
    let client = fixture.postgres.client().await;
    client.batch_execute(&format!("BEGIN; {}", row(key))).await.expect("it is open");
    client
}

async fn rows_below_a_bookmark_are_published(delivery: &str) {
    let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
    let topic = topic(&fixture).await;
    fixture.adopt(&topic).await;
    let arguments = ["--delivery", delivery, "--state-topic", &topic];
    let frequent = ("FAILPOINTS", "frequent_bookmarks=return");
    let (mut open_one, mut seen, mut counts) = (open(&fixture, "open").await, None, Vec::new());
    for round in 0..5 {
        let walpost = fixture.command("run").args(arguments).env(frequent.0, frequent.1).start();
        walpost.await_line(AGREES, LONG_TIMEOUT).await;
        let writer = Writer::start(&fixture.postgres, 200);
        let prepared = format!("BEGIN; {} PREPARE TRANSACTION 'p{round}'", row("prepared"));
        fixture.postgres.execute(&prepared).await;
        writer.commits(60).await;
        fixture.postgres.execute(&with_savepoints("savepoints")).await;
        // Two transactions that have run since then end, so there are newer bookmarks.
        open_one.batch_execute("COMMIT").await.expect("committed");
        fixture.postgres.execute(&format!("COMMIT PREPARED 'p{round}'")).await;
        eventually(LONG_TIMEOUT, "there is another bookmark", async || {
            let found = bookmark(&fixture, &topic).await;
            found.is_some() && found != seen
        })
        .await;
        open_one = open(&fixture, "open").await;
        writer.commits(40).await;
        walpost.kill9().await;
        // Published by the next one.
        writer.commits(20).await;
        open_one.batch_execute("COMMIT").await.expect("committed");
        open_one = open(&fixture, "open").await;
        writer.stop().await;
        seen = bookmark(&fixture, &topic).await;
        counts.push(assert_delivered(&fixture, seen.expect("a bookmark")).await);
    }
    assert!(counts.is_sorted() && counts[0] > 0 && counts[4] > 500, "{counts:?}");
    drop(open_one);
    let (status, said) =
        fixture.run_to_its_end(&[&arguments[..], &["--until", "current"]].concat()).await;
    assert_eq!(status, Some(0), "{said}");
    fixture.judge().await.assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn rows_below_a_bookmark_are_published_at_least_once() {
    rows_below_a_bookmark_are_published("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_below_a_bookmark_are_published_exactly_once() {
    rows_below_a_bookmark_are_published("exactly-once").await;
}
