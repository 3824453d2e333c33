//! Many databases of one server with a walpost for each: memory, CPU and connections, while nothing
//! is written and while each database gets some rows.
//!
//! A walsender reads the WAL of the whole server, whatever database its slot is in: PostgreSQL's
//! part grows with the number of databases times the rows of all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep};
use walpost_bed::{Process, Tail, Topics, Walpost};

use crate::Plan;
use crate::contender::seconds_until;
use crate::drain::rate;
use crate::fixture::{Fixture, TIMEOUT};
use crate::report::{Report, mebibytes};

const PART: &str = "databases";
const TOPIC: &str = "walpost-bench-databases";

/// Rows per second of each database.
const ROWS_PER_SECOND: u32 = 10;

/// After the starts, before anything is measured.
const SETTLING: Duration = Duration::from_secs(10);

/// A database and its walpost.
struct Database {
    source: String,
    slot: String,
    walpost: Walpost,
}

/// CPU time so far, of all walposts and of the server.
struct CpuTimes {
    walposts: Duration,
    server: Option<Duration>,
    at: Instant,
}

pub(crate) async fn bench(plan: &Plan, report: &mut Report) {
    println!("\ndatabases:");
    for &count in &plan.databases {
        of_count(&Fixture::new(plan).await, plan, count, report).await;
    }
}

async fn of_count(fixture: &Fixture, plan: &Plan, count: u32, report: &mut Report) {
    let who = format!("{count} databases");
    fixture.servers.create_topic(TOPIC, 3).await;
    let read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read);
    let consumer = Tail::start(&fixture.servers.bootstrap, Topics::named([TOPIC]), move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let mut databases = Vec::new();
    for number in 0..count {
        databases.push(Database::start(fixture, number).await);
    }
    for database in &databases {
        database.walpost.await_line("streaming from PostgreSQL", TIMEOUT).await;
    }
    sleep(SETTLING).await;
    let sql = "SELECT count(*)::text FROM pg_stat_activity \
               WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()";
    let connections: u64 = fixture.text(sql).await.parse().expect("a number");
    let seconds = Duration::from_secs(u64::from(plan.seconds));
    let connections = rate(connections) / f64::from(count);
    report.add(PART, &who, "connections to PostgreSQL for each", "", connections);
    let begun = CpuTimes::now(fixture, &databases);
    sleep(seconds).await;
    begun.add_to(report, (&who, "idle"), fixture, &databases);
    let begun = CpuTimes::now(fixture, &databases);
    let written = write(&databases, seconds).await;
    begun.add_to(report, (&who, "at 10 rows/s each"), fixture, &databases);
    let all = || {
        for database in &databases {
            database.walpost.assert_runs();
        }
        read.load(Ordering::Relaxed) >= written
    };
    seconds_until(Instant::now(), "every record is readable", all).await;
    let mut each = |name: &str, bytes: fn(Process) -> Option<u64>| {
        let sum: f64 = processes(&databases).map(|process| mebibytes(bytes(process))).sum();
        report.add(PART, &who, name, "MiB", sum / f64::from(count));
    };
    each("memory of each, RSS", Process::rss_bytes);
    each("memory of each, its share of shared pages (PSS)", Process::pss_bytes);
    drop(consumer);
    for database in databases {
        database.stop(fixture).await;
    }
    fixture.servers.delete_topic(TOPIC).await;
}

fn processes(databases: &[Database]) -> impl Iterator<Item = Process> {
    databases.iter().map(|database| Process(database.walpost.pid().expect("it runs")))
}

/// Writes that many rows per second to each, as long as that; the number of all.
async fn write(databases: &[Database], duration: Duration) -> u64 {
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let writers = databases.iter().map(|database| async {
        let client = crate::servers::connect(&database.source).await;
        let mut ticks = interval(Duration::from_secs(1) / ROWS_PER_SECOND);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let sql = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                   VALUES ('order', '7', 'placed', '{\"text\": \"a row\"}')";
        while !is_over.load(Ordering::Relaxed) {
            ticks.tick().await;
            client.batch_execute(sql).await.expect("a row");
            written.fetch_add(1, Ordering::Relaxed);
        }
    });
    let over = async {
        sleep(duration).await;
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(futures_util::future::join_all(writers), over);
    written.into_inner()
}

impl Database {
    /// A copy of the fixture's database, with its publication, and a walpost that reads its slot.
    async fn start(fixture: &Fixture, number: u32) -> Self {
        let (name, slot) = (format!("walpost_bench_{number}"), format!("bench_{number}"));
        fixture.execute(&format!("CREATE DATABASE {name} TEMPLATE postgres")).await;
        let (server, _) = fixture.servers.source.rsplit_once('/').expect("a URL with a database");
        let source = format!("{server}/{name}");
        let client = crate::servers::connect(&source).await;
        let sql = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        client.batch_execute(&sql).await.expect("a slot");
        let walpost = fixture.run_in(&source, TOPIC, &fixture.servers.bootstrap);
        let walpost = walpost.args(["--slot", &slot, "--publication", "walpost"]).start();
        Self { source, slot, walpost }
    }

    async fn stop(self, fixture: &Fixture) {
        self.walpost.terminate();
        let status = self.walpost.wait(TIMEOUT).await.expect("walpost stops");
        assert!(status.success(), "{:?}", self.walpost.stderr());
        fixture.await_active(&self.slot, false).await;
        fixture.drop_slot(&self.slot).await;
    }
}

impl CpuTimes {
    fn now(fixture: &Fixture, databases: &[Database]) -> Self {
        let walposts =
            processes(databases).map(|process| process.cpu_time().expect("it runs")).sum();
        Self { walposts, server: fixture.server_cpu_time(), at: Instant::now() }
    }

    /// Reports what was used since then.
    fn add_to(
        &self,
        report: &mut Report,
        (who, when): (&str, &str),
        fixture: &Fixture,
        databases: &[Database],
    ) {
        let now = Self::now(fixture, databases);
        let seconds = (now.at - self.at).as_secs_f64();
        let percent = |used: Duration| 100.0 * used.as_secs_f64() / seconds;
        let each =
            percent(now.walposts.saturating_sub(self.walposts)) / rate(databases.len() as u64);
        report.add(PART, who, &format!("processor of each, {when}"), "% of a core", each);
        if let (Some(now), Some(then)) = (now.server, self.server) {
            let name = format!("PostgreSQL's processor, {when}");
            report.add(PART, who, &name, "% of a core", percent(now.saturating_sub(then)));
        }
    }
}
