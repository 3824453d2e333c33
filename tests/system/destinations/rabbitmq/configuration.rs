//! What `check` finds.

use std::sync::Arc;

use serde_json::Value;
use walpost_bed::RabbitMq;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::{RabbitFixture, shared};
use crate::promise::{Destination as _, finding};

const STACK: &str = include_str!("../../../../docker/compose.yaml");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_what_is_missing() {
    let mut fixture = RabbitFixture::bare(Arc::clone(&shared().await.rabbit)).await;
    fixture.configure("poison.refused = 'dead_letter'");
    let server = finding("ok", "rabbitmq_server");
    let missing = [
        finding("error", "rabbitmq_exchange_missing"),
        finding("error", "rabbitmq_dead_letters_missing"),
    ];
    assert_eq!(fixture.codes(&[]).await, [&[server.clone()][..], &missing].concat());
    fixture.rabbit.exchange(&fixture.exchange, "direct").await;
    fixture.rabbit.queue(&fixture.letters, &[]).await;
    let found =
        [server, finding("ok", "rabbitmq_exchange"), finding("ok", "rabbitmq_dead_letters")];
    assert_eq!(fixture.codes(&[]).await, found);
    let address = fixture.url.trim_start_matches("amqp://").to_owned();
    for (url, code) in [
        (format!("amqp://walpost:wr0ng@{address}"), "rabbitmq_credentials"),
        (format!("amqp://walpost:s3cret@{address}/forbidden"), "rabbitmq_permissions"),
        (format!("amqp://127.0.0.1:{}", fixture.inner.postgres.port()), "rabbitmq_unreachable"),
    ] {
        fixture.url.clone_from(&url);
        assert_eq!(fixture.codes(&[]).await, [finding("error", code)], "{url}");
    }
}

/// With walpost's defaults.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_of_the_compose_stack_are_enough_for_walpost() {
    let (_, definitions) =
        STACK.split_once("\n  rabbitmq-definitions:\n    content: |\n").expect("definitions");
    let definitions = definitions.replace("$$", "$");
    let definitions: Value =
        serde_json::from_str(&definitions).expect("JSON at the end of the file");
    let rabbit = Arc::new(RabbitMq::builder().defined(definitions).start().await);
    let mut fixture = RabbitFixture::bare(Arc::clone(&rabbit)).await;
    fixture.configure_always(String::new());
    fixture.url = fixture.url.replace("amqp://", "amqp://walpost:walpost@");
    let levels: Vec<_> = fixture.codes(&[]).await.into_iter().map(|(level, _)| level).collect();
    assert_eq!(levels, ["ok", "ok"]);
    let walpost = fixture.run().await;
    fixture.insert(100, 50).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(rabbit.length("orders").await, 100);
    stop(walpost).await;
}
