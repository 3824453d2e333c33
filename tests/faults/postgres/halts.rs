//! Halts with exit code 3 combined with signals, an unavailable Kafka, or a standby instance (36,
//! 38, 39, 40). The reason is logged, the exit code stays, and nothing that only walpost holds is
//! discarded.

use std::time::Duration;

use tokio_postgres::{NoTls, connect};
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, ended, insert, proxied};
use walpost_bed::oracle::judge;
use walpost_bed::{Kafka, Major, Postgres, Proxy, Walpost, eventually};

use super::retain_published;
use super::slot::{ADVANCE, at_rest, many_transactions, slow_in_batches};
use crate::case::{Case, CaseReport};

const DROP: &str = "pg_drop_replication_slot('walpost')";

/// The advisory lock by which an instance announces a halt: `walh`.
const ANNOUNCED: &str = "SELECT count(*)::text FROM pg_locks \
     WHERE locktype = 'advisory' AND classid = 2002873448";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(38, "signal_while_announcing_a_halt_hides_no_advanced_slot", |report| {
            signalled_while_opening(report, 1)
        })
        .long(),
        Case::new(38, "two_signals_while_announcing_a_halt_hide_no_advanced_slot", |report| {
            signalled_while_opening(report, 2)
        }),
        Case::new(39, "two_signals_hide_no_changed_publication", signalled_in_a_session),
        Case::new(
            40,
            "publication_change_found_by_the_final_check_stops_the_standby",
            found_at_the_end,
        ),
        Case::new(38, "shutdown_while_publishing_the_slot_copy_is_announced", stopped_in_the_copy),
        Case::new(
            38,
            "foreign_lock_does_not_hide_a_halt_from_the_standby",
            announced_despite_a_lock,
        ),
        Case::new(38, "shutdown_before_detecting_an_advanced_slot_is_not_clean", stopped_unseen),
        Case::new(
            36,
            "backlog_of_a_dropped_slot_is_published_once_kafka_recovers",
            dropped_and_away,
        )
        .long(),
        Case::new(
            36,
            "in_flight_records_of_a_dropped_slot_are_published_once_kafka_recovers",
            in_flight,
        ),
        Case::new(36, "abandoned_events_are_counted", given_up),
    ]
}

async fn announced(fixture: &Fixture) {
    eventually(SHORT_TIMEOUT, "the halt is announced", async || {
        fixture.postgres.query_text(ANNOUNCED).await.as_deref() == Some("1")
    })
    .await;
}

/// A fixture with brokers of its own, which can be frozen.
async fn with_kafka() -> (Kafka, Fixture) {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    (kafka, fixture)
}

/// Freezes Kafka, and waits until everything acknowledged is confirmed: walpost has no reason to
/// check the slot.
async fn freeze(kafka: &Kafka, fixture: &Fixture) {
    kafka.pause();
    fixture.confirmed_at_rest().await;
}

async fn signalled_while_opening(report: CaseReport, signals: u32) {
    let mut fixture = Fixture::new().await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = proxied(&proxy);
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let before = fixture.judge().await;
    proxy.refuse();
    proxy.cut();
    eventually(SHORT_TIMEOUT, "the slot is free", async || fixture.walsender().await.is_none())
        .await;
    fixture.postgres.execute(&insert(5, 3)).await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    proxy.restore();
    announced(&fixture).await;
    for _ in 0..signals {
        walpost.terminate();
    }
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("by somebody else"), "{text}");
    report.exact(&before);
}

async fn signalled_in_a_session(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    take_out_and_put_back(&fixture).await;
    announced(&fixture).await;
    walpost.terminate();
    walpost.terminate();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
}

async fn take_out_and_put_back(fixture: &Fixture) {
    fixture.postgres.execute("ALTER PUBLICATION walpost DROP TABLE public.outbox").await;
    fixture.postgres.execute(&insert(7, 3)).await;
    fixture.postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.outbox").await;
}

/// Kafka is unavailable, so nothing is confirmed or checked before the end; the standby
/// instance is already waiting.
async fn found_at_the_end(report: CaseReport) {
    let (kafka, fixture) = with_kafka().await;
    let first = fixture.run_with(&["--drain-timeout", "4s"]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    kafka.pause();
    fixture.postgres.execute(&insert(10, 3)).await;
    take_out_and_put_back(&fixture).await;
    let second = fixture.command("run").start();
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    first.terminate();
    let text = report.ends(&first, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
    let text = report.ends(&second, 3).await;
    let words = ["the publication was changed", "has halted, and a person has to decide"];
    assert!(words.iter().any(|words| text.contains(words)), "{text}");
    kafka.resume();
}

async fn stopped_in_the_copy(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&many_transactions(600)).await;
    let first = slow_in_batches(&fixture);
    first.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    let second = slow_in_batches(&fixture);
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 500)
        .await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    first.await_line("publishing the rest of its temporary copy", SHORT_TIMEOUT).await;
    first.terminate();
    let text = report.ends(&first, 3).await;
    assert!(text.contains("by somebody else"), "{text}");
    assert!(text.contains("what follows is in no slot"), "{text}");
    let text = report.ends(&second, 3).await;
    assert!(text.contains("has halted, and a person has to decide"), "{text}");
    published_so_far(&report, &fixture).await;
}

/// Any role that can connect can hold the lock by which an instance announces a halt.
async fn announced_despite_a_lock(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("CREATE ROLE stranger LOGIN").await;
    let url = fixture.postgres.url_for("stranger");
    let (stranger, connection) = connect(&url, NoTls).await.expect("it can connect");
    tokio::spawn(connection);
    let lock = "SELECT pg_advisory_lock(2002873448, hashtext('walpost'))";
    stranger.batch_execute(lock).await.expect("PUBLIC is allowed to");
    fixture.postgres.execute(&many_transactions(600)).await;
    let first = slow_in_batches(&fixture);
    first.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    let second = slow_in_batches(&fixture);
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    let texts = (report.ends(&first, 3).await, report.ends(&second, 3).await);
    assert!(texts.0.contains("by somebody else"), "{texts:?}");
    assert!(texts.1.contains("has halted, and a person has to decide"), "{texts:?}");
    let warning = first.await_line("holds the advisory lock", SHORT_TIMEOUT).await;
    assert!(warning.contains("pg_terminate_backend("), "{warning}");
    report.exact(&fixture.judge().await);
    drop(stranger);
}

/// Everything published so far is in order.
async fn published_so_far(report: &CaseReport, fixture: &Fixture) {
    let (mut rows, records) = (fixture.committed().await, fixture.records().await);
    retain_published(&mut rows, &records);
    report.ok(&judge(&rows, std::iter::empty(), &records));
}

async fn stopped_unseen(report: CaseReport) {
    let (kafka, fixture) = with_kafka().await;
    fixture.postgres.execute(&many_transactions(600)).await;
    let walpost = slow_in_batches(&fixture);
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 500)
        .await;
    freeze(&kafka, &fixture).await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    walpost.terminate();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("by somebody else"), "{text}");
    assert!(!text.contains("confirmed to PostgreSQL"), "{text}");
    kafka.resume();
    published_so_far(&report, &fixture).await;
}

async fn dropped_and_away(report: CaseReport) {
    let (kafka, fixture) = with_kafka().await;
    fixture.postgres.execute(&many_transactions(600)).await;
    let walpost = slow_in_batches(&fixture);
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 500)
        .await;
    freeze(&kafka, &fixture).await;
    fixture.postgres.execute(&at_rest(DROP)).await;
    // Longer than an idle feed holds the slot.
    walpost.await_line("publishing the rest of its temporary copy", SHORT_TIMEOUT).await;
    kafka.resume();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("was read from a copy of the slot"), "{text}");
    report.ok(&fixture.judge().await);
}

/// The slot is dropped while a hundred records are in flight to an unavailable Kafka.
async fn dropped_in_flight() -> (Kafka, Fixture, Walpost) {
    let (kafka, fixture) = with_kafka().await;
    let walpost = fixture.run_with(&["--drain-timeout", "1s"]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.pause();
    fixture.postgres.execute(&insert(100, 3)).await;
    let sent = "SELECT sent_lsn >= pg_current_wal_lsn() FROM pg_stat_replication";
    eventually(SHORT_TIMEOUT, "all is sent", async || {
        fixture.postgres.query_text(sent).await.as_deref() == Some("t")
    })
    .await;
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
    fixture.postgres.execute(end).await;
    fixture.postgres.execute(&at_rest(DROP)).await;
    walpost.await_line("cannot continue; draining in-flight records", SHORT_TIMEOUT).await;
    (kafka, fixture, walpost)
}

async fn in_flight(report: CaseReport) {
    let (kafka, fixture, walpost) = dropped_in_flight().await;
    announced(&fixture).await;
    eventually(SHORT_TIMEOUT, "it is announced no more", async || {
        fixture.postgres.query_text(ANNOUNCED).await.as_deref() == Some("0")
    })
    .await;
    // Longer than the drain timeout and the announcement.
    assert_eq!(walpost.wait(Duration::from_secs(3)).await, None, "it waits for Kafka");
    kafka.resume();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("find out who dropped it"), "{text}");
    report.exact(&fixture.judge().await);
}

async fn given_up(report: CaseReport) {
    let (kafka, fixture, walpost) = dropped_in_flight().await;
    walpost.terminate();
    let (code, text) = ended(&walpost).await;
    assert_eq!(code, Some(3), "{text}");
    report.did("exit 3");
    assert!(text.contains("100 records that were read from it were not delivered"), "{text}");
    kafka.resume();
    published_so_far(&report, &fixture).await;
}
