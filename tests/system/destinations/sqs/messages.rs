//! What a message contains, and how messages are put into requests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::SqsFixture;
use crate::promise::Promise;

const ROWS: &str = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
                    VALUES ('order', 'Köln 7', 'placed', '{\"n\": 1}', '{\"tenant\": \"eu\"}'), \
                           ('order', 'Köln 7', 'gone', NULL, NULL), \
                           ('order', 'A-7', 'placed', '2', NULL)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_has_the_parts_of_the_record() {
    let fixture = SqsFixture::new().await;
    let walpost = fixture.run().await;
    fixture.inner.postgres.execute(ROWS).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let messages = fixture.elasticmq.messages(&fixture.queue).await;
    let of = |group: &str| {
        let of = messages.iter().filter(|message| message.group == group);
        of.cloned().collect::<Vec<_>>()
    };
    // The SHA-256 of a key that cannot be a group.
    let hashed = "SELECT encode(sha256('Köln 7'::bytea), 'hex')";
    let hashed = fixture.inner.postgres.query_text(hashed).await.expect("a hash");
    let (cologne, plain) = (of(&hashed), of("A-7"));
    let [placed, gone] = cologne.as_slice() else { panic!("{messages:?}") };
    assert_eq!((placed.body.as_str(), plain[0].body.as_str()), ("{\"n\": 1}", "2"));
    let id = "SELECT id FROM public.outbox ORDER BY n LIMIT 1";
    let id = fixture.inner.postgres.query_text(id).await.expect("a row");
    for (name, value) in [
        ("walpost.topic", "outbox.event.order"),
        ("walpost.key", "Köln 7"),
        ("id", &*id),
        ("event_type", "placed"),
        ("tenant", "eu"),
    ] {
        assert_eq!(placed.attribute(name), Some(value), "{placed:?}");
    }
    let position = placed.attribute("walpost.position").expect("a position");
    assert!(placed.deduplication_id.contains(position), "{placed:?}");
    assert!(placed.attribute("walpost.timestamp").is_some());
    assert_eq!((gone.body.as_str(), gone.attribute("walpost.body")), ("null", Some("tombstone")));
    let records = fixture.records().await;
    assert!(records.iter().any(|record| record.value.is_none()), "a tombstone");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_beyond_the_tenth_attribute_are_in_one_together() {
    let fixture = SqsFixture::new().await;
    let walpost = fixture.run().await;
    let headers = "(SELECT jsonb_object_agg('h' || i, i::text) FROM generate_series(1, 20) AS i) || \
                   '{\"a b\": \"spaced\", \"empty\": \"\", \"lines\": \"x\\ny\\u0001\"}'";
    let sql = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
         SELECT 'order', 'k', 'placed', '1', {headers}"
    );
    fixture.inner.postgres.execute(&sql).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let messages = fixture.elasticmq.messages(&fixture.queue).await;
    assert_eq!(messages[0].attributes.len(), 10, "{messages:?}");
    let records = fixture.records().await;
    let found: BTreeMap<_, _> = records[0]
        .headers
        .iter()
        .map(|(name, value)| {
            let value = value.clone().unwrap_or_default();
            (name.clone(), String::from_utf8(value).expect("text"))
        })
        .collect();
    for number in 1..=20 {
        assert_eq!(found.get(&format!("h{number}")), Some(&number.to_string()), "{found:?}");
    }
    for (name, value) in [("a b", "spaced"), ("empty", ""), ("lines", "x\ny\u{1}")] {
        assert_eq!(found.get(name).map(String::as_str), Some(value), "{found:?}");
    }
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_without_a_key_have_groups_of_their_own() {
    let fixture = SqsFixture::new().await.configured("[record]\nnull_keys = 'allow'\n");
    let walpost = fixture.run().await;
    let sql = "INSERT INTO public.outbox (aggregate_type, event_type, payload) \
               SELECT 'order', 'placed', to_jsonb(i) FROM generate_series(1, 20) AS i";
    fixture.inner.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    fixture.inner.postgres.execute(sql).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let messages = fixture.elasticmq.messages(&fixture.queue).await;
    let groups: BTreeSet<_> = messages.iter().map(|message| &message.group).collect();
    assert_eq!((messages.len(), groups.len()), (20, 20), "{groups:?}");
    assert!(messages.iter().all(|message| message.attribute("walpost.key").is_none()));
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_have_ten_messages_of_different_groups_and_go_side_by_side() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    front.delays(Duration::from_millis(50));
    fixture.insert(2000, 500).await;
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    front.assert_one_at_a_time();
    let sizes: Vec<_> = front.batches().iter().map(|batch| batch.entries().len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 2000, "none is sent twice");
    assert!(sizes.iter().all(|size| *size <= 10) && sizes.len() < 300, "{sizes:?}");
    // One by one, the answers would take 10 s.
    assert!(front.most_batches() > 4, "{}", front.most_batches());
    assert!(front.most_batches() <= 16, "{}", front.most_batches());
    stop(walpost).await;
}

/// A batch has 256 KiB at most, so that no server rejects it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_go_in_requests_of_their_own() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    let sql = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
               SELECT 'order', i::text, 'placed', to_jsonb(repeat('x', i % 3 * 100000)) \
                 FROM generate_series(1, 12) AS i";
    fixture.inner.postgres.execute(sql).await;
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    for batch in front.batches() {
        let entries = batch.entries();
        let bytes: usize =
            entries.iter().map(|entry| entry["MessageBody"].as_str().map_or(0, str::len)).sum();
        assert!(entries.len() == 1 || bytes <= 256 << 10, "{} of {bytes}", entries.len());
    }
    stop(walpost).await;
}
