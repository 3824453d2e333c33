//! Every way in which rows come into an outbox.

use crate::scene::{SOON, Scene, insert};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_row_becomes_a_record_keyed_by_its_aggregate_id() {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(1, 5)).await;
    scene.assert_exact(SOON).await;
    let records = scene.records().await;
    assert_eq!(records[0].key_text(), Some("1"));
    assert_eq!(records[0].value_text(), Some(r#"{"i": 1}"#));
    assert_eq!(records[0].topic, scene.topic("order"));
    assert_eq!(records[0].header("event_type"), Some("placed"));
    assert!(records[0].header("walpost.position").is_some());
    walpost.terminate();
    let status = walpost.wait(SOON).await.expect("it stops");
    assert!(status.success(), "{:?}", walpost.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_larger_than_the_whole_budget_is_refused_in_words_and_not_offered_for_ever() {
    let scene = Scene::new().await;
    scene.postgres.execute(&insert(3, 5)).await;
    let large = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('order', '1', 'placed', to_jsonb(repeat('x', 5000000)))";
    scene.postgres.execute(large).await;
    let run = scene.command("run").args(["--in-flight-bytes", "64KiB"]);
    let walpost = run.args(["-X", "message.max.bytes=100000000"]).start();
    let status = walpost.wait(SOON).await.expect("it halts");
    assert_eq!(status.code(), Some(4), "{:?}", walpost.stderr());
    assert!(walpost.said("table public.outbox"), "{:?}", walpost.stderr());
    assert_eq!(scene.records().await.len(), 3, "what comes before it is delivered");
}
