//! From an acknowledged commit to a readable record, at a steady rate.
//!
//! Open loop: each row has an intended time, and a late one does not make the
//! next one late. Measured twice: from when COMMIT has returned to the writer,
//! and from when it was sent, which on a machine that is short of time says more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rdkafka::Message as _;
use tokio::time::{sleep, sleep_until};
use walpost_bed::{Tail, Topics, eventually};

use crate::Plan;
use crate::stage::{PATIENCE, Stage};

const WRITERS: u32 = 4;

/// Not counted: the first seconds, in which connections and the producer's
/// first records in each partition are made.
const WARM_UP_SECONDS: u32 = 3;

type Times = Arc<Mutex<HashMap<u64, Instant>>>;

/// When each row's COMMIT was sent, and when it returned.
#[derive(Default)]
struct Commits {
    sent: Times,
    acknowledged: Times,
}

pub(crate) async fn bench(plan: &Plan) {
    let stage = Stage::new().await;
    stage.kafka.create_topic("latency", 3).await;
    let (commits, read) = (Commits::default(), Times::default());
    let seen = Arc::clone(&read);
    let consumer =
        Tail::start(&stage.kafka.bootstrap(), Topics::named(["latency"]), move |record| {
            let number = record.key().and_then(|key| std::str::from_utf8(key).ok()?.parse().ok());
            seen.lock().expect("no panic").insert(number.expect("a number"), Instant::now());
        });
    let walpost = stage.command("run").args(["--topic", "latency"]).start();
    walpost.await_line("streaming from PostgreSQL", PATIENCE).await;
    let cpu_before = walpost.cpu_time().unwrap_or_default();
    let begun = Instant::now();
    let rows = u64::from(plan.rate) * u64::from(plan.seconds + WARM_UP_SECONDS);
    let writers = (0..WRITERS).map(|writer| write(&stage, plan, writer, begun, &commits));
    futures_util::future::join_all(writers).await;
    let wrote = begun.elapsed();
    let cpu = walpost.cpu_time().unwrap_or_default().saturating_sub(cpu_before);
    eventually(PATIENCE, "every record is readable", async || {
        read.lock().expect("no panic").len() as u64 >= rows
    })
    .await;
    drop(consumer);
    let cpu = 100.0 * cpu.as_secs_f64() / wrote.as_secs_f64();
    println!(
        "\nlatency, {} rows a second for {} s ({rows} rows written in {:.1} s; walpost's CPU {cpu:.1} % of a core):",
        plan.rate,
        plan.seconds,
        wrote.as_secs_f64()
    );
    report("COMMIT returned", &latencies(plan, &commits.acknowledged, &read));
    report("COMMIT sent", &latencies(plan, &commits.sent, &read));
    idle(&walpost).await;
    walpost.terminate();
    walpost.wait(PATIENCE).await.expect("it stops");
}

/// From each of these times to the record, in microseconds.
fn latencies(plan: &Plan, from: &Times, read: &Times) -> Histogram<u64> {
    let from = from.lock().expect("no panic");
    let read = read.lock().expect("no panic");
    let mut histogram = Histogram::<u64>::new(3).expect("three digits");
    let warm = u64::from(plan.rate * WARM_UP_SECONDS);
    for (number, begun) in from.iter().filter(|(number, _)| **number >= warm) {
        // A record can be readable before its writer has heard of the commit.
        let latency = read[number].saturating_duration_since(*begun);
        let micros = u64::try_from(latency.as_micros()).expect("it ended today");
        // This one grows to hold it; `saturating_record` would cut it off.
        histogram.record(micros).expect("room for it");
    }
    histogram
}

fn report(from: &str, histogram: &Histogram<u64>) {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let millis = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "  {from} to readable: p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms, max {:.1} ms",
        millis(0.5),
        millis(0.9),
        millis(0.99),
        millis(0.999),
        millis(1.0),
    );
}

async fn write(stage: &Stage, plan: &Plan, writer: u32, begun: Instant, commits: &Commits) {
    let client = stage.postgres.client().await;
    let insert = client
        .prepare(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('order', $1, 'placed', jsonb_build_object('text', repeat('x', 180)))",
        )
        .await
        .expect("a statement");
    let step = Duration::from_secs(1) / plan.rate;
    for number in (writer..plan.rate * (plan.seconds + WARM_UP_SECONDS)).step_by(WRITERS as usize) {
        sleep_until((begun + step * number).into()).await;
        commits.sent.lock().expect("no panic").insert(u64::from(number), Instant::now());
        client.execute(&insert, &[&number.to_string()]).await.expect("a committed row");
        commits.acknowledged.lock().expect("no panic").insert(u64::from(number), Instant::now());
    }
}

/// What walpost costs while nothing happens.
async fn idle(walpost: &walpost_bed::Walpost) {
    let before = walpost.cpu_time().unwrap_or_default();
    let spell = Duration::from_secs(10);
    sleep(spell).await;
    let cpu = walpost.cpu_time().unwrap_or_default().saturating_sub(before);
    println!("  idle: {:.2} % of a core", 100.0 * cpu.as_secs_f64() / spell.as_secs_f64());
}
