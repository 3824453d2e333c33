//! The consumer of docs/sqs.md acts once on each event, though it and walpost are ended in between.

use aws_config::BehaviorVersion;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{Credentials, Region};
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use serde_json::json;

use super::fixture::SqsFixture;
use crate::consumers::act_once;

#[path = "../../../../examples/consumers/sqs/main.rs"]
#[allow(dead_code, reason = "the program's own start")]
mod program;

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
    let client = client(fixture.elasticmq.port());
    let consume = async || {
        let source = &fixture.inner.source;
        program::consume(&client, &fixture.url, "outbox.event.order", source).await
    };
    act_once(&fixture, 400, || fixture.command("run"), consume).await;
}
