//! Drains a backlog until every record is readable, compared with `pg_recvlogical` to /dev/null.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::Plan;
use crate::backlog::Shape;
use crate::contender::{Contender, seconds_until};
use crate::fixture::Fixture;
use crate::report::Report;
use crate::trial::Trial;

/// What walpost sets for its sessions, as far as it has a part in the speed.
const SESSION_OPTIONS: &str = "-c logical_decoding_work_mem=256MB";

/// A backlog of one size and shape.
pub(crate) async fn bench(fixture: &Fixture, plan: &Plan, shape: Shape, report: &mut Report) {
    let part = shape.name();
    println!("\ndrain, {} rows, {part}:", plan.rows);
    let end = backlog(fixture, shape, plan.rows).await;
    let rows = rate(plan.rows);
    for round in 1..=plan.rounds {
        let limit = fixture.receive("base", &end, "").await;
        report.add(part, "pg_recvlogical", "drain", "rows/s", rows / limit);
        let limit_as_set = fixture.receive("base", &end, SESSION_OPTIONS).await;
        report.add(
            part,
            "pg_recvlogical as walpost sets it",
            "drain",
            "rows/s",
            rows / limit_as_set,
        );
        let mut own = f64::NAN;
        let walposts = [Contender::Walpost, Contender::WalpostStreaming];
        let others = plan.contenders().into_iter().skip(1);
        for contender in walposts.into_iter().chain(others) {
            let name = format!("{}_{round}", contender.word());
            let run = drain(fixture, plan.rows, &name, contender).await;
            let who = contender.name();
            run.add_to(report, (part, who), plan.rows);
            report.add(part, who, "÷ pg_recvlogical", "", limit / run.seconds);
            match contender {
                Contender::Walpost => own = run.seconds,
                Contender::WalpostStreaming => {
                    let name = "÷ pg_recvlogical as walpost sets it";
                    report.add(part, who, name, "", limit_as_set / run.seconds);
                }
                Contender::Debezium => {
                    report.add(part, who, "walpost is faster by", "times", run.seconds / own);
                }
            }
        }
    }
}

/// What an event costs, by how large the backlog is.
pub(crate) async fn sizes(plan: &Plan, report: &mut Report) {
    println!("\nsize:");
    for &size in &plan.sizes {
        let fixture = Fixture::new(plan).await;
        let end = backlog(&fixture, Shape::OneRowTransactions, size).await;
        let part = format!("{size} rows");
        for round in 1..=plan.rounds {
            let limit = fixture.receive("base", &end, "").await;
            for contender in [Contender::Walpost, Contender::WalpostStreaming] {
                let name = format!("{}_{round}", contender.word());
                let run = drain(&fixture, size, &name, contender).await;
                let who = contender.name();
                report.add(&part, who, "drain", "rows/s", rate(size) / run.seconds);
                report.add(&part, who, "÷ pg_recvlogical", "", limit / run.seconds);
                report.add(&part, who, "processor", "µs a row", run.cpu_micros);
            }
        }
    }
}

/// Rows behind the slot `base`; where the log ends behind them.
pub(crate) async fn backlog(fixture: &Fixture, shape: Shape, rows: u64) -> String {
    fixture.create_slot("base").await;
    shape.write(fixture, rows).await;
    fixture.execute("CHECKPOINT").await;
    fixture.wal_end().await
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
    /// For each row, of the server, where it is the bench's own.
    pub(crate) server_cpu_micros: Option<f64>,
    pub(crate) peak_mebibytes: f64,
}

impl Run {
    /// Its figures, of a backlog of so many rows.
    pub(crate) fn add_to(&self, report: &mut Report, (part, who): (&str, &str), rows: u64) {
        report.add(part, who, "drain", "rows/s", rate(rows) / self.seconds);
        report.add(part, who, "processor", "µs a row", self.cpu_micros);
        if let Some(micros) = self.server_cpu_micros {
            report.add(part, who, "PostgreSQL's processor", "µs a row", micros);
        }
        report.add(part, who, "peak memory", "MiB", self.peak_mebibytes);
    }
}

async fn drain(fixture: &Fixture, rows: u64, name: &str, contender: Contender) -> Run {
    let (mut trial, read) = Trial::counting(fixture, name).await;
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
    let (server, begun) = (trial.fixture.server_cpu_time(), Instant::now());
    trial.start(contender).await;
    let seconds = seconds_until(begun, "every record is readable", all).await;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / rate(rows);
    let cpu_micros = micros(trial.cpu_time());
    let used =
        trial.fixture.server_cpu_time().zip(server).map(|(now, then)| now.saturating_sub(then));
    let server_cpu_micros = used.map(micros);
    let peak_mebibytes = trial.peak_mebibytes();
    trial.end().await;
    Run { seconds, cpu_micros, server_cpu_micros, peak_mebibytes }
}
