//! The consumer of docs/nats.md acts once on each event, though it is killed in between and runs twice.

use std::time::Duration;

use tokio::time::timeout;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::{Postgres, eventually};

use super::fixture::{NatsFixture, STREAM};

#[path = "../../../../examples/consumers/nats/main.rs"]
#[allow(dead_code, reason = "the program's own start")]
mod program;

const PROGRAM: &str = include_str!("../../../../examples/consumers/nats/main.rs");
const TABLES: &str = include_str!("../../../../examples/consumers/nats/tables.sql");
const TURNOVER: &str = include_str!("../../../../examples/consumers/turnover.sql");
const PAGE: &str = include_str!("../../../../docs/nats.md");

#[test]
fn page_quotes_the_program() {
    let (_, quoted) = PAGE.split_once("```rust\n").expect("a program");
    let (quoted, _) = quoted.split_once("```").expect("its end");
    let quoted = quoted.trim();
    assert!(PROGRAM.contains(quoted), "docs/nats.md is not a part of the program");
    assert!(PAGE.contains(TABLES.trim()), "docs/nats.md does not have the table");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_acts_once_on_each_event() {
    let fixture = NatsFixture::new().await;
    let postgres: &Postgres = &fixture.inner.postgres;
    postgres.execute(TABLES).await;
    postgres.execute(TURNOVER).await;
    let walpost = fixture.run().await;
    postgres
        .execute(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT CASE WHEN i % 10 = 0 THEN 'other' ELSE 'order' END, (i % 7)::text, 'placed', \
                    jsonb_build_object('customer', i % 7, 'total_cents', i) FROM generate_series(1, 700) AS i",
        )
        .await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let expected = "SELECT sum(i) FROM generate_series(1, 700) AS i WHERE i % 10 <> 0";
    let expected = postgres.query_text(expected).await;
    let total = "SELECT coalesce(sum(total_cents), 0) FROM public.turnover";
    let one = async || {
        program::consume(&fixture.url, STREAM, "outbox.event.order", &fixture.inner.source).await
    };
    // A second one at the same time, as when the first one's last commit comes late.
    let consume = async || {
        tokio::select! {
            ended = one() => ended,
            ended = one() => ended,
        }
    };
    // Ended in the middle, several times.
    for _ in 0..5 {
        let ended = timeout(Duration::from_millis(100), consume()).await;
        assert!(ended.is_err(), "{ended:?}");
    }
    tokio::select! {
        ended = consume() => panic!("{ended:?}"),
        () = eventually(LONG_TIMEOUT, "all are processed", async || {
            let now = postgres.query_text(total).await;
            if now == expected { Ok(()) } else { Err(now) }
        }) => {}
    }
    stop(walpost).await;
}
