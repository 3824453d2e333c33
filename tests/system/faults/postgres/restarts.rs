//! The server stops, crashes, restarts, or terminates a connection (32 to 34).

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, proxied};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Proxy, Stop, Walpost, eventually};

use super::repeated_transactions;
use crate::case::{Case, CaseReport};

/// How long a server may take to shut down, with or without walpost.
const PROMPT: Duration = Duration::from_secs(8);

/// In a case under load.
const RESTARTS: usize = 3;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(32, "fast_restart_under_load_repeats_no_finished_transaction", |report| {
            under_load(report, ServerFailure::Stop(Stop::Fast))
        }),
        Case::new(32, "server_can_shut_down_while_kafka_is_unavailable", stop_without_kafka),
        Case::new(32, "server_not_started_yet_is_retried", starts_before_the_server),
        Case::new(33, "immediate_restart_under_load_repeats_no_finished_transaction", |report| {
            under_load(report, ServerFailure::Stop(Stop::Immediate))
        }),
        Case::new(33, "server_crash_under_load_repeats_no_finished_transaction", |report| {
            under_load(report, ServerFailure::Crash)
        }),
        Case::new(33, "column_added_before_a_crash_is_not_a_change", added_before_a_crash),
        Case::new(33, "lost_confirmation_is_sent_again", lost_confirmation),
        Case::new(34, "terminated_walsender_is_replaced", |report| terminated(report, "walsender")),
        Case::new(34, "terminated_control_connection_is_replaced", |report| {
            terminated(report, "client backend")
        }),
    ]
}

#[derive(Clone, Copy)]
enum ServerFailure {
    Stop(Stop),
    /// SIGKILL to the postmaster and its children.
    Crash,
}

async fn under_load(report: CaseReport, failure: ServerFailure) {
    let fixture = Fixture::new().await;
    let writer = Writer::start(&fixture.postgres, 200);
    let walpost = fixture.run().await;
    for _ in 0..RESTARTS {
        writer.commits(30).await;
        let mark = walpost.mark();
        match failure {
            ServerFailure::Crash => fixture.postgres.kill9().await,
            ServerFailure::Stop(how) => {
                let stopped = fixture.postgres.stop(how, PROMPT).await;
                assert!(stopped, "PostgreSQL does not stop:\n{}", fixture.postgres.log_tail(10));
            }
        }
        fixture.postgres.start_again().await;
        session_resumes(&walpost, mark).await;
    }
    writer.commits(30).await;
    report.ok(&fixture.judge_after(writer).await);
    // A transaction that was being read when the server stopped is read again from its start.
    let repeated = repeated_transactions(&fixture.records().await);
    assert!(repeated <= RESTARTS, "rows of {repeated} transactions came again");
    report.still_running(&walpost);
}

/// Where the server went during a session ("lost the connection … reconnecting"), or between two:
/// that of a catch-up read and the next ("cannot connect … retrying").
const DISCONNECTED: &str = "PostgreSQL; re";

/// It logs the lost session and the next one.
async fn session_resumes(walpost: &Walpost, mark: (usize, usize)) {
    walpost.await_line_after(mark, DISCONNECTED, SHORT_TIMEOUT).await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
}

async fn stop_without_kafka(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let walpost = fixture.run_with(&["--in-flight-bytes", "1MiB"]).await;
    // To each partition, so that it is the budget which stops the reading.
    fixture.postgres.execute(&insert(50, 50)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.pause();
    // More than the budget: reading has stopped, and the walsender has more to send.
    let client = fixture.postgres.client().await;
    for _ in 0..500 {
        client.batch_execute(&insert(100, 50)).await.expect("rows");
    }
    drop(client);
    let mark = walpost.mark();
    let stopped = fixture.postgres.stop(Stop::Fast, PROMPT).await;
    assert!(stopped, "PostgreSQL does not stop:\n{}", fixture.postgres.log_tail(10));
    report.did("let the server stop");
    fixture.postgres.start_again().await;
    kafka.resume();
    session_resumes(&walpost, mark).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    // Only the transaction that was being read is repeated.
    let repeated = repeated_transactions(&fixture.records().await);
    assert!(repeated <= 1, "rows of {repeated} transactions came again");
    report.still_running(&walpost);
}

async fn starts_before_the_server(report: CaseReport) {
    let fixture = Fixture::new().await;
    assert!(fixture.postgres.stop(Stop::Fast, PROMPT).await);
    let walpost = fixture.command("run").start();
    walpost.await_line("cannot connect to PostgreSQL; retrying", SHORT_TIMEOUT).await;
    fixture.postgres.start_again().await;
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

async fn lost_confirmation(report: CaseReport) {
    let mut fixture = Fixture::new().await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = proxied(&proxy);
    // Each 15 s it logs the running transactions, and the slot is saved at the next confirmation.
    fixture.postgres.pause_background_writer().await;
    let walpost = fixture.run().await;
    for _ in 0..3 {
        fixture.postgres.execute(&insert(10, 3)).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
    }
    let before = fixture.confirmed_flush().await.expect("the slot");
    // walpost must not confirm again before the test has read the position.
    let mark = walpost.mark();
    proxy.refuse();
    proxy.cut();
    fixture.postgres.kill9().await;
    fixture.postgres.start_again().await;
    let after = fixture.confirmed_flush().await.expect("the slot");
    let is_lower = format!("SELECT '{after}'::pg_lsn < '{before}'::pg_lsn");
    let is_lower = fixture.postgres.query_text(&is_lower).await;
    assert_eq!(is_lower.as_deref(), Some("t"), "no confirmation was lost: {before}, then {after}");
    proxy.restore();
    session_resumes(&walpost, mark).await;
    eventually(SHORT_TIMEOUT, "the slot is back at its position", async || {
        fixture.has_confirmed(&before).await
    })
    .await;
    report.did("confirmed again");
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

async fn terminated(report: CaseReport, whose: &str) {
    let fixture = Fixture::new().await;
    let writer = Writer::start(&fixture.postgres, 200);
    let walpost = fixture.run().await;
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE application_name = 'walpost' AND backend_type = '{whose}'"
    );
    for _ in 0..RESTARTS {
        writer.commits(20).await;
        let mark = walpost.mark();
        assert_eq!(fixture.postgres.query_text(&end).await, Some("t".into()));
        session_resumes(&walpost, mark).await;
    }
    report.ok(&fixture.judge_after(writer).await);
    let repeated = repeated_transactions(&fixture.records().await);
    assert!(repeated <= RESTARTS, "rows of {repeated} transactions came again");
    report.still_running(&walpost);
}

/// The slot's position on disk is from before the change: its rows are read again, and described as
/// they were then.
async fn added_before_a_crash(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("ALTER TABLE public.outbox DROP COLUMN headers; CHECKPOINT").await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    fixture.postgres.execute("ALTER TABLE public.outbox ADD COLUMN headers jsonb").await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    fixture.postgres.restart(Stop::Immediate).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}
