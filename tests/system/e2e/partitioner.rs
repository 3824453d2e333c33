//! Records are in the partitions that the clients of other teams choose.

use std::collections::{BTreeMap, BTreeSet};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, stop};
use walpost_bed::{Kafka, Major, Postgres};

use super::several_producers::with_several;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_records_are_in_javas_partitions() {
    let fixture = Fixture::new().await;
    let topic = fixture.topic("order");
    Kafka::shared().await.create_topic(&topic, 12).await;
    let walpost = fixture.run().await;
    let sql = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type)
               SELECT 'order', CASE i % 5
                        WHEN 0 THEN i::text
                        WHEN 1 THEN md5(i::text)::uuid::text
                        WHEN 2 THEN i || ' Käufer №'
                        WHEN 3 THEN repeat(chr(128512 + i % 64), i) || 'é'
                        ELSE '{\"tenant\": ' || i || '}' END,
                      'placed'
                 FROM generate_series(1, 200) AS i";
    fixture.postgres.execute(sql).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    let keys: Vec<_> = records.iter().map(|record| record.key.clone().unwrap()).collect();
    assert!(keys.iter().collect::<BTreeSet<_>>().len() >= 200);
    let of_java = Kafka::shared().await.partitions_of(&keys, &[12]).await;
    for (record, java) in records.iter().zip(of_java) {
        assert_eq!([u32::try_from(record.partition).unwrap()], *java, "{:?}", record.key_text());
    }
    assert_eq!(records.iter().map(|record| record.partition).collect::<BTreeSet<_>>().len(), 12);
    stop(walpost).await;
}

/// A team that published by a program on librdkafka keeps the partitions of its keys: with one producer,
/// with several, and exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_records_are_in_the_partitions_of_other_partitioners() {
    for partitioner in ["consistent_random", "fnv1a_random"] {
        for mode in ["one", "several", "exactly-once"] {
            let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
            let (ours, theirs) = (fixture.topic("order"), fixture.topic("theirs"));
            for topic in [&ours, &theirs] {
                Kafka::shared().await.create_topic(topic, 12).await;
            }
            let property = format!("partitioner={partitioner}");
            let run = fixture.command("run").args(["-X", &property]);
            let run = match mode {
                "several" => with_several(run),
                "exactly-once" => {
                    let state = fixture.topic("state");
                    fixture.adopt(&state).await;
                    run.args(["--delivery", mode, "--state-topic", &state])
                }
                _ => run,
            };
            let walpost = run.start();
            walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
            let sql = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type)
                       SELECT 'order', md5(i::text), 'placed' FROM generate_series(1, 200) AS i";
            fixture.postgres.execute(sql).await;
            fixture.confirmed(SHORT_TIMEOUT).await;
            let placed = async |topic: &str| -> BTreeMap<_, _> {
                let records = fixture.records().await;
                let of_topic = records.iter().filter(|record| record.topic == topic);
                of_topic.map(|record| (record.key.clone().unwrap(), record.partition)).collect()
            };
            let ours = placed(&ours).await;
            assert_eq!(ours.len(), 200);
            let mut client = ClientConfig::new();
            client.set("bootstrap.servers", &fixture.bootstrap).set("partitioner", partitioner);
            let producer: BaseProducer = client.create().unwrap();
            for key in ours.keys() {
                let record = BaseRecord::to(&theirs).key(key).payload("");
                producer.send(record).map_err(|(error, _)| error).unwrap();
            }
            producer.flush(SHORT_TIMEOUT).unwrap();
            assert_eq!(ours, placed(&theirs).await, "{partitioner} {mode}");
            stop(walpost).await;
        }
    }
}
