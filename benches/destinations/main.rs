//! Benchmarks a backlog to each destination beside a bare producer: the same client library (for
//! RabbitMQ the usual one, lapin) sends the same events, as many at once, without a database before
//! it. Then once more while `pg_recvlogical` reads the same backlog to /dev/null, until both have
//! ended: walpost does the work of both.
//!
//!     cargo bench --features destinations --bench destinations -- [DESTINATION ...]
//!
//! Runs are interleaved, and ratios are computed round by round. It starts its own servers.

mod backlog;
mod http;
mod nats;
mod rabbitmq;
mod redis;
mod sqs;

use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use tokio::runtime::Runtime;
use walpost_bed::fixture::program;
use walpost_bed::{Major, Postgres, Walpost, WalpostBuilder, pg_recvlogical};

use crate::backlog::Shape;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Destination {
    /// An endpoint that answers at once, or as a distant one.
    Http,
    /// A stream, with both ways of syncing it.
    Nats,
    /// A quorum queue.
    Rabbitmq,
    /// A stream, with both ways of syncing it.
    Redis,
    /// A server that accepts every message, at once or as a distant one.
    Sqs,
}

#[derive(Debug, Parser)]
struct Arguments {
    /// By default all.
    destinations: Vec<Destination>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// By default as many as take some seconds.
    #[arg(long)]
    rows: Option<usize>,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
    #[arg(long, hide = true)]
    test: bool,
}

fn main() {
    let arguments = Arguments::parse();
    // `cargo test --benches` passes this.
    if arguments.test {
        return;
    }
    runtime().block_on(bench(&arguments));
}

fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().expect("a runtime")
}

/// Runs a bare producer on threads of its own. On those of the server that it sends to, no request
/// would wake another thread, as each of walpost's does.
async fn apart<F: Future<Output = Duration>>(
    bare: impl FnOnce() -> F + Send + 'static,
) -> Duration {
    let running = tokio::task::spawn_blocking(move || runtime().block_on(bare()));
    running.await.expect("it ends")
}

async fn bench(arguments: &Arguments) {
    let chosen = match &arguments.destinations[..] {
        [] => Destination::value_variants(),
        chosen => chosen,
    };
    println!("events/s; rows of about 250 bytes; ratios of walpost's rate to the other's");
    for destination in chosen {
        let with = |rows| Bench::start(arguments.rounds, arguments.rows.unwrap_or(rows));
        match destination {
            Destination::Http => http::bench(&with(50_000).await).await,
            Destination::Nats => nats::bench(&with(200_000).await).await,
            Destination::Rabbitmq => rabbitmq::bench(&with(100_000).await).await,
            Destination::Redis => redis::bench(&with(300_000).await).await,
            Destination::Sqs => sqs::bench(&with(50_000).await).await,
        }
    }
}

/// A database with an outbox, and what is measured with it.
struct Bench {
    postgres: Postgres,
    rounds: usize,
    rows: usize,
}

impl Bench {
    async fn start(rounds: usize, rows: usize) -> Self {
        Self { postgres: Postgres::start(Major::V15).await, rounds, rows }
    }

    /// A command of walpost with that destination.
    fn command(&self, sink: &str, name: &str) -> WalpostBuilder {
        Walpost::builder(program())
            .arg(name)
            .args(["--source", &self.postgres.url(), "--sink", sink, "--log-level", "warn"])
            .keeps_position()
    }

    /// Behind the position at which `pg_recvlogical` will begin.
    async fn write_backlog(&self, shape: Shape, keys: usize) {
        let slot = "SELECT pg_create_logical_replication_slot('receiver', 'pgoutput')";
        self.postgres.execute(slot).await;
        self.postgres.execute(&backlog::sql(shape, keys, self.rows)).await;
    }

    /// Makes a new slot behind all that is written.
    async fn advance_slot(&self) {
        let statement = "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
        self.postgres.execute(statement).await;
    }

    async fn drop_slot(&self) {
        self.postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    }

    /// How long `run` takes from its start until `all_there` returns.
    async fn drain(&self, run: WalpostBuilder, all_there: impl Future<Output = ()>) -> Duration {
        let begun = Instant::now();
        let walpost = run.start();
        tokio::select! {
            () = all_there => {}
            () = ends(&walpost) => {}
        }
        let elapsed = begun.elapsed();
        // Confirmed too, so that the next round begins behind it.
        walpost.terminate();
        walpost.wait(Duration::from_secs(60)).await.expect("it stops");
        elapsed
    }

    /// The times of the bare producer, which empties the destination first, beside walpost's.
    async fn against(&self, walpost: Duration, mut bare: impl AsyncFnMut() -> Duration) -> Times {
        let alone = bare().await;
        let (sent, received) = tokio::join!(bare(), self.receive());
        Times { walpost, bare: alone, bare_and_receive: sent.max(received) }
    }

    /// How long `pg_recvlogical` takes for the backlog.
    async fn receive(&self) -> Duration {
        let end = self.postgres.query_text("SELECT pg_current_wal_flush_lsn()").await;
        let end = end.expect("a position");
        let elapsed = pg_recvlogical::receive(&self.postgres.url(), "receiver", &end, "").await;
        self.postgres.execute("SELECT pg_drop_replication_slot('receiver')").await;
        elapsed
    }

    /// Prints rates and ratios of each round, and the ratios' medians and ranges.
    async fn compare(&self, condition: &str, mut round: impl AsyncFnMut() -> Times) {
        let mut ratios = [Vec::new(), Vec::new()];
        for number in 1..=self.rounds {
            let times = round().await;
            let others = [times.bare, times.bare_and_receive];
            let [bare, both] = others.map(|time| time.as_secs_f64() / times.walpost.as_secs_f64());
            println!(
                "{condition}, {} rows, round {number}: walpost {:.0}, bare producer {:.0} (ratio \
                 {bare:.2}), with pg_recvlogical {:.0} (ratio {both:.2})",
                self.rows,
                self.rate(times.walpost),
                self.rate(times.bare),
                self.rate(times.bare_and_receive)
            );
            ratios[0].push(bare);
            ratios[1].push(both);
        }
        let [bare, both] = ratios.map(summary);
        println!("{condition}: median ratios {bare} and {both}");
    }

    #[allow(clippy::cast_precision_loss, reason = "a rate is shown")]
    fn rate(&self, elapsed: Duration) -> f64 {
        self.rows as f64 / elapsed.as_secs_f64()
    }
}

/// What a round took.
struct Times {
    walpost: Duration,
    bare: Duration,
    bare_and_receive: Duration,
}

/// Median and range.
fn summary(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (ratios.first(), ratios.last()) else { return String::new() };
    format!("{:.2} ({least:.2} to {most:.2})", ratios[ratios.len() / 2])
}

/// Panics when it ends.
async fn ends(walpost: &Walpost) {
    loop {
        walpost.assert_runs();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits for a command that ends by itself, successfully.
async fn ended(walpost: WalpostBuilder) {
    let walpost = walpost.start();
    let status = walpost.wait(Duration::from_secs(60)).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
}

/// Waits until a destination has that many events.
async fn until(rows: usize, mut count: impl AsyncFnMut() -> usize) {
    while count().await < rows {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
