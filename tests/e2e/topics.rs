//! Topics that rows choose: those that are not allowed, internal ones, and what is left of them.

use std::path::Path;

use tempfile::TempDir;
use walpost_bed::scene::{LATER, SOON, Scene, program, stop};
use walpost_bed::{Kafka, Walpost, eventually};

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
async fn a_row_reaches_no_topic_that_is_not_allowed_and_none_of_kafkas_own() {
    let (kafka, directory) = (Kafka::shared().await, TempDir::new().expect("a directory"));
    let scene = Scene::new().await;
    kafka.create_topic(&scene.topic("order"), 1).await;
    // What stands behind `raw.` is the topic.
    let toml = format!(
        "[record]\ntopic_regex = '.*raw\\.(.*)'\ntopic_replacement = '$1'\n\
         topics_allowed = ['{}', '__*']\n[poison]\ninvalid_topic = 'skip'\nrefused = 'skip'\n",
        scene.topic("or*")
    );
    let walpost = scene.run_with(&["--config", &write(&directory, &toml)]).await;
    let other = |number: usize| row(&format!("other{number}"), "'{}'");
    let others: String = (0..30).map(other).collect();
    let internal = row("raw.__consumer_offsets", "'{}'");
    let good = row("order", "'{\"good\": true}'");
    scene.postgres.execute(&format!("BEGIN; {good}{others}{internal}{good}COMMIT")).await;
    scene.confirmed(SOON).await;
    let records = scene.records().await;
    assert_eq!(records.len(), 2, "each once: nothing was sent again");
    assert!(records.iter().all(|record| record.topic == scene.topic("order")));
    let administration = kafka.administration();
    for number in 0..30 {
        let topic = scene.topic(&format!("other{number}"));
        assert_eq!(administration.partitions(&topic).await, Ok(Vec::new()), "{topic}");
    }
    let told = walpost.stderr().into_iter().filter(|line| line.contains(": skipped")).count();
    assert_eq!(told, 31);
    assert!(!walpost.said("delivery failed; replaying"), "{:?}", walpost.stderr());
    assert_eq!(stop(walpost).await["skipped"], 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_a_row_names_is_not_made_for_it_and_waited_for() {
    let (kafka, scene) = (Kafka::shared().await, Scene::new().await);
    // Without what the scene's own commands have, so that by default; the shared broker would make
    // it.
    let walpost = Walpost::builder(program())
        .args(["run", "--source", &scene.source, "--bootstrap-servers", &scene.bootstrap])
        .args(["--topic", &scene.topic("{aggregate_type}")])
        .start();
    walpost.await_line("streaming from PostgreSQL", SOON).await;
    scene.postgres.execute(&row("order", "'{}'")).await;
    let topic = scene.topic("order");
    walpost.await_line(&format!("kafka-topics.sh --create --topic {topic}"), SOON).await;
    assert_eq!(kafka.administration().partitions(&topic).await, Ok(Vec::new()));
    kafka.create_topic(&topic, 1).await;
    scene.confirmed(SOON).await;
    assert_eq!(scene.records().await.len(), 1);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_a_row_names_and_nobody_created_holds_up_no_others() {
    let (kafka, directory) = (Kafka::shared().await, TempDir::new().expect("a directory"));
    let scene = Scene::new().await;
    let (order, letters) = (scene.topic("order"), scene.topic("letters"));
    kafka.create_topic(&order, 1).await;
    let toml =
        format!("[poison]\nmissing_topic = 'dead_letter'\ndead_letter_topic = '{letters}'\n");
    let config = write(&directory, &toml);
    let topics = scene.topic("{aggregate_type}");
    let arguments = ["--source", &scene.source, "--bootstrap-servers", &scene.bootstrap];
    let walpost = Walpost::builder(program())
        .args(["run", "--config", &config, "--topic", &topics])
        .args(arguments)
        .start();
    walpost.await_line("streaming from PostgreSQL", SOON).await;
    let (good, missing) = (row("order", "'{}'"), row("nowhere", "'{}'"));
    let others: String = (0..3).map(|number| row(&format!("other{number}"), "'{}'")).collect();
    let rows = format!("BEGIN; {good}{}{good}{others}{good}COMMIT", missing.repeat(100));
    scene.postgres.execute(&rows).await;
    // The letters' own topic is waited for: they have nowhere else to go.
    walpost.await_line(&format!("kafka-topics.sh --create --topic {letters}"), LATER).await;
    kafka.create_topic(&letters, 1).await;
    scene.confirmed(LATER).await;
    let records = scene.records().await;
    let of = |topic: &str| records.iter().filter(|record| record.topic == topic).count();
    assert!(of(&order) >= 3, "{}", of(&order));
    assert!(of(&letters) >= 103, "{}", of(&letters));
    for topic in ["nowhere", "other0", "other1", "other2"].map(|name| scene.topic(name)) {
        assert_eq!(kafka.administration().partitions(&topic).await, Ok(Vec::new()), "{topic}");
    }
    let said = format!("topic `{}` does not exist; create the topic", scene.topic("nowhere"));
    assert!(walpost.said(&said), "{:?}", walpost.stderr());
    // One that is created since is found, without a restart.
    kafka.create_topic(&scene.topic("nowhere"), 1).await;
    scene.postgres.execute(&missing).await;
    scene.confirmed(SOON).await;
    let records = scene.records().await;
    let arrived = records.iter().filter(|record| record.topic == scene.topic("nowhere"));
    assert_eq!(arrived.count(), 1);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_as_long_as_configured_again_once_nothing_is_refused() {
    let (kafka, directory) = (Kafka::shared().await, TempDir::new().expect("a directory"));
    let scene = Scene::new().await;
    let limit = [("max.message.bytes", "20000")];
    kafka.create_topic_with(&scene.topic("order"), 1, &limit).await;
    let toml = "[poison]\ntoo_large = 'skip'\n";
    let walpost =
        scene.run_with(&["--config", &write(&directory, toml), "-X", "batch.size=10000"]).await;
    let large = row(
        "order",
        "jsonb_build_object('much', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) AS i))",
    );
    let good = row("order", "'{}'");
    scene.postgres.execute(&format!("BEGIN; {good}{large}{good}COMMIT")).await;
    scene.confirmed(LATER).await;
    walpost.await_line("making smaller ones for a while", SOON).await;
    let line = walpost.await_line("restored the configured batch size", SOON).await;
    assert!(line.contains("\"batch_size\":10000"), "{line}");
    // The producer that makes them delivers, and in order.
    let before = scene.records().await.len();
    scene.postgres.execute(&format!("BEGIN; {}COMMIT", good.repeat(100))).await;
    scene.confirmed(SOON).await;
    eventually(SOON, "all are there", async || scene.records().await.len() == before + 100).await;
    let seconds = walpost.stderr().into_iter().filter(|line| line.contains("making smaller"));
    assert!(seconds.count() <= 4, "{:?}", walpost.stderr());
    stop(walpost).await;
}
