//! Benchmarks a backlog to a stream of NATS JetStream, beside a bare producer: the same client library
//! publishes the same messages over one connection, as many before the first is acknowledged, without
//! a database before it.
//!
//!     cargo bench --features nats --bench nats -- [ROUNDS] [ROWS]
//!
//! Runs are interleaved, and ratios are computed round by round. It starts its own servers; NATS syncs
//! its data in each of the two ways.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream;
use async_nats::jetstream::context::PublishAckFuture;
use bytes::Bytes;
use serde_json::{Value, json};
use walpost_bed::fixture::program;
use walpost_bed::{Major, Nats, Postgres, StoredMessage, Walpost, WalpostBuilder};

const STREAM: &str = "outbox";

/// Messages that are sent before the first is acknowledged: as walpost has.
const IN_FLIGHT: usize = 2048;

/// How often is looked whether all messages are there.
const POLL: Duration = Duration::from_millis(20);

fn main() {
    // `cargo test --benches` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    let rounds = numbers.first().copied().unwrap_or(3);
    let rows = numbers.get(1).copied().unwrap_or(200_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(bench(rounds, rows));
}

async fn bench(rounds: u64, rows: u64) {
    let postgres = Postgres::start(Major::V15).await;
    println!("{rows} rows of about 250 bytes; messages/s; ratio to the bare producer");
    for sync in ["2m", "always"] {
        let nats = Nats::builder().sync_interval(sync).start().await;
        let command = |name: &str| command(&postgres, &nats, name);
        ended(command("init").arg("--apply").start()).await;
        for shape in ["one-row transactions", "one transaction"] {
            let mut ratios = Vec::new();
            for round in 1..=rounds {
                empty(&nats).await;
                postgres
                    .execute("SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())")
                    .await;
                ended(command("adopt").arg("--apply").start()).await;
                postgres.execute(&backlog(shape, rows)).await;
                let begun = Instant::now();
                let walpost = command("run").start();
                until_there(&nats, rows).await;
                let walposts = begun.elapsed();
                // Confirmed too, so that the next round begins behind it.
                walpost.terminate();
                walpost.wait(Duration::from_secs(60)).await.expect("it stops");
                let messages = nats.messages(STREAM).await;
                empty(&nats).await;
                let bare = bare(&nats, &messages).await;
                let rate = |elapsed: Duration| rate(rows, elapsed);
                let ratio = bare.as_secs_f64() / walposts.as_secs_f64();
                println!(
                    "sync_interval {sync}, {shape}, round {round}: walpost {:.0}, bare {:.0}, ratio {ratio:.2}",
                    rate(walposts),
                    rate(bare)
                );
                ratios.push(ratio);
            }
            ratios.sort_by(f64::total_cmp);
            println!("sync_interval {sync}, {shape}: median ratio {:.2}", ratios[ratios.len() / 2]);
        }
        postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    }
}

/// A new stream, and no state key.
async fn empty(nats: &Nats) {
    for stream in [STREAM, "KV_walpost_outbox"] {
        // There is none at first.
        nats.api(&format!("STREAM.DELETE.{stream}"), &Value::Null).await;
    }
    nats.add_stream(STREAM, &["outbox.>", "walpost.dead-letter"], &json!({})).await;
}

fn command(postgres: &Postgres, nats: &Nats, name: &str) -> WalpostBuilder {
    Walpost::builder(program())
        .arg(name)
        .args(["--source", &postgres.url(), "--sink", "nats", "--log-level", "warn"])
        .env("WALPOST_NATS_URL", nats.url())
}

async fn ended(walpost: Walpost) {
    let status = walpost.wait(Duration::from_secs(60)).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
}

/// Rows of about 250 bytes with 1000 keys.
fn backlog(shape: &str, rows: u64) -> String {
    let insert = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)";
    let payload = "jsonb_build_object('n', i, 'text', repeat('x', 150))";
    if shape == "one transaction" {
        return format!(
            "{insert} SELECT 'order', (i % 1000)::text, 'placed', {payload} \
               FROM generate_series(1, {rows}) AS i"
        );
    }
    format!(
        "DO $$ BEGIN FOR i IN 1..{rows} LOOP {insert} \
         VALUES ('order', (i % 1000)::text, 'placed', {payload}); COMMIT; END LOOP; END $$"
    )
}

async fn until_there(nats: &Nats, rows: u64) {
    while nats.last_sequence(STREAM).await < rows {
        tokio::time::sleep(POLL).await;
    }
}

/// Publishes the same messages with nothing before them, and without the headers that are orders to
/// NATS.
async fn bare(nats: &Nats, messages: &[StoredMessage]) -> Duration {
    let context = jetstream::new(nats.client().await);
    let begun = Instant::now();
    let mut sent = VecDeque::new();
    for message in messages {
        if sent.len() == IN_FLIGHT {
            acknowledged(sent.pop_front().expect("a message")).await;
        }
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers.iter().filter(|(name, _)| !name.starts_with("Nats-")) {
            headers.append(name.as_str(), value.as_str());
        }
        let payload = Bytes::copy_from_slice(&message.payload);
        let publishing = context.publish_with_headers(message.subject.clone(), headers, payload);
        sent.push_back(publishing.await.expect("it is sent"));
    }
    for message in sent {
        acknowledged(message).await;
    }
    begun.elapsed()
}

async fn acknowledged(message: PublishAckFuture) {
    message.await.expect("it is stored");
}

#[allow(clippy::cast_precision_loss, reason = "a number of rows")]
fn rate(rows: u64, elapsed: Duration) -> f64 {
    rows as f64 / elapsed.as_secs_f64()
}
