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
