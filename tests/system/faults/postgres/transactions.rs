//! Transactions that are more than an INSERT and a COMMIT (48, 49, 50, 54, 56).

use walpost_bed::fixture::{
    Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, assert_in_log_order, copy, insert, stop,
};
use walpost_bed::{Stop, eventually};

use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(48, "rolled_back_savepoint_is_not_published", savepoints),
        Case::new(49, "failed_ones_of_hundreds_of_subtransactions_publish_nothing", |report| {
            subtransactions(report, 150)
        }),
        Case::new(49, "failed_ones_of_100_000_subtransactions_publish_nothing", |report| {
            subtransactions(report, 50_000)
        })
        .long(),
        Case::new(50, "prepared_transaction_is_published_on_commit", prepared),
        Case::new(54, "copy_and_multi_row_inserts_are_published_in_order", many_at_once),
        Case::new(50, "slot_with_two_phase_enabled_is_rejected", two_phase),
        Case::new(56, "commits_during_a_long_transaction_are_published", long_open),
    ]
}

async fn savepoints(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let (many, few) = (insert(500, 3), insert(5, 3));
    let sql = format!(
        "BEGIN; SAVEPOINT s; {many}; ROLLBACK TO s; {few}; COMMIT;
         BEGIN; {many}; SAVEPOINT s; {few}; ROLLBACK TO s; COMMIT;
         BEGIN; SAVEPOINT s; {few}; RELEASE s; SAVEPOINT t; {few}; SAVEPOINT u; {few};
         RELEASE u; ROLLBACK TO t; {few}; COMMIT"
    );
    fixture.postgres.execute(&sql).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records.len(), 5 + 500 + 10);
    assert_in_log_order(&records);
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// Each turn has a subtransaction in a subtransaction; every third inner one
/// fails, every fifth outer one fails with what its inner one had done.
async fn subtransactions(report: CaseReport, turns: usize) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let row = |key: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
             VALUES ('order', {key}, 'placed')"
        )
    };
    let sql = format!(
        "DO $$ BEGIN
           {outside};
           FOR i IN 1..{turns} LOOP
             BEGIN
               {outer};
               BEGIN
                 {inner};
                 IF i % 3 = 0 THEN RAISE EXCEPTION 'inner'; END IF;
               EXCEPTION WHEN raise_exception THEN NULL; END;
               IF i % 5 = 0 THEN RAISE EXCEPTION 'outer'; END IF;
             EXCEPTION WHEN raise_exception THEN NULL; END;
           END LOOP;
         END $$",
        outside = row("'before'"),
        outer = row("(i % 7)::text"),
        inner = row("(i % 7)::text"),
    );
    fixture.postgres.execute(&sql).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let records = fixture.records().await;
    let outer = turns - turns / 5;
    let inner = outer - (turns / 3 - turns / 15);
    assert_eq!(records.len(), 1 + outer + inner);
    assert_in_log_order(&records);
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// With a restart of the server, and one of walpost, before it commits.
async fn prepared(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let prepare = |name: &str, key: &str| {
        let row = insert(3, 1).replace("(i % 1)::text", &format!("'{key}'"));
        format!("BEGIN; {row}; PREPARE TRANSACTION '{name}'")
    };
    fixture.postgres.execute(&prepare("kept", "kept")).await;
    fixture.postgres.execute(&prepare("dropped", "dropped")).await;
    fixture.postgres.execute(&insert(4, 2)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    assert_eq!(fixture.records().await.len(), 4, "what is only prepared is not published");
    let mark = walpost.mark();
    fixture.postgres.restart(Stop::Fast).await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
    stop(walpost).await;

    let walpost = fixture.run().await;
    fixture.postgres.execute("COMMIT PREPARED 'kept'").await;
    fixture.postgres.execute("ROLLBACK PREPARED 'dropped'").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records.len(), 7);
    assert!(records.iter().all(|record| record.key_text() != Some("dropped")));
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// The error has the SQL that replaces the slot by a copy, with which nothing is missing.
async fn two_phase(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture
        .postgres
        .execute(
            "SELECT pg_drop_replication_slot('walpost');
             SELECT pg_create_logical_replication_slot('walpost', 'pgoutput', false, true)",
        )
        .await;
    fixture.postgres.execute(&insert(4, 2)).await;
    fixture.postgres.execute(&format!("BEGIN; {}; PREPARE TRANSACTION 'one'", insert(3, 1))).await;
    let text = report.ends(&fixture.command("run").start(), 3).await;
    assert!(text.contains("two_phase"), "{text}");
    let (_, sql) = text.split_once("the same position: ").expect("what to do");
    let (sql, _) = sql.split_once('"').expect("the end of the message");
    // One statement at a time, as psql sends them.
    for statement in sql.split_inclusive(';') {
        fixture.postgres.execute(statement).await;
    }
    let walpost = fixture.run().await;
    fixture.postgres.execute("COMMIT PREPARED 'one'").await;
    fixture.postgres.execute(&insert(4, 2)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

async fn many_at_once(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let client = fixture.postgres.client().await;
    for _ in 0..20 {
        client.batch_execute(&insert(1, 3)).await.expect("a row");
    }
    client.batch_execute(&insert(200, 3)).await.expect("rows");
    client.batch_execute(&copy(&fixture, 1000, 3)).await.expect("copied rows");
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records.len(), 1220);
    assert_in_log_order(&records);
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

async fn long_open(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let row = |key: &str| insert(50, 1).replace("(i % 1)::text", &format!("'{key}'"));
    let client = fixture.postgres.client().await;
    client.batch_execute(&format!("BEGIN; {}", row("long"))).await.expect("begun");
    for turn in 0..20 {
        fixture.postgres.execute(&row("beside")).await;
        if turn % 5 == 0 {
            client.batch_execute(&row("long")).await.expect("more of it");
            // So that no change stays in memory only.
            fixture.postgres.execute("CHECKPOINT").await;
        }
    }
    fixture.confirmed(SHORT_TIMEOUT).await;
    assert_eq!(fixture.records().await.len(), 20 * 50);
    // Its rows are read from the log's past, by another session too.
    let mark = walpost.mark();
    fixture
        .postgres
        .query_text("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        .await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let before = fixture.postgres.wal_end().await;
    client.batch_execute("COMMIT").await.expect("committed");
    eventually(SHORT_TIMEOUT, "it is published", async || fixture.has_confirmed(&before).await)
        .await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    assert_in_log_order(&fixture.records().await);
    report.still_running(&walpost);
}
