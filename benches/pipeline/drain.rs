//! Drains a backlog until every record is readable, compared with `pg_recvlogical` to /dev/null.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use crate::Plan;
use crate::backlog::Shape;
use crate::conditions::Conditions;
use crate::contender::Contender;
use crate::fixture::Fixture;
use crate::other_writes::OtherTable;
use crate::report::Report;
use crate::trial::{RoundTrips, Trial};

/// What walpost sets for its sessions, as far as it has a part in the speed.
const SESSION_OPTIONS: &str = "-c logical_decoding_work_mem=256MB";

const DRAIN_TIME: &str = "drain time";
const SERVER_CPU_TIME: &str = "PostgreSQL's processor time";

/// A backlog of one size and shape, under the conditions of cells with the same brokers.
pub(crate) async fn bench(
    fixture: &Fixture,
    plan: &Plan,
    shape: Shape,
    cells: &[Conditions],
    report: &mut Report,
) {
    for cells in cells.chunk_by(|one, next| one.of_backlog() == next.of_backlog()) {
        of_backlog(fixture, plan, shape, cells, report).await;
    }
}

/// The same backlog for all of these cells.
async fn of_backlog(
    fixture: &Fixture,
    plan: &Plan,
    shape: Shape,
    cells: &[Conditions],
    report: &mut Report,
) {
    let conditions = cells[0].of_backlog();
    let part = report.part(shape.name(), &conditions);
    println!("\ndrain, {} rows, {part}:", plan.rows);
    let backlog = Backlog::write(fixture, shape, plan.rows, &conditions).await;
    backlog.add_to(report, &part, plan.rows);
    for round in 1..=plan.rounds {
        let who = "pg_recvlogical";
        let limit = receive(fixture, &backlog, "", (&part, who, plan.rows), report).await;
        let who = "pg_recvlogical as walpost sets it";
        let as_set = (part.as_str(), who, plan.rows);
        let limit_as_set = receive(fixture, &backlog, SESSION_OPTIONS, as_set, report).await;
        if fixture.servers.own.is_some() {
            let who = "pgwire-replication as walpost sets it";
            let end = &backlog.end;
            let seconds = fixture.receive_by_reference("base", end, SESSION_OPTIONS).await;
            report.add(&part, who, "drain", "rows/s", rate(plan.rows) / seconds);
            report.add(&part, who, DRAIN_TIME, "s", seconds);
            let name = "÷ pg_recvlogical as walpost sets it";
            report.add(&part, who, name, "", limit_as_set / seconds);
        }
        for cell in cells {
            let part = report.part(shape.name(), cell);
            of_cell(fixture, plan, (&part, cell, round), (limit, limit_as_set), report).await;
        }
    }
    backlog.remove(fixture).await;
}

/// One round of all contenders, of which each drains the backlog; and how much faster they are than
/// `pg_recvlogical` was.
async fn of_cell(
    fixture: &Fixture,
    plan: &Plan,
    (part, conditions, round): (&str, &Conditions, u32),
    (limit, limit_as_set): (f64, f64),
    report: &mut Report,
) {
    let (mut own, mut streaming): (Option<Run>, Option<Run>) = (None, None);
    let walposts = [Contender::Walpost, Contender::WalpostStreaming];
    let others = plan.contenders().into_iter().skip(1);
    let visible = plan.visible.then_some(Contender::WalpostVisibleStreaming);
    for contender in walposts.into_iter().chain(others).chain(visible) {
        let name = format!("{}_{round}", contender.word());
        let run = drain(fixture, conditions, plan.rows, &name, contender).await;
        let who = contender.name();
        run.add_to(report, (part, who), plan.rows);
        report.add(part, who, "÷ pg_recvlogical", "", limit / run.seconds);
        match (contender, &own) {
            (Contender::Walpost, _) => own = Some(run),
            (Contender::WalpostStreaming, own) => {
                let name = "÷ pg_recvlogical as walpost sets it";
                report.add(part, who, name, "", limit_as_set / run.seconds);
                if let Some(own) = own {
                    own.compare(&run, report, part);
                }
                streaming = Some(run);
            }
            (Contender::WalpostVisibleStreaming, _) => {
                let seconds = streaming.as_ref().map_or(f64::NAN, |run| run.seconds);
                report.add(part, who, "rate ÷ without", "", seconds / run.seconds);
            }
            (
                Contender::WalpostWithState
                | Contender::WalpostExactlyOnce
                | Contender::WalpostVisible,
                own,
            ) => {
                let seconds = own.as_ref().map_or(f64::NAN, |own| own.seconds);
                report.add(part, who, "rate ÷ without", "", seconds / run.seconds);
            }
            (Contender::Debezium, own) => {
                let seconds = own.as_ref().map_or(f64::NAN, |own| own.seconds);
                report.add(part, who, "walpost is faster by", "times", run.seconds / seconds);
            }
        }
    }
}

/// Seconds that `pg_recvlogical` takes with these options for its session.
async fn receive(
    fixture: &Fixture,
    backlog: &Backlog,
    options: &str,
    (part, who, rows): (&str, &str, u64),
    report: &mut Report,
) -> f64 {
    let server = fixture.server_cpu_time();
    let seconds = fixture.receive("base", &backlog.end, options).await;
    report.add(part, who, "drain", "rows/s", rate(rows) / seconds);
    report.add(part, who, DRAIN_TIME, "s", seconds);
    if let Some(used) = fixture.server_cpu_time_since(server) {
        report.add(part, who, SERVER_CPU_TIME, "s", used.as_secs_f64());
    }
    seconds
}

/// What an event costs, by how large the backlog is.
pub(crate) async fn sizes(plan: &Plan, report: &mut Report) {
    println!("\nsize:");
    for &size in &plan.sizes {
        let fixture = Fixture::new(plan).await;
        let conditions = Conditions::default();
        let shape = Shape::OneRowTransactions;
        let backlog = Backlog::write(&fixture, shape, size, &conditions).await;
        let part = format!("{size} rows");
        for round in 1..=plan.rounds {
            let limit = fixture.receive("base", &backlog.end, "").await;
            for contender in [Contender::Walpost, Contender::WalpostStreaming] {
                let name = format!("{}_{round}", contender.word());
                let run = drain(&fixture, &conditions, size, &name, contender).await;
                let who = contender.name();
                report.add(&part, who, "drain", "rows/s", rate(size) / run.seconds);
                report.add(&part, who, "÷ pg_recvlogical", "", limit / run.seconds);
                report.add(&part, who, "processor", "µs a row", run.cpu_micros);
            }
        }
    }
}

/// Rows behind the slot `base`.
pub(crate) struct Backlog {
    /// Where WAL ends behind them.
    pub(crate) end: String,
    wal_bytes: f64,
    other: Option<OtherTable>,
    /// The session of a transaction that stays open.
    open: Option<Client>,
}

impl Backlog {
    pub(crate) async fn write(
        fixture: &Fixture,
        shape: Shape,
        rows: u64,
        conditions: &Conditions,
    ) -> Self {
        let other = OtherTable::prepare(fixture, conditions).await;
        fixture.create_slot("base").await;
        let begun = fixture.wal_position().await;
        let mut open = None;
        if conditions.open_transaction {
            open = Some(fixture.open_transaction().await);
        }
        shape.write(fixture, conditions, other.as_ref(), rows).await;
        fixture.execute("CHECKPOINT").await;
        let (end, wal_bytes) = (fixture.wal_end().await, fixture.wal_since(&begun).await);
        Self { end, wal_bytes, other, open }
    }

    fn add_to(&self, report: &mut Report, part: &str, rows: u64) {
        report.add(part, "backlog", "WAL", "MB", self.wal_bytes / 1e6);
        if let Some(other) = &self.other {
            let share = 100.0 * other.event_bytes * rate(rows) / self.wal_bytes;
            report.add(part, "backlog", "outbox share of WAL", "%", share);
        }
    }

    /// Removes the slot, and leaves the rows in the table.
    pub(crate) async fn leave_rows(self, fixture: &Fixture) {
        drop(self.open);
        fixture.drop_slot("base").await;
    }

    /// Removes the slot and the rows, so that another backlog can be written.
    async fn remove(self, fixture: &Fixture) {
        drop(self.open);
        fixture.drop_slot("base").await;
        fixture.execute("TRUNCATE public.outbox").await;
        if self.other.is_some() {
            fixture.execute("TRUNCATE public.other").await;
        }
    }
}

/// Rows as a figure to be divided by seconds.
pub(crate) fn rate(rows: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "no backlog has that many")]
    let rows = rows as f64;
    rows
}

/// One run.
pub(crate) struct Run {
    pub(crate) seconds: f64,
    /// For each row, of all its contenders.
    pub(crate) cpu_micros: f64,
    /// Of all processes of the server, where it is the bench's own.
    pub(crate) server_cpu_time: Option<Duration>,
    pub(crate) peak_mebibytes: f64,
    round_trips: Option<RoundTrips>,
}

impl Run {
    /// Its figures, of a backlog of so many rows.
    pub(crate) fn add_to(&self, report: &mut Report, (part, who): (&str, &str), rows: u64) {
        report.add(part, who, "drain", "rows/s", rate(rows) / self.seconds);
        report.add(part, who, DRAIN_TIME, "s", self.seconds);
        report.add(part, who, "processor", "µs a row", self.cpu_micros);
        if let Some(used) = self.server_cpu_time {
            let micros = used.as_secs_f64() * 1e6 / rate(rows);
            report.add(part, who, "PostgreSQL's processor", "µs a row", micros);
            report.add(part, who, SERVER_CPU_TIME, "s", used.as_secs_f64());
        }
        report.add(part, who, "peak memory", "MiB", self.peak_mebibytes);
        if let Some(round_trips) = self.round_trips {
            round_trips.add_to(report, part, who);
        }
    }

    /// Its time and the server's as multiples of those of a run that only streamed.
    fn compare(&self, streaming: &Self, report: &mut Report, part: &str) {
        let who = Contender::Walpost.name();
        let times = self.seconds / streaming.seconds;
        report.add(part, who, "drain time ÷ streaming", "", times);
        if let (Some(own), Some(other)) = (self.server_cpu_time, streaming.server_cpu_time) {
            let times = own.as_secs_f64() / other.as_secs_f64();
            report.add(part, who, "PostgreSQL's processor time ÷ streaming", "", times);
        }
    }
}

async fn drain(
    fixture: &Fixture,
    conditions: &Conditions,
    rows: u64,
    name: &str,
    contender: Contender,
) -> Run {
    let (mut trial, read) = Trial::counting(fixture, conditions, name).await;
    trial.copy_slot("base", "walpost").await;
    run(trial, contender, rows, || read.load(Ordering::Relaxed) >= rows).await
}

/// From the start of the processes until the consumer has read all; what they took for each of
/// so many rows.
pub(crate) async fn run(
    mut trial: Trial<'_>,
    contender: Contender,
    rows: u64,
    all: impl Fn() -> bool,
) -> Run {
    trial.prepare(contender).await;
    let (server, begun) = (trial.fixture.server_cpu_time(), Instant::now());
    trial.start(contender).await;
    let seconds = trial.seconds_until(begun, "every record is readable", all).await;
    let cpu_micros = trial.cpu_time().as_secs_f64() * 1e6 / rate(rows);
    let server_cpu_time = trial.fixture.server_cpu_time_since(server);
    let (peak_mebibytes, round_trips) = (trial.peak_mebibytes(), trial.take_round_trips());
    trial.end().await;
    Run { seconds, cpu_micros, server_cpu_time, peak_mebibytes, round_trips }
}
