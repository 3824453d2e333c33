//! Settings of the wrong destination, commands that need Kafka, and what `check` finds.

use std::sync::Arc;

use serde_json::Value;
use walpost_bed::RabbitMq;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::{RabbitFixture, shared};

const STACK: &str = include_str!("../../../../docker/compose.yaml");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_do_not_fit_are_errors() {
    let mut fixture = RabbitFixture::bare(Arc::clone(&shared().await.rabbit)).await;
    for (toml, part) in [
        ("kafka.bootstrap_servers = 'k:9092'", "`kafka.bootstrap_servers`"),
        ("http.url = 'https://h'", "`http.url`"),
        ("delivery.mode = 'exactly-once'", "`delivery.mode`"),
        ("delivery.state_topic = 'x'", "`delivery.state_topic`"),
        ("rabbitmq.ca_file = '/ca.pem'", "amqps://"),
        ("rabbitmq.routing_key = '{tenant}'", "`rabbitmq.routing_key`"),
        ("record.place = ['n:partition']", "only topics of Kafka"),
        ("poison.too_large = 'dead_letter'", "`poison.too_large`"),
    ] {
        fixture.reconfigure(toml);
        let (code, said) = fixture.ended("run", &[]).await;
        assert_eq!(code, Some(78), "{toml}: {said}");
        assert!(said.contains(part), "{toml}: {said}");
    }
    fixture.reconfigure("");
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0));
    assert!(said.contains("no position of its own"), "{said}");
    let (code, said) = fixture.ended("prune", &["--older-than", "7d"]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("sink.kind = \"rabbitmq\""), "{said}");
    for (url, part) in
        [("amqp://h/", "/%2F"), ("amqp://u:s3cret@h?x=1", "ca_file"), ("h", "amqp://")]
    {
        fixture.url = url.to_owned();
        let (code, said) = fixture.ended("run", &[]).await;
        assert_eq!(code, Some(78), "{url}: {said}");
        assert!(said.contains(part) && !said.contains("s3cret"), "{url}: {said}");
    }
    fixture.url = "amqps://h".to_owned();
    for (name, part) in
        [("cert_file", "set rabbitmq.key_file"), ("key_file", "set rabbitmq.cert_file")]
    {
        fixture.reconfigure(&format!("rabbitmq.{name} = '/own.pem'"));
        let (code, said) = fixture.ended("run", &[]).await;
        assert_eq!(code, Some(78), "{name}: {said}");
        assert!(said.contains(part), "{name}: {said}");
    }
}

async fn codes(fixture: &RabbitFixture, arguments: &[&str]) -> Vec<(String, String)> {
    let check = fixture.command("check").args(["--json"]).args(arguments).start();
    check.wait(LONG_TIMEOUT).await.expect("check ends");
    let report: Value = serde_json::from_str(&check.stdout().join("\n")).expect("JSON");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("findings").iter();
    let of_rabbit = findings.filter(|finding| finding["subject"] == "RabbitMQ");
    of_rabbit.map(|finding| (text(finding, "level"), text(finding, "code"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_what_is_missing() {
    let mut fixture = RabbitFixture::bare(Arc::clone(&shared().await.rabbit)).await;
    fixture.reconfigure("poison.refused = 'dead_letter'");
    let of = |level: &str, code: &str| (level.to_owned(), code.to_owned());
    let server = of("ok", "rabbitmq_server");
    assert_eq!(codes(&fixture, &["--offline"]).await, [of("skipped", "rabbitmq")]);
    let missing =
        [of("error", "rabbitmq_exchange_missing"), of("error", "rabbitmq_dead_letters_missing")];
    assert_eq!(codes(&fixture, &[]).await, [&[server.clone()][..], &missing].concat());
    fixture.rabbit.exchange(&fixture.exchange, "direct").await;
    fixture.rabbit.queue(&fixture.letters, &[]).await;
    let found = [server, of("ok", "rabbitmq_exchange"), of("ok", "rabbitmq_dead_letters")];
    assert_eq!(codes(&fixture, &[]).await, found);
    let address = fixture.url.trim_start_matches("amqp://").to_owned();
    for (url, code) in [
        (format!("amqp://walpost:wr0ng@{address}"), "rabbitmq_credentials"),
        (format!("amqp://walpost:s3cret@{address}/forbidden"), "rabbitmq_vhost"),
        ("amqp://127.0.0.1:1".to_owned(), "rabbitmq_unreachable"),
        (format!("amqp://127.0.0.1:{}", fixture.inner.postgres.port()), "rabbitmq_unreachable"),
        ("ftp://h".to_owned(), "rabbitmq_config"),
    ] {
        fixture.url.clone_from(&url);
        assert_eq!(codes(&fixture, &[]).await, [of("error", code)], "{url}");
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
    fixture.configure("");
    fixture.url = fixture.url.replace("amqp://", "amqp://walpost:walpost@");
    let levels: Vec<_> = codes(&fixture, &[]).await.into_iter().map(|(level, _)| level).collect();
    assert_eq!(levels, ["ok", "ok"]);
    let walpost = fixture.run().await;
    fixture.insert(100, 50).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(rabbit.length("orders").await, 100);
    stop(walpost).await;
}
