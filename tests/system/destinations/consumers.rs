//! The consumers of the pages act once on each event, though they and walpost are ended in between.

use std::fmt::Debug;
use std::fs::read_to_string;

use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::{Destination, SinkFixture, WalpostBuilder, eventually, repository};

/// The total of what is processed.
const TOTAL: &str = "SELECT coalesce(sum(total_cents), 0) FROM public.turnover";

fn text(path: &str) -> String {
    read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn pages_quote_their_programs() {
    for kind in Destination::KINDS {
        let page = text(&format!("docs/{kind}.md"));
        let (_, quoted) = page.split_once("```rust\n").expect("a program");
        let (quoted, _) = quoted.split_once("```").expect("its end");
        let program = text(&format!("examples/consumers/{kind}/main.rs"));
        assert!(program.contains(quoted.trim()), "docs/{kind}.md is not a part of the program");
        if let Some(tables) = tables(kind) {
            assert!(page.contains(text(&tables).trim()), "docs/{kind}.md does not have the table");
        }
    }
}

/// The tables of the consumer of a kind, if they are not those of most.
fn tables(kind: &str) -> Option<String> {
    ["redis", "nats"].contains(&kind).then(|| format!("examples/consumers/{kind}/tables.sql"))
}

/// Makes the tables of the consumer of a kind.
pub async fn create_tables(fixture: &SinkFixture) {
    let tables = tables(fixture.kind());
    let tables = tables.unwrap_or_else(|| "sql/consumer_dedupe.sql".to_owned());
    fixture.inner.postgres.execute(&text(&tables)).await;
    fixture.inner.postgres.execute(&text("examples/consumers/turnover.sql")).await;
}

/// Inserts so many events, every tenth of which is of no interest, and runs `command` and `consume`
/// until the others are processed.
pub async fn act_once<T: Debug>(
    fixture: &SinkFixture,
    count: u32,
    command: impl Fn() -> WalpostBuilder,
    consume: impl AsyncFn() -> T,
) {
    let postgres = &fixture.inner.postgres;
    create_tables(fixture).await;
    let rows = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT CASE WHEN i % 10 = 0 THEN 'other' ELSE 'order' END, (i % 7)::text, \
                CASE WHEN i % 10 = 0 THEN 'paid' ELSE 'placed' END, \
                jsonb_build_object('customer', i % 7, 'total_cents', i) \
           FROM generate_series(1, {count}) AS i"
    );
    postgres.execute(&rows).await;
    let expected = format!("SELECT sum(i) FROM generate_series(1, {count}) AS i WHERE i % 10 <> 0");
    let expected = postgres.query_text(&expected).await;
    let total = async || postgres.query_text(TOTAL).await;
    // Ended in the middle, several times.
    for _ in 0..4 {
        let (walpost, before) = (command().start(), total().await);
        tokio::select! {
            ended = consume() => panic!("{ended:?}"),
            () = eventually(LONG_TIMEOUT, "more is processed", async || {
                let now = total().await;
                now != before || now == expected
            }) => {}
        }
        walpost.kill9().await;
    }
    let walpost = command().start();
    tokio::select! {
        ended = consume() => panic!("{ended:?}"),
        () = async {
            eventually(LONG_TIMEOUT, "all are processed", async || {
                let now = total().await;
                if now == expected { Ok(()) } else { Err(now) }
            })
            .await;
            fixture.confirmed(LONG_TIMEOUT).await;
        } => {}
    }
    assert_eq!(total().await, expected);
    stop(walpost).await;
}
