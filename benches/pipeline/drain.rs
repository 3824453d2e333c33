//! Draining a backlog: until every record is readable, against `pg_recvlogical` to /dev/null.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::Plan;
use crate::backlog::Shape;
use crate::lane::Lane;
use crate::report::Report;
use crate::stage::Stage;
use crate::subject::{Subject, seconds_until};

/// What walpost sets for its sessions, as far as it has a part in the speed.
const SESSION_OPTIONS: &str = "-c logical_decoding_work_mem=256MB";

/// A backlog of one size and shape.
pub(crate) async fn bench(stage: &Stage, plan: &Plan, shape: Shape, report: &mut Report) {
    let part = shape.name();
    println!("\ndrain, {} rows, {part}:", plan.rows);
    let end = backlog(stage, shape, plan.rows).await;
    let rows = rate(plan.rows);
    for round in 1..=plan.rounds {
        let limit = stage.receive("base", &end, "").await;
        report.add(part, "pg_recvlogical", "drain", "rows/s", rows / limit);
        let limit_as_set = stage.receive("base", &end, SESSION_OPTIONS).await;
        report.add(
            part,
            "pg_recvlogical as walpost sets it",
            "drain",
            "rows/s",
            rows / limit_as_set,
        );
        let mut own = f64::NAN;
        let walposts = [Subject::Walpost, Subject::WalpostStreaming];
        let others = plan.subjects().into_iter().skip(1);
        for subject in walposts.into_iter().chain(others) {
            let name = format!("{}_{round}", subject.word());
            let run = drain(stage, plan.rows, &name, subject).await;
            let who = subject.name();
            run.add_to(report, (part, who), plan.rows);
            report.add(part, who, "÷ pg_recvlogical", "", limit / run.seconds);
            match subject {
                Subject::Walpost => own = run.seconds,
                Subject::WalpostStreaming => {
                    let name = "÷ pg_recvlogical as walpost sets it";
                    report.add(part, who, name, "", limit_as_set / run.seconds);
                }
                Subject::Debezium => {
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
        let stage = Stage::new(plan).await;
        let end = backlog(&stage, Shape::OneRowTransactions, size).await;
        let part = format!("{size} rows");
        for round in 1..=plan.rounds {
            let limit = stage.receive("base", &end, "").await;
            for subject in [Subject::Walpost, Subject::WalpostStreaming] {
                let name = format!("{}_{round}", subject.word());
                let run = drain(&stage, size, &name, subject).await;
                let who = subject.name();
                report.add(&part, who, "drain", "rows/s", rate(size) / run.seconds);
                report.add(&part, who, "÷ pg_recvlogical", "", limit / run.seconds);
                report.add(&part, who, "processor", "µs a row", run.cpu_micros);
            }
        }
    }
}

/// Rows behind the slot `base`; where the log ends behind them.
pub(crate) async fn backlog(stage: &Stage, shape: Shape, rows: u64) -> String {
    stage.create_slot("base").await;
    shape.write(stage, rows).await;
    stage.execute("CHECKPOINT").await;
    stage.wal_end().await
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
    /// For each row, of all its subjects.
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

async fn drain(stage: &Stage, rows: u64, name: &str, subject: Subject) -> Run {
    let (mut lane, read) = Lane::counting(stage, name).await;
    lane.copy_slot("base", "walpost").await;
    run(lane, subject, rows, || read.load(Ordering::Relaxed) >= rows).await
}

/// From the start of the processes until the consumer has read all; what they took for each of
/// so many rows.
pub(crate) async fn run(
    mut lane: Lane<'_>,
    subject: Subject,
    rows: u64,
    all: impl Fn() -> bool,
) -> Run {
    let (server, begun) = (lane.stage.server_cpu_time(), Instant::now());
    lane.start(subject).await;
    let seconds = seconds_until(begun, "every record is readable", all).await;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / rate(rows);
    let cpu_micros = micros(lane.cpu_time());
    let used = lane.stage.server_cpu_time().zip(server).map(|(now, then)| now.saturating_sub(then));
    let server_cpu_micros = used.map(micros);
    let peak_mebibytes = lane.peak_mebibytes();
    lane.end().await;
    Run { seconds, cpu_micros, server_cpu_micros, peak_mebibytes }
}
