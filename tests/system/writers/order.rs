//! The order of the events of two writers of one aggregate.

use walpost_bed::eventually;
use walpost_bed::fixture::SHORT_TIMEOUT;

use crate::shop::Shop;

/// Each writer makes its event from what it has read.
const EVENT: &str = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', '1', 'total_changed', pg_catalog.jsonb_build_object('total_cents', total_cents)
    FROM public.orders WHERE id = 1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_that_waits_for_the_row_lock_has_the_last_event() {
    let shop = Shop::open().await;
    let postgres = &shop.fixture.postgres;
    postgres.execute("INSERT INTO public.orders VALUES (1, 'acme', 100)").await;
    let change = "UPDATE public.orders SET total_cents = total_cents + 1 WHERE id = 1";
    let (first, second) = (postgres.client().await, postgres.client().await);
    first.batch_execute(&format!("BEGIN; {change}")).await.unwrap();
    let both = format!("BEGIN; {change}; {EVENT}; COMMIT");
    let second = tokio::spawn(async move { second.batch_execute(&both).await });
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    eventually(SHORT_TIMEOUT, "the second waits", async || {
        postgres.query_text(waits).await.as_deref() == Some("1")
    })
    .await;
    first.batch_execute(&format!("{EVENT}; COMMIT")).await.unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(totals(&shop).await, [101, 102]);
}

/// What the page warns of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_row_lock_the_last_event_can_have_the_older_state() {
    let shop = Shop::open().await;
    let postgres = &shop.fixture.postgres;
    postgres.execute("INSERT INTO public.orders VALUES (1, 'acme', 100)").await;
    let (first, second) = (postgres.client().await, postgres.client().await);
    // It only reads the order's row.
    first.batch_execute(&format!("BEGIN; {EVENT}")).await.unwrap();
    let change = "UPDATE public.orders SET total_cents = 200 WHERE id = 1";
    second.batch_execute(&format!("BEGIN; {change}; {EVENT}; COMMIT")).await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(totals(&shop).await, [200, 100]);
}

/// What the events say, in the order of the partition.
async fn totals(shop: &Shop) -> Vec<i64> {
    let mut records = shop.records().await;
    records.sort_by_key(|record| record.offset);
    let totals = records.iter().map(|record| {
        let value = record.value_text().expect("a value");
        let value: serde_json::Value = serde_json::from_str(value).expect("JSON");
        value["total_cents"].as_i64().expect("a number")
    });
    totals.collect()
}
