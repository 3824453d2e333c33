//! Publications that do not publish what they should.

use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{Major, Stop, eventually};

use crate::fixture::{Fixture, Report, assert_init, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_publication_with_an_existing_slot_is_reported() {
    let fixture = Fixture::new().await;
    fixture.execute("DROP PUBLICATION walpost").await;
    fixture.finding_is_fixed("error", "publication_missing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_newer_than_the_slots_position_is_reported() {
    // A server of its own: another slot far behind would look the same.
    let mut fixture = Fixture::on(sound(Major::V15)).await;
    fixture.execute("DROP PUBLICATION walpost").await;
    fixture.execute("INSERT INTO outbox VALUES (gen_random_uuid(), 'a', 'b', 'c')").await;
    fixture.execute("CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')").await;
    let warning = "the publication may be newer than the slot's position";
    // Another slot is as far behind, so the age of the publication is not known.
    fixture.execute("SELECT pg_create_logical_replication_slot('behind', 'pgoutput')").await;
    let run = fixture.run().start();
    run.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    assert!(!run.said(warning), "{:?}", run.stderr());
    drop(run);
    fixture.check().await.has_no("publication_newer_than_slot");
    fixture.execute("SELECT pg_drop_replication_slot('behind')").await;
    fixture.run().start().await_line(warning, SHORT_TIMEOUT).await;
    let follow = async |fixture: &mut Fixture, advice: &str| {
        let at = advice.find("SELECT").expect("a statement");
        // The slot releases the old catalogs at a later confirmation.
        eventually(SHORT_TIMEOUT, "the slot moves on", async || {
            fixture.psql("CHECKPOINT;");
            fixture.psql(&advice[at..]);
            let young = "SELECT bool_and(s.catalog_xmin::text::int8 > p.xmin::text::int8) \
                         FROM pg_replication_slots s, pg_publication p";
            fixture.postgres.query_text(young).await.as_deref() == Some("t")
        })
        .await;
    };
    let words = ["pg_replication_slot_advance"];
    fixture.finding_with_advice("warning", "publication_newer_than_slot", &words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_without_table_or_inserts_is_reported() {
    let fixture = Fixture::new().await;
    fixture.execute("ALTER PUBLICATION walpost DROP TABLE outbox").await;
    fixture.finding_is_fixed("error", "publication_table").await;
    fixture.execute("ALTER PUBLICATION walpost SET (publish = 'update, delete')").await;
    fixture.finding_is_fixed("error", "publication_inserts").await;
    let published = "SELECT pubupdate AND pubdelete FROM pg_publication";
    let client = fixture.postgres.client_of(&fixture.database).await;
    let row = client.query_one(published, &[]).await.expect("a row");
    assert!(row.get::<_, bool>(0), "what it published for others stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_of_partitions_instead_of_the_table_is_reported() {
    let fixture = Fixture::new().await;
    fixture
        .execute(
            "DROP TABLE outbox; \
             CREATE TABLE outbox (id uuid NOT NULL, aggregate_type text NOT NULL, \
                 aggregate_id text NOT NULL, event_type text, payload jsonb) PARTITION BY LIST (event_type); \
             CREATE TABLE outbox_a PARTITION OF outbox DEFAULT; \
             ALTER PUBLICATION walpost SET (publish_via_partition_root = false); \
             ALTER PUBLICATION walpost ADD TABLE outbox",
        )
        .await;
    fixture.finding_is_fixed("error", "publication_partition_root").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_filters_and_column_lists_are_reported() {
    let fixture = Fixture::new().await;
    let relist = |what: &str| {
        format!(
            "BEGIN; ALTER PUBLICATION walpost DROP TABLE outbox; \
             ALTER PUBLICATION walpost ADD TABLE outbox {what}; COMMIT"
        )
    };
    fixture.execute(&relist("WHERE (event_type <> 'noise')")).await;
    fixture.finding_is_fixed("warning", "publication_row_filter").await;
    fixture.execute(&relist("(id, aggregate_type, aggregate_id)")).await;
    let report = fixture.finding_is_fixed("error", "column_left_out").await;
    // The first column that is not in the list.
    let what = report.finding("error", "column_left_out")["what"].to_string();
    assert!(what.contains("event_type"), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_of_schema_or_all_tables_is_reported() {
    let fixture = Fixture::new().await;
    fixture.execute("DROP PUBLICATION walpost").await;
    fixture
        .execute(
            "CREATE SCHEMA \"Others\"; \
             CREATE PUBLICATION walpost FOR TABLES IN SCHEMA public, \"Others\"",
        )
        .await;
    let halts = |report: &Report, code| {
        let why = report.finding("warning", code)["why"].as_str().expect("a reason").to_owned();
        assert!(why.contains("can halt `run` (exit code 4)"), "{why}");
    };
    halts(&fixture.finding_is_fixed("warning", "publication_schema").await, "publication_schema");
    // A listed table does not keep others from being published.
    fixture.execute("ALTER PUBLICATION walpost ADD TABLES IN SCHEMA \"Others\"").await;
    fixture.finding_is_fixed("warning", "publication_schema").await;
    fixture.execute("DROP PUBLICATION walpost; CREATE PUBLICATION walpost FOR ALL TABLES").await;
    halts(
        &fixture.finding_is_fixed("warning", "publication_all_tables").await,
        "publication_all_tables",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_on_postgresql_14_is_checked() {
    let fixture = Fixture::on(sound(Major::V14)).await;
    fixture.check().await.is_clean();
    fixture.execute("ALTER PUBLICATION walpost DROP TABLE outbox").await;
    fixture.finding_is_fixed("error", "publication_table").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_unsuitable_table_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.option("--table", "public.events");
    fixture.option("--publication", "events");
    let report = fixture.check().await;
    assert_init(&report.finding("error", "table_missing")["fix"]);
    for (code, names) in [("table_missing", "public.outbox"), ("publication_missing", "walpost")] {
        let what = report.finding("error", code)["what"].as_str().expect("a text").to_owned();
        assert!(what.ends_with(&format!("; this database has {names}")), "{what}");
    }
    fixture.option("--publication", "walpost");
    fixture.execute("CREATE VIEW events AS SELECT * FROM outbox").await;
    let follow = async |fixture: &mut Fixture, _: &str| fixture.option("--table", "public.outbox");
    fixture.finding_with_advice("error", "table_kind", &["--table"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlogged_table_is_reported() {
    let fixture = Fixture::new().await;
    fixture
        .execute("BEGIN; ALTER PUBLICATION walpost DROP TABLE outbox; ALTER TABLE outbox SET UNLOGGED; COMMIT")
        .await;
    fixture.finding_is_fixed("error", "table_unlogged").await;
    fixture.finding_is_fixed("error", "publication_table").await;
    fixture.check().await.has_no("table_unlogged");
}

/// Its catalog rows keep the lower half of their transaction ids, which are given again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_of_two_thousand_million_transactions_ago_is_not_young() {
    let fixture = Fixture::on(sound(Major::V15).tools()).await;
    fixture.execute("SELECT pg_drop_replication_slot('walpost')").await;
    for xid in [1_500_000_000, 2_900_000_000] {
        fixture.postgres.skip_to_transaction(xid).await;
    }
    fixture.execute("SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')").await;
    fixture.check().await.has_no("publication_newer_than_slot");
    fixture.execute("ALTER PUBLICATION walpost SET (publish = 'insert, truncate')").await;
    fixture.check().await.finding("warning", "publication_newer_than_slot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_stored_elsewhere_are_reported() {
    let mut fixture = Fixture::new().await;
    fixture
        .execute("CREATE TABLE kid () INHERITS (outbox); CREATE TABLE grandkid () INHERITS (kid)")
        .await;
    // By name the first of two.
    let words = ["outbox.tables", "ALTER TABLE public.grandkid NO INHERIT public.kid"];
    let follow = async |fixture: &mut Fixture, _: &str| {
        fixture.execute("ALTER TABLE kid NO INHERIT outbox").await;
    };
    fixture.finding_with_advice("error", "table_inherited", &words, follow).await;
    fixture
        .execute(
            "ALTER TABLE outbox RENAME TO plain;
             CREATE TABLE outbox (LIKE plain INCLUDING DEFAULTS) PARTITION BY RANGE (created_at);
             CREATE TABLE near PARTITION OF outbox FOR VALUES FROM ('2026-01-01') TO (MAXVALUE);
             ALTER PUBLICATION walpost SET TABLE outbox;
             CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER far FOREIGN DATA WRAPPER nowhere;
             CREATE FOREIGN TABLE far PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2026-01-01')
               SERVER far",
        )
        .await;
    fixture.finding_is_fixed("error", "table_foreign_partition").await;
    fixture.execute("ALTER TABLE near SET UNLOGGED").await;
    fixture.finding_is_fixed("error", "table_unlogged").await;
    fixture.check().await.is_clean();
}

/// The server is in recovery from here on.
async fn make_standby(fixture: &Fixture) {
    fixture.postgres.stop(Stop::Fast, walpost_bed::fixture::SHORT_TIMEOUT).await;
    fixture.postgres.make_standby();
    fixture.postgres.start_again().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_that_decodes_without_feedback_is_reported() {
    let mut fixture = Fixture::on(sound(Major::V17)).await;
    make_standby(&fixture).await;
    let report = fixture.check().await;
    report.finding("ok", "standby");
    report.finding("ok", "slot");
    report.finding("warning", "standby_primary_slot");
    report.has_no("slot_not_synced");
    report.has_no("sync_replication_slots");
    fixture.finding_is_fixed("error", "standby_feedback").await;
    let waits = ("WALPOST_DELIVERY_WAIT_UNTIL_VISIBLE".to_owned(), "true".to_owned());
    fixture.environment.push(waits);
    fixture.check().await.finding("error", "standby_wait_until_visible");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_in_recovery_is_reported() {
    let mut fixture = Fixture::on(sound(Major::V17)).await;
    fixture.execute("SELECT pg_drop_replication_slot('walpost')").await;
    make_standby(&fixture).await;
    let report = fixture.check().await;
    report.finding("warning", "slot_not_synced");
    fixture.finding_is_fixed("warning", "sync_replication_slots").await;
    fixture.finding_is_fixed("warning", "hot_standby_feedback").await;
    let follow = async |fixture: &mut Fixture, _: &str| {
        fixture.source.push_str("?target_session_attrs=primary");
        fixture.check().await.finding("error", "target_session_attrs");
        fixture.psql("SELECT pg_promote();");
    };
    fixture
        .finding_with_advice("warning", "standby", &["target_session_attrs=primary"], follow)
        .await;
}
