//! The outbox's columns are not what an event needs.

use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_missing() {
    let mut stage = Stage::new().await;
    stage.execute("ALTER TABLE outbox DROP COLUMN aggregate_id").await;
    stage.fixed("error", "column_missing").await;
    stage.check().await.is_clean();
    stage.option("--topic", "{tenant}.events");
    stage.fixed("error", "column_missing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_generated() {
    let stage = Stage::new().await;
    let change = "ALTER TABLE outbox DROP COLUMN aggregate_id, \
                  ADD COLUMN aggregate_id text GENERATED ALWAYS AS (upper(event_type)) STORED NOT NULL";
    stage.execute(change).await;
    stage.fixed("error", "column_generated").await;
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_has_a_type_that_cannot_be_read() {
    let mut stage = Stage::new().await;
    stage.execute("CREATE DOMAIN blob AS bytea; CREATE DOMAIN image AS blob").await;
    for domain in ["blob", "image"] {
        let change = format!("ALTER TABLE outbox DROP COLUMN payload, ADD COLUMN payload {domain}");
        stage.execute(&change).await;
        stage.fixed("error", "column_domain_bytea").await;
    }
    stage.execute("ALTER TABLE outbox DROP COLUMN headers, ADD COLUMN headers text[]").await;
    stage.fixed("error", "column_type").await;
    stage.check().await.is_clean();
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, "outbox.columns.timestamp = 'at'\n").expect("written");
    stage.option("--config", file.to_str().expect("UTF-8"));
    stage.execute("ALTER TABLE outbox ADD COLUMN at text NOT NULL DEFAULT '2026-01-01'").await;
    stage.fixed("error", "column_type").await;
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_may_be_null() {
    let stage = Stage::new().await;
    for column in ["aggregate_id", "aggregate_type"] {
        stage.execute(&format!("ALTER TABLE outbox ALTER {column} DROP NOT NULL")).await;
        stage.fixed("warning", "column_nullable").await;
    }
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_is_none_that_debeziums_converter_for_bytes_takes() {
    let mut stage = Stage::empty().await;
    let create = "CREATE TABLE public.outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
                  aggregateid text NOT NULL, payload jsonb)";
    stage.execute(create).await;
    stage.init().await;
    stage.option("--profile", "debezium-binary");
    let follow = async |stage: &mut Stage, _: &str| {
        stage.option("--profile", "debezium-binary-json");
    };
    stage.advised("error", "column_type", &["debezium-binary-json"], follow).await;
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debezium_would_write_a_default() {
    let mut stage = Stage::empty().await;
    stage
        .execute(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
             aggregateid text NOT NULL, type text, payload text DEFAULT 'none')",
        )
        .await;
    stage.init().await;
    stage.check().await.is_clean();
    stage.option("--profile", "debezium");
    stage.fixed("warning", "column_default").await;
    stage.check().await.is_clean();
}
