//! Events that can never become records: walpost halts, with everything before
//! them delivered and nothing after them, and says which event it is. And what
//! only looks so.

use walpost_bed::oracle::judge;
use walpost_bed::{Kafka, Walpost};

use walpost_bed::scene::{LATER, Scene, ended, insert};

/// Runs until it halts at row number `guilty`, and judges what was published.
async fn halts(scene: &Scene, walpost: &Walpost, guilty: usize) -> String {
    let (code, text) = ended(walpost).await;
    assert_eq!(code, Some(4), "{text}");
    let query = format!("SELECT id FROM public.outbox ORDER BY n LIMIT 1 OFFSET {guilty}");
    let id = scene.postgres.query_text(&query).await.expect("the guilty row");
    assert!(text.contains(&id), "the event's id {id} in\n{text}");
    let mut words = text.split([' ', ',', ':', '"']);
    assert!(words.any(is_position), "a position in\n{text}");
    let before = format!("SELECT id, aggregate_id FROM public.outbox ORDER BY n LIMIT {guilty}");
    let before = scene.rows(&before).await;
    judge(&before, std::iter::empty(), &scene.records().await).assert_ok();
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
    let scene = Scene::new().await;
    scene.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    let walpost = scene.run().await;
    for _ in 0..3 {
        scene.postgres.execute(&insert(5, 3)).await;
    }
    let good = scene.postgres.query_text("SELECT pg_current_wal_lsn()").await.expect("an LSN");
    scene.postgres.execute(&format!("{bad}; {}", insert(5, 3))).await;
    scene.postgres.execute(&insert(5, 3)).await;
    let text = halts(&scene, &walpost, 15).await;
    let query = format!(
        "SELECT confirmed_flush_lsn >= '{good}' FROM pg_replication_slots WHERE slot_name = 'walpost'"
    );
    let confirmed = scene.postgres.query_text(&query).await;
    assert_eq!(confirmed.as_deref(), Some("t"), "what came before is confirmed");
    // The next start stands before it again.
    let again = scene.command("run").start();
    halts(&scene, &again, 15).await;
    text
}

fn row(aggregate_type: &str, aggregate_id: &str, payload: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('{aggregate_type}', {aggregate_id}, 'placed', {payload})"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_without_a_valid_topic_halts_the_run() {
    let text = halts_at(&row("an order", "'1'", "'{}'")).await;
    assert!(text.contains("an order"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_takes_less_than_a_batch_is_no_poison() {
    let scene = Scene::new().await;
    let limit = [("max.message.bytes", "20000")];
    Kafka::shared().await.create_topic_with(&scene.topic("order"), 2, &limit).await;
    scene.postgres.execute(&insert(20_000, 50)).await;
    let walpost = scene.run().await;
    scene.assert_ok(LATER).await;
    assert!(walpost.said("set -X batch.size below"), "{:?}", walpost.stderr());
}
