//! The broker responds slowly (18).

use std::time::Duration;

use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Proxy, eventually};

use super::fixture_with;
use crate::case::{Case, CaseReport};

/// Maximum growth of memory in bytes with a budget of 1 MiB; twice that is waiting.
const GROWTH: u64 = 12 * 1024 * 1024;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(18, "high_latency_to_the_broker_keeps_memory_flat", |report| {
            slow(report, Duration::from_millis(200), None)
        }),
        Case::new(18, "low_bandwidth_to_the_broker_keeps_memory_flat", |report| {
            slow(report, Duration::from_millis(20), Some(2_000_000))
        })
        .long(),
    ]
}

async fn slow(report: CaseReport, delay: Duration, bytes_per_second: Option<u32>) {
    let proxy = Proxy::start().await;
    let kafka = Kafka::builder().behind(proxy.port()).start().await;
    proxy.point_at(kafka.proxied_port().expect("it has a proxy"));
    let mut fixture = fixture_with(&format!("127.0.0.1:{}", proxy.port())).await;
    let walpost = fixture.run_with(&["--in-flight-bytes", "1MiB"]).await;
    let writer = Writer::start(&fixture.postgres, 100);
    writer.commits(50).await;
    let settled = walpost.rss_bytes().expect("it runs");
    proxy.slow(delay, bytes_per_second);
    let many = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                SELECT 'order', (i % 50)::text, 'placed', jsonb_build_object('x', repeat('x', 3000)) \
                  FROM generate_series(1, 5000) AS i";
    fixture.postgres.execute(many).await;
    writer.commits(200).await;
    let rolled_back = writer.stop().await;
    let mut most = 0;
    let position = fixture.postgres.wal_end().await;
    eventually(LONG_TIMEOUT, "all is confirmed, through the slow line", async || {
        most = most.max(walpost.rss_bytes().unwrap_or(u64::MAX));
        fixture.has_confirmed(&position).await
    })
    .await;
    assert!(most < settled + GROWTH, "{settled} bytes grew to {most}");
    // The judge reads by the shorter way.
    fixture.bootstrap = kafka.bootstrap();
    report.ok(&fixture.judge_with(&rolled_back).await);
    report.did("flat memory");
    report.still_running(&walpost);
}
