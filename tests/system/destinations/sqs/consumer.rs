//! The consumer of docs/sqs.md acts once on each event, though it and walpost are ended in between.

use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{Credentials, Region};
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use serde_json::json;
use tokio::time::timeout;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::{Postgres, eventually};

use super::fixture::SqsFixture;

#[path = "../../../../examples/consumers/sqs/main.rs"]
#[allow(dead_code, reason = "the program's own start")]
mod program;

const PROGRAM: &str = include_str!("../../../../examples/consumers/sqs/main.rs");
const TABLES: &str = include_str!("../../../../sql/consumer_dedupe.sql");
const TURNOVER: &str = include_str!("../../../../examples/consumers/turnover.sql");
const PAGE: &str = include_str!("../../../../docs/sqs.md");

#[test]
fn page_quotes_the_program() {
    let (_, quoted) = PAGE.split_once("```rust\n").expect("a program");
    let (quoted, _) = quoted.split_once("```").expect("its end");
    assert!(PROGRAM.contains(quoted.trim()), "docs/sqs.md is not a part of the program");
}

fn client(port: u16) -> Client {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http)
        .endpoint_url(format!("http://127.0.0.1:{port}"))
        .region(Region::new("elasticmq"))
        .credentials_provider(Credentials::new("bed", "bed", None, None, "bed"));
    Client::from_conf(config.build())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_acts_once_on_each_event() {
    let mut fixture = SqsFixture::new().await;
    // A message that an ended consumer has received is there again soon.
    let queue = format!("billing-{}", fixture.queue);
    fixture.elasticmq.add_queue(&queue, &json!({ "VisibilityTimeout": "1" })).await;
    fixture.url = fixture.elasticmq.queue_url(&queue);
    let postgres: &Postgres = &fixture.inner.postgres;
    postgres.execute(TABLES).await;
    postgres.execute(TURNOVER).await;
    let rows = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                SELECT CASE WHEN i % 10 = 0 THEN 'other' ELSE 'order' END, (i % 7)::text, 'placed', \
                       jsonb_build_object('customer', i % 7, 'total_cents', i) FROM generate_series(1, 400) AS i";
    postgres.execute(rows).await;
    let client = client(fixture.elasticmq.port());
    let consume = async || {
        let source = &fixture.inner.source;
        program::consume(&client, &fixture.url, "outbox.event.order", source).await
    };
    for _ in 0..4 {
        let walpost = fixture.command("run").start();
        let ended = timeout(Duration::from_millis(700), consume()).await;
        assert!(ended.is_err(), "{ended:?}");
        walpost.kill9().await;
    }
    let expected = "SELECT sum(i) FROM generate_series(1, 400) AS i WHERE i % 10 <> 0";
    let expected = postgres.query_text(expected).await;
    let total = "SELECT coalesce(sum(total_cents), 0) FROM public.turnover";
    let walpost = fixture.command("run").start();
    tokio::select! {
        ended = consume() => panic!("{ended:?}"),
        () = eventually(LONG_TIMEOUT, "all are processed", async || {
            let now = postgres.query_text(total).await;
            if now == expected { Ok(()) } else { Err(now) }
        }) => {}
    }
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
}
