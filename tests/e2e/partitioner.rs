//! Keys are assigned to the partitions that Java's producer assigns.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::Stdio;

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use walpost::sink::KeyHash;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, stop};
use walpost_bed::{Kafka, Major, Postgres};

use super::several_producers::with_several;

const COUNTS: [u32; 6] = [1, 3, 6, 12, 100, 1000];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_of_ten_thousand_keys_equal_javas() {
    let keys = keys();
    assert_eq!(keys.len(), 10_000);
    let java = of_java(keys.clone(), &COUNTS).await;
    for (key, java) in keys.iter().zip(java) {
        let ours =
            COUNTS.map(|count| KeyHash::Murmur2.partition(key, NonZeroU32::new(count).unwrap()));
        assert_eq!(ours, *java, "of {}", hex(key));
    }
}

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
    for (record, java) in records.iter().zip(of_java(keys, &[12]).await) {
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

/// Where Java's producer puts each key, in topics of so many partitions.
async fn of_java(keys: Vec<Vec<u8>>, counts: &[u32]) -> Vec<Vec<u32>> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/Partitions.java");
    let mut java = Kafka::shared().await.java();
    java.arg(program).args(counts.iter().map(u32::to_string));
    java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let count = keys.len();
    let running = tokio::task::spawn_blocking(move || {
        let mut java = java.spawn().unwrap();
        let lines: String = keys.iter().map(|key| hex(key) + "\n").collect();
        // It reads everything before it answers.
        java.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        java.wait_with_output().unwrap()
    });
    let done = running.await.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let answer = String::from_utf8(done.stdout).unwrap();
    let numbers = |line: &str| line.split(' ').map(|one| one.parse().unwrap()).collect();
    let partitions: Vec<_> = answer.lines().map(numbers).collect();
    assert_eq!(partitions.len(), count, "java answered on other keys");
    partitions
}

/// Bytes of every length up to 300 and of every value, text in several scripts, UUIDs and
/// decimal numbers.
fn keys() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(9);
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    for length in 0..=300 {
        for _ in 0..10 {
            keys.push((0..length).map(|_| random.u8(..)).collect());
        }
    }
    // The sign of a byte matters to those who forget it.
    keys.extend((0..=300).map(|length| vec![0xFF; length]));
    let signs: Vec<char> = "aZ09-_ .äßñжяΩ漢字かな한글😀🚚\u{0}".chars().collect();
    for number in 0..2_100_u64 {
        let length = random.usize(1..60);
        keys.push((0..length).map(|_| random.choice(&signs).unwrap()).collect::<String>().into());
        let uuid = random.u128(..);
        keys.push(uuid_text(uuid).into());
        keys.push((number * number).to_string().into());
    }
    while keys.len() < 10_000 {
        keys.push((random.i64(..)).to_string().into());
    }
    keys
}

fn uuid_text(uuid: u128) -> String {
    let digits = format!("{uuid:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
