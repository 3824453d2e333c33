//! What publishes rows that no slot sends, beside the stream: `walpost init --existing-rows`, and
//! `walpost recover`, which compares all rows with Kafka.

use std::time::{Duration, Instant};

use walpost_bed::{Walpost, WalpostBuilder};

use crate::Plan;
use crate::backlog::Shape;
use crate::conditions::Conditions;
use crate::contender::Contender;
use crate::drain::{self, Backlog, rate};
use crate::fixture::{Fixture, TIMEOUT};
use crate::report::Report;
use crate::trial::Trial;

const PART: &str = "rows";
const SLOT: &str = "rows";

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) async fn bench(plan: &Plan, report: &mut Report) {
    println!("\nrows:");
    for round in 1..=plan.rounds {
        let fixture = Fixture::new(plan).await;
        let conditions = Conditions::default();
        let shape = Shape::OneTransaction;
        let backlog = Backlog::write(&fixture, shape, plan.rows, &conditions).await;
        let streaming = stream(&fixture, &conditions, plan.rows, round).await;
        report.add(PART, "streaming", "drain", "rows/s", rate(plan.rows) / streaming);
        backlog.leave_rows(&fixture).await;
        let topic = format!("walpost-bench-rows-{round}");
        fixture.servers.create_topic(&topic, 3).await;
        let init = ["--apply", "--existing-rows"];
        let seconds = run(&fixture, "init", &topic, &init, plan.rows, report).await;
        report.add(PART, "init", "rate ÷ streaming", "", streaming / seconds);
        // Nothing is missing: what it takes to find that out.
        run(&fixture, "recover", &topic, &["--all"], plan.rows, report).await;
    }
}

/// Seconds that a stream of the same rows takes.
async fn stream(fixture: &Fixture, conditions: &Conditions, rows: u64, round: u32) -> f64 {
    let name = format!("rows_{round}");
    let (mut trial, read) = Trial::counting(fixture, conditions, &name).await;
    trial.copy_slot("base", "walpost").await;
    let all = || read.load(std::sync::atomic::Ordering::Relaxed) >= rows;
    drain::run(trial, Contender::WalpostStreaming, rows, all).await.seconds
}

async fn run(
    fixture: &Fixture,
    command: &str,
    topic: &str,
    arguments: &[&str],
    rows: u64,
    report: &mut Report,
) -> f64 {
    let begun = Instant::now();
    let walpost = of(fixture, command, topic).args(arguments).start();
    let mut peak = 0;
    let status = loop {
        if let Some(status) = walpost.wait(LOOK).await {
            break status;
        }
        peak = peak.max(walpost.peak_rss_bytes().unwrap_or_default());
        assert!(begun.elapsed() < TIMEOUT, "{command}: {:?}", walpost.stderr());
    };
    let seconds = begun.elapsed().as_secs_f64();
    assert!(status.success(), "{command}: {:?} {:?}", walpost.stdout(), walpost.stderr());
    report.add(PART, command, "rate", "rows/s", rate(rows) / seconds);
    report.add(PART, command, "time", "s", seconds);
    report.add(PART, command, "peak memory", "MiB", rate(peak) / 1_048_576.0);
    seconds
}

/// The command, with a slot and topics of its own.
fn of(fixture: &Fixture, command: &str, topic: &str) -> WalpostBuilder {
    Walpost::builder(env!("CARGO_BIN_EXE_walpost"))
        .arg(command)
        .args(["--source", &fixture.servers.source])
        .args(["--bootstrap-servers", &fixture.servers.bootstrap])
        .args(["--topic", topic, "--slot", SLOT])
        .args(["--state-topic", &format!("{topic}-state")])
}
