//! SIGTERM, once or twice, at unfavourable moments (5, 6).

use std::time::{Duration, Instant};

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert};
use walpost_bed::writer::{Writer, lsn};
use walpost_bed::{Kafka, Major, Postgres, Proxy, eventually, under_load};

use super::commit_lsn;
use crate::case::{Case, CaseReport};

/// A transaction that takes seconds through a narrow line.
const LARGE: &str = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
    SELECT 'order', (i % 50)::text, 'placed', jsonb_build_object('x', (SELECT \
           string_agg(md5((i * 10 + n)::text), '') FROM generate_series(1, 10) AS n)) \
      FROM generate_series(1, 10000) AS i";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(5, "shutdown_under_load_drains_without_duplicates", load),
        Case::new(5, "shutdown_within_a_large_transaction_repeats_nothing", large),
        Case::new(5, "shutdown_while_kafka_is_unavailable_exits_in_time", away),
        Case::new(6, "second_signal_exits_at_once_without_confirming", second),
    ]
}

async fn load(report: CaseReport) {
    let fixture = Fixture::new().await;
    let writer = Writer::start(&fixture.postgres, 300);
    for round in 0..6 {
        let walpost = fixture.run().await;
        writer.commits(20 + 10 * round).await;
        let signalled = Instant::now();
        if round % 2 == 0 {
            walpost.terminate();
        } else {
            walpost.interrupt();
        }
        report.ends(&walpost, 0).await;
        assert!(
            signalled.elapsed() < under_load(Duration::from_secs(20)),
            "{:?}",
            signalled.elapsed()
        );
        let unpublished_ids = writer.unpublished_ids(&fixture).await;
        assert!(unpublished_ids.is_empty(), "confirmed, not published: {unpublished_ids:?}");
    }
    let _walpost = fixture.run().await;
    report.exact(&fixture.judge_after(writer).await);
}

async fn large(report: CaseReport) {
    let proxy = Proxy::start().await;
    let kafka = Kafka::builder().behind(proxy.port()).start().await;
    proxy.point_at(kafka.proxied_port().expect("it has a proxy"));
    let (near, far) = (kafka.bootstrap(), format!("127.0.0.1:{}", proxy.port()));
    let mut fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &near).await;
    for _ in 0..2 {
        fixture.bootstrap.clone_from(&far);
        let walpost = fixture.run_with(&["--in-flight-bytes", "1MiB"]).await;
        // The consumer reads by the shorter way.
        fixture.bootstrap.clone_from(&near);
        let before = fixture.records().await.len();
        proxy.slow(Duration::from_millis(20), Some(500_000));
        fixture.postgres.execute(LARGE).await;
        eventually(SHORT_TIMEOUT, "a part of it is published", async || {
            fixture.records().await.len() > before
        })
        .await;
        walpost.terminate();
        let stopping =
            walpost.await_line("stopping: draining in-flight records", SHORT_TIMEOUT).await;
        assert!(!stopping.contains(r#""records":0,"#), "it came outside: {stopping}");
        proxy.restore();
        report.ends(&walpost, 0).await;
    }
    let _walpost = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
}

async fn away(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let walpost = fixture.run_with(&["--drain-timeout", "3s"]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.kill9().await;
    fixture.postgres.execute(&insert(100, 3)).await;
    await_walsender_sent_all(&fixture).await;
    walpost.terminate();
    let signalled = Instant::now();
    let text = report.ends(&walpost, 0).await;
    assert!(signalled.elapsed() < under_load(Duration::from_secs(4)), "{:?}", signalled.elapsed());
    assert!(text.contains(r#""undrained":100"#), "{text}");
    let confirmed = lsn(&fixture.confirmed_flush().await.expect("the slot"));
    kafka.start_again().await;
    let _walpost = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let last = fixture.records().await.iter().map(commit_lsn).max().expect("records");
    assert!(confirmed <= last, "{last:X} was not published when {confirmed:X} was confirmed");
    report.exact(&fixture.judge().await);
}

async fn second(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.pause();
    fixture.postgres.execute(&insert(100, 3)).await;
    await_walsender_sent_all(&fixture).await;
    walpost.terminate();
    walpost.await_line("stopping: draining in-flight records", SHORT_TIMEOUT).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    walpost.assert_runs();
    let signalled = Instant::now();
    walpost.terminate();
    report.ends(&walpost, 1).await;
    assert!(signalled.elapsed() < under_load(Duration::from_secs(1)), "{:?}", signalled.elapsed());
    let confirmed = lsn(&fixture.confirmed_flush().await.expect("the slot"));
    kafka.resume();
    let _walpost = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let last = fixture.records().await.iter().map(commit_lsn).max().expect("records");
    assert!(confirmed <= last, "{last:X} was not published when {confirmed:X} was confirmed");
    report.ok(&fixture.judge().await);
}

/// Awaits that the server has sent all that was committed.
async fn await_walsender_sent_all(fixture: &Fixture) {
    let query = "SELECT sent_lsn >= pg_current_wal_insert_lsn() FROM pg_stat_replication";
    eventually(SHORT_TIMEOUT, "the walsender has sent everything", async || {
        fixture.postgres.query_text(query).await == Some("t".into())
    })
    .await;
}
