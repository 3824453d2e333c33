//! Outbox columns that are not suitable for events.

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_column_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.execute("ALTER TABLE outbox DROP COLUMN aggregate_id").await;
    fixture.finding_is_fixed("error", "column_missing").await;
    fixture.check().await.is_clean();
    fixture.option("--topic", "{tenant}.events");
    fixture.finding_is_fixed("error", "column_missing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistyped_column_and_types_that_publish_something_else_are_reported() {
    let mut fixture = Fixture::new().await;
    fixture.option("--topic", "outbox.event.{agregate_type}");
    let report = fixture.check().await;
    let fix = report.finding("error", "column_missing")["fix"].to_string();
    assert!(fix.contains("did you mean \\\"aggregate_type\\\"?"), "{fix}");
    fixture.option("--topic", "outbox.event.{aggregate_type}");
    fixture
        .execute(
            "ALTER TABLE outbox ALTER aggregate_id TYPE bytea USING ''::bytea, \
             ALTER payload TYPE oid USING 0",
        )
        .await;
    let report = fixture.check().await;
    let texts = format!("{report:?}");
    for part in ["x00ff10", "large object"] {
        assert!(texts.contains(part), "{part} in {texts}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_column_is_reported() {
    let fixture = Fixture::new().await;
    let change = "ALTER TABLE outbox DROP COLUMN aggregate_id, \
                  ADD COLUMN aggregate_id text GENERATED ALWAYS AS (upper(event_type)) STORED NOT NULL";
    fixture.execute(change).await;
    fixture.finding_is_fixed("error", "column_generated").await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_column_type_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.execute("ALTER TABLE outbox DROP COLUMN headers, ADD COLUMN headers text[]").await;
    fixture.finding_is_fixed("error", "column_type").await;
    fixture.check().await.is_clean();
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, "outbox.columns.timestamp = 'at'\n").expect("written");
    fixture.option("--config", file.to_str().expect("UTF-8"));
    fixture.execute("ALTER TABLE outbox ADD COLUMN at text NOT NULL DEFAULT '2026-01-01'").await;
    fixture.finding_is_fixed("error", "column_type").await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nullable_column_is_reported() {
    let fixture = Fixture::new().await;
    for column in ["aggregate_id", "aggregate_type"] {
        fixture.execute(&format!("ALTER TABLE outbox ALTER {column} DROP NOT NULL")).await;
        fixture.finding_is_fixed("warning", "column_nullable").await;
    }
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payload_unsupported_by_debeziums_bytes_converter_is_reported() {
    let mut fixture = Fixture::empty().await;
    let create = "CREATE TABLE public.outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
                  aggregateid text NOT NULL, payload jsonb)";
    fixture.execute(create).await;
    fixture.init().await;
    fixture.option("--profile", "debezium-binary");
    let follow = async |fixture: &mut Fixture, _: &str| {
        fixture.option("--profile", "debezium-binary-json");
    };
    fixture.finding_with_advice("error", "column_type", &["debezium-binary-json"], follow).await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn column_default_that_debezium_would_write_is_reported() {
    let mut fixture = Fixture::empty().await;
    fixture
        .execute(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
             aggregateid text NOT NULL, type text, payload text DEFAULT 'none')",
        )
        .await;
    fixture.init().await;
    fixture.check().await.is_clean();
    fixture.option("--profile", "debezium");
    fixture.finding_is_fixed("warning", "column_default").await;
    fixture.check().await.is_clean();
}
