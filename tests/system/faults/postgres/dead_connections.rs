//! Connections that stop carrying data without being closed, or only seem to; and connections with
//! low bandwidth or high latency (35, 60, 71, 72).

use std::time::{Duration, Instant};

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, proxied};
use walpost_bed::writer::Writer;
use walpost_bed::{
    Direction, Kafka, Major, Postgres, PostgresBuilder, Proxy, Walpost, eventually, unchanged,
};

use super::repeated_transactions;
use super::slot::many_transactions;
use crate::case::{Case, CaseReport};

/// `wal_sender_timeout` here. walpost treats ten seconds of silence as the end, or twice this if that
/// is more.
const TIMEOUT: Duration = Duration::from_secs(1);

/// walpost's connections while it streams, in the order of opening.
const CONTROL: usize = 0;
const REPLICATION: usize = 1;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(35, "network_blackhole_is_detected_and_survived", blackhole),
        Case::new(35, "stream_without_server_data_is_replaced", |report| {
            idle(report, Direction::ToClient)
        }),
        Case::new(35, "stream_unable_to_send_is_replaced", |report| {
            idle(report, Direction::ToServer)
        }),
        Case::new(35, "stream_without_server_data_under_load_is_replaced", |report| {
            under_load(report, Direction::ToClient)
        })
        .long(),
        Case::new(35, "stream_unable_to_send_under_load_is_replaced", |report| {
            under_load(report, Direction::ToServer)
        }),
        Case::new(
            35,
            "stream_without_server_data_while_kafka_is_unavailable_is_replaced",
            |report| under_back_pressure(report, Direction::ToClient),
        )
        .long(),
        Case::new(35, "stream_unable_to_send_while_kafka_is_unavailable_is_replaced", |report| {
            under_back_pressure(report, Direction::ToServer)
        })
        .long(),
        Case::new(35, "control_connection_without_server_responses_is_replaced", |report| {
            control(report, Direction::ToClient)
        })
        .long(),
        Case::new(35, "control_connection_unable_to_send_is_replaced", |report| {
            control(report, Direction::ToServer)
        })
        .long(),
        Case::new(60, "short_wal_sender_timeout_is_met_while_kafka_is_unavailable", frozen_kafka),
        Case::new(71, "row_slower_than_the_timeout_is_published_once", low_bandwidth),
        Case::new(72, "final_confirmation_waits_for_a_high_latency_server", high_latency).long(),
        Case::new(72, "backlog_of_a_high_latency_server_is_read_by_catch_up", high_latency_backlog)
            .long(),
        Case::new(
            35,
            "shutdown_during_a_feed_switch_on_a_dead_connection_exits_in_time",
            feed_switch_stopped,
        ),
        Case::new(35, "feed_switch_on_a_dead_connection_reconnects", feed_switch).long(),
        Case::new(
            35,
            "unavailable_catch_up_connection_falls_back_to_streaming",
            no_catch_up_connection,
        ),
        Case::new(72, "catch_up_that_never_begins_falls_back_to_streaming", never_begins).long(),
    ]
}

fn with_short_timeouts() -> PostgresBuilder {
    Postgres::builder(Major::V15).wal_sender_timeout(TIMEOUT)
}

/// A proxy before the fixture's server, for connections that do not ask for TLS
/// first: then they are those that walpost keeps.
async fn behind_a_proxy(fixture: &mut Fixture) -> Proxy {
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = format!("{}?sslmode=disable", proxied(&proxy));
    proxy
}

async fn blackhole(report: CaseReport) {
    let mut fixture = Fixture::with(with_short_timeouts()).await;
    let proxy = behind_a_proxy(&mut fixture).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let mark = walpost.mark();
    proxy.blackhole();
    eventually(SHORT_TIMEOUT, "the server gives the session up", async || {
        fixture.walsender().await.is_none()
    })
    .await;
    walpost.await_line_after(mark, LOST, SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    proxy.restore();
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

const LOST: &str = "lost the connection to PostgreSQL; reconnecting";

/// What walpost logs when a stream stops carrying data in this direction.
fn notice(direction: Direction) -> &'static str {
    match direction {
        Direction::ToClient => "received nothing from PostgreSQL for 10s, not even a keepalive",
        // The server has given up by then, and its end passes.
        Direction::ToServer => LOST,
    }
}

/// Awaits that the dead connection is detected and replaced.
async fn replaced(report: &CaseReport, walpost: &Walpost, mark: (usize, usize), notice: &str) {
    let since = Instant::now();
    walpost.await_line_after(mark, notice, LONG_TIMEOUT).await;
    report.did(format!("noticed after {} s", since.elapsed().as_secs()));
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
}

async fn idle(report: CaseReport, direction: Direction) {
    dead_when_idle(report, REPLICATION, direction, notice(direction)).await;
}

async fn control(report: CaseReport, direction: Direction) {
    dead_when_idle(report, CONTROL, direction, LOST).await;
}

/// One direction of that connection stops carrying data while nothing is written.
async fn dead_when_idle(report: CaseReport, connection: usize, direction: Direction, notice: &str) {
    let mut fixture = Fixture::with(with_short_timeouts()).await.option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut fixture).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let mark = walpost.mark();
    proxy.blackhole_direction(connection, direction);
    replaced(&report, &walpost, mark, notice).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

async fn under_load(report: CaseReport, direction: Direction) {
    let mut fixture = Fixture::with(with_short_timeouts()).await.option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut fixture).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 200);
    writer.commits(50).await;
    let mark = walpost.mark();
    proxy.blackhole_direction(REPLICATION, direction);
    replaced(&report, &walpost, mark, notice(direction)).await;
    writer.commits(50).await;
    report.ok(&fixture.judge_after(writer).await);
    let repeated = repeated_transactions(&fixture.records().await);
    assert!(repeated <= 1, "rows of {repeated} transactions came again");
    report.still_running(&walpost);
}

async fn under_back_pressure(report: CaseReport, direction: Direction) {
    let kafka = Kafka::start().await;
    let mut fixture = Fixture::with_brokers(with_short_timeouts(), &kafka.bootstrap())
        .await
        .option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut fixture).await;
    let walpost = fixture.run_with(&["--in-flight-bytes", "1MiB"]).await;
    // To each partition, so that it is the budget which stops the reading.
    fixture.postgres.execute(&insert(50, 50)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.pause();
    let unconfirmed = fixture.postgres.commit(&larger_than_buffers()).await;
    await_standstill(&fixture).await;
    let mark = walpost.mark();
    proxy.blackhole_direction(REPLICATION, direction);
    let since = Instant::now();
    eventually(SHORT_TIMEOUT, "several times the timeout has passed", async || {
        fixture.assert_unconfirmed(&unconfirmed).await;
        since.elapsed() > TIMEOUT * 5
    })
    .await;
    // Only one that reads misses anything.
    kafka.resume();
    replaced(&report, &walpost, mark, notice(direction)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    // The large transaction was being read, and is published again.
    report.ok(&fixture.judge().await);
    report.still_running(&walpost);
}

/// Inserts more than all buffers on the way can hold, in one transaction.
fn larger_than_buffers() -> String {
    insert(12_000, 50).replace("jsonb_build_object('i', i)", "to_jsonb(repeat('x', 5000))")
}

/// Awaits that the server gets no further with sending.
async fn await_standstill(fixture: &Fixture) {
    let sent = "SELECT sent_lsn FROM pg_stat_replication WHERE sent_lsn < pg_current_wal_lsn()";
    eventually(LONG_TIMEOUT, "it is sending", async || fixture.postgres.query_text(sent).await)
        .await;
    let rest = Duration::from_secs(1);
    unchanged(rest, LONG_TIMEOUT, async || fixture.postgres.query_text(sent).await).await;
}

async fn frozen_kafka(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(with_short_timeouts(), &kafka.bootstrap()).await;
    let walpost = fixture.run_with(&["--in-flight-bytes", "1MiB"]).await;
    // To each partition, so that it is the budget which stops the reading.
    fixture.postgres.execute(&insert(50, 50)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let session = fixture.walsender().await.expect("a session");
    kafka.pause();
    let unconfirmed = fixture.postgres.commit(&larger_than_buffers()).await;
    await_standstill(&fixture).await;
    let since = Instant::now();
    eventually(SHORT_TIMEOUT, "several times the timeout has passed", async || {
        let now = fixture.walsender().await;
        assert_eq!(now.as_ref(), Some(&session), "after {:?}", since.elapsed());
        fixture.assert_unconfirmed(&unconfirmed).await;
        since.elapsed() > TIMEOUT * 5
    })
    .await;
    kafka.resume();
    fixture.confirmed(LONG_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    assert_eq!(fixture.walsender().await, Some(session));
    report.did("kept the session");
    report.still_running(&walpost);
}

/// A row of this size takes several times `wal_sender_timeout` at this rate.
const LARGE_BYTES: u32 = 8_000_000;
const NARROW_BYTES_PER_SECOND: u32 = 1_000_000;

async fn low_bandwidth(report: CaseReport) {
    let mut fixture = Fixture::with(with_short_timeouts()).await.option("--catch-up", "stream");
    let kafka = Kafka::shared().await;
    let limit = (2 * LARGE_BYTES).to_string();
    kafka.create_topic_with(&fixture.topic("order"), 1, &[("max.message.bytes", &limit)]).await;
    let proxy = behind_a_proxy(&mut fixture).await;
    let walpost = fixture.run_with(&[&format!("-X=message.max.bytes={limit}")]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let session = fixture.walsender().await.expect("a session");
    proxy.slow(Duration::ZERO, Some(NARROW_BYTES_PER_SECOND));
    let since = Instant::now();
    // The last row of its transaction, so that the rows before it would be repeated each time.
    let large = format!("CASE i WHEN 100 THEN to_jsonb(repeat('x', {LARGE_BYTES}))");
    let small = "jsonb_build_object('i', i)";
    let rows = insert(100, 3).replace(small, &format!("{large} ELSE {small} END"));
    fixture.postgres.execute(&rows).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let took = since.elapsed();
    assert!(took > TIMEOUT * 4, "the line was not narrow: {took:?}");
    report.exact(&fixture.judge().await);
    assert_eq!(fixture.walsender().await, Some(session));
    report.did("kept the session");
    report.still_running(&walpost);
}

async fn high_latency(report: CaseReport) {
    let mut fixture = Fixture::new().await.option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut fixture).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    proxy.slow(Duration::from_millis(700), None);
    let walpost = fixture.command("run").args(["--until", "current"]).start();
    let status = walpost.wait(LONG_TIMEOUT).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
    report.exact(&fixture.judge().await);
    report.did("exit 0");
}

/// There is a backlog, and each response takes more than a second.
async fn high_latency_backlog(report: CaseReport) {
    let mut fixture = Fixture::new().await;
    fixture.postgres.execute(&insert(100, 3)).await;
    let proxy = behind_a_proxy(&mut fixture).await;
    proxy.slow(Duration::from_millis(600), None);
    let walpost = in_batches(&fixture);
    walpost.await_line("starting a catch-up read", SHORT_TIMEOUT * 2).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// One of the catch-up's connections receives nothing.
async fn no_catch_up_connection(report: CaseReport) {
    let mut fixture = Fixture::new().await;
    fixture.postgres.execute(&insert(100, 3)).await;
    let proxy = behind_a_proxy(&mut fixture).await;
    proxy.blackhole_direction(REPLICATION + 1, Direction::ToClient);
    let walpost = in_batches(&fixture);
    walpost.await_line("streaming it instead", SHORT_TIMEOUT).await;
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// A server process that is to serve the batches answers nothing.
async fn never_begins(report: CaseReport) {
    let mut fixture = Fixture::new().await;
    fixture.postgres.execute(&insert(100, 3)).await;
    let proxy = behind_a_proxy(&mut fixture).await;
    proxy.slow(Duration::from_millis(300), None);
    let walpost = in_batches(&fixture);
    let third = "SELECT pid::text FROM pg_stat_activity
                  WHERE application_name = 'walpost' AND backend_type = 'client backend'
                  ORDER BY backend_start OFFSET 1 LIMIT 1";
    let mut pid = None;
    eventually(SHORT_TIMEOUT, "a connection beside the first one", async || {
        pid = fixture.postgres.query_text(third).await;
        pid.is_some()
    })
    .await;
    let pid = pid.expect("its server process");
    signal("STOP", &pid);
    walpost.await_line("streaming it instead", SHORT_TIMEOUT * 3).await;
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    signal("CONT", &pid);
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// Kafka accepts nothing for this long: after 10 s walpost switches from catch-up to streaming.
const FEED_SWITCH_AFTER: Duration = Duration::from_secs(13);

/// A catch-up read whose connections are dead when it switches to streaming, because Kafka accepts
/// nothing.
async fn switches_feed_on_a_dead_connection() -> (Fixture, Kafka, Proxy, Walpost) {
    let kafka = Kafka::start().await;
    let mut fixture = Fixture::with_brokers(with_short_timeouts(), &kafka.bootstrap()).await;
    fixture = fixture.option("--in-flight-bytes", "8KiB").option("-X", "linger.ms=10");
    fixture = fixture.option("--drain-timeout", "5s");
    fixture.postgres.execute(&many_transactions(600)).await;
    let proxy = behind_a_proxy(&mut fixture).await;
    let walpost = in_batches(&fixture);
    walpost.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 500)
        .await;
    kafka.pause();
    proxy.blackhole();
    let since = Instant::now();
    eventually(SHORT_TIMEOUT, "the feed switch is due", async || {
        since.elapsed() > FEED_SWITCH_AFTER
    })
    .await;
    assert!(!walpost.said("lost the connection to PostgreSQL"), "{:?}", walpost.stderr());
    (fixture, kafka, proxy, walpost)
}

async fn feed_switch_stopped(report: CaseReport) {
    let (fixture, kafka, proxy, walpost) = switches_feed_on_a_dead_connection().await;
    walpost.terminate();
    let status = walpost.wait(SHORT_TIMEOUT).await;
    assert!(status.is_some(), "it ends within its drain timeout: {:?}", walpost.stderr());
    report.did("exited on the stop signal");
    proxy.restore();
    kafka.resume();
    let next = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&next);
}

async fn feed_switch(report: CaseReport) {
    let (fixture, kafka, proxy, walpost) = switches_feed_on_a_dead_connection().await;
    walpost.await_line("lost the connection to PostgreSQL; reconnecting", LONG_TIMEOUT).await;
    proxy.restore();
    kafka.resume();
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&walpost);
}

fn in_batches(fixture: &Fixture) -> Walpost {
    fixture.command("run").env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start()
}

fn signal(name: &str, pid: &str) {
    let status = std::process::Command::new("kill").args(["-s", name, pid]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -s {name} {pid}");
}
