//! The consumer of docs/rabbitmq.md acts once on each event, though it and walpost are ended in
//! between.

use std::time::Duration;

use tokio::time::timeout;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::{Postgres, eventually};

use super::fixture::RabbitFixture;

#[path = "../../../../examples/consumers/rabbitmq/main.rs"]
#[allow(dead_code, reason = "the program's own start")]
mod program;

const PROGRAM: &str = include_str!("../../../../examples/consumers/rabbitmq/main.rs");
const TABLES: &str = include_str!("../../../../sql/consumer_dedupe.sql");
const TURNOVER: &str = include_str!("../../../../examples/consumers/turnover.sql");
const PAGE: &str = include_str!("../../../../docs/rabbitmq.md");

#[test]
fn page_quotes_the_program() {
    let (_, quoted) = PAGE.split_once("```rust\n").expect("a program");
    let (quoted, _) = quoted.split_once("```").expect("its end");
    assert!(PROGRAM.contains(quoted.trim()), "docs/rabbitmq.md is not a part of the program");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_acts_once_on_each_event() {
    let fixture = RabbitFixture::bare(super::fixture::shared().await.rabbit.clone()).await;
    let queue = fixture.queue(0);
    fixture.rabbit.exchange(&fixture.exchange, "fanout").await;
    let arguments = [("x-queue-type", "quorum"), ("x-single-active-consumer", "true")];
    fixture.rabbit.queue(&queue, &arguments).await;
    fixture.rabbit.bind(&queue, &fixture.exchange, "").await;
    let postgres: &Postgres = &fixture.inner.postgres;
    postgres.execute(TABLES).await;
    postgres.execute(TURNOVER).await;
    postgres
        .execute(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT CASE WHEN i % 10 = 0 THEN 'other' ELSE 'order' END, (i % 7)::text, 'placed', \
                    jsonb_build_object('customer', i % 7, 'total_cents', i) FROM generate_series(1, 700) AS i",
        )
        .await;
    let expected = "SELECT sum(i) FROM generate_series(1, 700) AS i WHERE i % 10 <> 0";
    let expected = postgres.query_text(expected).await;
    let total = "SELECT coalesce(sum(total_cents), 0) FROM public.turnover";
    let source = &fixture.inner.source;
    let consume =
        async || program::consume(&fixture.url, &queue, "outbox.event.order", source).await;
    // Both are ended in the middle, several times.
    for _ in 0..4 {
        let walpost = fixture.command("run").start();
        let ended = timeout(Duration::from_millis(400), consume()).await;
        assert!(ended.is_err(), "{ended:?}");
        walpost.kill9().await;
    }
    let walpost = fixture.run().await;
    tokio::select! {
        ended = consume() => panic!("{ended:?}"),
        () = eventually(LONG_TIMEOUT, "all are processed", async || {
            let now = postgres.query_text(total).await;
            if now == expected { Ok(()) } else { Err(now) }
        }) => {}
    }
    stop(walpost).await;
}
