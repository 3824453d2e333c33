//! The slot is dropped, invalidated, or advanced by another client (36 to 38): walpost never
//! continues silently.

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, proxied};
use walpost_bed::oracle::{Row, judge};
use walpost_bed::{Endpoints, Kafka, Major, Postgres, PostgresBuilder, Proxy, Walpost, eventually};

use super::halts::OtherClient;
use crate::case::{Case, CaseReport};

const DROP: &str = "SELECT pg_drop_replication_slot('walpost')";

/// Advances it to the end of WAL.
pub(super) const ADVANCE: &str = "pg_replication_slot_advance('walpost', pg_current_wal_lsn())";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(36, "slot_dropped_before_the_start_is_not_recreated", dropped_before),
        Case::new(36, "slot_dropped_at_run_time_ends_the_run", dropped_at_run_time),
        Case::new(37, "slot_invalidated_before_the_start_ends_the_run", lost_before),
        Case::new(37, "slot_invalidated_at_run_time_ends_the_run", lost_between),
        Case::new(37, "slot_invalidated_while_kafka_is_unavailable_ends_the_run", lost_in_use),
        Case::new(37, "slot_invalidated_by_idle_timeout_ends_the_run", idle_for_too_long),
        Case::new(38, "advanced_slot_ends_the_run_with_both_positions", advanced),
        Case::new(
            38,
            "foreign_client_using_the_slot_is_not_taken_for_walpost",
            used_by_another_client,
        ),
        Case::new(
            36,
            "slot_dropped_during_catch_up_of_a_high_latency_server_ends_the_run",
            dropped_far_away,
        ),
        Case::new(36, "backlog_of_a_dropped_slot_is_published_completely", dropped_in_a_backlog),
        Case::new(38, "backlog_of_an_advanced_slot_is_published_completely", advanced_in_a_backlog),
        Case::new(
            38,
            "slot_used_and_advanced_in_a_backlog_is_published_completely",
            used_in_a_backlog,
        ),
        Case::new(
            38,
            "high_latency_standby_observes_the_halt",
            advanced_with_a_high_latency_standby,
        )
        .long(),
        Case::new(38, "recreated_slot_ends_the_run_with_both_positions", recreated),
    ]
}

/// walpost on a fixture, ten rows published and confirmed.
async fn ten_rows(fixture: &Fixture) -> (Walpost, Vec<Row>) {
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    (walpost, fixture.committed().await)
}

async fn judged(report: &CaseReport, fixture: &Fixture, rows: &[Row]) {
    report.exact(&judge(rows, std::iter::empty(), &fixture.records().await));
}

async fn dropped_before(report: CaseReport) {
    let fixture = Fixture::new().await;
    let (walpost, rows) = ten_rows(&fixture).await;
    walpost.terminate();
    assert_eq!(ended(&walpost).await.0, Some(0));
    fixture.postgres.execute(DROP).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    let text = report.ends(&fixture.command("run").start(), 3).await;
    assert!(text.contains("find out who dropped it"), "{text}");
    assert_eq!(fixture.confirmed_flush().await, None);
    judged(&report, &fixture, &rows).await;
}

async fn dropped_at_run_time(report: CaseReport) {
    let fixture = Fixture::new().await;
    let (walpost, rows) = ten_rows(&fixture).await;
    // Before walpost is back: it waits for a moment after so short a session.
    let end_and_drop = "DO $$ BEGIN
           PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots;
           LOOP
             BEGIN
               PERFORM pg_drop_replication_slot('walpost');
               EXIT;
             EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.001); END;
           END LOOP;
         END $$";
    fixture.postgres.execute(end_and_drop).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("lost the connection to PostgreSQL; reconnecting"), "{text}");
    assert!(text.contains("find out who dropped it"), "{text}");
    assert_eq!(fixture.confirmed_flush().await, None);
    judged(&report, &fixture, &rows).await;
}

/// A server that keeps little log for slots.
fn short_of_log() -> PostgresBuilder {
    let postgres = Postgres::builder(Major::V15).setting("max_slot_wal_keep_size", "1MB");
    postgres.setting("min_wal_size", "32MB").setting("max_wal_size", "32MB")
}

/// Writes log until the server gives the slot up.
async fn burn(fixture: &Fixture) {
    eventually(SHORT_TIMEOUT, "the server invalidates the slot", async || {
        // A CHECKPOINT looks after each switch of the log's file.
        let burn = "CREATE TABLE IF NOT EXISTS burn (b text); INSERT INTO burn VALUES ('x')";
        fixture.postgres.execute(burn).await;
        fixture.postgres.execute("SELECT pg_switch_wal()").await;
        fixture.postgres.execute("CHECKPOINT").await;
        let state = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'walpost'";
        let state = fixture.postgres.query_text(state).await;
        if state.as_deref() == Some("lost") { Ok(()) } else { Err(state) }
    })
    .await;
}

async fn lost_before(report: CaseReport) {
    let fixture = Fixture::with(short_of_log()).await;
    burn(&fixture).await;
    let text = report.ends(&fixture.command("run").start(), 3).await;
    assert!(text.contains("was invalidated by the server"), "{text}");
    judged(&report, &fixture, &[]).await;
}

async fn lost_between(report: CaseReport) {
    let mut fixture = Fixture::with(short_of_log()).await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = proxied(&proxy);
    let (walpost, rows) = ten_rows(&fixture).await;
    cut_off(&fixture, &proxy).await;
    burn(&fixture).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    proxy.restore();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("was invalidated by the server"), "{text}");
    judged(&report, &fixture, &rows).await;
}

async fn lost_in_use(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(short_of_log(), &kafka.bootstrap()).await;
    let (walpost, _) = ten_rows(&fixture).await;
    kafka.pause();
    fixture.postgres.execute(&insert(10, 3)).await;
    let read = "SELECT sent_lsn >= pg_current_wal_lsn() FROM pg_stat_replication";
    eventually(SHORT_TIMEOUT, "walpost has read the rows", async || {
        fixture.postgres.query_text(read).await == Some("t".into())
    })
    .await;
    burn(&fixture).await;
    kafka.resume();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("was invalidated by the server"), "{text}");
    // It still delivers what it had read: no other instance can.
    judged(&report, &fixture, &fixture.committed().await).await;
}

/// Whoever reads the slot by SQL holds it meanwhile, as another walpost would.
async fn used_by_another_client(report: CaseReport) {
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(2));
    let fixture = Fixture::with(postgres).await;
    let (walpost, rows) = ten_rows(&fixture).await;
    walpost.pause();
    eventually(SHORT_TIMEOUT, "the slot is free", async || fixture.walsender().await.is_none())
        .await;
    fixture.postgres.execute(&insert(200_000, 3)).await;
    let client = fixture.postgres.client().await;
    let read = "SELECT count(*) FROM pg_logical_slot_get_binary_changes('walpost', NULL, NULL,
                  'proto_version', '1', 'publication_names', 'walpost')";
    let moved = tokio::spawn(async move { client.batch_execute(read).await });
    let held = "SELECT active_pid::text FROM pg_replication_slots";
    eventually(SHORT_TIMEOUT, "another client holds the slot", async || {
        fixture.postgres.query_text(held).await.is_some()
    })
    .await;
    walpost.resume();
    walpost.await_line("is in use by server process", SHORT_TIMEOUT).await;
    moved.await.expect("it runs").expect("it is read");
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("by another client"), "{text}");
    judged(&report, &fixture, &rows).await;
}

async fn idle_for_too_long(report: CaseReport) {
    let postgres = Postgres::builder(Major::V18).setting("idle_replication_slot_timeout", "1s");
    let fixture = Fixture::with(postgres).await;
    let (walpost, rows) = ten_rows(&fixture).await;
    walpost.terminate();
    assert_eq!(ended(&walpost).await.0, Some(0));
    eventually(SHORT_TIMEOUT, "the server invalidates the slot", async || {
        fixture.postgres.execute("CHECKPOINT").await;
        let reason = "SELECT invalidation_reason FROM pg_replication_slots";
        let reason = fixture.postgres.query_text(reason).await;
        if reason.as_deref() == Some("idle_timeout") { Ok(()) } else { Err(reason) }
    })
    .await;
    fixture.postgres.execute(&insert(10, 3)).await;
    let text = report.ends(&fixture.command("run").start(), 3).await;
    assert!(text.contains("was invalidated by the server (idle_timeout)"), "{text}");
    judged(&report, &fixture, &rows).await;
}

/// Cuts the connections through the proxy and lets none through; the slot is free then.
async fn cut_off(fixture: &Fixture, proxy: &Proxy) {
    proxy.refuse();
    proxy.cut();
    eventually(SHORT_TIMEOUT, "the slot is free", async || fixture.walsender().await.is_none())
        .await;
}

async fn advanced(report: CaseReport) {
    let advance =
        "SELECT end_lsn FROM pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    elsewhere(report, advance).await;
}

/// Runs this on the slot while no walpost holds it; fails after a minute.
pub(super) fn at_rest(what: &str) -> String {
    format!(
        "DO $$ BEGIN LOOP BEGIN PERFORM {what}; EXIT;
           EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.001);
             IF clock_timestamp() > now() + interval '1 minute' THEN RAISE; END IF;
           END; END LOOP; END $$"
    )
}

async fn dropped_in_a_backlog(report: CaseReport) {
    in_a_backlog(report, "pg_drop_replication_slot('walpost')", "find out who dropped it").await;
}

async fn advanced_in_a_backlog(report: CaseReport) {
    in_a_backlog(report, ADVANCE, "by another client").await;
}

/// Another client advances or drops the slot while one instance reads a backlog and another one
/// waits: the first one publishes what its copy of the slot has, and neither continues.
async fn in_a_backlog(report: CaseReport, what: &str, words: &str) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&many_transactions(600)).await;
    let (first, second) = (slow_in_batches(&fixture), slow_in_batches(&fixture));
    let begun = async || fixture.records().await.len() > 500;
    eventually(SHORT_TIMEOUT, "some records arrive", begun).await;
    fixture.postgres.execute(&at_rest(what)).await;
    assert!(fixture.records().await.len() < 8_000, "in the middle");
    let texts = (report.ends(&first, 3).await, report.ends(&second, 3).await);
    let said = |text: &str| {
        text.contains(words) || text.contains("has halted, and an operator has to decide")
    };
    assert!(said(&texts.0) && said(&texts.1), "{texts:?}");
    report.exact(&fixture.judge().await);
}

/// Another client uses the slot during a catch-up read, and then does so again and moves it. The read goes
/// on: its copy of the slot is the only one that has the rest.
async fn used_in_a_backlog(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&many_transactions(1500)).await;
    let slow = ["--in-flight-bytes", "8KiB", "-X", "linger.ms=30", "--admin-listen", "127.0.0.1:0"];
    let walpost = fixture.command("run").args(slow).env(CATCH_UP_ABOVE, "1KiB").start();
    let begun = async || fixture.records().await.len() > 500;
    eventually(SHORT_TIMEOUT, "some records arrive", begun).await;
    let other = OtherClient::begin(&fixture).await;
    walpost.await_line("another client uses the slot", SHORT_TIMEOUT).await;
    let endpoints = Endpoints::of(&walpost).await;
    eventually(SHORT_TIMEOUT, "it is not ready", async || {
        endpoints.readiness().await.1.contains("another client uses replication slot")
    })
    .await;
    drop(other);
    walpost.await_line("the slot can be advanced again", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    assert!(fixture.records().await.len() < 28_000, "in the middle");
    let status = walpost.wait(LONG_TIMEOUT).await;
    assert_eq!(status.and_then(|status| status.code()), Some(3), "{:?}", walpost.stderr());
    report.did("exit 3");
    let text = walpost.stderr().join("\n");
    assert!(text.contains("by another client"), "{text}");
    assert!(!text.contains("lost the connection"), "{text}");
    report.exact(&fixture.judge().await);
}

/// Each response takes longer than the relay waits before it reads delivery reports.
async fn dropped_far_away(report: CaseReport) {
    let mut fixture = Fixture::new().await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = proxied(&proxy);
    fixture.postgres.execute(&many_transactions(1500)).await;
    proxy.slow(Duration::from_millis(100), None);
    let walpost = slow_in_batches(&fixture);
    eventually(SHORT_TIMEOUT, "some come", async || fixture.records().await.len() > 500).await;
    fixture.postgres.execute(&at_rest("pg_drop_replication_slot('walpost')")).await;
    walpost.await_line("the slot is no longer usable", SHORT_TIMEOUT).await;
    assert!(fixture.records().await.len() < 25_000, "in the midst");
    let status = walpost.wait(LONG_TIMEOUT).await;
    assert_eq!(status.and_then(|status| status.code()), Some(3), "{:?}", walpost.stderr());
    let text = walpost.stderr().join("\n");
    assert!(text.contains("find out who dropped it"), "{text}");
    report.exact(&fixture.judge().await);
    report.did("exit 3");
}

/// So many transactions of twenty rows.
pub(super) fn many_transactions(count: u32) -> String {
    format!(
        "DO $$ BEGIN FOR t IN 1..{count} LOOP
           INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', (i % 10)::text, 'placed', jsonb_build_object('t', t, 'i', i)
               FROM generate_series(1, 20) i;
           COMMIT;
         END LOOP; END $$"
    )
}

const CATCH_UP_ABOVE: &str = "WALPOST_SOURCE_CATCH_UP_THRESHOLD";

/// One that reads any backlog in batches, and has room for a few records at a time.
pub(super) fn slow_in_batches(fixture: &Fixture) -> Walpost {
    let slow = ["--in-flight-bytes", "8KiB", "-X", "linger.ms=30"];
    fixture.command("run").args(slow).env(CATCH_UP_ABOVE, "1KiB").start()
}

/// Each answer takes a second for the one that waits, and it learns that the other
/// one halts anyway.
async fn advanced_with_a_high_latency_standby(report: CaseReport) {
    let mut fixture = Fixture::new().await;
    fixture.postgres.execute(&many_transactions(1500)).await;
    let first = slow_in_batches(&fixture);
    first.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    proxy.slow(Duration::from_millis(500), None);
    fixture.source = proxied(&proxy);
    let second = slow_in_batches(&fixture);
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    let move_it = "pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    fixture.postgres.execute(&at_rest(move_it)).await;
    let status = first.wait(LONG_TIMEOUT).await;
    assert_eq!(status.and_then(|status| status.code()), Some(3), "{:?}", first.stderr());
    let text = report.ends(&second, 3).await;
    assert!(text.contains("has halted, and an operator has to decide"), "{text}");
    report.exact(&fixture.judge().await);
}

async fn recreated(report: CaseReport) {
    let make = "SELECT pg_drop_replication_slot('walpost'), \
                (pg_create_logical_replication_slot('walpost', 'pgoutput')).lsn";
    let make = format!("SELECT lsn FROM ({make}) AS one");
    elsewhere(report, &make).await;
}

/// Another client advances the slot while walpost is disconnected; returns the position.
async fn elsewhere(report: CaseReport, sql: &str) {
    let mut fixture = Fixture::new().await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = proxied(&proxy);
    let (walpost, mut rows) = ten_rows(&fixture).await;
    cut_off(&fixture, &proxy).await;
    let ours = fixture.confirmed_flush().await.expect("the slot");
    fixture.postgres.execute(&insert(5, 3)).await;
    let passed = fixture.committed().await.len();
    let theirs = fixture.postgres.query_text(sql).await.expect("the slot");
    fixture.postgres.execute(&insert(5, 3)).await;
    proxy.restore();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains(&format!("up to {theirs} by another client")), "{theirs} in {text}");
    assert!(text.contains(&format!("itself had confirmed {ours}")), "{ours} in {text}");
    assert_eq!(fixture.confirmed_flush().await, Some(theirs));
    // What was committed between the two positions is for an operator; the rest is not.
    let next = fixture.run().await;
    fixture.confirmed(Duration::from_secs(30)).await;
    rows.extend_from_slice(&fixture.committed().await[passed..]);
    judged(&report, &fixture, &rows).await;
    report.did("the next start went on from the slot");
    report.still_running(&next);
}
