//! Benchmarks a backlog to a queue of SQS, beside a bare producer: the same SDK sends as many messages
//! in batches of ten, with as many requests under way, without a database before it.
//!
//!     cargo bench --features sqs --bench sqs -- [ROUNDS] [ROWS]
//!
//! Runs are interleaved, and ratios are computed round by round. It starts its own servers. In the
//! place of SQS is a server that accepts everything, at once or after the time that a distant one
//! needs: ElasticMQ would be what is measured.

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
use walpost_bed::fixture::program;
use walpost_bed::{Major, Postgres, Walpost, WalpostBuilder};

/// How many requests walpost has under way, and messages in each.
const REQUESTS: usize = 16;
const BATCH: usize = 10;

/// How often is looked whether all events are there.
const POLL: Duration = Duration::from_millis(5);

fn main() {
    // `cargo test --benches` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    let rounds = numbers.first().copied().unwrap_or(3);
    let rows = numbers.get(1).copied().unwrap_or(50_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(bench(rounds, rows));
}

async fn bench(rounds: usize, rows: usize) {
    let postgres = Postgres::start(Major::V15).await;
    println!("{rows} rows of about 250 bytes; messages/s; ratio to the bare producer");
    for delay in [Duration::ZERO, Duration::from_millis(10)] {
        let server = Server::start(delay).await;
        let command = |name: &str| command(&postgres, server.port, name);
        ended(command("init").arg("--apply").start()).await;
        let mut ratios = Vec::new();
        for round in 1..=rounds {
            postgres.execute(&backlog(rows)).await;
            server.taken.store(0, Ordering::Relaxed);
            let begun = Instant::now();
            let walpost = command("run").start();
            until_taken(&server, rows).await;
            let walposts = begun.elapsed();
            // Confirmed too, so that the next round begins behind it.
            walpost.terminate();
            walpost.wait(Duration::from_secs(60)).await.expect("it stops");
            let bare = bare(server.port, rows).await;
            let rate = |elapsed: Duration| rate(rows, elapsed);
            let ratio = bare.as_secs_f64() / walposts.as_secs_f64();
            println!(
                "answers after {delay:?}, round {round}: walpost {:.0}, bare {:.0}, ratio {ratio:.2}",
                rate(walposts),
                rate(bare)
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        println!("answers after {delay:?}: median ratio {:.2}", ratios[ratios.len() / 2]);
        postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    }
}

fn command(postgres: &Postgres, port: u16, name: &str) -> WalpostBuilder {
    Walpost::builder(program())
        .arg(name)
        .args(["--source", &postgres.url(), "--sink", "sqs", "--log-level", "warn"])
        .env("WALPOST_SQS_QUEUE_URL", url(port))
        .env("AWS_ACCESS_KEY_ID", "bench")
        .env("AWS_SECRET_ACCESS_KEY", "bench")
        .env("AWS_REGION", "bench")
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/000000000000/outbox.fifo")
}

async fn ended(walpost: Walpost) {
    let status = walpost.wait(Duration::from_secs(60)).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
}

/// Rows of about 250 bytes with 1000 keys, in one transaction.
fn backlog(rows: usize) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', (i % 1000)::text, 'placed', \
                jsonb_build_object('n', i, 'text', repeat('x', 150)) \
           FROM generate_series(1, {rows}) AS i"
    )
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

async fn until_taken(server: &Server, rows: usize) {
    while server.taken.load(Ordering::Relaxed) < rows {
        tokio::time::sleep(POLL).await;
    }
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

/// Sends as many messages with nothing before them.
async fn bare(port: u16, rows: usize) -> Duration {
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

#[allow(clippy::cast_precision_loss, reason = "a rate is shown")]
fn rate(rows: usize, elapsed: Duration) -> f64 {
    rows as f64 / elapsed.as_secs_f64()
}
