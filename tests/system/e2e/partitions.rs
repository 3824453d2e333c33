//! Records whose partition is set by a column.

use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, create_command, ended, stop};
use walpost_bed::{Kafka, Walpost, eventually};

/// A topic of three partitions, with these settings for `[poison]`.
async fn run(fixture: &Fixture, directory: &TempDir, poison: &str) -> Walpost {
    fixture.postgres.execute("ALTER TABLE public.outbox ADD COLUMN shard int").await;
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, format!("record.place = ['shard:partition']\n{poison}")).expect("a file");
    fixture.run_with(&["--config", file.to_str().expect("UTF-8")]).await
}

fn insert(key: &str, shard: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, shard) \
         VALUES ('order', {key}, 'placed', '{{}}', {shard})"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_column_is_used_and_order_is_kept() {
    let (fixture, directory) = (Fixture::new().await, TempDir::new().expect("a directory"));
    Kafka::shared().await.create_topic_with(&fixture.topic("order"), 3, &[]).await;
    let walpost = run(&fixture, &directory, "").await;
    let many = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, shard) \
                SELECT 'order', (i % 7)::text || '-' || (i % 3), 'placed', jsonb_build_object('shard', i % 3), i % 3 \
                  FROM generate_series(1, 600) AS i";
    for _ in 0..3 {
        fixture.postgres.execute(many).await;
    }
    fixture.assert_exact(LONG_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records.len(), 1800);
    for record in &records {
        let shard = format!("{{\"shard\": {}}}", record.partition);
        assert_eq!(record.value_text(), Some(shard.as_str()));
    }
    walpost_bed::fixture::assert_in_log_order(&records);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonexistent_partition_halts_until_it_is_added() {
    let (fixture, directory) = (Fixture::new().await, TempDir::new().expect("a directory"));
    let (kafka, topic) = (Kafka::shared().await, fixture.topic("order"));
    kafka.create_topic_with(&topic, 3, &[]).await;
    let walpost = run(&fixture, &directory, "").await;
    let events = [insert("'a'", "2"), insert("'b'", "3"), insert("'c'", "0")].join("; ");
    fixture.postgres.execute(&events).await;
    let (code, text) = ended(&walpost).await;
    assert_eq!(code, Some(4), "{text}");
    let fix = format!(
        "the topic has 3, 0 to 2; add partitions (kafka-topics.sh --alter --topic {topic} --partitions 4)"
    );
    assert!(text.contains("it names partition 3") && text.contains(&fix), "{text}");
    assert_eq!(fixture.records().await.len(), 1, "what stands before it");
    kafka.administration().grow(&topic, 4).await;
    let file = directory.path().join("walpost.toml");
    let walpost = fixture.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    let mut of: Vec<_> = fixture.records().await.iter().map(|record| record.partition).collect();
    of.sort_unstable();
    of.dedup();
    assert_eq!(of, [0, 2, 3]);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_with_invalid_partitions_are_diverted_individually() {
    let (fixture, directory) = (Fixture::new().await, TempDir::new().expect("a directory"));
    let (kafka, dead) = (Kafka::shared().await, fixture.topic("dead"));
    kafka.create_topic_with(&fixture.topic("order"), 3, &[]).await;
    let poison = ["refused", "missing_field"].map(|cause| format!("{cause} = 'dead_letter'\n"));
    let poison = format!("[poison]\n{}dead_letter_topic = '{dead}'\n", poison.concat());
    let walpost = run(&fixture, &directory, &poison).await;
    let shards = ["0", "9", "1", "NULL", "7", "2"];
    let events: Vec<_> = shards.iter().map(|shard| insert("'k'", shard)).collect();
    fixture.postgres.execute(&events.join("; ")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let (letters, good): (Vec<_>, Vec<_>) =
        fixture.records().await.into_iter().partition(|record| record.topic == dead);
    assert_eq!(good.iter().map(|record| record.partition).collect::<Vec<_>>(), [0, 1, 2]);
    let mut causes: Vec<_> = letters.iter().filter_map(|one| one.header("walpost.cause")).collect();
    causes.sort_unstable();
    assert_eq!(causes, ["missing_field", "refused", "refused"]);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explicit_partition_waits_for_a_missing_topic() {
    let kafka = Kafka::builder().property("auto.create.topics.enable", "false").start().await;
    let fixture = Fixture::with_brokers(
        walpost_bed::Postgres::builder(walpost_bed::Major::V15),
        &kafka.bootstrap(),
    )
    .await;
    let directory = TempDir::new().expect("a directory");
    let walpost = run(&fixture, &directory, "").await;
    // By its key it would go to another.
    fixture.postgres.execute(&insert("'a'", "2")).await;
    let command = create_command(&fixture.bootstrap, &fixture.topic("order"));
    walpost.await_line(&command, SHORT_TIMEOUT).await;
    kafka.create_topic_with(&fixture.topic("order"), 3, &[]).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "it is there", async || !fixture.records().await.is_empty()).await;
    assert!(fixture.records().await.iter().all(|record| record.partition == 2));
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_recreated_with_fewer_partitions_halts() {
    let kafka = Kafka::builder().property("auto.create.topics.enable", "false").start().await;
    let postgres = walpost_bed::Postgres::builder(walpost_bed::Major::V15);
    let fixture = Fixture::with_brokers(postgres, &kafka.bootstrap()).await;
    let (directory, topic) = (TempDir::new().expect("a directory"), fixture.topic("order"));
    kafka.create_topic_with(&topic, 3, &[]).await;
    let walpost = run(&fixture, &directory, "").await;
    fixture.postgres.execute(&insert("'a'", "2")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.delete_topic(&topic).await;
    kafka.create_topic_with(&topic, 1, &[]).await;
    fixture.postgres.execute(&insert("'a'", "2")).await;
    let status = walpost.wait(LONG_TIMEOUT).await.expect("it ends");
    let text = walpost.stderr().join("\n");
    assert_eq!(status.code(), Some(4), "{text}");
    assert!(text.contains("it names partition 2, and the topic has 1, 0 to 0"), "{text}");
    assert!(fixture.records().await.is_empty());
}
