//! The outbox table's columns change while walpost streams (41 to 43).

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, assert_in_log_order, insert, record_of};
use walpost_bed::oracle::judge;

use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    let changed = |name, changes: &'static [&'static str]| {
        move |number| Case::new(number, name, move |report| changes_pass(report, changes))
    };
    let gone = |name, change| Case::new(42, name, move |report| halts_at(report, change));
    vec![
        changed(
            "added_columns_are_accepted",
            &[
                "ADD COLUMN region text",
                // It writes the whole table again.
                "ADD COLUMN note text DEFAULT md5(random()::text)",
                "ADD COLUMN always int GENERATED ALWAYS AS (1) STORED",
            ],
        )(41),
        gone("dropped_aggregate_id_halts", ("DROP COLUMN aggregate_id", "aggregate_id")),
        gone("dropped_payload_halts", ("DROP COLUMN payload", "payload")),
        gone("dropped_id_halts", ("DROP COLUMN id", "id")),
        gone(
            "renamed_aggregate_type_halts",
            ("RENAME COLUMN aggregate_type TO kind", "aggregate_type"),
        ),
        gone("renamed_payload_halts", ("RENAME COLUMN payload TO body", "payload")),
        gone(
            "renamed_event_type_column_halts_if_configured",
            ("RENAME COLUMN event_type TO happened", "event_type"),
        ),
        Case::new(42, "renamed_column_with_updated_configuration_loses_nothing", renamed),
        Case::new(42, "rename_while_stopped_halts", renamed_while_stopped),
        Case::new(42, "unused_columns_can_be_dropped", unused_dropped),
        Case::new(42, "dropped_optional_column_halts", optional),
        Case::new(42, "optional_column_dropped_between_two_sessions_halts", optional_between),
        changed(
            "column_types_can_change_within_a_transaction",
            &[
                "ALTER COLUMN payload TYPE text",
                "ALTER COLUMN payload TYPE json USING payload::json",
                "ALTER COLUMN aggregate_id TYPE varchar(20)",
                "ALTER COLUMN n TYPE numeric",
                "ALTER COLUMN event_type TYPE name",
            ],
        )(43),
        Case::new(43, "changed_types_apply_to_key_and_payload", new_types),
    ]
}

/// Each change is made in the middle of a transaction that inserts before and after.
async fn changes_pass(report: CaseReport, changes: &'static [&'static str]) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let row = insert(10, 2);
    for change in changes {
        let sql = format!("BEGIN; {row}; ALTER TABLE public.outbox {change}; {row}; COMMIT");
        fixture.postgres.execute(&sql).await;
        fixture.postgres.execute(&row).await;
    }
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records.len(), changes.len() * 30);
    assert!(records.iter().all(|record| record.value_text().is_some()));
    assert_in_log_order(&records);
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// Delivers all before the change, in its transaction too, and names what is missing.
async fn halts_at(report: CaseReport, (change, role): (&'static str, &'static str)) {
    let configured = ["[outbox.columns]", "event_type = \"event_type\""].join("\n");
    let fixture = Fixture::new().await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, configured).expect("written");
    let walpost = fixture.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let rows = {
        fixture.postgres.execute(&insert(10, 3)).await;
        fixture.committed().await
    };
    let before = fixture.postgres.wal_end().await;
    fixture.postgres.execute(&format!("ALTER TABLE public.outbox {change}")).await;
    let columns = match role {
        "event_type" => "(aggregate_type, aggregate_id, happened) VALUES ('order', '1', 'placed')",
        "aggregate_id" => "(aggregate_type, event_type) VALUES ('order', 'placed')",
        "aggregate_type" => "(kind, aggregate_id, event_type) VALUES ('order', '1', 'placed')",
        _ => "(aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'placed')",
    };
    fixture.postgres.execute(&format!("INSERT INTO public.outbox {columns}")).await;
    let after = fixture.postgres.wal_end().await;
    let text = report.ends(&walpost, 4).await;
    let line = text.lines().last().unwrap_or_default();
    assert!(line.contains("table public.outbox has no column for `"), "{line}");
    assert!(line.contains(&format!("outbox.columns.{role}")), "{line}");
    assert!(fixture.has_confirmed(&before).await && !fixture.has_confirmed(&after).await);
    report.exact(&judge(&rows, std::iter::empty(), &fixture.records().await));
}

/// What the halt asks for is enough, where no transaction has rows of both names.
async fn renamed(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let row = insert(10, 3);
    let renamed = row.replace("payload", "body");
    fixture.postgres.execute(&row).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    fixture.postgres.execute("ALTER TABLE public.outbox RENAME COLUMN payload TO body").await;
    fixture.postgres.execute(&renamed).await;
    fixture.postgres.execute(&renamed).await;
    report.ends(&walpost, 4).await;
    published_as_body(&report, &fixture).await;
}

/// With rows of the old name still to be read, the column has to have it again.
async fn renamed_while_stopped(report: CaseReport) {
    let fixture = Fixture::new().await;
    let row = insert(10, 3);
    fixture.postgres.execute(&row).await;
    fixture.postgres.execute("ALTER TABLE public.outbox RENAME COLUMN payload TO body").await;
    fixture.postgres.execute(&row.replace("payload", "body")).await;
    report.ends(&fixture.command("run").start(), 78).await;
    assert!(fixture.records().await.is_empty());
    fixture.postgres.execute("ALTER TABLE public.outbox RENAME COLUMN body TO payload").await;
    report.ends(&fixture.command("run").start(), 4).await;
    assert_eq!(fixture.records().await.len(), 10);
    fixture.postgres.execute("ALTER TABLE public.outbox RENAME COLUMN payload TO body").await;
    published_as_body(&report, &fixture).await;
}

/// All is published once `outbox.columns.payload` is `body`.
async fn published_as_body(report: &CaseReport, fixture: &Fixture) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, "[outbox.columns]\npayload = \"body\"\n").expect("written");
    let next = fixture.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    fixture.postgres.execute(&insert(10, 3).replace("payload", "body")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&next);
}

async fn unused_dropped(report: CaseReport) {
    changes_pass(
        report,
        &["ADD COLUMN region text", "DROP COLUMN region", "DROP COLUMN created_at"],
    )
    .await;
}

async fn new_types(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let row = |id: u32, key: &str, payload: &str| {
        format!(
            "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             VALUES (md5('{id}')::uuid, 'order', {key}, 'placed', {payload})"
        )
    };
    let sql = [
        "BEGIN".to_owned(),
        row(1, "'007'", "'{\"a\":  1}'"),
        "ALTER TABLE public.outbox ALTER payload TYPE bytea USING convert_to(payload::text, 'UTF8')"
            .to_owned(),
        row(2, "'007'", "'\\x00ff'"),
        "ALTER TABLE public.outbox ALTER aggregate_id TYPE int USING aggregate_id::int".to_owned(),
        row(3, "7", "'\\xff00'"),
        "COMMIT".to_owned(),
    ];
    fixture.postgres.execute(&sql.join(";")).await;
    let rows = "SELECT md5(i::text)::uuid, CASE WHEN i < 3 THEN '007' ELSE '7' END
                  FROM generate_series(1, 3) AS i";
    let rows = fixture.rows(rows).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    report.exact(&judge(&rows, std::iter::empty(), &records));
    let value = |at: usize| record_of(&records, &rows[at].id).value.clone();
    assert_eq!(value(0).as_deref(), Some(b"{\"a\": 1}".as_slice()));
    assert_eq!(value(1).as_deref(), Some([0, 0xff].as_slice()));
    assert_eq!(value(2).as_deref(), Some([0xff, 0].as_slice()));
    report.still_running(&walpost);
}

/// Events had a type so far: whether they continue without is for an operator to say.
async fn optional(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.postgres.execute("ALTER TABLE public.outbox DROP COLUMN event_type").await;
    let row = "INSERT INTO public.outbox (aggregate_type, aggregate_id) VALUES ('order', '1')";
    fixture.postgres.execute(row).await;
    let text = report.ends(&walpost, 4).await;
    assert!(text.contains("no column `event_type` any more"), "{text}");
    let _walpost = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
}

async fn optional_between(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let pid = fixture.walsender().await.expect("a walsender");
    let change = format!(
        "DO $$ BEGIN
           PERFORM pg_terminate_backend({pid});
           ALTER TABLE public.outbox RENAME COLUMN event_type TO kind;
           INSERT INTO public.outbox (aggregate_type, aggregate_id, kind) VALUES ('order', '1', 'k');
         END $$"
    );
    fixture.postgres.execute(&change).await;
    let text = report.ends(&walpost, 4).await;
    assert!(text.contains("no column `event_type` any more"), "{text}");
    assert_eq!(fixture.records().await.len(), 10);
    let _walpost = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
}
