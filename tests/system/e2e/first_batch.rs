//! A broker takes any record of a producer that it does not know in a partition, so one that it
//! rejects at first could be overtaken by those in flight behind it.

use std::time::Duration;

use walpost_bed::Consumed;
use walpost_bed::fixture::{ended, insert};

use crate::several_producers::distant_brokers;

/// What is in the topic once walpost has halted at the first of 50 events, which the broker
/// rejects, with five requests in flight of a record each.
async fn published_behind_a_rejected_first_record(points: &str) -> Vec<Consumed> {
    let (_proxy, kafka, mut fixture) = distant_brokers(Duration::from_millis(20)).await;
    let limit = [("max.message.bytes", "20000")];
    kafka.create_topic_with(&fixture.topic("order"), 1, &limit).await;
    let large = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 SELECT 'order', '1', 'placed', to_jsonb(string_agg(md5(i::text), '')) \
                   FROM generate_series(1, 2000) AS i";
    fixture.postgres.execute(&format!("BEGIN; {large}; {}; COMMIT", insert(49, 1))).await;
    let properties = ["max.in.flight.requests.per.connection=5", "batch.num.messages=1"];
    let properties = properties.iter().flat_map(|one| ["-X", one]);
    let walpost = fixture.command("run").args(properties).env("FAILPOINTS", points).start();
    let (code, text) = ended(&walpost).await;
    assert_eq!(code, Some(4), "{text}");
    fixture.bootstrap = kafka.bootstrap();
    fixture.records().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_record_overtakes_a_rejected_first_one() {
    for points in ["", "several_producers=return"] {
        let ahead = published_behind_a_rejected_first_record(points).await;
        assert!(ahead.is_empty(), "{} records are ahead", ahead.len());
    }
}

/// What the gate is for: if this fails, brokers or the client library keep the order by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_first_batch_gate_records_overtake_it() {
    let points = "no_first_batch_gate=return";
    let ahead = published_behind_a_rejected_first_record(points).await;
    assert!(!ahead.is_empty(), "the gate is of no use");
}
