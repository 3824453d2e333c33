//! The publication does not hand out what it should.

use walpost_bed::{Major, Stop};

use crate::stage::{Report, Stage, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_missing_beside_a_slot() {
    let stage = Stage::new().await;
    stage.execute("DROP PUBLICATION walpost").await;
    stage.fixed("error", "publication_missing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_younger_than_what_the_slot_has_still_to_read() {
    // A server of its own: another slot that is far behind looks the same.
    let mut stage = Stage::on(sound(Major::V15)).await;
    stage.execute("DROP PUBLICATION walpost").await;
    stage.execute("INSERT INTO outbox VALUES (gen_random_uuid(), 'a', 'b', 'c')").await;
    stage.execute("CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')").await;
    let follow = async |stage: &mut Stage, advice: &str| {
        let at = advice.find("SELECT").expect("a statement");
        // The slot lets go of the old catalogs at a later confirmation.
        walpost_bed::eventually(walpost_bed::scene::SOON, "the slot moves on", async || {
            stage.psql("CHECKPOINT;");
            stage.psql(&advice[at..]);
            let young = "SELECT bool_and(s.catalog_xmin::text::int8 > p.xmin::text::int8) \
                         FROM pg_replication_slots s, pg_publication p";
            stage.postgres.query_text(young).await.as_deref() == Some("t")
        })
        .await;
    };
    let words = ["pg_replication_slot_advance"];
    stage.advised("warning", "publication_young", &words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lacks_the_table_or_inserts() {
    let stage = Stage::new().await;
    stage.execute("ALTER PUBLICATION walpost DROP TABLE outbox").await;
    stage.fixed("error", "publication_table").await;
    stage.execute("ALTER PUBLICATION walpost SET (publish = 'update, delete')").await;
    stage.fixed("error", "publication_inserts").await;
    let published = "SELECT pubupdate AND pubdelete FROM pg_publication";
    let client = stage.postgres.client_of(&stage.database).await;
    let row = client.query_one(published, &[]).await.expect("a row");
    assert!(row.get::<_, bool>(0), "what it published for others stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_has_the_partitions_in_place_of_the_table() {
    let stage = Stage::new().await;
    stage
        .execute(
            "DROP TABLE outbox; \
             CREATE TABLE outbox (id uuid NOT NULL, aggregate_type text NOT NULL, \
                 aggregate_id text NOT NULL, event_type text, payload jsonb) PARTITION BY LIST (event_type); \
             CREATE TABLE outbox_a PARTITION OF outbox DEFAULT; \
             ALTER PUBLICATION walpost SET (publish_via_partition_root = false); \
             ALTER PUBLICATION walpost ADD TABLE outbox",
        )
        .await;
    stage.fixed("error", "publication_partition_root").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_filters_rows_or_columns() {
    let stage = Stage::new().await;
    let relist = |what: &str| {
        format!(
            "BEGIN; ALTER PUBLICATION walpost DROP TABLE outbox; \
             ALTER PUBLICATION walpost ADD TABLE outbox {what}; COMMIT"
        )
    };
    stage.execute(&relist("WHERE (event_type <> 'noise')")).await;
    stage.fixed("warning", "publication_row_filter").await;
    stage.execute(&relist("(id, aggregate_type, aggregate_id)")).await;
    let report = stage.fixed("error", "column_left_out").await;
    // The first that is not in the list.
    let what = report.finding("error", "column_left_out")["what"].to_string();
    assert!(what.contains("event_type"), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_has_the_table_by_its_schema_or_with_all_others() {
    let stage = Stage::new().await;
    stage.execute("DROP PUBLICATION walpost").await;
    stage
        .execute(
            "CREATE SCHEMA \"Others\"; \
             CREATE PUBLICATION walpost FOR TABLES IN SCHEMA public, \"Others\"",
        )
        .await;
    let halts = |report: &Report, code| {
        let why = report.finding("warning", code)["why"].as_str().expect("a reason").to_owned();
        assert!(why.contains("can halt `run` (exit code 4)"), "{why}");
    };
    halts(&stage.fixed("warning", "publication_schema").await, "publication_schema");
    // A table that is listed does not keep others from being published.
    stage.execute("ALTER PUBLICATION walpost ADD TABLES IN SCHEMA \"Others\"").await;
    stage.fixed("warning", "publication_schema").await;
    stage.execute("DROP PUBLICATION walpost; CREATE PUBLICATION walpost FOR ALL TABLES").await;
    halts(&stage.fixed("warning", "publication_all_tables").await, "publication_all_tables");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_14_has_neither_filters_nor_schemas() {
    let stage = Stage::on(sound(Major::V14)).await;
    stage.check().await.is_clean();
    stage.execute("ALTER PUBLICATION walpost DROP TABLE outbox").await;
    stage.fixed("error", "publication_table").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_missing_or_is_none() {
    let mut stage = Stage::new().await;
    stage.option("--table", "public.events");
    let report = stage.check().await;
    assert_eq!(report.finding("error", "table_missing")["fix"], "walpost init --apply");
    stage.execute("CREATE VIEW events AS SELECT * FROM outbox").await;
    let follow = async |stage: &mut Stage, _: &str| stage.option("--table", "public.outbox");
    stage.advised("error", "table_kind", &["--table"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_are_in_no_log() {
    let stage = Stage::new().await;
    stage
        .execute("BEGIN; ALTER PUBLICATION walpost DROP TABLE outbox; ALTER TABLE outbox SET UNLOGGED; COMMIT")
        .await;
    stage.fixed("error", "table_unlogged").await;
    stage.fixed("error", "publication_table").await;
    stage.check().await.has_no("table_unlogged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_a_standby() {
    let mut stage = Stage::on(sound(Major::V17)).await;
    let file = stage.postgres.data_dir().join("standby.signal");
    stage.postgres.stop(Stop::Fast, walpost_bed::scene::SOON).await;
    std::fs::write(&file, "").expect("written");
    stage.postgres.start_again().await;
    let report = stage.check().await;
    report.finding("warning", "slot_not_synced");
    stage.fixed("warning", "sync_replication_slots").await;
    stage.fixed("warning", "hot_standby_feedback").await;
    let follow = async |stage: &mut Stage, _: &str| {
        stage.source.push_str("?target_session_attrs=primary");
        stage.check().await.finding("error", "target_session_attrs");
        stage.psql("SELECT pg_promote();");
    };
    stage.advised("warning", "standby", &["target_session_attrs=primary"], follow).await;
}
