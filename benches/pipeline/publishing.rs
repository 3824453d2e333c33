//! What the ways to write an event add to the latency of a transaction, over a network: without one,
//! by a statement more, in the statement of the change, and together with COMMIT. All statements are
//! prepared, as drivers and pools do it. The ways take turns, transaction by transaction, on one
//! connection to a server that flushes each commit.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio_postgres::{Client, Statement};
use walpost_bed::{DelayProxy, Postgres};
use walpost_outbox::tokio_postgres::{Prepared, Transaction};
use walpost_outbox::{Event, Outbox};

use crate::Plan;
use crate::report::Report;
use crate::servers::connect;

const SCHEMA: &str = include_str!("../../sql/01-schema.sql");

/// Round trips between the application and PostgreSQL.
const ROUND_TRIPS: [Duration; 3] =
    [Duration::ZERO, Duration::from_micros(500), Duration::from_millis(2)];

/// Transactions before those that are counted.
const WARM_UP: u32 = 100;

const TABLES: &str = "
    CREATE TABLE accounts (id int8 PRIMARY KEY, balance int8 NOT NULL);
    INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 10000) AS i;
    CREATE TABLE orders (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account int8 NOT NULL,
                         amount int8 NOT NULL)";

const ORDER: &str = "INSERT INTO orders (account, amount) VALUES ($1, 10)";
const CHARGE: &str = "UPDATE accounts SET balance = balance - 10 WHERE id = $1";
const EVENT: &str = "
    INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload)
    VALUES (gen_random_uuid(), 'account', $1::int8::text, 'charged',
            jsonb_build_object('text', repeat('x', 180)))";
const CHARGE_WITH_EVENT: &str = "
    WITH o AS (UPDATE accounts SET balance = balance - 10 WHERE id = $1 RETURNING id),
         e AS (INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload)
               SELECT gen_random_uuid(), 'account', id::text, 'charged',
                      jsonb_build_object('text', repeat('x', 180))
                 FROM o)
    SELECT id FROM o";

/// How the event is written.
#[derive(Debug, Clone, Copy)]
enum Way {
    None,
    Insert,
    OneStatement,
    WithCommit,
    WithCommitUnprepared,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::None,
        Self::Insert,
        Self::OneStatement,
        Self::WithCommit,
        Self::WithCommitUnprepared,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::None => "without an event",
            Self::Insert => "INSERT",
            Self::OneStatement => "in the statement of the change",
            Self::WithCommit => "walpost-outbox, with COMMIT",
            Self::WithCommitUnprepared => "walpost-outbox, with COMMIT, not prepared",
        }
    }
}

#[derive(Event, Serialize)]
#[event(aggregate_type = "account", event_type = "charged")]
struct Charged {
    #[event(aggregate_id)]
    #[serde(skip)]
    account: i64,
    text: String,
}

/// A connection, and the statements that are prepared on it.
struct Application {
    client: Client,
    order: Statement,
    charge: Statement,
    event: Statement,
    charge_with_event: Statement,
    outbox: Outbox,
    prepared: Prepared,
}

pub(crate) async fn bench(plan: &Plan, report: &mut Report) {
    println!("\npublishing:");
    let postgres = Postgres::builder(plan.major())
        .setting("fsync", "on")
        .setting("max_wal_size", "8GB")
        .start()
        .await;
    postgres.execute(SCHEMA).await;
    postgres.execute(TABLES).await;
    for round_trip in ROUND_TRIPS {
        let proxy = DelayProxy::to(postgres.port(), round_trip);
        let url = if round_trip.is_zero() {
            postgres.url()
        } else {
            format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port())
        };
        let mut application = Application::new(connect(&url).await).await;
        let part = format!("publishing, {} ms to PostgreSQL", round_trip.as_secs_f64() * 1000.0);
        println!("  {part} …");
        of_round_trip(&mut application, plan, &part, report).await;
    }
}

async fn of_round_trip(
    application: &mut Application,
    plan: &Plan,
    part: &str,
    report: &mut Report,
) {
    let mut latencies = Way::ALL.map(|way| (way, histogram()));
    let mut account = 0;
    for _ in 0..WARM_UP {
        for way in Way::ALL {
            application.transaction(way, 1).await;
        }
    }
    let until = Instant::now() + Duration::from_secs(u64::from(plan.seconds)) * 2;
    while Instant::now() < until {
        account = account % 10_000 + 1;
        for (way, latency) in &mut latencies {
            let begun = Instant::now();
            application.transaction(*way, account).await;
            let micros = u64::try_from(begun.elapsed().as_micros()).expect("it ended today");
            latency.record(micros).expect("room for it");
        }
        // None is always the one after the same other one.
        latencies.rotate_left(1);
        if fastrand::bool() {
            latencies.reverse();
        }
    }
    latencies.sort_by_key(|(way, _)| *way as u8);
    let without = millis(&latencies[0].1, 0.5);
    for (way, latency) in &latencies {
        let p50 = millis(latency, 0.5);
        report.add(part, way.name(), "p50", "ms", p50);
        report.add(part, way.name(), "p99", "ms", millis(latency, 0.99));
        report.add(part, way.name(), "p50 ÷ without an event", "", p50 / without);
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits")
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn millis(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1000.0
}

impl Application {
    async fn new(client: Client) -> Self {
        let prepare = async |sql| client.prepare(sql).await.expect("it can be prepared");
        let outbox = Outbox::new();
        Self {
            order: prepare(ORDER).await,
            charge: prepare(CHARGE).await,
            event: prepare(EVENT).await,
            charge_with_event: prepare(CHARGE_WITH_EVENT).await,
            prepared: outbox.prepare(&client).await.expect("it can be prepared"),
            outbox,
            client,
        }
    }

    /// An order is placed, and an account charged: with a round trip for each statement, as applications
    /// mostly do it.
    async fn transaction(&mut self, way: Way, account: i64) {
        let done = match way {
            Way::WithCommit => {
                let begun = self.prepared.begin(&mut self.client).await;
                with_commit(begun, (&self.order, &self.charge), account).await
            }
            Way::WithCommitUnprepared => {
                let begun = self.outbox.begin(&mut self.client).await;
                with_commit(begun, (&self.order, &self.charge), account).await
            }
            _ => self.statements(way, account).await.map_err(|error| format!("{error:?}")),
        };
        done.unwrap_or_else(|error| panic!("{way:?}: {error}"));
    }

    async fn statements(&mut self, way: Way, account: i64) -> Result<(), tokio_postgres::Error> {
        let transaction = self.client.transaction().await?;
        transaction.execute(&self.order, &[&account]).await?;
        let in_one = matches!(way, Way::OneStatement);
        let charge = if in_one { &self.charge_with_event } else { &self.charge };
        transaction.execute(charge, &[&account]).await?;
        if matches!(way, Way::Insert) {
            transaction.execute(&self.event, &[&account]).await?;
        }
        transaction.commit().await
    }
}

async fn with_commit(
    begun: Result<Transaction<'_>, walpost_outbox::Error>,
    (order, charge): (&Statement, &Statement),
    account: i64,
) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Debug| format!("{error:?}");
    let mut transaction = begun.map_err(|error| failed(&error))?;
    transaction.execute(order, &[&account]).await.map_err(|error| failed(&error))?;
    transaction.execute(charge, &[&account]).await.map_err(|error| failed(&error))?;
    let event = Charged { account, text: "x".repeat(180) };
    transaction.publish(&event).map_err(|error| failed(&error))?;
    transaction.commit().await.map_err(|error| failed(&error))
}
