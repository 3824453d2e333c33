//! What an outbox costs who writes it: the same business transaction without one and with each
//! kind of it, as fast as a few connections can.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Plan;
use crate::report::Report;
use crate::stage::Stage;

const CONNECTIONS: usize = 4;
const PART: &str = "writers";

/// A business transaction: an order is placed, and an account charged.
const BUSINESS: &str = "BEGIN; INSERT INTO orders (account, amount) VALUES ({n}, 10); \
                        UPDATE accounts SET balance = balance - 10 WHERE id = {n}; ";
const COLUMNS: &str = "(aggregate_type, aggregate_id, event_type, payload)";
const EVENT: &str = "('order', '{n}', 'placed', jsonb_build_object('text', repeat('x', 180)))";

/// How the event is written with it.
fn kinds() -> [(&'static str, String); 5] {
    let insert = |table: &str| format!("INSERT INTO {table} {COLUMNS} VALUES {EVENT}; ");
    let deleted = format!(
        "WITH event AS (INSERT INTO public.outbox {COLUMNS} VALUES {EVENT} RETURNING id) \
         SELECT id FROM event; DELETE FROM public.outbox WHERE aggregate_id = '{{n}}'; "
    );
    let message = "SELECT pg_logical_emit_message(true, 'walpost', jsonb_build_object('aggregate_type', \
                   'order', 'aggregate_id', '{n}', 'event_type', 'placed', 'payload', \
                   jsonb_build_object('text', repeat('x', 180)))::text); ";
    [
        ("without an outbox", String::new()),
        ("table", insert("public.outbox")),
        ("partitioned table", insert("parted.outbox")),
        ("table, inserted and deleted", deleted),
        ("logical message", message.to_owned()),
    ]
}

pub(crate) async fn bench(stage: &Stage, plan: &Plan, report: &mut Report) {
    println!("\nwriters, {CONNECTIONS} connections:");
    stage
        .execute(
            "CREATE TABLE accounts (id int8 PRIMARY KEY, balance int8 NOT NULL); \
             INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 10000) AS i; \
             CREATE TABLE orders (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
             account int8 NOT NULL, amount int8 NOT NULL); \
             CREATE INDEX ON public.outbox (aggregate_id); \
             CREATE SCHEMA parted; \
             CREATE TABLE parted.outbox (LIKE public.outbox INCLUDING DEFAULTS) \
             PARTITION BY HASH (aggregate_id); \
             CREATE TABLE parted.outbox_0 PARTITION OF parted.outbox FOR VALUES WITH (MODULUS 4, REMAINDER 0); \
             CREATE TABLE parted.outbox_1 PARTITION OF parted.outbox FOR VALUES WITH (MODULUS 4, REMAINDER 1); \
             CREATE TABLE parted.outbox_2 PARTITION OF parted.outbox FOR VALUES WITH (MODULUS 4, REMAINDER 2); \
             CREATE TABLE parted.outbox_3 PARTITION OF parted.outbox FOR VALUES WITH (MODULUS 4, REMAINDER 3)",
        )
        .await;
    for _ in 1..=plan.rounds {
        let (mut without, mut without_log) = (f64::NAN, f64::NAN);
        for (kind, event) in kinds() {
            let transaction = format!("{BUSINESS}{event}COMMIT");
            let begun = stage.wal_end().await;
            let histogram = write(stage, plan, &transaction).await;
            let log = stage.wal_since(&begun).await;
            #[expect(clippy::cast_precision_loss, reason = "figures for people")]
            let (count, millis) = (
                histogram.len() as f64,
                [0.5, 0.99].map(|at| histogram.value_at_quantile(at) as f64 / 1000.0),
            );
            let rate = count / f64::from(plan.seconds);
            if event.is_empty() {
                (without, without_log) = (rate, log / count);
            }
            report.add(PART, kind, "transactions", "a second", rate);
            report.add(PART, kind, "÷ without an outbox", "", rate / without);
            report.add(PART, kind, "p50", "ms", millis[0]);
            report.add(PART, kind, "p99", "ms", millis[1]);
            report.add(PART, kind, "log, more than without", "bytes", log / count - without_log);
            stage.execute("TRUNCATE public.outbox, parted.outbox, orders").await;
        }
    }
}

/// As many transactions as can be made in the plan's seconds; how long each took, in microseconds.
async fn write(stage: &Stage, plan: &Plan, transaction: &str) -> Histogram<u64> {
    let until = Instant::now() + Duration::from_secs(u64::from(plan.seconds));
    let writers = (0..CONNECTIONS).map(|writer| async move {
        let client = stage.servers.client().await;
        let mut histogram = Histogram::<u64>::new(3).expect("three digits");
        let mut number = writer;
        while Instant::now() < until {
            number = (number + CONNECTIONS) % 10_000;
            let sql = transaction.replace("{n}", &(number + 1).to_string());
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
