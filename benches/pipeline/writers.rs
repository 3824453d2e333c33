//! What an outbox costs the writing application: the same business transaction without an outbox
//! and with each kind of it, as fast as a few connections can.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Plan;
use crate::fixture::Fixture;
use crate::report::Report;

const CONNECTIONS: usize = 4;
const PART: &str = "writers";
const WITHOUT: &str = "without an outbox";

/// A business transaction: an order is placed, and an account charged.
const BUSINESS: &str = "BEGIN; INSERT INTO orders (account, amount) VALUES ({n}, 10); \
                        UPDATE accounts SET balance = balance - 10 WHERE id = {n}; ";
/// The id is the writer's own: by it the row is deleted again.
const COLUMNS: &str = "(id, aggregate_type, aggregate_id, event_type, payload)";
const EVENT: &str =
    "('{id}', 'order', '{n}', 'placed', jsonb_build_object('text', repeat('x', 180)))";

/// How the event is written with it.
fn kinds() -> [(&'static str, String); 5] {
    let insert = |table: &str| format!("INSERT INTO {table} {COLUMNS} VALUES {EVENT}; ");
    let deleted = insert("public.outbox") + "DELETE FROM public.outbox WHERE id = '{id}'; ";
    let message = "SELECT pg_logical_emit_message(true, 'walpost', jsonb_build_object('aggregate_type', \
                   'order', 'aggregate_id', '{n}', 'event_type', 'placed', 'payload', \
                   jsonb_build_object('text', repeat('x', 180)))::text); ";
    [
        (WITHOUT, String::new()),
        ("table", insert("public.outbox")),
        ("table partitioned by time, without a key", insert("parted.outbox")),
        ("table, inserted and deleted", deleted),
        ("logical message", message.to_owned()),
    ]
}

pub(crate) async fn bench(fixture: &Fixture, plan: &Plan, report: &mut Report) {
    println!("\nwriters, {CONNECTIONS} connections:");
    fixture
        .execute(
            "CREATE TABLE accounts (id int8 PRIMARY KEY, balance int8 NOT NULL); \
             INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 10000) AS i; \
             CREATE TABLE orders (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
             account int8 NOT NULL, amount int8 NOT NULL); \
             CREATE SCHEMA parted; \
             CREATE TABLE parted.outbox (LIKE public.outbox INCLUDING DEFAULTS) \
             PARTITION BY RANGE (created_at)",
        )
        .await;
    for day in -1..=1 {
        let name = format!("parted.outbox_{}", day + 1);
        fixture
            .execute(&format!(
                "DO $$ BEGIN EXECUTE format('CREATE TABLE {name} PARTITION OF parted.outbox \
                 FOR VALUES FROM (%L) TO (%L)', current_date + {day}, current_date + {day} + 1); \
                 END $$"
            ))
            .await;
    }
    for round in 0..plan.rounds {
        let mut runs = Vec::new();
        let mut kinds = kinds();
        // Not the same one first each time.
        let first = round as usize % kinds.len();
        kinds.rotate_left(first);
        for (kind, event) in kinds {
            println!("  {PART}: {kind} …");
            runs.push((kind, run(fixture, plan, &event).await));
        }
        let without = runs.iter().find(|(kind, _)| *kind == WITHOUT).expect("measured").1;
        for (kind, run) in runs {
            report.add(PART, kind, "transactions", "a second", run.rate);
            report.add(PART, kind, "÷ without an outbox", "", run.rate / without.rate);
            report.add(PART, kind, "p50", "ms", run.millis[0]);
            report.add(PART, kind, "p99", "ms", run.millis[1]);
            report.add(PART, kind, "log, more than without", "bytes", run.log - without.log);
        }
    }
}

/// What the writers of one kind reached.
#[derive(Clone, Copy)]
struct Run {
    /// Transactions a second.
    rate: f64,
    /// What half of them, and all but a hundredth, took at most.
    millis: [f64; 2],
    /// Bytes of each.
    log: f64,
}

async fn run(fixture: &Fixture, plan: &Plan, event: &str) -> Run {
    let begun = fixture.wal_end().await;
    let histogram = write(fixture, plan, &format!("{BUSINESS}{event}COMMIT")).await;
    let log = fixture.wal_since(&begun).await;
    fixture.execute("TRUNCATE public.outbox, parted.outbox, orders").await;
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let (count, millis) = (
        histogram.len() as f64,
        [0.5, 0.99].map(|at| histogram.value_at_quantile(at) as f64 / 1000.0),
    );
    Run { rate: count / f64::from(plan.seconds), millis, log: log / count }
}

/// As `gen_random_uuid()` makes them: they go to any page of the primary key.
fn id() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// As many transactions as can be made in the plan's seconds; how long each took, in microseconds.
async fn write(fixture: &Fixture, plan: &Plan, transaction: &str) -> Histogram<u64> {
    let until = Instant::now() + Duration::from_secs(u64::from(plan.seconds));
    let writers = (0..CONNECTIONS).map(|writer| async move {
        let client = fixture.servers.client().await;
        let mut histogram = Histogram::<u64>::new(3).expect("three digits");
        let mut number = writer;
        while Instant::now() < until {
            number = (number + CONNECTIONS) % 10_000;
            let sql = transaction.replace("{n}", &(number + 1).to_string()).replace("{id}", &id());
            let begun = Instant::now();
            client.batch_execute(&sql).await.expect("a transaction");
            let micros = u64::try_from(begun.elapsed().as_micros()).expect("it ended today");
            histogram.record(micros).expect("room for it");
        }
        histogram
    });
    let each = futures_util::future::join_all(writers).await;
    each.into_iter()
        .reduce(|mut all, one| {
            all.add(one).expect("room for it");
            all
        })
        .expect("a writer")
}
