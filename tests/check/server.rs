//! Settings of the server that stop the stream, or cost the slot or the disk.

use walpost_bed::{Major, Postgres, Stop};

use crate::stage::{Stage, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wal_level_is_not_logical() {
    let stage = Stage::bare(sound(Major::V15).setting("wal_level", "replica")).await;
    let report = stage.check().await;
    let finding = report.finding("error", "wal_level");
    assert!(finding["what"].as_str().expect("text").contains("replica"), "{finding}");
    // The file that ALTER SYSTEM writes wins over postgresql.conf.
    stage.psql(finding["fix"].as_str().expect("SQL"));
    stage.postgres.restart(Stop::Fast).await;
    stage.check().await.has_no("wal_level");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_slot_and_no_sender_is_free() {
    let builder = sound(Major::V15).setting("max_replication_slots", "1");
    let mut stage = Stage::on(builder.setting("max_wal_senders", "0")).await;
    // The one slot is ours, and there is none for a second.
    let report = stage.check().await;
    report.finding("warning", "max_replication_slots");
    let finding = report.finding("error", "max_wal_senders");
    stage.psql(finding["fix"].as_str().expect("SQL"));
    stage.postgres.restart(Stop::Fast).await;
    stage.check().await.has_no("max_wal_senders");
    stage.option("--slot", "another");
    let report = stage.check().await;
    let finding = report.finding("error", "max_replication_slots");
    stage.psql(finding["fix"].as_str().expect("SQL"));
    stage.postgres.restart(Stop::Fast).await;
    stage.check().await.has_no("max_replication_slots");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_of_a_slots_log_is_missing_or_too_small() {
    let stage = Stage::on(Postgres::builder(Major::V15)).await;
    stage.fixed("warning", "max_slot_wal_keep_size").await;
    stage.psql("ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'; SELECT pg_reload_conf();");
    stage.fixed("warning", "max_slot_wal_keep_size_small").await;
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_not_used_is_lost_by_time() {
    let builder = sound(Major::V18).setting("idle_replication_slot_timeout", "1h");
    let stage = Stage::on(builder).await;
    stage.fixed("warning", "idle_replication_slot_timeout").await;
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_would_wait_for_walpost() {
    let builder = sound(Major::V15).setting("synchronous_standby_names", "FIRST 1 (a, walpost)");
    let mut stage = Stage::bare(builder.setting("synchronous_commit", "local")).await;
    stage.fixed("warning", "synchronous_standby_names").await;
    let now = stage.postgres.query_text("SHOW synchronous_standby_names").await;
    assert_eq!(now.as_deref(), Some("FIRST 1 (a)"));
    stage.psql("ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf();");
    let follow = async |stage: &mut Stage, advice: &str| {
        let at = advice.find("ALTER SYSTEM").expect("an example");
        stage.psql(&advice[at..]);
    };
    stage.advised("warning", "synchronous_standby_names", &["real standbys"], follow).await;
    // Another name is another standby, also where the connection string has it.
    stage.psql("ALTER SYSTEM SET synchronous_standby_names = 'relay'; SELECT pg_reload_conf();");
    stage.source.push_str("?application_name=relay");
    let report = stage.check().await;
    report.has_no("synchronous_standby_names");
    report.finding("warning", "application_name");
}
