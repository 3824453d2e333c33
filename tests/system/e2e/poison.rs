//! Events that can never become records: walpost halts with everything before them delivered and
//! nothing after them, and names the event. Also cases that only look like this.

use walpost_bed::oracle::judge;
use walpost_bed::{Kafka, Walpost};

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, ended, insert};

/// Runs until it halts at row number `guilty`, and judges what was published.
async fn halts(fixture: &Fixture, walpost: &Walpost, guilty: usize) -> String {
    let (code, text) = ended(walpost).await;
    assert_eq!(code, Some(4), "{text}");
    let query = format!("SELECT id FROM public.outbox ORDER BY n LIMIT 1 OFFSET {guilty}");
    let id = fixture.postgres.query_text(&query).await.expect("the guilty row");
    assert!(text.contains(&id), "the event's id {id} in\n{text}");
    let mut words = text.split([' ', ',', ':', '"']);
    assert!(words.any(is_position), "a position in\n{text}");
    let before = format!("SELECT id, aggregate_id FROM public.outbox ORDER BY n LIMIT {guilty}");
    let before = fixture.rows(&before).await;
    judge(&before, std::iter::empty(), &fixture.records().await).assert_ok();
    text
}

/// Whether this is a position in the form of the header `walpost.position`.
fn is_position(word: &str) -> bool {
    let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = word.split_once('/').filter(|(lsn, ordinal)| (lsn.len(), ordinal.len()) == (16, 8));
    parts.is_some_and(|(lsn, ordinal)| hexadecimal(lsn) && hexadecimal(ordinal))
}

/// Three good transactions, a bad one, a good one after it.
async fn halts_at(bad: &str) -> String {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    let walpost = fixture.run().await;
    for _ in 0..3 {
        fixture.postgres.execute(&insert(5, 3)).await;
    }
    let good = fixture.postgres.wal_end().await;
    fixture.postgres.execute(&format!("{bad}; {}", insert(5, 3))).await;
    fixture.postgres.execute(&insert(5, 3)).await;
    let text = halts(&fixture, &walpost, 15).await;
    assert!(fixture.has_confirmed(&good).await, "what came before is confirmed");
    // The next start halts at it again.
    let again = fixture.command("run").start();
    halts(&fixture, &again, 15).await;
    text
}

fn row(aggregate_type: &str, aggregate_id: &str, payload: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('{aggregate_type}', {aggregate_id}, 'placed', {payload})"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_with_an_invalid_topic_halts() {
    let text = halts_at(&row("an order", "'1'", "'{}'")).await;
    assert!(text.contains("an order"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_limit_below_the_batch_size_is_not_poison() {
    let fixture = Fixture::new().await;
    let limit = [("max.message.bytes", "20000")];
    Kafka::shared().await.create_topic_with(&fixture.topic("order"), 2, &limit).await;
    fixture.postgres.execute(&insert(20_000, 50)).await;
    let walpost = fixture.run().await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    assert!(walpost.said("set -X batch.size below"), "{:?}", walpost.stderr());
}
