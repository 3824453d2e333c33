//! Idle resource usage, and memory within and after one transaction of twenty times the rows.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::Plan;
use crate::backlog::Shape;
use crate::conditions::Conditions;
use crate::contender::Contender;
use crate::fixture::Fixture;
use crate::report::Report;
use crate::trial::Trial;

const PART: &str = "memory";
const IDLE: Duration = Duration::from_secs(20);

/// After a drain, when memory has to be back with the operating system.
const AFTERWARDS: Duration = Duration::from_secs(60);

pub(crate) async fn bench(plan: &Plan, report: &mut Report) {
    println!("\nmemory:");
    for contender in plan.contenders() {
        run(plan, contender, report).await;
    }
}

async fn run(plan: &Plan, contender: Contender, report: &mut Report) {
    let (fixture, who) = (Fixture::new(plan).await, contender.name());
    let rows = plan.rows * 20;
    let (mut trial, read) = Trial::counting(&fixture, &Conditions::default(), PART).await;
    trial.create_slot().await;
    trial.prepare(contender).await;
    trial.start(contender).await;
    trial.streams().await;
    // What a start takes is not what a running one takes.
    sleep(Duration::from_secs(5)).await;
    let before = trial.cpu_time();
    sleep(IDLE).await;
    let cpu = trial.cpu_time().saturating_sub(before).as_secs_f64() / IDLE.as_secs_f64();
    report.add(PART, who, "idle processor", "% of a core", 100.0 * cpu);
    report.add(PART, who, "idle memory", "MiB", trial.mebibytes());
    Shape::OneTransaction.write(&fixture, &Conditions::default(), None, rows).await;
    let all = || read.load(Ordering::Relaxed) >= rows;
    trial.seconds_until(Instant::now(), "every record is readable", all).await;
    let name = format!("peak, one transaction of {rows} rows");
    report.add(PART, who, &name, "MiB", trial.peak_mebibytes());
    sleep(AFTERWARDS).await;
    report.add(PART, who, "a minute after it", "MiB", trial.mebibytes());
    trial.end().await;
}
