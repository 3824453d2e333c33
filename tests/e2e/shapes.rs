//! Transactions that bring rows into an outbox, and those that do not. Those of
//! odder shapes are among the faults.

use walpost_bed::scene::{SOON, Scene, insert, stop};

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
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_rolls_back_leaves_nothing() {
    let scene = Scene::new().await;
    let _walpost = scene.run().await;
    let sql = format!(
        "BEGIN; {}; ROLLBACK; BEGIN; {}; COMMIT; BEGIN; {}; ROLLBACK",
        insert(500, 5),
        insert(7, 5),
        insert(1, 5)
    );
    scene.postgres.execute(&sql).await;
    scene.assert_exact(SOON).await;
    assert_eq!(scene.records().await.len(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_published_though_its_own_transaction_deletes_it() {
    let scene = Scene::new().await;
    let _walpost = scene.run().await;
    scene
        .postgres
        .execute(
            "BEGIN;
             INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type)
               SELECT md5('gone ' || i)::uuid, 'order', (i % 3)::text, 'placed'
                 FROM generate_series(1, 20) AS i;
             DELETE FROM public.outbox;
             COMMIT",
        )
        .await;
    let query = "SELECT md5('gone ' || i)::uuid, i % 3 FROM generate_series(1, 20) AS i";
    let rows = scene.rows(query).await;
    scene.assert_published(&rows, SOON).await;
    assert!(scene.committed().await.is_empty());
}
