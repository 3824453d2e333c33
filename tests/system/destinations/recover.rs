//! Destinations that can be read back: what a lost slot did not send is found there, and published.

use walpost_bed::fixture::{LONG_TIMEOUT, counted, ended, stop};

use crate::position::Keeper;
use crate::promise::{Destination, cases};

cases! {
    rows_that_a_lost_slot_did_not_send_are_published_once(of_own_server): [redis nats];
    killed_recovery_continues(of_own_server): [redis nats];
    restored_server_gets_its_rows_published(of_own_server): [redis nats];
    rows_whose_events_are_removed_cannot_be_told(of_own_server): [redis nats];
    recovery_continues_behind_another_writer(new): [redis nats];
    rows_from_before_the_slot_are_published(before_adopt): [redis nats];
    events_at_positions_are_replayed(of_own_server): [redis nats];
    rows_are_published_again_where_nothing_can_be_read_back(new): [rabbitmq http sqs];
}

const DROP: &str = "SELECT pg_drop_replication_slot('walpost')";

/// Publishes 40 rows, and loses the slot between 20 rows and 3 more; then there is a new one.
async fn lose_the_slot(fixture: &impl Destination) {
    let walpost = fixture.run().await;
    fixture.insert(40, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    fixture.insert(20, 5).await;
    fixture.inner.postgres.execute(DROP).await;
    fixture.insert(3, 2).await;
    make_the_slot(fixture).await;
    fixture.insert(10, 5).await;
}

pub async fn make_the_slot(fixture: &impl Destination) {
    let (code, said) = fixture.ended("init", &["--apply", "--no-state"]).await;
    assert_eq!(code, Some(0), "{said}");
}

/// The exit code and the report.
async fn recover(fixture: &impl Destination, arguments: &[&str]) -> (Option<i32>, String) {
    fixture.ended("recover", &[&["--order-by", "n"], arguments].concat()).await
}

/// `run` publishes the rest, and everything is there once.
async fn is_exact_after_a_run(fixture: &impl Keeper) {
    let (code, said) = fixture.ended("run", &["--until", "current"]).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.judge().await.assert_exact();
}

async fn rows_that_a_lost_slot_did_not_send_are_published_once(fixture: &impl Keeper) {
    lose_the_slot(fixture).await;
    fixture.refused(3, "walpost recover").await;
    let counts = |said: &str| {
        let what = ["rows that were compared", "published", "missing", "cannot be told"];
        what.map(|what| counted(said, what))
    };
    let (code, said) = recover(fixture, &["--all"]).await;
    assert_eq!((code, counts(&said)), (Some(1), [63, 40, 23, 0]), "{said}");
    assert_eq!(counted(&said, "waiting in the slot, not compared"), 10, "{said}");
    assert_eq!(fixture.length().await, 40, "a report publishes nothing");
    let (code, said) = recover(fixture, &["--all", "--apply"]).await;
    assert!(code == Some(0) && said.contains("23 events published"), "{said}");
    is_exact_after_a_run(fixture).await;
    let (code, said) = recover(fixture, &["--all"]).await;
    assert_eq!((code, counts(&said)), (Some(0), [73, 73, 0, 0]), "{said}");
    // Nothing was lost here: the positions of what is published begin anew.
    let postgres = &fixture.inner.postgres;
    postgres.execute("UPDATE public.outbox SET id = gen_random_uuid() WHERE n <= 5").await;
    let (code, said) = recover(fixture, &["--all", "--apply"]).await;
    assert!(code == Some(0) && said.contains("5 events published"), "{said}");
    assert_eq!(counted(&said, "published, and in no table"), 5, "{said}");
    fixture.insert(10, 5).await;
    let (code, said) = fixture.ended("run", &["--until", "current"]).await;
    assert_eq!((code, fixture.length().await), (Some(0), 88), "{said}");
}

async fn killed_recovery_continues(fixture: &impl Keeper) {
    lose_the_slot(fixture).await;
    fixture.insert(3_000, 7).await;
    fixture.inner.postgres.execute(DROP).await;
    make_the_slot(fixture).await;
    for point in
        ["rows_announced=return", "row_batch=1*off->return", "acknowledged=500*off->return"]
    {
        let recover = fixture.command("recover").args(["--all", "--apply", "--order-by", "n"]);
        let recover = recover.env("FAILPOINTS", point).start();
        let (code, said) = ended(&recover).await;
        assert_eq!(code, None, "{point}: it dies: {said}");
        // What it had sent may still arrive.
        let (code, said) = fixture.ended("run", &[]).await;
        assert!(code == Some(3) && said.contains("not all published yet"), "{said}");
    }
    let (code, said) = recover(fixture, &["--all", "--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    is_exact_after_a_run(fixture).await;
}

/// Rows of a restored server have positions that the destination has already, for others.
async fn restored_server_gets_its_rows_published(fixture: &impl Keeper) {
    let walpost = fixture.run().await;
    fixture.insert(10, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let postgres = &fixture.inner.postgres;
    assert!(postgres.stop(walpost_bed::Stop::Fast, LONG_TIMEOUT).await, "it stops");
    let saved = postgres.snapshot_data();
    postgres.start_again().await;
    fixture.insert(50, 5).await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    assert!(postgres.stop(walpost_bed::Stop::Fast, LONG_TIMEOUT).await, "it stops");
    postgres.restore_data(&saved);
    postgres.start_again().await;
    for _ in 0..10 {
        fixture.insert(1, 5).await;
    }
    fixture.refused(3, "restored").await;
    let (code, said) = recover(fixture, &["--all", "--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(counted(&said, "published, and in no table"), 50, "{said}");
    assert!(said.contains("\nin no table: "), "{said}");
    // The slot may have been restored to before the first ones, which it sends again.
    let waiting = counted(&said, "waiting in the slot, not compared");
    assert!(waiting >= 10, "{said}");
    let (code, said) = fixture.ended("run", &["--until", "current"]).await;
    assert_eq!((code, fixture.length().await), (Some(0), 60 + waiting), "{said}");
}

/// Whether these were published is not known any more: an operator decides.
async fn rows_whose_events_are_removed_cannot_be_told(fixture: &impl Keeper) {
    lose_the_slot(fixture).await;
    fixture.remove_oldest(30).await;
    let (code, said) = recover(fixture, &["--all"]).await;
    let counts = ["published", "missing", "cannot be told"].map(|what| counted(&said, what));
    assert_eq!((code, counts), (Some(1), [10, 0, 53]), "{said}");
    let (code, said) = recover(fixture, &["--all", "--apply"]).await;
    assert!(code == Some(1) && said.contains("--publish-undecided publishes them too"), "{said}");
    let (code, said) = recover(fixture, &["--all", "--apply", "--publish-undecided"]).await;
    assert!(code == Some(0) && said.contains("53 events published"), "{said}");
}

/// What the position tells of rows is not believed then.
async fn recovery_continues_behind_another_writer<K: Keeper>(fixture: &K) {
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    fixture.write_as_another().await;
    fixture.insert(10, 3).await;
    fixture.refused(3, K::FOREIGN).await;
    let (code, said) = recover(fixture, &[]).await;
    assert!(code == Some(1) && said.contains("not as walpost has left it"), "{said}");
    let (code, said) = recover(fixture, &["--all", "--apply"]).await;
    assert!(code == Some(0) && said.contains("0 events published"), "{said}");
    let (code, said) = fixture.ended("run", &["--until", "current"]).await;
    assert_eq!((code, fixture.length().await), (Some(0), 21), "{said}");
    fixture.remove_oldest(21).await;
    let (code, said) = recover(fixture, &["--all"]).await;
    let counts = ["published", "missing", "cannot be told"].map(|what| counted(&said, what));
    assert_eq!((code, counts), (Some(1), [0, 0, 20]), "{said}");
}

async fn rows_from_before_the_slot_are_published(fixture: &impl Keeper) {
    fixture.inner.postgres.execute(DROP).await;
    fixture.insert(3_000, 7).await;
    let init = ["--apply", "--existing-rows", "--order-by", "n"];
    for point in ["existing_announced=return", "row_batch=1*off->return"] {
        let killed = fixture.command("init").args(init).env("FAILPOINTS", point).start();
        let (code, said) = ended(&killed).await;
        assert_eq!(code, None, "{point}: it dies: {said}");
    }
    let (code, said) = fixture.ended("init", &init).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.insert(10, 5).await;
    is_exact_after_a_run(fixture).await;
}

async fn events_at_positions_are_replayed(fixture: &impl Keeper) {
    let walpost = fixture.run().await;
    for _ in 0..5 {
        fixture.insert(10, 5).await;
    }
    fixture.confirmed(LONG_TIMEOUT).await;
    let records = fixture.records().await;
    let position =
        |at: usize| records[at].header("walpost.position").expect("a position").to_owned();
    let range = format!("{}..{}", position(7), position(12));
    let arguments = ["--position", &range, "--read-topic", "outbox.event.order", "--apply"];
    let other = ["--position", &range, "--read-topic", "outbox.event.other", "--apply"];
    let (code, said) = fixture.ended("replay", &other).await;
    assert!(code == Some(1) && said.contains("has such a position"), "{said}");
    let (code, said) = fixture.ended("replay", &arguments).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.reaches(56).await;
    let again: Vec<_> = fixture.records().await.split_off(50);
    let values = |records: &[walpost_bed::Consumed]| {
        records.iter().map(|record| record.value.clone()).collect::<Vec<_>>()
    };
    assert_eq!(values(&again), values(&records[7..13]));
    stop(walpost).await;
}

/// The rows since a time, but for those that the slot sends, are there at least once, in order.
async fn rows_are_published_again_where_nothing_can_be_read_back(fixture: &impl Destination) {
    lose_the_slot(fixture).await;
    let (code, said) = recover(fixture, &["--publish-since", "yesterday"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("63 rows were written since yesterday"), "{said}");
    assert_eq!(fixture.records().await.len(), 40, "nothing is published");
    let (code, said) = recover(fixture, &["--publish-since", "yesterday", "--apply"]).await;
    assert!(code == Some(0) && said.contains("63 events published"), "{said}");
    let (code, said) = fixture.ended("run", &["--until", "current"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fixture.records().await.len(), 113);
    fixture.judge().await.assert_ok();
    let (code, said) = recover(fixture, &["--publish-since", "tomorrow", "--apply"]).await;
    assert!(code == Some(0) && said.contains("0 events published"), "{said}");
}
