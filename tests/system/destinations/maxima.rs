//! Rows at and beyond the maximum of every field: each is delivered, or undeliverable by a cause of its
//! own, and holds up no other. The maxima themselves are not repeated here.

use std::collections::BTreeSet;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, stop};
use walpost_bed::{Consumed, Kafka, Walpost, eventually};

use crate::promise::{Destination, cases};

cases! {
    rows_at_the_maxima_hold_up_nothing(new): all;
}

/// Around the maxima of protocols, servers and libraries, in bytes.
const SIZES: [usize; 14] = [
    255, 256, 1024, 1025, 4096, 8192, 16_384, 32_767, 32_768, 65_535, 65_536, 262_144, 1_048_000,
    1_048_577,
];

/// One row for each field that an application fills freely, and one of few bytes behind them.
fn rows(size: usize) -> String {
    let long = format!("repeat('x', {size})");
    let row = |topic: &str, key: &str, kind: &str, payload: &str, headers: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
             VALUES ({topic}, {key}, {kind}, jsonb_build_object('a', {payload}), {headers}); "
        )
    };
    let (order, one, placed, none) = ("'order'", "'1'", "'placed'", "'{}'");
    let value = format!("jsonb_build_object('tenant', {long})");
    let name = format!("jsonb_build_object({long}, 'tenant')");
    let many = format!(
        "(SELECT jsonb_object_agg('name-' || i, 'value') FROM generate_series(1, {size} / 16) AS i)"
    );
    [
        row(&long, one, placed, one, none),
        row(order, &long, placed, one, none),
        row(order, one, &long, one, none),
        row(order, one, placed, &long, none),
        row(order, one, placed, one, &value),
        row(order, one, placed, one, &name),
        row(order, one, placed, one, &many),
        row(order, one, "'small'", one, none),
    ]
    .concat()
}

/// A policy for each cause that the destination has.
fn skipping(more: Option<&'static str>) -> String {
    let causes = ["invalid_topic", "undecodable", "too_large", "refused"];
    let causes = causes.into_iter().chain(more);
    causes.map(|cause| format!("poison.{cause} = 'skip'\n")).collect::<Vec<_>>().concat()
}

async fn rows_at_the_maxima_hold_up_nothing(fixture: &impl Destination) {
    let more = matches!(fixture.kind(), "nats" | "rabbitmq").then_some("missing_topic");
    fixture.configure(&skipping(more));
    hold_up(&fixture.inner, fixture.run().await, async || fixture.records().await).await;
}

async fn hold_up(fixture: &Fixture, walpost: Walpost, records: impl AsyncFn() -> Vec<Consumed>) {
    let postgres = &fixture.postgres;
    for size in SIZES {
        postgres.execute(&rows(size)).await;
    }
    let end = postgres.query_text("SELECT pg_current_wal_lsn()").await.expect("a position");
    eventually(LONG_TIMEOUT, "everything is confirmed", async || {
        if fixture.has_confirmed(&end).await { Ok(()) } else { Err(walpost.stderr()) }
    })
    .await;
    let records = records().await;
    let ids: BTreeSet<_> = records.iter().filter_map(|record| record.header("id")).collect();
    let said = walpost.stderr();
    let undelivered = async |condition: &str| -> Vec<String> {
        let query =
            format!("SELECT string_agg(id::text, ' ') FROM public.outbox WHERE {condition}");
        let all = postgres.query_text(&query).await.expect("rows");
        all.split(' ').filter(|id| !ids.contains(id)).map(str::to_owned).collect()
    };
    assert_eq!(undelivered("event_type = 'small'").await, [""; 0], "{said:?}");
    for id in undelivered("true").await {
        let is_named = said.iter().any(|line| line.contains(&id) && line.contains(": skipped"));
        assert!(is_named, "{id} is neither delivered nor skipped: {said:?}");
    }
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_at_the_maxima_of_kafka_hold_up_nothing() {
    let fixture = Fixture::new().await;
    Kafka::shared().await.create_topic(&fixture.topic("order"), 1).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, skipping(None)).expect("it can be written");
    let walpost = fixture.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    hold_up(&fixture, walpost, async || fixture.records().await).await;
}
