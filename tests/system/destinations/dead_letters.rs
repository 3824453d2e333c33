//! Dead letters that are published again once their cause is fixed.

use walpost_bed::fixture::{LONG_TIMEOUT, ended, stop};

use crate::poison::Poisonous;
use crate::promise::{assert_rows, cases};

cases! {
    dead_letters_are_replayed_once(poisoned): [redis nats rabbitmq sqs];
    killed_replay_continues(poisoned): [redis nats rabbitmq];
    letters_of_a_key_that_is_still_poison_are_kept(poisoned): [redis nats rabbitmq sqs];
    letters_are_replayed_while_others_are_published(poisoned): [redis nats rabbitmq sqs];
    letters_that_were_given_out_cannot_be_replayed(new): [http];
}

/// Events of other types than `order` become dead letters.
const ORDERS: &str =
    "record.topics_allowed = ['outbox.event.order']\npoison.invalid_topic = 'dead_letter'\n";

/// So do all.
const NONE: &str = "record.topics_allowed = ['x']\npoison.invalid_topic = 'dead_letter'\n";

/// An event of another type.
async fn insert_bad(fixture: &impl Poisonous, key: &str) {
    let insert = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
         VALUES ('bad', '{key}', 'placed')"
    );
    fixture.inner.postgres.execute(&insert).await;
}

/// Runs with this configuration until everything is confirmed.
async fn run_with(fixture: &impl Poisonous, toml: &str) {
    fixture.configure(toml);
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
}

/// The exit code, and what is said.
async fn replay(fixture: &impl Poisonous, arguments: &[&str]) -> (Option<i32>, String) {
    fixture.ended("replay-dead-letters", arguments).await
}

fn summary(replayed: u64, poison: u64, held_back: u64) -> String {
    format!("replayed {replayed}, still poison {poison}, held back {held_back}, skipped 0")
}

/// Every row is there as an event, once if that `is_once`.
async fn assert_published(fixture: &impl Poisonous, is_once: bool) {
    let mut records = fixture.records().await;
    records.retain(|record| record.header("walpost.cause").is_none());
    assert_rows(&fixture.verdict(&records, &[]).await, is_once);
}

/// How many events are there.
async fn published(fixture: &impl Poisonous) -> usize {
    let records = fixture.records().await;
    records.iter().filter(|record| record.header("walpost.cause").is_none()).count()
}

async fn dead_letters_are_replayed_once<P: Poisonous>(fixture: &P) {
    fixture.make_letters().await;
    fixture.insert(12, 3).await;
    run_with(fixture, NONE).await;
    let (code, said) = replay(fixture, &["--dry-run"]).await;
    assert!(code == Some(4) && said.contains("would replay 0, still poison 3, "), "{said}");
    fixture.configure("");
    let (code, said) = replay(fixture, &["--dry-run"]).await;
    // SQS gives out none of a group behind one that was taken.
    let seen = if P::GIVES_OUT_LETTERS_BEHIND { 12 } else { 3 };
    let expected = format!("would replay {seen}, still poison 0");
    assert!(code == Some(0) && said.contains(&expected), "{said}");
    for part in ["(invalid_topic, event ", "topic outbox.event.order, key 2", ", id "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(published(fixture).await, 0, "a dry run publishes nothing");
    let (code, said) = replay(fixture, &["--limit", "1"]).await;
    assert!(code == Some(0) && said.contains(&summary(1, 0, 0)), "{said}");
    for count in [11, 0] {
        let (code, said) = replay(fixture, &[]).await;
        assert!(code == Some(0) && said.contains(&summary(count, 0, 0)), "{said}");
    }
    assert_published(fixture, true).await;
    // What walpost knows of the destination still holds.
    fixture.insert(6, 3).await;
    run_with(fixture, "").await;
    assert_published(fixture, true).await;
}

async fn killed_replay_continues<P: Poisonous>(fixture: &P) {
    fixture.make_letters().await;
    fixture.insert(12, 3).await;
    run_with(fixture, NONE).await;
    fixture.configure("");
    for count in [0, 1, 4] {
        let action = format!("replayed={count}*off->return");
        let dying = fixture.command("replay-dead-letters").env("FAILPOINTS", action).start();
        let (code, said) = ended(&dying).await;
        assert_eq!(code, None, "it dies: {said}");
    }
    let (code, said) = replay(fixture, &[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_published(fixture, P::HAS_ONE_ORDER).await;
    fixture.insert(6, 3).await;
    run_with(fixture, "").await;
    assert_published(fixture, P::HAS_ONE_ORDER).await;
}

/// Otherwise a key would have them in another order.
async fn letters_of_a_key_that_is_still_poison_are_kept<P: Poisonous>(fixture: &P) {
    fixture.make_letters().await;
    fixture.insert(3, 3).await;
    insert_bad(fixture, "0").await;
    fixture.insert(3, 3).await;
    run_with(fixture, NONE).await;
    fixture.configure(ORDERS);
    for replayed in [5, 0] {
        let (code, said) = replay(fixture, &[]).await;
        let held_back = u64::from(P::GIVES_OUT_LETTERS_BEHIND);
        let expected = summary(replayed, 1, held_back);
        assert!(code == Some(4) && said.contains(&expected), "{expected}: {said}");
    }
    assert_eq!(published(fixture).await, 5);
    fixture.configure("");
    let (code, said) = replay(fixture, &[]).await;
    assert!(code == Some(0) && said.contains(&summary(2, 0, 0)), "{said}");
    assert_published(fixture, true).await;
}

async fn letters_are_replayed_while_others_are_published<P: Poisonous>(fixture: &P) {
    fixture.make_letters().await;
    fixture.configure(ORDERS);
    let walpost = fixture.run().await;
    for _ in 0..20 {
        insert_bad(fixture, "2").await;
    }
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.configure("");
    let replaying = fixture.command("replay-dead-letters").start();
    let insert = async {
        for _ in 0..40 {
            fixture.insert(5, 2).await;
        }
    };
    let ((code, said), ()) = tokio::join!(ended(&replaying), insert);
    let lines = replaying.stdout().join("\n");
    assert!(code == Some(0) && lines.contains(&summary(20, 0, 0)), "{lines} {said}");
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    assert_published(fixture, P::HAS_ONE_ORDER).await;
}

async fn letters_that_were_given_out_cannot_be_replayed(
    fixture: &impl crate::promise::Destination,
) {
    let (code, said) = fixture.ended("replay-dead-letters", &[]).await;
    assert!(code == Some(78) && said.contains("walpost replay --id"), "{said}");
}
