//! Draining a backlog: until every record is readable, against `pg_recvlogical` to /dev/null.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use walpost_bed::{Tail, Topics};

use crate::Plan;
use crate::backlog::Shape;
use crate::report::{Report, mebibytes};
use crate::stage::Stage;
use crate::subject::{Subject, seconds_until};

/// What walpost sets for its sessions, as far as it has a part in the speed.
const SESSION_OPTIONS: &str = "-c logical_decoding_work_mem=256MB";

/// Backlogs of these sizes are compared.
const SIZES: [u64; 3] = [10_000, 100_000, 1_000_000];

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
            report.add(part, who, "drain", "rows/s", rows / run.seconds);
            report.add(part, who, "÷ pg_recvlogical", "", limit / run.seconds);
            report.add(part, who, "processor", "µs a row", run.cpu_micros);
            report.add(part, who, "peak memory", "MiB", run.peak_mebibytes);
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
    for size in SIZES {
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
async fn backlog(stage: &Stage, shape: Shape, rows: u64) -> String {
    let create = "SELECT pg_create_logical_replication_slot('base', 'pgoutput')";
    stage.execute(create).await;
    shape.write(stage, rows).await;
    stage.execute("CHECKPOINT").await;
    stage.wal_end().await
}

/// Rows as a figure to be divided by seconds.
fn rate(rows: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "no backlog has that many")]
    let rows = rows as f64;
    rows
}

/// One run.
struct Run {
    seconds: f64,
    cpu_micros: f64,
    peak_mebibytes: f64,
}

/// From the start of the process until a consumer has read the last record.
async fn drain(stage: &Stage, rows: u64, name: &str, subject: Subject) -> Run {
    let (slot, topic) =
        (format!("round_{name}"), format!("walpost-bench-{name}").replace('_', "-"));
    stage.copy_slot("base", &slot).await;
    stage.servers.create_topic(&topic).await;
    let read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read);
    let consumer =
        Tail::start(&stage.servers.bootstrap, Topics::named([topic.clone()]), move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
    let begun = Instant::now();
    let running = subject.start(stage, &slot, &topic).await;
    let all = || read.load(Ordering::Relaxed) >= rows;
    let seconds = seconds_until(begun, "every record is readable", all).await;
    let process = running.process();
    let cpu = process.cpu_time().expect("it runs");
    let peak_mebibytes = mebibytes(process.peak_rss_bytes());
    drop(consumer);
    running.stop(stage, &slot).await;
    stage.drop_slot(&slot).await;
    stage.servers.delete_topic(&topic).await;
    Run { seconds, cpu_micros: cpu.as_secs_f64() * 1e6 / rate(rows), peak_mebibytes }
}
