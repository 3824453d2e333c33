//! The broker is killed, stopped, unreachable, frozen, or out of disk space (13, 16, 17, 31).

use std::time::{Duration, Instant};

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert};
use walpost_bed::oracle::judge;
use walpost_bed::writer::Writer;
use walpost_bed::{Endpoints, Kafka, Major, Postgres, Proxy, eventually};

use super::{
    KAFKA_UNAVAILABLE, confirms_nothing, fixture_with, outage_logged, outages_reported, times,
};
use crate::case::{Case, CaseReport};

/// What memory may grow by once the budget is spent, in bytes.
const GROWTH: u64 = 16 * 1024 * 1024;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(13, "broker_killed_under_load_is_used_again", killed),
        Case::new(13, "killed_broker_is_detected_without_a_librdkafka_error", unannounced),
        Case::new(13, "broker_stopped_under_load_is_used_again", stopped).long(),
        Case::new(16, "kafka_outage_of_seconds_keeps_session_position_and_memory", short_outage),
        Case::new(16, "kafka_outage_of_minutes_keeps_session_position_and_memory", long_outage)
            .long(),
        Case::new(16, "large_transaction_in_a_backlog_is_read_once", within_a_backlog).long(),
        Case::new(16, "halt_waits_for_earlier_records", halted),
        Case::new(17, "broker_frozen_briefly_is_used_again", frozen),
        Case::new(17, "broker_frozen_for_a_minute_is_used_again", frozen_long).long(),
        Case::new(31, "broker_with_a_full_disk_is_used_again", disk_full),
    ]
}

/// A fixture whose topic exists.
async fn scene_of(kafka: &Kafka) -> Fixture {
    let fixture = fixture_with(&kafka.bootstrap()).await;
    kafka.create_topic(&fixture.topic("order"), 3).await;
    fixture
}

/// Kafka is away in the middle of a large transaction that is read in batches, for longer than the
/// server would wait for a client that does not read. What is read is not read again.
async fn within_a_backlog(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = scene_of(&kafka).await;
    let payload =
        "to_jsonb((SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, 45) n))";
    let rows = insert(60_000, 100).replace("jsonb_build_object('i', i)", payload);
    fixture.postgres.execute(&rows).await;
    let run = fixture.command("run").args(["--in-flight-bytes", "256KiB"]);
    let walpost = run.env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start();
    walpost.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 2000)
        .await;
    kafka.pause();
    tokio::time::sleep(Duration::from_secs(70)).await;
    let is_lost = walpost.said("lost the connection to PostgreSQL");
    assert!(!is_lost, "the read was given up: {:?}", walpost.stderr());
    kafka.resume();
    fixture.confirmed(LONG_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

async fn killed(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = scene_of(&kafka).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 200);
    for outage in 1..=2 {
        writer.commits(50).await;
        kafka.kill9().await;
        eventually(SHORT_TIMEOUT, "it is reported", async || outages_reported(&walpost) == outage)
            .await;
        confirms_nothing(&fixture, &writer).await;
        kafka.start_again().await;
        outage_logged(&walpost, outage).await;
    }
    writer.commits(50).await;
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

/// librdkafka as `CMake` builds it never says that all brokers are down: walpost sees it anyway.
async fn unannounced(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = scene_of(&kafka).await;
    let run = fixture.command("run").env("FAILPOINTS", "all_brokers_down=return");
    let walpost = run.args(["--admin-listen", "127.0.0.1:0"]).start();
    let endpoints = Endpoints::of(&walpost).await;
    let is_ready = async || endpoints.are_ready().await;
    let writer = Writer::start(&fixture.postgres, 200);
    for outage in 1..=2 {
        writer.commits(50).await;
        eventually(SHORT_TIMEOUT, "it is ready", is_ready).await;
        kafka.kill9().await;
        eventually(SHORT_TIMEOUT, "it is reported", async || outages_reported(&walpost) == outage)
            .await;
        eventually(SHORT_TIMEOUT, "it is not ready", async || !is_ready().await).await;
        kafka.start_again().await;
        outage_logged(&walpost, outage).await;
    }
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

async fn stopped(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = scene_of(&kafka).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 200);
    writer.commits(50).await;
    assert!(kafka.stop(LONG_TIMEOUT).await, "walpost stops");
    walpost.await_line(KAFKA_UNAVAILABLE, SHORT_TIMEOUT).await;
    writer.commits(50).await;
    kafka.start_again().await;
    outage_logged(&walpost, 1).await;
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

async fn short_outage(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = scene_on_a_short_leash(&kafka.bootstrap()).await;
    kafka.create_topic(&fixture.topic("order"), 3).await;
    let away = Duration::from_secs(15);
    outage(
        &report,
        &fixture,
        away,
        async || kafka.kill9().await,
        async || {
            kafka.start_again().await;
        },
    )
    .await;
}

/// A network that swallows everything, as a firewall does.
async fn long_outage(report: CaseReport) {
    let proxy = Proxy::start().await;
    let kafka = Kafka::builder().behind(proxy.port()).start().await;
    proxy.point_at(kafka.proxied_port().expect("it has a proxy"));
    let fixture = scene_on_a_short_leash(&format!("127.0.0.1:{}", proxy.port())).await;
    kafka.create_topic(&fixture.topic("order"), 3).await;
    let away = Duration::from_secs(180);
    outage(&report, &fixture, away, async || proxy.blackhole(), async || proxy.restore()).await;
}

/// PostgreSQL waits five seconds for a sign of life.
async fn scene_on_a_short_leash(bootstrap: &str) -> Fixture {
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(5));
    Fixture::with_brokers(postgres, bootstrap).await
}

async fn outage(
    report: &CaseReport,
    fixture: &Fixture,
    length: Duration,
    begin: impl AsyncFnOnce(),
    end: impl AsyncFnOnce(),
) {
    let walpost = fixture.run_with(&["--in-flight-bytes", "4MiB"]).await;
    let writer = Writer::start(&fixture.postgres, 100);
    writer.commits(100).await;
    let session = fixture.walsender().await.expect("a session");
    begin().await;
    let since = Instant::now();
    // Spends the budget at once.
    let unconfirmed = fixture.postgres.commit(&insert(20_000, 50)).await;
    let said = walpost.await_line(KAFKA_UNAVAILABLE, LONG_TIMEOUT).await;
    confirms_nothing(fixture, &writer).await;
    let mut settled = None;
    while since.elapsed() < length {
        let now = fixture.walsender().await;
        assert_eq!(now.as_ref(), Some(&session), "after {:?}", since.elapsed());
        fixture.assert_unconfirmed(&unconfirmed).await;
        if since.elapsed() > length / 4 {
            let rss = walpost.rss_bytes().expect("it runs");
            let settled = *settled.get_or_insert(rss);
            assert!(rss < settled + GROWTH, "{settled} bytes grew to {rss}");
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(times(&walpost, KAFKA_UNAVAILABLE), 1, "once: {said}");
    end().await;
    report.ok(&fixture.judge_after(writer).await);
    assert_eq!(fixture.walsender().await, Some(session));
    outage_logged(&walpost, 1).await;
    report.did("same session, flat memory");
    report.still_running(&walpost);
}

async fn frozen(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = scene_of(&kafka).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 200);
    for _ in 0..3 {
        writer.commits(50).await;
        kafka.pause();
        writer.commits(400).await;
        kafka.resume();
    }
    writer.commits(50).await;
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

/// Long enough for requests to time out on either side.
async fn frozen_long(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = scene_of(&kafka).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 50);
    for round in 1..=3 {
        writer.commits(50).await;
        kafka.pause();
        tokio::time::sleep(Duration::from_secs(60)).await;
        kafka.resume();
        outage_logged(&walpost, round).await;
    }
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

async fn disk_full(report: CaseReport) {
    let kafka = Kafka::builder()
        .disk_mebibytes(24)
        .property("log.segment.bytes", "1048576")
        .property("log.index.size.max.bytes", "65536")
        .start()
        .await;
    let fixture = scene_of(&kafka).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 50);
    writer.commits(20).await;
    let fill = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                SELECT 'order', (i % 5)::text, 'placed', \
                       (SELECT to_jsonb(string_agg(md5((i * 1000 + j)::text), '')) \
                          FROM generate_series(1, 320) AS j) \
                  FROM generate_series(1, 4000) AS i";
    fixture.postgres.execute(fill).await;
    walpost.await_line(KAFKA_UNAVAILABLE, LONG_TIMEOUT).await;
    report.did("said that Kafka cannot be used");
    confirms_nothing(&fixture, &writer).await;
    kafka.kill9().await;
    kafka.resize_disk(256);
    kafka.start_again().await;
    report.ok(&fixture.judge_after(writer).await);
    outage_logged(&walpost, 1).await;
    report.still_running(&walpost);
}

/// An event that cannot be delivered is met while no broker answers: all before it
/// is delivered first, however long that takes.
async fn halted(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = scene_of(&kafka).await;
    let walpost = fixture.run_with(&["--drain-timeout", "1s"]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.pause();
    fixture.postgres.execute(&insert(10, 3)).await;
    let keyless = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
                   VALUES ('order', '', 'placed')";
    fixture.postgres.execute(keyless).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    walpost.assert_runs();
    kafka.resume();
    report.ends(&walpost, 4).await;
    let rows = "SELECT id, aggregate_id FROM public.outbox WHERE aggregate_id <> '' ORDER BY n";
    let rows = fixture.rows(rows).await;
    report.ok(&judge(&rows, std::iter::empty(), &fixture.records().await));
}
