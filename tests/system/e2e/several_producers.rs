//! Several producers that send at the same time, each with its share of the partitions.

use std::collections::BTreeSet;
use std::time::Duration;

use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{
    Consumed, DelayProxy, Kafka, Major, Postgres, Walpost, WalpostBuilder, eventually,
};

const CHANGED: &str = "changed the number of producers";

/// The maximum from the beginning, whatever the brokers' distance.
pub(super) fn with_several(command: WalpostBuilder) -> WalpostBuilder {
    command.env("FAILPOINTS", "several_producers=return").env("WALPOST_KAFKA_MAX_PRODUCERS", "4")
}

async fn run(fixture: &Fixture, arguments: &[&str]) -> Walpost {
    let walpost = with_several(fixture.command("run")).args(arguments).start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    walpost
}

/// Brokers as near as those of the tests need one producer.
#[track_caller]
fn assert_still_several(walpost: &Walpost) {
    assert!(!walpost.said(CHANGED), "{:?}", walpost.stderr());
}

/// A broker of its own at that round trip, with the proxy that makes it so.
pub(crate) async fn distant_brokers(round_trip: Duration) -> (DelayProxy, Kafka, Fixture) {
    let proxy = DelayProxy::start();
    let kafka = Kafka::builder().behind(proxy.port()).start().await;
    proxy.point_at(kafka.proxied_port().expect("it has a proxy"));
    proxy.set_round_trip(round_trip);
    let bootstrap = format!("127.0.0.1:{}", proxy.port());
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &bootstrap).await;
    (proxy, kafka, fixture)
}

async fn assert_in_partitions_of_their_keys(records: &[Consumed], count: u32) {
    let keys: Vec<_> = records.iter().map(|record| record.key.clone().expect("a key")).collect();
    let of_java = Kafka::shared().await.partitions_of(&keys, &[count]).await;
    for (record, java) in records.iter().zip(of_java) {
        assert_eq!([u32::try_from(record.partition).unwrap()], *java, "{:?}", record.key_text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_producers_publish_each_row_once_and_in_order() {
    let fixture = Fixture::new().await;
    let kafka = Kafka::shared().await;
    for (topic, partitions) in [("order", 12), ("customer", 5), ("invoice", 1)] {
        kafka.create_topic(&fixture.topic(topic), partitions).await;
    }
    let walpost = run(&fixture, &[]).await;
    let many = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
                SELECT (ARRAY['order', 'customer', 'invoice'])[i % 3 + 1], (i % 97)::text, 'placed' \
                  FROM generate_series(1, 1000) AS i";
    let writer = Writer::start(&fixture.postgres, 100);
    for _ in 0..3 {
        fixture.postgres.execute(many).await;
        writer.commits(50).await;
    }
    let rolled_back = writer.stop().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&rolled_back).await.assert_exact();
    let records = fixture.records().await;
    for (topic, partitions) in [("order", 12), ("customer", 5), ("invoice", 1)] {
        let topic = fixture.topic(topic);
        let of_it: Vec<_> = records.iter().filter(|one| one.topic == topic).cloned().collect();
        assert_in_partitions_of_their_keys(&of_it, partitions).await;
        let seen: BTreeSet<_> = of_it.iter().map(|record| record.partition).collect();
        assert_eq!(u32::try_from(seen.len()), Ok(partitions));
    }
    assert_still_several(&walpost);
    stop(walpost).await;
}

/// The producers learn of it one after the other: until all have, keys stay where they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn added_partitions_are_used_once_all_producers_know_of_them() {
    let fixture = Fixture::new().await;
    let (kafka, topic) = (Kafka::shared().await, fixture.topic("order"));
    kafka.create_topic(&topic, 4).await;
    let soon = ["-X", "topic.metadata.refresh.interval.ms=1000"];
    let walpost = run(&fixture, &soon).await;
    fixture.postgres.execute(&insert(200, 50)).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    kafka.administration().grow(&topic, 12).await;
    let line = "the number of partitions of the topic changed";
    eventually(LONG_TIMEOUT, "the added partitions are noticed", async || {
        fixture.postgres.execute(&insert(50, 50)).await;
        if walpost.said(line) { Ok(()) } else { Err("not yet") }
    })
    .await;
    let before = fixture.records().await.len();
    fixture.postgres.execute(&insert(200, 50)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let records = fixture.records().await;
    let added: BTreeSet<_> =
        records.iter().map(|one| one.partition).filter(|one| *one >= 4).collect();
    assert!(added.len() > 4 && records.len() > before, "{added:?}");
    assert!(!walpost.said("replaying"), "no producer was asked for what it does not know");
    assert_eq!(records.len(), fixture.committed().await.len(), "each row once");
    walpost_bed::fixture::assert_in_log_order(&records);
    assert_still_several(&walpost);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_that_change_reach_all_producers_without_duplicates() {
    let fixture = Fixture::new().await;
    Kafka::shared().await.create_topic(&fixture.topic("order"), 12).await;
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("kafka");
    let properties = |linger: u32| {
        let text = format!("allow.auto.create.topics=true\nlinger.ms={linger}\n");
        std::fs::write(&file, text).expect("written");
    };
    properties(0);
    let path = file.to_str().expect("UTF-8");
    let command = with_several(fixture.command("run")).env("WALPOST_KAFKA_PROPERTIES_FILE", path);
    let walpost = command.start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let writer = Writer::start(&fixture.postgres, 200);
    writer.commits(100).await;
    properties(2);
    walpost.hangup();
    walpost.await_line("the reloaded Kafka properties are in effect", LONG_TIMEOUT).await;
    writer.commits(100).await;
    let rolled_back = writer.stop().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&rolled_back).await.assert_exact();
    assert_still_several(&walpost);
    stop(walpost).await;
}

/// The record is refused by the broker, so all producers are replaced by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_record_replaces_all_producers_and_nothing_is_lost() {
    let fixture = Fixture::new().await;
    let limit = [("max.message.bytes", "20000")];
    Kafka::shared().await.create_topic_with(&fixture.topic("order"), 12, &limit).await;
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, "poison.too_large = 'skip'\n").expect("written");
    let walpost = run(&fixture, &["--config", file.to_str().expect("UTF-8")]).await;
    let writer = Writer::start(&fixture.postgres, 200);
    writer.commits(100).await;
    assert_still_several(&walpost);
    let poison = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                  SELECT 'order', 'k', 'placed', to_jsonb(string_agg(md5(i::text), '')) \
                    FROM generate_series(1, 2000) AS i RETURNING id";
    let skipped = fixture.postgres.query_text(poison).await.expect("an id");
    walpost.await_line("skipped", LONG_TIMEOUT).await;
    writer.commits(100).await;
    let mut unpublished = writer.stop().await;
    unpublished.push(skipped.clone());
    fixture.confirmed(LONG_TIMEOUT).await;
    let rows =
        format!("SELECT id, aggregate_id FROM public.outbox WHERE id <> '{skipped}' ORDER BY n");
    let rows = fixture.rows(&rows).await;
    let unpublished = unpublished.iter().map(String::as_str);
    walpost_bed::oracle::judge(&rows, unpublished, &fixture.records().await).assert_ok();
    stop(walpost).await;
}

/// A network with a round trip of 5 ms, and a thousand rows a second for 12 partitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distant_brokers_and_a_high_rate_get_several_producers() {
    let (_proxy, kafka, mut fixture) = distant_brokers(Duration::from_millis(5)).await;
    kafka.create_topic(&fixture.topic("order"), 12).await;
    let walpost = fixture.run().await;
    let writers = [0; 4].map(|_| Writer::start(&fixture.postgres, 200));
    let line = walpost.await_line(CHANGED, LONG_TIMEOUT).await;
    // On a busy machine there may be several at once.
    let single = r#""producers":1,"#;
    assert!(line.contains(r#""in_flight":5"#), "{line}");
    eventually(LONG_TIMEOUT, "several producers", async || {
        let lines = walpost.stderr();
        lines.iter().any(|line| line.contains(CHANGED) && !line.contains(single))
    })
    .await;
    writers[0].commits(400).await;
    let mut rolled_back = Vec::new();
    for writer in writers {
        rolled_back.extend(writer.stop().await);
    }
    fixture.confirmed(LONG_TIMEOUT).await;
    // The judge reads by the shorter way.
    fixture.bootstrap = kafka.bootstrap();
    let records = fixture.records().await;
    let count = fixture.committed().await.len();
    assert_eq!(records.len(), count, "each row once: no replay");
    walpost_bed::fixture::assert_in_log_order(&records);
    assert!(records.iter().all(|one| {
        let id = one.header("id").expect("an id");
        !rolled_back.iter().any(|other| other == id)
    }));
    stop(walpost).await;
}
