//! Latency from an acknowledged commit to a readable record, at a steady rate.
//!
//! Open loop: each row has an intended time, independent of the rows before it. A writer awaits its
//! COMMIT before it sends the next row, so one delay can cause another. Therefore latency is
//! measured three times: from the return of COMMIT, from sending the row, and from the intended
//! time, which includes all delays of the writers.
//!
//! For comparison it measures Kafka alone: the writers send the record themselves after COMMIT (a
//! dual write, which nobody should do). Its producer has one request in flight on loopback. Over a
//! delay proxy it has five, since with one it would measure the round trip times the partitions.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rdkafka::Message as _;
use rdkafka::config::ClientConfig;
use rdkafka::message::BorrowedMessage;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, ThreadedProducer};
use tokio::time::sleep_until;

use crate::Plan;
use crate::backlog;
use crate::conditions::Conditions;
use crate::contender::Contender;
use crate::fixture::Fixture;
use crate::other_writes::OtherTable;
use crate::report::Report;
use crate::topics::TopicNames;
use crate::trial::Trial;

const WRITERS: u32 = 4;

/// What a payload has beside its text.
const AROUND_TEXT: u32 = 20;

/// How fast a cell is written, and its conditions.
pub(crate) type Cell = (u32, Conditions);

/// When something was done to each row, by its number.
type Times = Arc<Mutex<Vec<Option<Instant>>>>;

fn times(rows: u32) -> Times {
    Arc::new(Mutex::new(vec![None; rows as usize]))
}

fn note(times: &Times, number: u32) {
    let now = Instant::now();
    times.lock().expect("no panic")[number as usize] = Some(now);
}

/// When each row's COMMIT was meant to be sent, was sent, and returned.
struct Commits {
    intended: Times,
    sent: Times,
    acknowledged: Times,
}

/// A producer without anything before it.
struct Direct {
    producer: ThreadedProducer<DefaultProducerContext>,
    topics: TopicNames,
    payload: String,
}

impl Direct {
    fn new(bootstrap: &str, topics: &TopicNames, conditions: &Conditions) -> Self {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("enable.idempotence", "true")
            .set("linger.ms", "0")
            .set("max.in.flight.requests.per.connection", Self::in_flight(conditions))
            .create()
            .expect("a producer");
        let length = (conditions.payload_bytes - AROUND_TEXT) as usize;
        let payload = format!("{{\"text\": \"{}\"}}", "x".repeat(length));
        Self { producer, topics: topics.clone(), payload }
    }

    fn in_flight(conditions: &Conditions) -> &'static str {
        if conditions.round_trip.is_zero() { "1" } else { "5" }
    }

    /// What it is called in the report.
    fn name(conditions: &Conditions) -> &'static str {
        if conditions.round_trip.is_zero() { "Kafka alone" } else { "Kafka alone, 5 in flight" }
    }

    fn send(&self, number: u32) {
        let (topic, key) = (self.topics.of_row(number), number.to_string());
        let record = BaseRecord::to(topic).key(&key).payload(&self.payload);
        self.producer.send(record).map_err(|(error, _)| error).expect("room for it");
    }
}

/// Cells with the same rate and the same number of brokers.
pub(crate) async fn bench(fixture: &Fixture, plan: &Plan, cells: &[Cell], report: &mut Report) {
    let Some((rate, _)) = cells.first() else { return };
    println!("\nlatency, {rate} rows a second for {} s:", plan.seconds);
    for round in 1..=plan.rounds {
        for cell in cells {
            let producer = (!plan.no_producer).then_some(None);
            for contender in producer.into_iter().chain(plan.contenders().into_iter().map(Some)) {
                let word = contender.map_or("producer", Contender::word);
                let name = format!("latency_{word}_{rate}_{round}");
                run(fixture, plan, contender, (&name, cell), report).await;
            }
        }
    }
}

/// Without a contender the writers send their records themselves.
async fn run(
    fixture: &Fixture,
    plan: &Plan,
    contender: Option<Contender>,
    (name, (rate, conditions)): (&str, &Cell),
    report: &mut Report,
) {
    let (rate, rows) = (*rate, rate * (plan.seconds + plan.warm_up));
    let other = OtherTable::prepare(fixture, conditions).await;
    let read = times(rows);
    let seen = Arc::clone(&read);
    let left = Arc::new(Mutex::new(rows));
    let count = Arc::clone(&left);
    let each = move |record: &BorrowedMessage<'_>| {
        let number = record.key().and_then(|key| std::str::from_utf8(key).ok()?.parse().ok());
        note(&seen, number.expect("a number"));
        *count.lock().expect("no panic") -= 1;
    };
    let mut trial = Trial::new(fixture, conditions, name, each).await;
    let (mut direct, mut open) = (None, None);
    if let Some(contender) = contender {
        trial.create_slot().await;
        if conditions.open_transaction {
            open = Some(fixture.open_transaction().await);
        }
        trial.prepare(contender).await;
        trial.start(contender).await;
        trial.streams().await;
    } else {
        direct = Some(Direct::new(trial.bootstrap(), trial.topics(), conditions));
    }
    let commits = Commits { intended: times(rows), sent: times(rows), acknowledged: times(rows) };
    let begun = Instant::now();
    let warm = begun + Duration::from_secs(plan.warm_up.into());
    let insert = insert(conditions);
    let writers = (0..WRITERS).map(|writer| {
        write(fixture, (rate, rows), (writer, &insert), begun, &commits, direct.as_ref())
    });
    let warmed = async {
        sleep_until(warm.into()).await;
        (trial.cpu_time(), Instant::now())
    };
    let writing = futures_util::future::join_all(writers);
    let beside = async {
        match &other {
            Some(other) => other.write_beside(fixture, rate, (begun, warm)).await,
            None => std::future::pending().await,
        }
    };
    let ((cpu, counted), _) = tokio::select! {
        done = futures_util::future::join(warmed, writing) => done,
        () = beside => unreachable!("the other table is written until the end"),
    };
    let (wrote, counted) = (begun.elapsed(), counted.elapsed());
    let cpu = trial.cpu_time().saturating_sub(cpu);
    trial
        .seconds_until(begun, "every record is readable", || *left.lock().expect("no panic") == 0)
        .await;
    let part = report.part(&format!("{rate} rows/s"), conditions);
    let who = contender.map_or(Direct::name(conditions), Contender::name);
    if contender.is_some() {
        let share = 100.0 * cpu.as_secs_f64() / counted.as_secs_f64();
        report.add(&part, who, "processor", "% of a core", share);
    }
    report.add(&part, who, "written", "rows/s", f64::from(rows) / wrote.as_secs_f64());
    add_latencies(report, (&part, who), rate * plan.warm_up, &commits, &read);
    if let Some(round_trips) = trial.take_round_trips() {
        round_trips.add_to(report, &part, who);
    }
    drop(open);
    trial.end().await;
}

fn add_latencies(
    report: &mut Report,
    (part, who): (&str, &str),
    warm: u32,
    commits: &Commits,
    read: &Times,
) {
    for (from, times) in [
        ("COMMIT returned", &commits.acknowledged),
        ("COMMIT sent", &commits.sent),
        ("intended time", &commits.intended),
    ] {
        let histogram = latencies(warm, times, read);
        for (quantile, label) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "max")] {
            #[expect(clippy::cast_precision_loss, reason = "figures for people")]
            let millis = histogram.value_at_quantile(quantile) as f64 / 1000.0;
            report.add(part, who, &format!("{from} → readable, {label}"), "ms", millis);
        }
    }
}

/// From each of these times to the record, in microseconds.
fn latencies(warm: u32, from: &Times, read: &Times) -> Histogram<u64> {
    let from = from.lock().expect("no panic");
    let read = read.lock().expect("no panic");
    let mut histogram = Histogram::<u64>::new(3).expect("three digits");
    for (begun, ended) in from.iter().zip(read.iter()).skip(warm as usize) {
        let (begun, ended) = (begun.expect("written"), ended.expect("read"));
        // A record can be readable before its writer has heard of the commit.
        let latency = ended.saturating_duration_since(begun);
        let micros = u64::try_from(latency.as_micros()).expect("it ended today");
        // This one grows to hold it; `saturating_record` would cut it off.
        histogram.record(micros).expect("room for it");
    }
    histogram
}

/// Of a row whose number is the key.
fn insert(conditions: &Conditions) -> String {
    let number = "$1::text::int8";
    let aggregate_type = backlog::aggregate_type(conditions, number);
    let text = backlog::text(conditions, AROUND_TEXT, number);
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ({aggregate_type}, $1, 'placed', jsonb_build_object('text', {text}))"
    )
}

async fn write(
    fixture: &Fixture,
    (rate, rows): (u32, u32),
    (writer, insert): (u32, &str),
    begun: Instant,
    commits: &Commits,
    direct: Option<&Direct>,
) {
    let client = fixture.servers.client().await;
    let insert = client.prepare(insert).await.expect("a statement");
    for number in (writer..rows).step_by(WRITERS as usize) {
        let intended = begun + Duration::from_secs(1) * number / rate;
        sleep_until(intended.into()).await;
        commits.intended.lock().expect("no panic")[number as usize] = Some(intended);
        note(&commits.sent, number);
        client.execute(&insert, &[&number.to_string()]).await.expect("a committed row");
        note(&commits.acknowledged, number);
        if let Some(direct) = direct {
            direct.send(number);
        }
    }
}
