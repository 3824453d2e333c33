//! What is used while nothing happens, and memory inside one transaction of twenty times the rows.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::Plan;
use crate::backlog::Shape;
use crate::lane::Lane;
use crate::report::Report;
use crate::stage::Stage;
use crate::subject::{Subject, seconds_until};

const PART: &str = "memory";
const IDLE: Duration = Duration::from_secs(20);

pub(crate) async fn bench(plan: &Plan, report: &mut Report) {
    println!("\nmemory:");
    for subject in plan.subjects() {
        run(plan, subject, report).await;
    }
}

async fn run(plan: &Plan, subject: Subject, report: &mut Report) {
    let (stage, who) = (Stage::new(plan).await, subject.name());
    let rows = plan.rows * 20;
    let (mut lane, read) = Lane::counting(&stage, PART).await;
    lane.create_slot().await;
    lane.start(subject).await;
    lane.streams().await;
    // What a start takes is not what a running one takes.
    sleep(Duration::from_secs(5)).await;
    let before = lane.cpu_time();
    sleep(IDLE).await;
    let cpu = lane.cpu_time().saturating_sub(before).as_secs_f64() / IDLE.as_secs_f64();
    report.add(PART, who, "idle processor", "% of a core", 100.0 * cpu);
    report.add(PART, who, "idle memory", "MiB", lane.mebibytes());
    Shape::OneTransaction.write(&stage, rows).await;
    let all = || read.load(Ordering::Relaxed) >= rows;
    seconds_until(Instant::now(), "every record is readable", all).await;
    let name = format!("peak, one transaction of {rows} rows");
    report.add(PART, who, &name, "MiB", lane.peak_mebibytes());
    lane.end().await;
}
