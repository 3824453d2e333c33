//! Transactions that publish outbox rows, and those that do not. The fault suite has unusual
//! transactions.

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert, stop};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_row_becomes_a_record_keyed_by_aggregate_id() {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(1, 5)).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records[0].key_text(), Some("1"));
    assert_eq!(records[0].value_text(), Some(r#"{"i": 1}"#));
    assert_eq!(records[0].topic, fixture.topic("order"));
    assert_eq!(records[0].header("event_type"), Some("placed"));
    assert!(records[0].header("walpost.position").is_some());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolled_back_transaction_publishes_nothing() {
    let fixture = Fixture::new().await;
    let _walpost = fixture.run().await;
    let sql = format!(
        "BEGIN; {}; ROLLBACK; BEGIN; {}; COMMIT; BEGIN; {}; ROLLBACK",
        insert(500, 5),
        insert(7, 5),
        insert(1, 5)
    );
    fixture.postgres.execute(&sql).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    assert_eq!(fixture.records().await.len(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_deleted_in_its_own_transaction_is_published() {
    let fixture = Fixture::new().await;
    let _walpost = fixture.run().await;
    fixture
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
    let rows = fixture.rows(query).await;
    fixture.assert_published(&rows, SHORT_TIMEOUT).await;
    assert!(fixture.committed().await.is_empty());
}
