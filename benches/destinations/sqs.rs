//! A FIFO queue of SQS. The bare producer sends as many messages in batches of ten, with as many
//! requests at once. In the place of SQS is a server that accepts everything, at once or after the
//! time that a distant one needs: with ElasticMQ the measured rate would be ElasticMQ's.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aws_config::BehaviorVersion;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::{Credentials, Region};
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::backlog::Shape;
use crate::{Bench, apart, ended, until};

/// How many requests walpost has at once, and messages in each.
const REQUESTS: usize = 16;
const BATCH: usize = 10;

pub(crate) async fn bench(bench: &Bench) {
    for delay in [Duration::ZERO, Duration::from_millis(10)] {
        let server = Server::start(delay).await;
        let command = |name: &str| {
            let command = bench.command("sqs", name).env("WALPOST_SQS_QUEUE_URL", url(server.port));
            let command = command.env("AWS_ACCESS_KEY_ID", "bench").env("AWS_REGION", "bench");
            command.env("AWS_SECRET_ACCESS_KEY", "bench")
        };
        ended(command("init").arg("--apply")).await;
        let round = async || {
            bench.write_backlog(Shape::OneTransaction, 1000).await;
            server.taken.store(0, Ordering::Relaxed);
            let taken = async || server.taken.load(Ordering::Relaxed);
            let walposts = bench.drain(command("run"), until(bench.rows, taken)).await;
            let (port, rows) = (server.port, bench.rows);
            bench.against(walposts, async || apart(move || send(port, rows)).await).await
        };
        bench.compare(&format!("SQS, answers after {delay:?}"), round).await;
        bench.drop_slot().await;
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/000000000000/outbox.fifo")
}

/// A server that accepts each message.
struct Server {
    port: u16,
    taken: Arc<AtomicUsize>,
}

impl Server {
    async fn start(delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let taken = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&taken);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                stream.set_nodelay(true).expect("an option");
                let taken = Arc::clone(&counted);
                let service = service_fn(move |request| answer(Arc::clone(&taken), request, delay));
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { port, taken }
    }
}

async fn answer(
    taken: Arc<AtomicUsize>,
    request: Request<Incoming>,
    delay: Duration,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let order: Value = serde_json::from_slice(&body).expect("JSON");
    let entries = order["Entries"].as_array();
    let answer = if let Some(entries) = entries {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        taken.fetch_add(entries.len(), Ordering::Relaxed);
        let stored =
            |entry: &Value| json!({ "Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": "d" });
        json!({ "Successful": entries.iter().map(stored).collect::<Vec<_>>(), "Failed": [] })
    } else {
        json!({ "Attributes": { "FifoQueue": "true", "MaximumMessageSize": "1048576" } })
    };
    let response = Response::builder().header("content-type", "application/x-amz-json-1.0");
    Ok(response.body(Full::from(answer.to_string())).expect("valid"))
}

fn client(port: u16) -> Client {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http)
        .retry_config(RetryConfig::disabled())
        .endpoint_url(format!("http://127.0.0.1:{port}"))
        .region(Region::new("bench"))
        .credentials_provider(Credentials::new("bench", "bench", None, None, "bench"));
    Client::from_conf(config.build())
}

/// A message as walpost sends it.
fn entry(at: usize) -> SendMessageBatchRequestEntry {
    let attributes = [
        ("walpost.topic", "outbox.event.order"),
        ("walpost.key", "123"),
        ("walpost.timestamp", "1790000000000"),
        ("id", "00000000-0000-0000-0000-000000000000"),
        ("event_type", "placed"),
        ("walpost.position", "00000000016B3748/00000000"),
    ];
    let body = format!(r#"{{"n": 10000, "text": "{}"}}"#, "x".repeat(150));
    let entry = SendMessageBatchRequestEntry::builder()
        .id(at.to_string())
        .message_body(body)
        .message_group_id("123")
        .message_deduplication_id("0123456789abcdef-00000000016B3748/00000000-0123456789abcdef");
    let entry = attributes.into_iter().fold(entry, |entry, (name, value)| {
        let value = MessageAttributeValue::builder().data_type("String").string_value(value);
        entry.message_attributes(name, value.build().expect("a type"))
    });
    entry.build().expect("complete")
}

/// Sends as many messages.
async fn send(port: u16, rows: usize) -> Duration {
    let (client, url) = (client(port), url(port));
    let begun = Instant::now();
    let senders = (0..REQUESTS).map(|_| {
        let (client, url) = (client.clone(), url.clone());
        tokio::spawn(async move {
            for _ in 0..rows / REQUESTS / BATCH {
                let entries = (0..BATCH).map(entry).collect();
                let request = client.send_message_batch().queue_url(&url);
                let answer = request.set_entries(Some(entries)).send().await.expect("an answer");
                assert_eq!(answer.successful().len(), BATCH);
            }
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.expect("it ends");
    }
    begun.elapsed()
}
