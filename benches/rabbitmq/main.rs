//! Benchmarks a backlog to a quorum queue of RabbitMQ, beside a bare producer: the usual client
//! (lapin) publishes the same messages over one channel with confirmations, without a database before
//! it and without waiting for messages of the same key.
//!
//!     cargo bench --features rabbitmq --bench rabbitmq -- [ROUNDS] [ROWS]
//!
//! Runs are interleaved, and ratios are computed round by round. It starts its own servers.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, PublisherConfirm};
use walpost_bed::fixture::program;
use walpost_bed::{Major, Postgres, RabbitMessage, RabbitMq, Walpost, WalpostBuilder};

const EXCHANGE: &str = "outbox";
const QUEUE: &str = "orders";

/// Messages that are sent before the first is confirmed: as walpost has.
const IN_FLIGHT: usize = 2048;

/// How often is looked whether all messages are there.
const POLL: Duration = Duration::from_millis(20);

fn main() {
    // `cargo test --benches` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    let rounds = numbers.first().copied().unwrap_or(3);
    let rows = numbers.get(1).copied().unwrap_or(100_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(bench(rounds, rows));
}

async fn bench(rounds: usize, rows: usize) {
    let postgres = Postgres::start(Major::V15).await;
    let rabbit = RabbitMq::start().await;
    rabbit.exchange(EXCHANGE, "fanout").await;
    rabbit.queue(QUEUE, &[("x-queue-type", "quorum")]).await;
    rabbit.bind(QUEUE, EXCHANGE, "").await;
    println!("{rows} rows of about 250 bytes; messages/s; ratio to the bare producer");
    let command = |name: &str| command(&postgres, &rabbit, name);
    ended(command("init").arg("--apply").start()).await;
    for keys in [1000, 10_000] {
        let mut ratios = Vec::new();
        for round in 1..=rounds {
            postgres.execute(&backlog(keys, rows)).await;
            let begun = Instant::now();
            let walpost = command("run").start();
            until_there(&rabbit, rows).await;
            let walposts = begun.elapsed();
            // Confirmed too, so that the next round begins behind it.
            walpost.terminate();
            walpost.wait(Duration::from_secs(60)).await.expect("it stops");
            let messages = rabbit.take(QUEUE).await;
            let begun = Instant::now();
            bare(&rabbit, &messages).await;
            until_there(&rabbit, rows).await;
            let bare = begun.elapsed();
            rabbit.take(QUEUE).await;
            let rate = |elapsed: Duration| rate(rows, elapsed);
            let ratio = bare.as_secs_f64() / walposts.as_secs_f64();
            println!(
                "{keys} keys, round {round}: walpost {:.0}, bare {:.0}, ratio {ratio:.2}",
                rate(walposts),
                rate(bare)
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        println!("{keys} keys: median ratio {:.2}", ratios[ratios.len() / 2]);
    }
}

fn command(postgres: &Postgres, rabbit: &RabbitMq, name: &str) -> WalpostBuilder {
    Walpost::builder(program())
        .arg(name)
        .args(["--source", &postgres.url(), "--sink", "rabbitmq", "--log-level", "warn"])
        .env("WALPOST_RABBITMQ_URL", rabbit.url())
        .env("WALPOST_RABBITMQ_EXCHANGE", EXCHANGE)
}

async fn ended(walpost: Walpost) {
    let status = walpost.wait(Duration::from_secs(60)).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
}

/// One transaction of rows of about 250 bytes.
fn backlog(keys: usize, rows: usize) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', (i % {keys})::text, 'placed', \
                jsonb_build_object('n', i, 'text', repeat('x', 150)) \
           FROM generate_series(1, {rows}) AS i"
    )
}

async fn until_there(rabbit: &RabbitMq, rows: usize) {
    while (rabbit.length(QUEUE).await as usize) < rows {
        tokio::time::sleep(POLL).await;
    }
}

/// Publishes the same messages with nothing before them.
async fn bare(rabbit: &RabbitMq, messages: &[RabbitMessage]) {
    let (_connection, channel) = rabbit.channel().await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirmations");
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let mut unconfirmed = FuturesUnordered::<PublisherConfirm>::new();
    for message in messages {
        if unconfirmed.len() >= IN_FLIGHT {
            unconfirmed.next().await.expect("one").expect("it is confirmed");
        }
        let routing_key = message.routing_key.as_str().into();
        let properties = properties(message);
        let published =
            channel.basic_publish(EXCHANGE.into(), routing_key, options, &message.body, properties);
        unconfirmed.push(published.await.expect("it is published"));
    }
    while let Some(confirmed) = unconfirmed.next().await {
        confirmed.expect("it is confirmed");
    }
}

fn properties(message: &RabbitMessage) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in &message.headers {
        headers.insert(name.as_str().into(), AMQPValue::LongString(value.clone().into()));
    }
    BasicProperties::default()
        .with_content_type("application/json".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_message_id(message.message_id.as_str().into())
        .with_timestamp(message.timestamp.unwrap_or_default())
}

#[allow(clippy::cast_precision_loss, reason = "a number of rows")]
fn rate(rows: usize, elapsed: Duration) -> f64 {
    rows as f64 / elapsed.as_secs_f64()
}
