//! A standby is to take over, and the slot is not ready for it.

use walpost_bed::Major;

use crate::stage::{Stage, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_would_not_be_on_the_standby() {
    let stage = Stage::on(sound(Major::V17)).await;
    stage.check().await.is_clean();
    stage.execute("SELECT pg_create_physical_replication_slot('standby1')").await;
    // It keeps its position.
    let position =
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let before = stage.postgres.query_text(position).await;
    stage.mended("warning", "slot_failover").await;
    assert_eq!(stage.postgres.query_text(position).await, before);
    // And events are not to be ahead of the standby.
    let report = stage.mended("warning", "synchronized_standby_slots").await;
    report.finding("ok", "slot_failover");
    // Nobody uses that standby's slot: everything would wait for it.
    stage.mended("warning", "synchronized_standby_slots_inactive").await;
    stage.psql("ALTER SYSTEM SET synchronized_standby_slots = 'gone'; SELECT pg_reload_conf();");
    stage.mended("error", "synchronized_standby_slots_missing").await;
}
