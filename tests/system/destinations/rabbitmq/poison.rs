//! Events that RabbitMQ cannot have: no queue takes them, their keys are too long, they are too large.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};

use super::fixture::{RabbitFixture, SIZE_MAX};
use crate::promise::Promise;

/// The keys 0 to 2 have a queue; the key `nowhere` has none. Two such events are among the others, and
/// each is followed by one that goes where it does.
async fn staged(policy: &str) -> RabbitFixture {
    let fixture = RabbitFixture::routed(&format!("poison.missing_topic = '{policy}'\n")).await;
    fixture.queue_keys().await;
    let lost = insert_of("nowhere", "1");
    for row in [insert(3, 3), lost.clone(), insert(3, 3), lost, insert(3, 3)] {
        fixture.inner.postgres.execute(&row).await;
    }
    fixture
}

fn insert_of(key: &str, payload: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', '{key}', 'placed', '{payload}')"
    )
}

/// How many of the others have arrived, each counted once.
async fn arrived(fixture: &RabbitFixture) -> usize {
    let records = fixture.records().await.into_iter();
    let ids = records.filter_map(|record| {
        record.headers.into_iter().find(|(name, _)| name == "id").and_then(|(_, value)| value)
    });
    ids.collect::<std::collections::BTreeSet<_>>().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_halt_stops_before_an_event_that_no_queue_takes() {
    let fixture = staged("halt").await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("no queue takes messages with the routing key `nowhere`")
            && said.contains("NO_ROUTE"),
        "{said}"
    );
    assert!(arrived(&fixture).await >= 3);
    // With a queue it resumes where it stopped.
    fixture.rabbit.bind(&fixture.queue(0), &fixture.exchange, "nowhere").await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&[]).await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_skip_delivers_the_others() {
    let fixture = staged("skip").await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(arrived(&fixture).await, 9);
    stop(walpost).await;
}

/// A queue that is missing for some time costs no event: with every policy while no queue takes any,
/// and by default also if others take theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_queues_are_waited_for() {
    let fixture =
        RabbitFixture::routed("poison.missing_topic = 'skip'\npoison.refused = 'skip'\n").await;
    fixture.inner.postgres.execute(&insert(30, 3)).await;
    let walpost = fixture.run().await;
    let line = walpost.await_line("trying again: it is not known", LONG_TIMEOUT).await;
    assert!(line.contains("NO_ROUTE") && line.contains("event 0"), "{line}");
    fixture.queue_keys().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&[]).await.assert_ok();
    assert!(!walpost.said(": skipped"), "{:?}", walpost.stderr());
    stop(walpost).await;
    fixture.reconfigure("");
    fixture.inner.postgres.execute(&(insert(3, 3) + ";" + &insert_of("nowhere", "1"))).await;
    let walpost = fixture.run().await;
    walpost.await_line("trying again until it can be delivered", LONG_TIMEOUT).await;
    fixture.rabbit.bind(&fixture.queue(0), &fixture.exchange, "nowhere").await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&[]).await.assert_ok();
    stop(walpost).await;
}

/// Their queue is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_go_to_their_queue_once_it_exists() {
    let fixture = staged("dead_letter").await;
    let walpost = fixture.run().await;
    let line = walpost.await_line("the queue of dead letters", SHORT_TIMEOUT).await;
    assert!(line.contains(&fixture.letters) && line.contains("declare it"), "{line}");
    fixture.rabbit.queue(&fixture.letters, &[]).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(arrived(&fixture).await, 9);
    let letters = fixture.rabbit.take(&fixture.letters).await;
    let ids: std::collections::BTreeSet<_> =
        letters.iter().map(|letter| letter.message_id.as_str()).collect();
    assert_eq!(ids.len(), 2, "{letters:?}");
    assert!(letters.iter().all(|letter| letter.header("walpost.cause") == Some("missing_topic")));
    stop(walpost).await;
}

/// Found before anything is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_cannot_be_a_message_is_undeliverable() {
    let fixture = RabbitFixture::new().await.configured("poison.refused = 'skip'\n");
    for row in [insert(1, 1), insert_of(&"k".repeat(256), "1"), insert(1, 1)] {
        fixture.inner.postgres.execute(&row).await;
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(arrived(&fixture).await, 2);
    stop(walpost).await;
    fixture.reconfigure("");
    fixture.inner.postgres.execute(&insert_of(&"k".repeat(256), "1")).await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("AMQP allows 255"), "{said}");
}

/// The broker names its limit when it closes the channel: which event it was is found by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_event_is_undeliverable_by_the_brokers_limit() {
    let fixture = RabbitFixture::new().await.configured("poison.too_large = 'skip'\n");
    let large = format!("\"{}\"", "x".repeat(SIZE_MAX));
    for row in [insert(3, 3), insert_of("0", &large), insert(3, 3)] {
        fixture.inner.postgres.execute(&row).await;
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(arrived(&fixture).await, 6);
    assert!(walpost.said("max_message_size"), "{:?}", walpost.stderr());
    stop(walpost).await;
}
