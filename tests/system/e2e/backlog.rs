//! The backlog of a slot: `run --until current` publishes it and exits, `tail` shows it without
//! advancing the slot.

use serde_json::Value;
use walpost_bed::{Consumed, Walpost, eventually};

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_until_current_publishes_the_backlog_and_exits_with_0() {
    let fixture = Fixture::new().await;
    for _ in 0..10 {
        fixture.postgres.execute(&insert(100, 7)).await;
    }
    for backlog in [1000, 0] {
        let walpost = fixture.command("run").args(["--until", "current"]).start();
        let status = walpost.wait(SHORT_TIMEOUT).await.expect("it ends by itself");
        assert!(status.success(), "{:?}", walpost.stderr());
        assert!(walpost.said(&format!("\"delivered\":{backlog},")), "{:?}", walpost.stderr());
        fixture.judge().await.assert_exact();
    }
    let active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'walpost'";
    assert_eq!(fixture.postgres.query_text(active).await.as_deref(), Some("f"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_until_an_lsn_leaves_later_commits_for_the_next_run() {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&insert(10, 1)).await;
    let lsn = fixture.postgres.wal_end().await;
    let before = fixture.committed().await;
    let walpost = fixture.command("run").args(["--until", &lsn]).start();
    let status = walpost.wait(SHORT_TIMEOUT).await.expect("it ends by itself");
    assert!(status.success(), "{:?}", walpost.stderr());
    fixture.postgres.execute(&insert(10, 1)).await;
    assert_eq!(fixture.records().await.len(), before.len());
    assert!(fixture.has_confirmed(&lsn).await);
    let walpost = fixture.command("run").args(["--until", "current"]).start();
    assert!(walpost.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()));
    fixture.judge().await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_shows_the_records_of_run_without_advancing_the_slot() {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&insert(3, 1)).await;
    let before = slots(&fixture).await;
    let tail = fixture.command("tail").start();
    tail.await_line("showing events committed", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(40, 3)).await;
    fixture.postgres.execute(&full_row()).await;
    eventually(SHORT_TIMEOUT, "41 lines", async || tail.stdout().len() == 41).await;
    assert_eq!(slots(&fixture).await.len(), 2, "the slot and tail's own");
    tail.interrupt();
    let status = tail.wait(SHORT_TIMEOUT).await.expect("it ends");
    assert_eq!(status.code(), Some(0), "{:?}", tail.stderr());
    eventually(SHORT_TIMEOUT, "the slots as they were", async || {
        let now = slots(&fixture).await;
        if now == before { Ok(()) } else { Err(now) }
    })
    .await;

    let walpost = fixture.command("run").args(["--until", "current"]).start();
    assert!(walpost.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()));
    let records = fixture.records().await;
    assert_eq!(records.len(), 44);
    let mut published: Vec<_> = records.iter().map(shown).collect();
    published.sort_by_key(position);
    assert_eq!(lines(&tail), published[3..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_from_the_slot_shows_the_backlog_without_consuming_it() {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&insert(40, 3)).await;
    fixture.postgres.execute(&full_row()).await;
    let before = slots(&fixture).await;
    let mut seen = Vec::new();
    for (limit, count) in [("5", 5), ("41", 41), ("100", 41)] {
        let tail = fixture.command("tail").args(["--from-slot", "--limit", limit]).start();
        let status = tail.wait(SHORT_TIMEOUT).await.expect("it ends by itself");
        assert!(status.success(), "{:?}", tail.stderr());
        let shown = lines(&tail);
        assert_eq!(shown.len(), count);
        assert_eq!(shown[..seen.len()], seen);
        seen = shown;
    }
    assert_eq!(slots(&fixture).await, before);

    let walpost = fixture.command("run").args(["--until", "current"]).start();
    assert!(walpost.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()));
    fixture.judge().await.assert_exact();
    let mut published: Vec<_> = fixture.records().await.iter().map(shown).collect();
    published.sort_by_key(position);
    assert_eq!(seen, published);
    let tail = fixture.command("tail").arg("--from-slot").start();
    assert!(tail.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()));
    assert!(tail.stdout().is_empty(), "nothing waits any more");
}

/// A row with everything, of which one value is no text.
fn full_row() -> String {
    "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
       VALUES ('invoice', 'Ä', 'sent', NULL, '{\"tenant\": \"acme\", \"no\": null}')"
        .to_owned()
}

/// Names and positions of all slots.
async fn slots(fixture: &Fixture) -> Vec<Vec<Option<String>>> {
    let query = "SELECT slot_name LIKE 'walpost\\_tail%', confirmed_flush_lsn, restart_lsn
                   FROM pg_replication_slots ORDER BY 1";
    fixture.postgres.query_rows(query).await
}

/// The lines that tail printed.
fn lines(tail: &Walpost) -> Vec<Value> {
    let parse = |line: &String| serde_json::from_str(line).expect("a JSON line");
    tail.stdout().iter().map(parse).collect()
}

fn position(line: &Value) -> String {
    line["headers"]["walpost.position"].as_str().expect("a position").to_owned()
}

/// A record as tail prints it.
fn shown(record: &Consumed) -> Value {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_owned()).expect("text");
    let headers: serde_json::Map<_, _> = record
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.as_deref().map(text).into()))
        .collect();
    serde_json::json!({
        "topic": record.topic,
        "key": record.key.as_deref().map(text),
        "value": record.value.as_deref().map(text),
        "timestamp": record.timestamp_ms,
        "headers": headers,
    })
}
