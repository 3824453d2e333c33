//! Several slots that share one outbox by row filters, and the steps there and back.

use std::cell::Cell;

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Walpost, eventually};

/// As docs/sizing.md has it, up to where the slot has passed all that may not see them.
async fn publish_shares(fixture: &Fixture) {
    for share in 0..2 {
        fixture
            .postgres
            .execute(&format!(
                "CREATE PUBLICATION outbox_{share} FOR TABLE public.outbox \
                 WHERE (abs(hashtext(aggregate_id) % 2) = {share}) \
                 WITH (publish = 'insert', publish_via_partition_root = true)"
            ))
            .await;
    }
    fixture.postgres.older_transactions_end(SHORT_TIMEOUT).await.expect("they end");
    fixture.confirmed(SHORT_TIMEOUT).await;
}

async fn run_share(fixture: &Fixture, share: &str) -> Walpost {
    fixture.run_with(&["--slot", share, "--publication", share]).await
}

/// Copies an inactive slot; of several, the one that is furthest behind.
async fn copy_slot(fixture: &Fixture, of: &str, name: &str) {
    fixture
        .postgres
        .execute(&format!(
            "SELECT pg_copy_logical_replication_slot(slot_name, '{name}') \
               FROM pg_replication_slots WHERE slot_name LIKE '{of}' \
              ORDER BY confirmed_flush_lsn LIMIT 1"
        ))
        .await;
}

async fn drop_slots(fixture: &Fixture, names: &str) {
    let active = format!(
        "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name LIKE '{names}' AND active"
    );
    eventually(SHORT_TIMEOUT, "nobody holds the slots", async || {
        fixture.postgres.query_text(&active).await.as_deref() == Some("0")
    })
    .await;
    fixture
        .postgres
        .execute(&format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
              WHERE slot_name LIKE '{names}'"
        ))
        .await;
}

#[tokio::test]
async fn splitting_and_merging_slots_keeps_key_order() {
    let fixture = Fixture::new().await;
    let writer = Writer::start(&fixture.postgres, 200);
    let whole = fixture.run().await;
    writer.commits(50).await;
    // The copies would not see the publications while they read this.
    let open = fixture.postgres.client().await;
    let row = "BEGIN; INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
               VALUES ('order', 'late', 'placed', '{}')";
    open.batch_execute(row).await.expect("a row");
    let is_ending = Cell::new(false);
    let ends = async {
        writer.commits(300).await;
        is_ending.set(true);
        open.batch_execute("COMMIT").await.expect("a commit");
    };
    let publishes = async {
        publish_shares(&fixture).await;
        assert!(is_ending.get(), "the slot would be copied before the open transaction ends");
    };
    tokio::join!(publishes, ends);
    stop(whole).await;
    writer.commits(50).await;
    copy_slot(&fixture, "walpost", "outbox_0").await;
    copy_slot(&fixture, "walpost", "outbox_1").await;
    drop_slots(&fixture, "walpost").await;
    let shares = [run_share(&fixture, "outbox_0").await, run_share(&fixture, "outbox_1").await];
    writer.commits(100).await;
    for share in shares {
        let last = stop(share).await;
        assert_ne!(last["delivered"], 0, "{last}");
        // The other one continues meanwhile, so that they end at different places.
        writer.commits(50).await;
    }
    copy_slot(&fixture, "outbox\\__", "walpost").await;
    drop_slots(&fixture, "outbox\\__").await;
    let _whole = fixture.run().await;
    writer.commits(50).await;
    fixture.judge_after(writer).await.assert_ok();
}
