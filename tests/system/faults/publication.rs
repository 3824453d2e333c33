//! The publication changes while walpost streams (39, 40): rows that PostgreSQL no longer sends
//! must not be confirmed.

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert};
use walpost_bed::oracle::judge;
use walpost_bed::{Major, Postgres, eventually};

use crate::case::{Case, CaseReport};

const MAJORS: [Major; 5] = [Major::V14, Major::V15, Major::V16, Major::V17, Major::V18];

const RELOAD: &str = "SELECT pg_reload_conf()";

const CREATE: &str = "CREATE PUBLICATION walpost FOR TABLE public.outbox WITH (publish = 'insert')";

pub fn cases() -> Vec<Case> {
    let fix = "ALTER PUBLICATION walpost ADD TABLE public.outbox";
    vec![
        case(39, "dropped_publication_hides_no_loss", "DROP PUBLICATION walpost", "", CREATE),
        case(39, "recreated_publication_hides_no_loss", "DROP PUBLICATION walpost", CREATE, ""),
        case(
            39,
            "publication_without_inserts_hides_no_loss",
            "ALTER PUBLICATION walpost SET (publish = 'update')",
            "",
            "ALTER PUBLICATION walpost SET (publish = 'insert')",
        ),
        case(
            40,
            "table_removed_from_the_publication_hides_no_loss",
            "ALTER PUBLICATION walpost DROP TABLE public.outbox",
            "",
            fix,
        ),
        case(
            40,
            "table_removed_and_added_again_hides_no_loss",
            "ALTER PUBLICATION walpost DROP TABLE public.outbox",
            fix,
            "",
        ),
        case(
            40,
            "table_replaced_under_the_same_name_hides_no_loss",
            "ALTER TABLE public.outbox RENAME TO outbox_old;
             CREATE TABLE public.outbox (LIKE public.outbox_old INCLUDING ALL)",
            "",
            fix,
        ),
        Case::new(40, "table_removed_while_disconnected_hides_no_loss", cut_off),
        Case::new(40, "table_removal_stops_the_standby_too", standing_by),
        Case::new(40, "table_removal_missed_by_a_frozen_instance_stops_the_standby", frozen).long(),
        Case::new(40, "uncommitted_table_removal_hides_no_loss", unseen),
        Case::new(40, "table_removed_before_the_last_confirmation_is_not_a_clean_stop", stopped),
        Case::new(40, "partition_made_unlogged_hides_no_loss", unlogged),
    ]
}

fn case(
    number: u32,
    name: &'static str,
    change: &'static str,
    back: &'static str,
    fix: &'static str,
) -> Case {
    Case::new(number, name, move |report| async move {
        for major in MAJORS {
            changed(&report, major, change, back, fix).await;
        }
    })
}

/// The publication changes in a way that hides rows, and perhaps back again at
/// once; an operator fixes it, and walpost continues.
async fn changed(report: &CaseReport, major: Major, change: &str, back: &str, fix: &str) {
    let fixture = Fixture::on(major).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let before = hide(&fixture, change).await;
    fixture.postgres.execute(back).await;
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("publication"), "{text}");
    assert_covered_less(&fixture, &before).await;
    fixture.postgres.execute(fix).await;
    if let Some((_, advance)) = text.split_once("SELECT pg_catalog.pg_replication_slot_advance(") {
        let (arguments, _) = advance.split_once("())").expect("its end");
        let advance = format!("SELECT pg_catalog.pg_replication_slot_advance({arguments}())");
        fixture.postgres.query_rows(&advance).await;
    }
    let _walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    judge_what_was_handed_out(&fixture, report).await;
}

/// Inserts rows that are not published; returns the end of WAL before them. It is read after the
/// change: WAL that `ALTER TABLE … SET UNLOGGED` writes before its commit may be confirmed.
async fn hide(fixture: &Fixture, change: &str) -> String {
    fixture.postgres.execute(change).await;
    let query = "SELECT pg_current_wal_insert_lsn()";
    let before = fixture.postgres.query_text(query).await.expect("an LSN");
    fixture.postgres.execute(&insert(5, 3).replace("placed", "hidden")).await;
    before
}

/// The slot is before what was hidden, so that nobody is told that it arrived.
async fn assert_covered_less(fixture: &Fixture, before: &str) {
    let confirmed = fixture.confirmed_flush().await.expect("a slot");
    let query = format!("SELECT '{confirmed}'::pg_lsn <= '{before}'::pg_lsn");
    let less = fixture.postgres.query_text(&query).await;
    assert_eq!(less.as_deref(), Some("t"), "{confirmed} is confirmed, hidden since {before}");
}

async fn judge_what_was_handed_out(fixture: &Fixture, report: &CaseReport) {
    let old = fixture.postgres.query_text("SELECT to_regclass('public.outbox_old')").await;
    let table = if old.is_some() {
        "(TABLE public.outbox_old UNION ALL TABLE public.outbox) AS rows"
    } else {
        "public.outbox"
    };
    let query =
        format!("SELECT id, aggregate_id FROM {table} WHERE event_type = 'placed' ORDER BY n");
    let rows = fixture.rows(&query).await;
    report.ok(&judge(&rows, std::iter::empty(), &fixture.records().await));
}

/// One that waits for the slot takes over from one that a change has stopped.
async fn standing_by(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let standby = fixture.command("run").start();
    standby.await_line("is in use by server process", SHORT_TIMEOUT).await;
    let before = hide(&fixture, "ALTER PUBLICATION walpost DROP TABLE public.outbox").await;
    fixture.postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.outbox").await;
    report.ends(&walpost, 3).await;
    let text = report.ends(&standby, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
    assert_covered_less(&fixture, &before).await;
    // Once an operator has fixed it.
    let _walpost = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    judge_what_was_handed_out(&fixture, &report).await;
}

/// The one that holds the slot never looks again, and the server waits for it for long.
async fn frozen(report: CaseReport) {
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(100));
    let fixture = Fixture::with(postgres).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let standby = fixture.command("run").start();
    standby.await_line("is in use by server process", SHORT_TIMEOUT).await;
    walpost.pause();
    let before = hide(&fixture, "ALTER PUBLICATION walpost DROP TABLE public.outbox").await;
    fixture.postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.outbox").await;
    fixture.postgres.execute(&insert(10, 3)).await;
    let status = standby.wait(LONG_TIMEOUT).await;
    walpost.kill9().await;
    let text = standby.stderr().join("\n");
    assert_eq!(status.and_then(|status| status.code()), Some(3), "{text}");
    report.did("exit 3");
    assert!(text.contains("the publication was changed"), "{text}");
    assert_covered_less(&fixture, &before).await;
    let _walpost = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    judge_what_was_handed_out(&fixture, &report).await;
}

/// The session is lost, and the table taken out before the next one.
async fn cut_off(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let pid = fixture.walsender().await.expect("a walsender");
    let query = "SELECT pg_current_wal_insert_lsn()";
    let before = fixture.postgres.query_text(query).await.expect("an LSN");
    let insert_hidden = insert(5, 3).replace("placed", "hidden");
    fixture
        .postgres
        .execute(&format!(
            "DO $$ BEGIN
               PERFORM pg_terminate_backend({pid});
               ALTER PUBLICATION walpost DROP TABLE public.outbox;
               {insert_hidden};
               ALTER PUBLICATION walpost ADD TABLE public.outbox;
             END $$"
        ))
        .await;
    report.ends(&walpost, 3).await;
    assert_covered_less(&fixture, &before).await;
    let _walpost = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    judge_what_was_handed_out(&fixture, &report).await;
}

/// The removal is in the log and waits for a standby: what commits behind it is
/// not handed out already, and no snapshot shows the removal.
async fn unseen(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let nobody = ["ALTER SYSTEM SET synchronous_standby_names = 'nobody'", RELOAD];
    fixture.postgres.query_rows(nobody[0]).await;
    fixture.postgres.query_rows(nobody[1]).await;
    eventually(SHORT_TIMEOUT, "commits wait for a standby", async || {
        let query = "SHOW synchronous_standby_names";
        fixture.postgres.query_text(query).await.as_deref() == Some("nobody")
    })
    .await;
    let query = "SELECT pg_current_wal_insert_lsn()";
    let before = fixture.postgres.query_text(query).await.expect("an LSN");
    let client = fixture.postgres.client().await;
    let removal = tokio::spawn(async move {
        client.batch_execute("ALTER PUBLICATION walpost DROP TABLE public.outbox").await
    });
    eventually(SHORT_TIMEOUT, "the removal waits", async || {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        fixture.postgres.query_text(query).await.as_deref() == Some("1")
    })
    .await;
    let hidden = insert(5, 3).replace("placed", "hidden");
    fixture.postgres.execute(&format!("SET synchronous_commit = local; {hidden}")).await;
    // So long it must not be confirmed, though nothing is to be seen.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_covered_less(&fixture, &before).await;
    fixture.postgres.query_rows("ALTER SYSTEM RESET synchronous_standby_names").await;
    fixture.postgres.query_rows(RELOAD).await;
    removal.await.expect("no panic").expect("the removal commits");
    report.ends(&walpost, 3).await;
    assert_covered_less(&fixture, &before).await;
    judge_what_was_handed_out(&fixture, &report).await;
}

/// The change and the signal come together: the last confirmation looks too.
async fn stopped(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let change = "ALTER PUBLICATION walpost DROP TABLE public.outbox";
    let before = hide(&fixture, change).await;
    walpost.terminate();
    report.ends(&walpost, 3).await;
    assert_covered_less(&fixture, &before).await;
    judge_what_was_handed_out(&fixture, &report).await;
}

/// Rows of an unlogged partition are in no log, whatever the publication says.
async fn unlogged(report: CaseReport) {
    let fixture = Fixture::on(Major::V18).await;
    let parted = "ALTER TABLE public.outbox RENAME TO before;
         CREATE TABLE public.outbox (LIKE public.before INCLUDING DEFAULTS) PARTITION BY RANGE (n);
         CREATE TABLE public.part PARTITION OF public.outbox DEFAULT;
         ALTER PUBLICATION walpost SET TABLE public.outbox;
         ALTER PUBLICATION walpost SET (publish_via_partition_root = true)";
    fixture.postgres.execute(parted).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let before = hide(&fixture, "ALTER TABLE public.part SET UNLOGGED").await;
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("ALTER TABLE public.part SET LOGGED"), "{text}");
    assert_covered_less(&fixture, &before).await;
    let (code, text) = fixture.run_to_its_end(&[]).await;
    assert_eq!(code, Some(78), "{text}");
    judge_what_was_handed_out(&fixture, &report).await;
}
