//! Draining a backlog: walpost into Kafka, until every record is readable,
//! against `pg_recvlogical` to /dev/null.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use walpost_bed::{Tail, Topics, eventually};

use crate::Plan;
use crate::backlog::Shape;
use crate::stage::{PATIENCE, Stage, median, pg_recvlogical};

/// What walpost sets for its sessions, as far as it has a part in the speed.
const SESSION_OPTIONS: &str = "-c logical_decoding_work_mem=256MB";

/// One run of walpost.
struct Run {
    seconds: f64,
    cpu: Duration,
    peak_rss_bytes: u64,
}

pub(crate) async fn bench(plan: &Plan, shape: Shape) {
    let stage = Stage::new().await;
    stage.postgres.execute("SELECT pg_create_logical_replication_slot('base', 'pgoutput')").await;
    shape.write(&stage, plan.rows).await;
    stage.postgres.execute("CHECKPOINT").await;
    let end = stage.wal_end().await;
    println!("\ndrain, {} rows, {}:", plan.rows, shape.name());
    let mut ratios = [const { Vec::new() }; 2];
    #[expect(clippy::cast_precision_loss, reason = "a rate in rows a second")]
    let rows = plan.rows as f64;
    for round in 1..=plan.rounds {
        let limit = receive(&stage, &end, "").await;
        let limit_as_set = receive(&stage, &end, SESSION_OPTIONS).await;
        println!(
            "  round {round}: pg_recvlogical {:.0}/s, with walpost's session options {:.0}/s",
            rows / limit,
            rows / limit_as_set
        );
        for (at, mode, limit) in [(0, "auto", limit), (1, "stream", limit_as_set)] {
            let run = drain(&stage, plan.rows, &format!("{mode}_{round}"), mode).await;
            println!(
                "    --catch-up {mode}: {:.0}/s, ratio {:.2}; CPU {:.1} µs a row, peak RSS {:.0} MiB",
                rows / run.seconds,
                limit / run.seconds,
                run.cpu.as_secs_f64() * 1e6 / rows,
                megabytes(run.peak_rss_bytes),
            );
            ratios[at].push(limit / run.seconds);
        }
    }
    println!(
        "  median ratios: --catch-up auto to pg_recvlogical {:.2}, --catch-up stream to \
         pg_recvlogical with the same session options {:.2}",
        median(&ratios[0]),
        median(&ratios[1])
    );
}

pub(crate) fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let bytes = bytes as f64;
    bytes / 1_048_576.0
}

/// Seconds that `pg_recvlogical` takes to the end of the backlog.
async fn receive(stage: &Stage, end: &str, options: &str) -> f64 {
    stage.copy_slot("base", "receiver").await;
    let begun = Instant::now();
    let status = tokio::process::Command::new(pg_recvlogical())
        .args(["--dbname", &stage.postgres.url(), "--slot", "receiver", "--start"])
        .args(["--endpos", end, "--no-loop", "--file", "/dev/null"])
        .args(["-o", "proto_version=1", "-o", "publication_names=walpost"])
        .env("PGOPTIONS", options)
        .stdout(Stdio::null())
        .status()
        .await
        .expect("pg_recvlogical runs");
    assert!(status.success(), "pg_recvlogical: {status}");
    let seconds = begun.elapsed().as_secs_f64();
    stage.drop_slot("receiver").await;
    seconds
}

/// From the start of the process until a consumer has read the last record.
async fn drain(stage: &Stage, rows: u64, name: &str, mode: &str) -> Run {
    let (slot, topic) = (format!("round_{name}"), format!("round-{name}"));
    stage.copy_slot("base", &slot).await;
    stage.kafka.create_topic(&topic, 3).await;
    let read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read);
    let consumer =
        Tail::start(&stage.kafka.bootstrap(), Topics::named([topic.clone()]), move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
    let begun = Instant::now();
    let walpost = stage.command("run").args(["--slot", &slot, "--topic", &topic]);
    let walpost = walpost.args(["--catch-up", mode]).start();
    let mut run = Run { seconds: 0.0, cpu: Duration::ZERO, peak_rss_bytes: 0 };
    eventually(PATIENCE, "every record is readable", async || {
        run.peak_rss_bytes = walpost.peak_rss_bytes().unwrap_or(run.peak_rss_bytes);
        let done = read.load(Ordering::Relaxed) >= rows;
        if done {
            run.seconds = begun.elapsed().as_secs_f64();
            run.cpu = walpost.cpu_time().unwrap_or_default();
        }
        done.then_some(()).ok_or_else(|| read.load(Ordering::Relaxed))
    })
    .await;
    drop(consumer);
    walpost.terminate();
    let status = walpost.wait(PATIENCE).await.expect("it stops");
    assert!(status.success(), "{:?}", walpost.stderr());
    stage.drop_slot(&slot).await;
    stage.kafka.delete_topic(&topic).await;
    run
}
