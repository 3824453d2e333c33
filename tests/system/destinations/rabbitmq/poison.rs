//! Events that RabbitMQ cannot have: no queue takes them, their keys are too long, they are too large.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};

use super::fixture::RabbitFixture;
use crate::poison::{Poison, Poisonous};
use crate::promise::Promise as _;

impl Poisonous for RabbitFixture {
    async fn make_letters(&self) {
        self.rabbit.queue(&self.letters, &[]).await;
    }

    const POISON: &[Poison] = &[
        Poison {
            row: "(aggregate_type, aggregate_id, event_type) VALUES ('order', 'nowhere', 'bad')",
            cause: "missing_topic",
            reason: "no queue takes messages with the routing key `nowhere`",
            has_own_key: true,
        },
        // Found before it is sent.
        Poison {
            row: "(aggregate_type, aggregate_id, event_type) \
                  VALUES ('order', repeat('k', 256), 'bad')",
            cause: "refused",
            reason: "AMQP allows 255",
            has_own_key: true,
        },
        // The broker names its limit when it closes the channel: which event it was is found by that.
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '0', 'bad', to_jsonb(repeat('x', 100000)))",
            cause: "too_large",
            reason: "max_message_size",
            has_own_key: false,
        },
    ];
}

impl RabbitFixture {
    /// The keys 0 to 2 have a queue.
    pub async fn poisoned() -> Self {
        let fixture = Self::routed("").await;
        fixture.queue_keys().await;
        fixture
    }
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
    fixture.configure("");
    fixture.inner.postgres.execute(&(insert(3, 3) + ";" + &insert_of("nowhere", "1"))).await;
    let walpost = fixture.run().await;
    walpost.await_line("trying again until it can be delivered", LONG_TIMEOUT).await;
    fixture.rabbit.bind(&fixture.queue(0), &fixture.exchange, "nowhere").await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&[]).await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_no_queue_takes_is_delivered_once_one_does() {
    let fixture = RabbitFixture::poisoned().await.configured("poison.missing_topic = 'halt'\n");
    for row in [insert(3, 3), insert_of("nowhere", "1"), insert(3, 3)] {
        fixture.inner.postgres.execute(&row).await;
    }
    let (code, said) = fixture.ended("run", &[]).await;
    assert!(code == Some(4) && said.contains("NO_ROUTE"), "{said}");
    fixture.rabbit.bind(&fixture.queue(0), &fixture.exchange, "nowhere").await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge().await.assert_ok();
    stop(walpost).await;
}

/// Their queue is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_go_to_their_queue_once_it_exists() {
    let fixture =
        RabbitFixture::poisoned().await.configured("poison.missing_topic = 'dead_letter'\n");
    let lost = insert_of("nowhere", "1");
    for row in [insert(3, 3), lost.clone(), insert(3, 3), lost, insert(3, 3)] {
        fixture.inner.postgres.execute(&row).await;
    }
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

/// RabbitMQ gives no reason why no queue takes a message: the letters behind it are published all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_that_no_queue_takes_stays_one_and_blocks_no_other() {
    let fixture =
        RabbitFixture::poisoned().await.configured("poison.missing_topic = 'dead_letter'\n");
    fixture.make_letters().await;
    let postgres = &fixture.inner.postgres;
    for key in ["nowhere", "elsewhere"] {
        postgres.execute(&insert_of(key, "{}")).await;
    }
    let walpost = fixture.run().await;
    // What shows that these are at fault.
    fixture.insert(3, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let queue = fixture.queue(0);
    fixture.rabbit.bind(&queue, &fixture.exchange, "elsewhere").await;
    let (code, said) = fixture.ended("replay-dead-letters", &[]).await;
    assert!(code == Some(4) && said.contains("replayed 1, still poison 1,"), "{said}");
    fixture.rabbit.bind(&queue, &fixture.exchange, "nowhere").await;
    let (code, said) = fixture.ended("replay-dead-letters", &[]).await;
    assert!(code == Some(0) && said.contains("replayed 1, still poison 0,"), "{said}");
}
