//! Topics chosen by rows: disallowed topics, internal topics, and missing topics.

use std::path::Path;

use tempfile::TempDir;
use walpost_bed::fixture::{
    Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, create_command, ended, program, stop,
};
use walpost_bed::{Kafka, Major, Postgres, Walpost, eventually};

fn write(directory: &TempDir, toml: &str) -> String {
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, toml).expect("it can be written");
    Path::to_str(&file).expect("UTF-8").to_owned()
}

fn row(aggregate_type: &str, payload: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('{aggregate_type}', 'k', 'placed', {payload}); "
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_cannot_reach_disallowed_or_internal_topics() {
    let (kafka, directory) = (Kafka::shared().await, TempDir::new().expect("a directory"));
    let fixture = Fixture::new().await;
    kafka.create_topic(&fixture.topic("order"), 1).await;
    // What follows `raw.` is the topic.
    let toml = format!(
        "[record]\ntopic_regex = '.*raw\\.(.*)'\ntopic_replacement = '$1'\n\
         topics_allowed = ['{}', '__*']\n[poison]\ninvalid_topic = 'skip'\nrefused = 'skip'\n",
        fixture.topic("or*")
    );
    let walpost = fixture.run_with(&["--config", &write(&directory, &toml)]).await;
    let other = |number: usize| row(&format!("other{number}"), "'{}'");
    let others: String = (0..30).map(other).collect();
    let internal = row("raw.__consumer_offsets", "'{}'");
    let good = row("order", "'{\"good\": true}'");
    fixture.postgres.execute(&format!("BEGIN; {good}{others}{internal}{good}COMMIT")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records.len(), 2, "each once: nothing was sent again");
    assert!(records.iter().all(|record| record.topic == fixture.topic("order")));
    let administration = kafka.administration();
    for number in 0..30 {
        let topic = fixture.topic(&format!("other{number}"));
        assert_eq!(administration.partitions(&topic).await, Ok(Vec::new()), "{topic}");
    }
    let logged = walpost.stderr().into_iter().filter(|line| line.contains(": skipped")).count();
    assert_eq!(logged, 31);
    assert!(!walpost.said("delivery failed; replaying"), "{:?}", walpost.stderr());
    assert_eq!(stop(walpost).await["skipped"], 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_topic_named_by_a_row_is_not_created() {
    let (kafka, fixture) = (Kafka::shared().await, Fixture::new().await);
    // Without what the fixture's own commands have, so that by default; the shared broker would make
    // it.
    let walpost = Walpost::builder(program())
        .args(["run", "--source", &fixture.source, "--bootstrap-servers", &fixture.bootstrap])
        .args(["--topic", &fixture.topic("{aggregate_type}")])
        .start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&row("order", "'{}'")).await;
    let topic = fixture.topic("order");
    let command = create_command(&fixture.bootstrap, &topic) + ";";
    let line = walpost.await_line(&command, SHORT_TIMEOUT).await;
    assert!(line.contains("event\":\"0000"), "{line}");
    let id = fixture.postgres.query_text("SELECT id FROM public.outbox").await.expect("a row");
    assert!(line.contains(&format!("(event id {id})")), "{line}");
    assert_eq!(kafka.administration().partitions(&topic).await, Ok(Vec::new()));
    kafka.create_topic(&topic, 1).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    assert_eq!(fixture.records().await.len(), 1);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_topics_are_created_on_request() {
    let (kafka, directory) = (Kafka::shared().await, TempDir::new().expect("a directory"));
    for delivery in ["at-least-once", "exactly-once"] {
        let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
        let state = fixture.topic("state");
        fixture.adopt(&state).await;
        let allowed = [fixture.topic("order"), fixture.topic("other")];
        let toml = format!("record.topics_allowed = {allowed:?}\npoison.invalid_topic = 'skip'\n");
        let config = write(&directory, &toml);
        let walpost = fixture
            .command("run")
            .args(["--create-topics", "5:1", "--delivery", delivery, "--state-topic", &state])
            .args(["-X", "allow.auto.create.topics=false"])
            .args(["--config", &config])
            .start();
        walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        let rows = ["order", "other", "order", "elsewhere"].map(|name| row(name, "'{}'"));
        fixture.postgres.execute(&rows.concat()).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
        let records = fixture.records().await;
        assert_eq!(records.iter().filter(|record| record.topic != state).count(), 3);
        for (name, partitions) in [("order", 5), ("other", 5), ("elsewhere", 0)] {
            let found = kafka.administration().partitions(&fixture.topic(name)).await;
            assert_eq!(found.map(|found| found.len()), Ok(partitions), "{name}");
        }
        let is_about = |line: &&String| line.contains("created the topic");
        assert_eq!(walpost.stderr().iter().filter(is_about).count(), 2);
        stop(walpost).await;
    }
}

/// An outage of brokers does not make an event undeliverable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_that_cannot_be_created_yet_is_not_given_up() {
    let (kafka, directory) = (Kafka::shared().await, TempDir::new().expect("a directory"));
    let fixture = Fixture::new().await;
    let topic = fixture.topic("order");
    let config = write(
        &directory,
        &format!("record.topics_allowed = [{topic:?}]\npoison.missing_topic = 'skip'\n"),
    );
    let creates = ["--create-topics", "1:3", "--config", &config];
    let walpost = fixture.command("run").args(creates).start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let committed = fixture.postgres.commit(&row("order", "'{}'")).await;
    walpost.await_line("walpost could not create it: InvalidReplicationFactor", LONG_TIMEOUT).await;
    fixture.assert_unconfirmed(&committed).await;
    let servers = ["--source", &fixture.source, "--bootstrap-servers", &fixture.bootstrap];
    let check = Walpost::builder(program()).arg("check").args(servers).args(creates);
    let check = check.args(["--topic", &topic]).start();
    ended(&check).await;
    let found = check.stdout().join("\n");
    assert!(found.contains("could not create it: InvalidReplicationFactor"), "{found}");
    kafka.create_topic(&topic, 1).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.records().await.len(), 1);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_topic_does_not_block_other_topics() {
    let (kafka, directory) = (Kafka::shared().await, TempDir::new().expect("a directory"));
    let fixture = Fixture::new().await;
    let (order, letters) = (fixture.topic("order"), fixture.topic("letters"));
    kafka.create_topic(&order, 1).await;
    let toml =
        format!("[poison]\nmissing_topic = 'dead_letter'\ndead_letter_topic = '{letters}'\n");
    let config = write(&directory, &toml);
    let topics = fixture.topic("{aggregate_type}");
    let arguments = ["--source", &fixture.source, "--bootstrap-servers", &fixture.bootstrap];
    let walpost = Walpost::builder(program())
        .args(["run", "--config", &config, "--topic", &topics])
        .args(arguments)
        .start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let (good, missing) = (row("order", "'{}'"), row("nowhere", "'{}'"));
    let others: String = (0..3).map(|number| row(&format!("other{number}"), "'{}'")).collect();
    let rows = format!("BEGIN; {good}{}{good}{others}{good}COMMIT", missing.repeat(100));
    fixture.postgres.execute(&rows).await;
    // The letters' own topic is waited for: they have nowhere else to go.
    walpost.await_line(&create_command(&fixture.bootstrap, &letters), LONG_TIMEOUT).await;
    kafka.create_topic(&letters, 1).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let records = fixture.records().await;
    let of = |topic: &str| records.iter().filter(|record| record.topic == topic).count();
    assert!(of(&order) >= 3, "{}", of(&order));
    assert!(of(&letters) >= 103, "{}", of(&letters));
    for topic in ["nowhere", "other0", "other1", "other2"].map(|name| fixture.topic(name)) {
        assert_eq!(kafka.administration().partitions(&topic).await, Ok(Vec::new()), "{topic}");
    }
    let nowhere = fixture.topic("nowhere");
    let command = create_command(&fixture.bootstrap, &nowhere);
    let said = format!("topic `{nowhere}` does not exist; create it: {command}");
    assert!(walpost.said(&said), "{:?}", walpost.stderr());
    // One that is created since is found, without a restart.
    kafka.create_topic(&fixture.topic("nowhere"), 1).await;
    fixture.postgres.execute(&missing).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    let arrived = records.iter().filter(|record| record.topic == fixture.topic("nowhere"));
    assert_eq!(arrived.count(), 1);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batching_recovers_after_rejections() {
    let (kafka, directory) = (Kafka::shared().await, TempDir::new().expect("a directory"));
    let fixture = Fixture::new().await;
    let limit = [("max.message.bytes", "20000")];
    kafka.create_topic_with(&fixture.topic("order"), 1, &limit).await;
    let toml = "[poison]\ntoo_large = 'skip'\n";
    let walpost =
        fixture.run_with(&["--config", &write(&directory, toml), "-X", "batch.size=10000"]).await;
    let large = row(
        "order",
        "jsonb_build_object('much', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) AS i))",
    );
    let good = row("order", "'{}'");
    fixture.postgres.execute(&format!("BEGIN; {good}{large}{good}COMMIT")).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    walpost.await_line("making smaller ones for a while", SHORT_TIMEOUT).await;
    let line = walpost.await_line("restored the configured batch size", SHORT_TIMEOUT).await;
    assert!(line.contains("\"batch_size\":10000"), "{line}");
    // The producer that makes them delivers, and in order.
    let before = fixture.records().await.len();
    fixture.postgres.execute(&format!("BEGIN; {}COMMIT", good.repeat(100))).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "all are there", async || {
        fixture.records().await.len() == before + 100
    })
    .await;
    let seconds = walpost.stderr().into_iter().filter(|line| line.contains("making smaller"));
    assert!(seconds.count() <= 4, "{:?}", walpost.stderr());
    stop(walpost).await;
}
