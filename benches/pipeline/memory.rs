//! What is used while nothing happens, and memory inside one transaction of ten times the rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use walpost_bed::{Tail, Topics};

use crate::Plan;
use crate::backlog::Shape;
use crate::report::{Report, mebibytes};
use crate::stage::Stage;
use crate::subject::{Subject, seconds_until};

const PART: &str = "memory";
const IDLE: Duration = Duration::from_secs(20);
const TOPIC: &str = "walpost-bench-memory";

pub(crate) async fn bench(plan: &Plan, report: &mut Report) {
    println!("\nmemory:");
    for subject in plan.subjects() {
        run(plan, subject, report).await;
    }
}

async fn run(plan: &Plan, subject: Subject, report: &mut Report) {
    let (stage, who) = (Stage::new(plan).await, subject.name());
    let rows = plan.rows * 10;
    stage.servers.create_topic(TOPIC).await;
    stage.execute("SELECT pg_create_logical_replication_slot('memory', 'pgoutput')").await;
    let running = subject.start(&stage, "memory", TOPIC).await;
    running.streams(&stage, "memory").await;
    // What a start takes is not what a running one takes.
    sleep(Duration::from_secs(5)).await;
    let process = running.process();
    let used = || process.cpu_time().expect("it runs");
    let before = used();
    sleep(IDLE).await;
    let cpu = used().saturating_sub(before).as_secs_f64() / IDLE.as_secs_f64();
    report.add(PART, who, "idle processor", "% of a core", 100.0 * cpu);
    report.add(PART, who, "idle memory", "MiB", mebibytes(process.rss_bytes()));
    let read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read);
    let _consumer = Tail::start(&stage.servers.bootstrap, Topics::named([TOPIC]), move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    Shape::OneTransaction.write(&stage, rows).await;
    let all = || read.load(Ordering::Relaxed) >= rows;
    seconds_until(Instant::now(), "every record is readable", all).await;
    let name = format!("peak, one transaction of {rows} rows");
    report.add(PART, who, &name, "MiB", mebibytes(process.peak_rss_bytes()));
    running.stop(&stage, "memory").await;
    stage.drop_slot("memory").await;
    stage.servers.delete_topic(TOPIC).await;
}
