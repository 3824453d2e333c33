//! `walpost prune`: no row is deleted before its event is at the destination.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, counted, stop};
use walpost_bed::oracle::judge;
use walpost_bed::writer::Writer;
use walpost_bed::{Walpost, eventually};

use crate::position::Keeper;
use crate::promise::{Destination, assert_rows, cases};

cases! {
    nothing_undelivered_is_deleted_under_load(new): all;
    nothing_is_deleted_by_a_slot_that_was_moved(new): [redis nats];
    slot_alone_needs_a_word(new): [rabbitmq http sqs];
}

async fn run(fixture: &impl Destination) -> Walpost {
    let walpost = fixture.command("run").env("FAILPOINTS", "frequent_bookmarks=return").start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    walpost
}

/// The exit code, and what is said.
async fn prune<D: Destination>(fixture: &D, arguments: &[&str]) -> (Option<i32>, String) {
    let by_slot = if D::HAS_POSITION { &[][..] } else { &["--by-slot-alone"] };
    let arguments = [&["--older-than", "0s", "--sleep", "1ms"], by_slot, arguments].concat();
    fixture.ended("prune", &arguments).await
}

async fn nothing_undelivered_is_deleted_under_load<D: Destination>(fixture: &D) {
    fixture.inner.keep_log().await;
    let writer = Writer::start(&fixture.inner.postgres, D::LOAD.min(200));
    let mut walpost = run(fixture).await;
    let mut deleted = 0;
    for round in 0..8 {
        writer.commits(30).await;
        match round % 4 {
            0 => fixture.inner.slot_has_all().await,
            1 => walpost.pause(),
            2 => walpost.resume(),
            _ => {
                walpost.kill9().await;
                eventually(SHORT_TIMEOUT, "the slot is free", async || {
                    let active =
                        "SELECT active FROM pg_replication_slots WHERE slot_name = 'walpost'";
                    (fixture.inner.postgres.query_text(active).await? == "f").then_some(())
                })
                .await;
            }
        }
        let (code, said) = prune(fixture, &[]).await;
        // The slot alone tells nothing of a walpost that is stopped.
        let is_told = D::HAS_POSITION || round % 4 != 3;
        assert_eq!(code, Some(i32::from(!is_told)), "{said}");
        deleted = fixture.inner.deleted_ones_are_among(&fixture.records().await).await;
        if round % 4 == 3 {
            walpost = run(fixture).await;
        }
    }
    assert!(deleted > 30, "only {deleted} rows were deleted");
    let rolled_back = writer.stop().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let (rows, records) = (fixture.inner.logged().await, fixture.records().await);
    let verdict = judge(&rows, rolled_back.iter().map(String::as_str), &records);
    assert_rows(&verdict, D::ONCE);
}

async fn nothing_is_deleted_by_a_slot_that_was_moved(fixture: &impl Keeper) {
    let walpost = run(fixture).await;
    fixture.insert(20, 3).await;
    fixture.inner.slot_has_all().await;
    stop(walpost).await;
    fixture.insert(20, 3).await;
    let advance = "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    fixture.inner.postgres.execute(advance).await;
    let (code, said) = prune(fixture, &[]).await;
    assert!(code == Some(1) && said.contains("advanced by another client"), "{said}");
    let left = fixture.inner.postgres.query_text("SELECT count(*) FROM public.outbox").await;
    assert_eq!(left.as_deref(), Some("40"));
    let (code, said) = prune(fixture, &["--by-slot-alone"]).await;
    assert!(code == Some(78) && said.contains("leave --by-slot-alone out"), "{said}");
}

async fn slot_alone_needs_a_word(fixture: &impl Destination) {
    let walpost = run(fixture).await;
    fixture.insert(20, 3).await;
    fixture.inner.slot_has_all().await;
    walpost.pause();
    fixture.insert(5, 3).await;
    let (code, said) = fixture.ended("prune", &["--older-than", "0s"]).await;
    assert!(code == Some(78) && said.contains("with --by-slot-alone"), "{said}");
    let (code, said) = fixture.ended("prune", &["--older-than", "0s", "--dry-run"]).await;
    let counts = ["to be deleted", "from before the slot", "old, and not proved"];
    let counts = counts.map(|what| counted(&said.replace(" to be delivered", ""), what));
    assert_eq!((code, counts), (Some(0), [20, 0, 5]), "{said}");
    let (code, said) = prune(fixture, &[]).await;
    assert!(code == Some(0) && said.contains("20 rows deleted"), "{said}");
    walpost.resume();
    stop(walpost).await;
    let (code, said) = prune(fixture, &[]).await;
    assert!(code == Some(1) && said.contains("nobody uses replication slot"), "{said}");
}
