//! The slot is missing, another's, or lost.

use walpost_bed::scene::SOON;
use walpost_bed::{Major, Postgres, eventually};

use crate::stage::{Stage, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_missing() {
    let stage = Stage::new().await;
    stage.execute(&format!("SELECT pg_drop_replication_slot('{}')", stage.slot())).await;
    stage.fixed("error", "slot_missing").await;
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_is_missing_and_init_makes_it() {
    let stage = Stage::empty().await;
    let report = stage.check().await;
    for code in ["publication_missing", "table_missing", "slot_missing"] {
        assert_eq!(report.finding("error", code)["fix"], "walpost init --apply");
    }
    stage.fixed("error", "slot_missing").await;
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_is_anothers() {
    for (create, code) in [
        ("pg_create_physical_replication_slot('{slot}')", "slot_physical"),
        ("pg_create_logical_replication_slot('{slot}', 'test_decoding')", "slot_plugin"),
    ] {
        let mut stage = Stage::new().await;
        let slot = stage.slot().to_owned();
        stage.execute(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
        stage.execute(&format!("SELECT {}", create.replace("{slot}", &slot))).await;
        another_name(&mut stage, code).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_decodes_prepared_transactions() {
    for stage in [Stage::new().await, Stage::on(sound(Major::V18)).await] {
        let slot = stage.slot();
        let drop = format!("SELECT pg_drop_replication_slot('{slot}')");
        stage.execute(&drop).await;
        let create =
            format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)");
        stage.execute(&create).await;
        let position = format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        let before = stage.postgres.query_text(&position).await;
        stage.fixed("error", "slot_two_phase").await;
        assert_eq!(stage.postgres.query_text(&position).await, before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_belongs_to_another_database() {
    let other = Stage::new().await;
    let mut stage = Stage::new().await;
    stage.option("--slot", other.slot());
    another_name(&mut stage, "slot_database").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_is_anothers_and_as_long_as_can_be() {
    let mut stage = Stage::new().await;
    let slot = format!("{:a<63}", stage.slot());
    stage.execute(&format!("SELECT pg_create_physical_replication_slot('{slot}')")).await;
    stage.option("--slot", &slot);
    another_name(&mut stage, "slot_physical").await;
}

/// The command makes a slot of another name, and with the setting that it names all is in order.
async fn another_name(stage: &mut Stage, code: &str) {
    let report = stage.check().await;
    let finding = report.finding("error", code);
    let fix = finding["fix"].as_str().expect("a command").to_owned();
    let (command, rest) = fix.split_once('#').expect("what is to be set stands behind it");
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    stage.walpost(&words).await;
    let (_, setting) = rest.split_once("source.slot = ").expect("a setting");
    stage.option("--slot", setting.trim_matches('"'));
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_still_being_made() {
    let mut stage = Stage::on(sound(Major::V15)).await;
    stage.execute("SELECT pg_drop_replication_slot('walpost')").await;
    // A new slot waits for the end of every transaction that has begun to write.
    let writer = stage.postgres.client().await;
    writer.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.expect("it begins");
    let maker = stage.postgres.client().await;
    let making = tokio::spawn(async move {
        let made = "SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')";
        maker.batch_execute(made).await.expect("it is made");
    });
    let begun = "SELECT 'yes' FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let is_there = async || stage.postgres.query_text(begun).await.is_some();
    eventually(SOON, "it is in the catalog", is_there).await;
    let follow = async |_: &mut Stage, _: &str| {
        writer.batch_execute("COMMIT").await.expect("it was begun");
        making.await.expect("it comes to its end");
    };
    stage.advised("error", "slot_unfinished", &["oldest transactions"], follow).await;
    stage.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_else_reads_from_it() {
    let mut stage = Stage::new().await;
    let mut reader = std::process::Command::new("pg_recvlogical");
    let reader = reader.args(["-d", &stage.source, "-S", stage.slot(), "-f", "/dev/null"]);
    let options = ["-o", "proto_version=1", "-o", "publication_names=walpost", "--start"];
    let mut reader = reader.args(options).spawn().expect("pg_recvlogical is there");
    let active =
        format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{}'", stage.slot());
    let is = async |stage: &Stage, wanted: &str| {
        stage.postgres.query_text(&active).await.as_deref() == Some(wanted)
    };
    eventually(SOON, "it streams", async || is(&stage, "t").await).await;
    let follow = async |stage: &mut Stage, _: &str| {
        reader.kill().expect("it runs");
        reader.wait().expect("it ends");
        eventually(SOON, "it lets go", async || is(stage, "f").await).await;
    };
    let report = stage.advised("warning", "slot_active", &["stop that client"], follow).await;
    let what = report.finding("warning", "slot_active")["what"].to_string();
    assert!(what.contains("pg_recvlogical"), "{what}");
}

/// Log of that many segments.
async fn write_log(stage: &Stage, segments: u32) {
    for _ in 0..segments {
        stage.execute("CREATE TABLE filler (); DROP TABLE filler; SELECT pg_switch_wal()").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_about_to_be_lost_and_then_lost() {
    let builder = Postgres::builder(Major::V15)
        .setting("max_slot_wal_keep_size", "32MB")
        // No checkpoint by itself: one loses the slot.
        .setting("max_wal_size", "10GB")
        .setting("checkpoint_timeout", "1d");
    let stage = Stage::on(builder).await;
    let status = "SELECT wal_status FROM pg_replication_slots";
    eventually(SOON, "it is unreserved", async || {
        write_log(&stage, 1).await;
        let status = stage.postgres.query_text(status).await;
        assert_ne!(status.as_deref(), Some("lost"));
        status.as_deref() == Some("unreserved")
    })
    .await;
    stage.fixed("warning", "slot_unreserved").await;
    stage.psql("ALTER SYSTEM SET max_slot_wal_keep_size = '32MB'; SELECT pg_reload_conf();");
    write_log(&stage, 3).await;
    stage.psql("CHECKPOINT;");
    eventually(SOON, "it is lost", async || {
        stage.postgres.query_text(status).await.as_deref() == Some("lost")
    })
    .await;
    stage.fixed("error", "slot_lost").await;
}
