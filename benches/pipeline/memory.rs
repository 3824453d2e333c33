//! Resident memory: idle, and inside one transaction of ten times the rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use walpost_bed::{Tail, Topics, eventually};

use crate::Plan;
use crate::backlog::Shape;
use crate::drain::megabytes;
use crate::stage::{PATIENCE, Stage};

pub(crate) async fn bench(plan: &Plan) {
    let stage = Stage::new().await;
    let rows = plan.rows * 10;
    stage.kafka.create_topic("memory", 3).await;
    let walpost = stage.command("run").args(["--topic", "memory"]).start();
    walpost.await_line("streaming from PostgreSQL", PATIENCE).await;
    let idle = walpost.rss_bytes().unwrap_or_default();
    println!("\nmemory:\n  idle: {:.1} MiB", megabytes(idle));
    let read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read);
    let _consumer = Tail::start(&stage.kafka.bootstrap(), Topics::named(["memory"]), move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    Shape::OneTransaction.write(&stage, rows).await;
    eventually(PATIENCE, "every record is readable", async || {
        let seen = read.load(Ordering::Relaxed);
        (seen >= rows).then_some(()).ok_or(seen)
    })
    .await;
    let peak = walpost.peak_rss_bytes().unwrap_or_default();
    println!("  peak inside one transaction of {rows} rows: {:.1} MiB", megabytes(peak));
    walpost.terminate();
    walpost.wait(PATIENCE).await.expect("it stops");
}
