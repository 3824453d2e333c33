//! Benchmarks a backlog to a Redis stream, beside a bare producer: the same client library adds the
//! same entries over one connection, by `XADD` in pipelines, without a database before it.
//!
//!     cargo bench --features redis --bench redis -- [ROUNDS] [ROWS]
//!
//! Runs are interleaved, and ratios are computed round by round. It starts its own servers; Redis
//! syncs its log in each of the two ways.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use walpost_bed::fixture::program;
use walpost_bed::{Entry, Major, Postgres, Redis, Walpost, WalpostBuilder};

const STREAM: &str = "outbox";

/// Entries of a pipeline, and pipelines that are sent before the first is answered: as walpost has.
const PIPELINE: usize = 256;
const IN_FLIGHT: usize = 32;

/// How often is looked whether all entries are there.
const POLL: Duration = Duration::from_millis(20);

fn main() {
    // `cargo test --benches` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    let rounds = numbers.first().copied().unwrap_or(3);
    let rows = numbers.get(1).copied().unwrap_or(300_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(bench(rounds, rows));
}

async fn bench(rounds: usize, rows: usize) {
    let postgres = Postgres::start(Major::V15).await;
    println!("{rows} rows of about 250 bytes; entries/s; ratio to the bare producer");
    for fsync in ["everysec", "always"] {
        let redis = Redis::builder().setting("appendfsync", fsync).start().await;
        let command = |name: &str| command(&postgres, &redis, name);
        ended(command("init").arg("--apply").start()).await;
        for shape in ["one-row transactions", "one transaction"] {
            let mut ratios = Vec::new();
            for round in 1..=rounds {
                let _: u32 = redis.command(&format!("DEL {STREAM} walpost:{{{STREAM}}}")).await;
                postgres
                    .execute("SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())")
                    .await;
                ended(command("adopt").arg("--apply").start()).await;
                postgres.execute(&backlog(shape, rows)).await;
                let begun = Instant::now();
                let walpost = command("run").start();
                until_there(&redis, rows).await;
                let walposts = begun.elapsed();
                // Confirmed too, so that the next round begins behind it.
                walpost.terminate();
                walpost.wait(Duration::from_secs(60)).await.expect("it stops");
                let entries = redis.entries(STREAM).await;
                let _: u32 = redis.command(&format!("DEL {STREAM}")).await;
                let bare = bare(&redis, &entries).await;
                let rate = |elapsed: Duration| rate(rows, elapsed);
                let ratio = bare.as_secs_f64() / walposts.as_secs_f64();
                println!(
                    "appendfsync {fsync}, {shape}, round {round}: walpost {:.0}, bare {:.0}, ratio {ratio:.2}",
                    rate(walposts),
                    rate(bare)
                );
                ratios.push(ratio);
            }
            ratios.sort_by(f64::total_cmp);
            println!("appendfsync {fsync}, {shape}: median ratio {:.2}", ratios[ratios.len() / 2]);
        }
        postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    }
}

fn command(postgres: &Postgres, redis: &Redis, name: &str) -> WalpostBuilder {
    Walpost::builder(program())
        .arg(name)
        .args(["--source", &postgres.url(), "--sink", "redis", "--log-level", "warn"])
        .env("WALPOST_REDIS_URL", redis.url())
}

async fn ended(walpost: Walpost) {
    let status = walpost.wait(Duration::from_secs(60)).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
}

/// Rows of about 250 bytes with 1000 keys, with the time of their commit.
fn backlog(shape: &str, rows: usize) -> String {
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

async fn until_there(redis: &Redis, rows: usize) {
    while redis.command::<usize>(&format!("XLEN {STREAM}")).await < rows {
        tokio::time::sleep(POLL).await;
    }
}

/// Adds the same entries with nothing before them.
async fn bare(redis: &Redis, entries: &[Entry]) -> Duration {
    let client = redis::Client::open(redis.url()).expect("a URL");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    let connection = connection.expect("a connection");
    let begun = Instant::now();
    let mut sent = std::collections::VecDeque::new();
    for chunk in entries.chunks(PIPELINE) {
        if sent.len() == IN_FLIGHT {
            answered(sent.pop_front().expect("a pipeline")).await;
        }
        let mut pipeline = redis::pipe();
        for entry in chunk {
            // Pipelines of several tasks may overtake each other.
            let command = pipeline.cmd("XADD").arg(STREAM).arg("*");
            for (name, value) in &entry.fields {
                command.arg(name).arg(value);
            }
            command.ignore();
        }
        sent.push_back(tokio::spawn(send(connection.clone(), pipeline)));
        // It is sent before the next one is made.
        tokio::task::yield_now().await;
    }
    for pipeline in sent {
        answered(pipeline).await;
    }
    begun.elapsed()
}

async fn send(mut connection: MultiplexedConnection, pipeline: redis::Pipeline) {
    let added = pipeline.query_async::<()>(&mut connection).await;
    assert!(added.is_ok(), "entries were not added");
}

async fn answered(pipeline: tokio::task::JoinHandle<()>) {
    pipeline.await.expect("it is answered");
}

#[allow(clippy::cast_precision_loss, reason = "a number of rows")]
fn rate(rows: usize, elapsed: Duration) -> f64 {
    rows as f64 / elapsed.as_secs_f64()
}
