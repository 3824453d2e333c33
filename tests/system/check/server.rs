//! Server settings that prevent streaming, or put the slot or the disk at risk.

use walpost_bed::{Major, Postgres, Stop};

use crate::fixture::{Fixture, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_wal_level_is_reported() {
    let fixture = Fixture::bare(sound(Major::V15).setting("wal_level", "replica")).await;
    let report = fixture.check().await;
    let finding = report.finding("error", "wal_level");
    assert!(finding["what"].as_str().expect("text").contains("replica"), "{finding}");
    // The file that ALTER SYSTEM writes takes precedence over postgresql.conf.
    fixture.psql(finding["fix"].as_str().expect("SQL"));
    fixture.postgres.restart(Stop::Fast).await;
    fixture.check().await.has_no("wal_level");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exhausted_slots_and_walsenders_are_reported() {
    let builder = sound(Major::V15).setting("max_replication_slots", "1");
    let mut fixture = Fixture::on(builder.setting("max_wal_senders", "0")).await;
    // The only slot is ours; a second one cannot be created.
    let report = fixture.check().await;
    report.finding("warning", "max_replication_slots");
    let finding = report.finding("error", "max_wal_senders");
    fixture.psql(finding["fix"].as_str().expect("SQL"));
    fixture.postgres.restart(Stop::Fast).await;
    fixture.check().await.has_no("max_wal_senders");
    fixture.option("--slot", "another");
    let report = fixture.check().await;
    let finding = report.finding("error", "max_replication_slots");
    fixture.psql(finding["fix"].as_str().expect("SQL"));
    fixture.postgres.restart(Stop::Fast).await;
    fixture.check().await.has_no("max_replication_slots");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_small_max_slot_wal_keep_size_is_reported() {
    let fixture = Fixture::on(Postgres::builder(Major::V15)).await;
    fixture.finding_is_fixed("warning", "max_slot_wal_keep_size").await;
    fixture.psql("ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'; SELECT pg_reload_conf();");
    fixture.finding_is_fixed("warning", "max_slot_wal_keep_size_small").await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_idle_replication_slot_timeout_is_reported() {
    let builder = sound(Major::V18).setting("idle_replication_slot_timeout", "1h");
    let fixture = Fixture::on(builder).await;
    fixture.finding_is_fixed("warning", "idle_replication_slot_timeout").await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_in_synchronous_standby_names_is_reported() {
    let builder = sound(Major::V15).setting("synchronous_standby_names", "FIRST 1 (a, walpost)");
    let mut fixture = Fixture::bare(builder.setting("synchronous_commit", "local")).await;
    fixture.finding_is_fixed("warning", "synchronous_standby_names").await;
    let now = fixture.postgres.query_text("SHOW synchronous_standby_names").await;
    assert_eq!(now.as_deref(), Some("FIRST 1 (a)"));
    fixture.psql("ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf();");
    let follow = async |fixture: &mut Fixture, advice: &str| {
        let at = advice.find("ALTER SYSTEM").expect("an example");
        fixture.psql(&advice[at..]);
    };
    fixture
        .finding_with_advice("warning", "synchronous_standby_names", &["real standbys"], follow)
        .await;
    // A commit that waits for walpost, which waits for it.
    fixture
        .psql("ALTER SYSTEM SET synchronous_standby_names = 'walpost'; SELECT pg_reload_conf();");
    let waits = ("WALPOST_DELIVERY_WAIT_UNTIL_VISIBLE".to_owned(), "true".to_owned());
    fixture.environment.push(waits);
    fixture.finding_is_fixed("error", "synchronous_standby_names").await;
    // Another name is another standby, also if the connection string sets it.
    fixture.psql("ALTER SYSTEM SET synchronous_standby_names = 'relay'; SELECT pg_reload_conf();");
    fixture.source.push_str("?application_name=relay");
    let report = fixture.check().await;
    report.has_no("synchronous_standby_names");
    report.finding("warning", "application_name");
}
