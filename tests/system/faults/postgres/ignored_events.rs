//! Changes that are not events (52, 53, 55): counted or ignored, and they never keep the slot from
//! advancing.

use walpost_bed::eventually;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::oracle::judge;

use crate::case::{Case, CaseReport};

const EVERYTHING: &str =
    "ALTER PUBLICATION walpost SET (publish = 'insert, update, delete, truncate')";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(52, "truncated_outbox_loses_no_record", truncated),
        Case::new(52, "origin_type_and_message_messages_are_ignored", origins_types_messages),
        Case::new(53, "updates_and_deletes_are_not_published", updates_and_deletes),
        Case::new(55, "idle_outbox_retains_no_wal_under_heavy_writes", idle_outbox),
    ]
}

async fn truncated(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(EVERYTHING).await;
    fixture.postgres.execute("CREATE TABLE public.bystander (id int)").await;
    fixture.postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.bystander").await;
    let walpost = fixture.run().await;
    let rows = |from: u32, to: u32| {
        format!(
            "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type)
               SELECT md5(i::text)::uuid, 'order', 'k', 'placed' FROM generate_series({from}, {to}) AS i"
        )
    };
    // Rows before it, and on both sides of it in the transaction that truncates.
    let truncate = "TRUNCATE public.outbox, public.bystander";
    let sql = format!(
        "{}; BEGIN; {}; {truncate}; {}; COMMIT; TRUNCATE public.bystander",
        rows(1, 5),
        rows(6, 10),
        rows(11, 13)
    );
    fixture.postgres.execute(&sql).await;
    let rows =
        fixture.rows("SELECT md5(i::text)::uuid, 'k' FROM generate_series(1, 13) AS i").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&judge(&rows, std::iter::empty(), &fixture.records().await));
    assert_eq!(fixture.committed().await.len(), 3);
    let last = stop(walpost).await;
    assert_eq!(last["ignored_truncates"], 1, "{last}");
    report.did("counted 1 TRUNCATE");
}

async fn origins_types_messages(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture
        .postgres
        .execute(
            "CREATE TYPE public.mood AS ENUM ('good', 'bad');
             CREATE DOMAIN public.name_of_kind AS text;
             ALTER TABLE public.outbox ADD COLUMN mood public.mood DEFAULT 'good',
               ALTER aggregate_type TYPE public.name_of_kind",
        )
        .await;
    fixture.postgres.query_text("SELECT pg_replication_origin_create('elsewhere')").await;
    let walpost = fixture.run().await;
    let client = fixture.postgres.client().await;
    let row = insert(3, 2);
    let emit = |outside: bool| {
        format!("SELECT pg_logical_emit_message({}, 'outbox', 'no event')", !outside)
    };
    for turn in 0..10 {
        let origin = "SELECT pg_replication_origin_session_setup('elsewhere')";
        client.batch_execute(origin).await.expect("an origin");
        let at = format!("SELECT pg_replication_origin_xact_setup('0/{turn}1', now())");
        let sql = format!("BEGIN; {row}; {at}; {}; {row}; {}; COMMIT", emit(false), emit(true));
        client.batch_execute(&sql).await.expect("a transaction of another origin");
        let reset = "SELECT pg_replication_origin_session_reset()";
        client.batch_execute(reset).await.expect("no origin");
        client.batch_execute(&format!("{row}; {}", emit(true))).await.expect("one of our own");
    }
    fixture.confirmed(SHORT_TIMEOUT).await;
    assert_eq!(fixture.records().await.len(), 10 * 9);
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

async fn updates_and_deletes(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(EVERYTHING).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 2)).await;
    let rows = fixture.committed().await;
    let update = "UPDATE public.outbox SET event_type = 'changed' WHERE n";
    // One of them in place, one with a new key, and the rest next to each other.
    fixture.postgres.execute(&format!("{update} <= 2; {update} = 3")).await;
    fixture.postgres.execute("UPDATE public.outbox SET id = gen_random_uuid() WHERE n = 4").await;
    fixture.postgres.execute("DELETE FROM public.outbox WHERE n > 7").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    report.exact(&judge(&rows, std::iter::empty(), &records));
    assert!(records.iter().all(|record| record.header("event_type") == Some("placed")));
    let last = stop(walpost).await;
    assert_eq!((&last["ignored_updates"], &last["ignored_deletes"]), (&4.into(), &3.into()));
    assert_eq!(last["delivered"], 10, "{last}");
    report.did("counted 4 and 3");
}

async fn idle_outbox(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("CREATE TABLE public.other (id int, t text)").await;
    let walpost = fixture.run().await;
    let at_first =
        fixture.postgres.query_text("SELECT restart_lsn FROM pg_replication_slots").await;
    let recyclable = format!(
        "SELECT restart_lsn - '{}' > 8388608 FROM pg_replication_slots",
        at_first.expect("the slot")
    );
    let client = fixture.postgres.client().await;
    let turn =
        "INSERT INTO public.other SELECT i, repeat('x', 500) FROM generate_series(1, 2000) AS i;
         DELETE FROM public.other";
    eventually(LONG_TIMEOUT, "the log that the slot keeps moves on by megabytes", async || {
        client.batch_execute(turn).await.expect("traffic");
        // It notes which transactions run, which decoding needs to release the log.
        client.batch_execute("CHECKPOINT").await.expect("a checkpoint");
        fixture.postgres.query_text(&recyclable).await == Some("t".into())
    })
    .await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    assert!(fixture.records().await.is_empty());
    let last = stop(walpost).await;
    assert_eq!(last["delivered"], 0, "{last}");
    report.did("confirmed");
}
