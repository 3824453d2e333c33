//! Slots that are missing, in use by others, or lost.

use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{Major, Postgres, eventually};

use crate::fixture::{Fixture, assert_init, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_slot_is_reported() {
    let fixture = Fixture::new().await;
    fixture.execute(&format!("SELECT pg_drop_replication_slot('{}')", fixture.slot())).await;
    let other = "SELECT pg_create_logical_replication_slot('orders', 'pgoutput')";
    fixture.execute(other).await;
    let report = fixture.check().await;
    let what = report.finding("error", "slot_missing")["what"].as_str().expect("a text").to_owned();
    assert!(what.ends_with("; this database has orders"), "{what}");
    fixture.execute("SELECT pg_drop_replication_slot('orders')").await;
    fixture.finding_is_fixed("error", "slot_missing").await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_database_passes_after_init() {
    let fixture = Fixture::empty().await;
    let report = fixture.check().await;
    for code in ["publication_missing", "table_missing", "slot_missing"] {
        assert_init(&report.finding("error", code)["fix"]);
    }
    fixture.finding_is_fixed("error", "slot_missing").await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_name_in_use_is_reported() {
    for (create, code) in [
        ("pg_create_physical_replication_slot('{slot}')", "slot_physical"),
        ("pg_create_logical_replication_slot('{slot}', 'test_decoding')", "slot_plugin"),
    ] {
        let mut fixture = Fixture::new().await;
        let slot = fixture.slot().to_owned();
        fixture.execute(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
        fixture.execute(&format!("SELECT {}", create.replace("{slot}", &slot))).await;
        another_name(&mut fixture, code).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_with_two_phase_enabled_is_reported() {
    for fixture in [Fixture::new().await, Fixture::on(sound(Major::V18)).await] {
        let slot = fixture.slot();
        let drop = format!("SELECT pg_drop_replication_slot('{slot}')");
        fixture.execute(&drop).await;
        let create =
            format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)");
        fixture.execute(&create).await;
        let position = format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        let before = fixture.postgres.query_text(&position).await;
        fixture.finding_is_fixed("error", "slot_two_phase").await;
        assert_eq!(fixture.postgres.query_text(&position).await, before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_of_another_database_is_reported() {
    let other = Fixture::new().await;
    let mut fixture = Fixture::new().await;
    fixture.option("--slot", other.slot());
    another_name(&mut fixture, "slot_database").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_slot_name_in_use_is_reported() {
    let mut fixture = Fixture::new().await;
    let slot = format!("{:a<63}", fixture.slot());
    fixture.execute(&format!("SELECT pg_create_physical_replication_slot('{slot}')")).await;
    fixture.option("--slot", &slot);
    another_name(&mut fixture, "slot_physical").await;
}

/// The command creates a slot of another name; with the setting that it names, no finding is left.
async fn another_name(fixture: &mut Fixture, code: &str) {
    let report = fixture.check().await;
    let finding = report.finding("error", code);
    let fix = finding["fix"].as_str().expect("a command").to_owned();
    let (command, rest) = fix.split_once('#').expect("what is to be set stands behind it");
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    fixture.walpost(&words).await;
    let (_, setting) = rest.split_once("source.slot = ").expect("a setting");
    fixture.option("--slot", setting.trim_matches('"'));
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_under_construction_is_reported() {
    let mut fixture = Fixture::on(sound(Major::V15)).await;
    fixture.execute("SELECT pg_drop_replication_slot('walpost')").await;
    // Creating a slot waits for the end of every transaction that has begun to write.
    let writer = fixture.postgres.client().await;
    writer.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.expect("it begins");
    let maker = fixture.postgres.client().await;
    let making = tokio::spawn(async move {
        let made = "SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')";
        maker.batch_execute(made).await.expect("it is made");
    });
    let begun = "SELECT 'yes' FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let is_there = async || fixture.postgres.query_text(begun).await.is_some();
    eventually(SHORT_TIMEOUT, "it is in the catalog", is_there).await;
    let follow = async |_: &mut Fixture, _: &str| {
        writer.batch_execute("COMMIT").await.expect("it was begun");
        making.await.expect("it comes to its end");
    };
    fixture.finding_with_advice("error", "slot_unfinished", &["oldest transactions"], follow).await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_in_use_by_another_client_is_reported() {
    let mut fixture = Fixture::new().await;
    let mut reader = std::process::Command::new("pg_recvlogical");
    let reader = reader.args(["-d", &fixture.source, "-S", fixture.slot(), "-f", "/dev/null"]);
    let options = ["-o", "proto_version=1", "-o", "publication_names=walpost", "--start"];
    let mut reader = reader.args(options).spawn().expect("pg_recvlogical is there");
    let active =
        format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{}'", fixture.slot());
    let is = async |fixture: &Fixture, wanted: &str| {
        fixture.postgres.query_text(&active).await.as_deref() == Some(wanted)
    };
    eventually(SHORT_TIMEOUT, "it streams", async || is(&fixture, "t").await).await;
    let follow = async |fixture: &mut Fixture, _: &str| {
        reader.kill().expect("it runs");
        reader.wait().expect("it ends");
        eventually(SHORT_TIMEOUT, "the slot is released", async || is(fixture, "f").await).await;
    };
    let report =
        fixture.finding_with_advice("warning", "slot_active", &["stop that client"], follow).await;
    let what = report.finding("warning", "slot_active")["what"].to_string();
    assert!(what.contains("pg_recvlogical"), "{what}");
}

/// Writes that many segments of WAL.
async fn write_log(fixture: &Fixture, segments: u32) {
    for _ in 0..segments {
        fixture.execute("CREATE TABLE filler (); DROP TABLE filler; SELECT pg_switch_wal()").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreserved_and_lost_slots_are_reported() {
    let builder = Postgres::builder(Major::V15)
        .setting("max_slot_wal_keep_size", "32MB")
        // No automatic checkpoint: a checkpoint would invalidate the slot.
        .setting("max_wal_size", "10GB")
        .setting("checkpoint_timeout", "1d");
    let fixture = Fixture::on(builder).await;
    let status = "SELECT wal_status FROM pg_replication_slots";
    eventually(SHORT_TIMEOUT, "it is unreserved", async || {
        write_log(&fixture, 1).await;
        let status = fixture.postgres.query_text(status).await;
        assert_ne!(status.as_deref(), Some("lost"));
        status.as_deref() == Some("unreserved")
    })
    .await;
    fixture.finding_is_fixed("warning", "slot_unreserved").await;
    fixture.psql("ALTER SYSTEM SET max_slot_wal_keep_size = '32MB'; SELECT pg_reload_conf();");
    write_log(&fixture, 3).await;
    fixture.psql("CHECKPOINT;");
    eventually(SHORT_TIMEOUT, "it is lost", async || {
        fixture.postgres.query_text(status).await.as_deref() == Some("lost")
    })
    .await;
    fixture.finding_is_fixed("error", "slot_lost").await;
}
