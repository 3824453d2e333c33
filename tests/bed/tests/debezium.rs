//! The real Debezium, and the corpus that was recorded with it.
//!
//! What starts it fetches 75 MB the first time, and is run by `make debezium`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use walpost_bed::debezium::Connector;
use walpost_bed::golden::{Recorder, Scenario};
use walpost_bed::{Debezium, Follower, Kafka, Major, Postgres};

const MINUTE: Duration = Duration::from_secs(60);

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/debezium")
}

fn golden_text(name: &str) -> String {
    let path = corpus().join(format!("{name}.jsonl"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn golden_files() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![corpus()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "jsonl") {
                files.push(path);
            }
        }
    }
    files
}

#[test]
fn every_golden_file_contains_the_scenario_it_is_named_after() {
    let files = golden_files();
    assert!(files.len() > 100, "too few files: {}", files.len());
    for path in files {
        let scenario = Scenario::parse(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(corpus().join(format!("{}.jsonl", scenario.name)), path);
        assert!(scenario.name.starts_with(&format!("{}/", scenario.profile)), "{}", scenario.name);
    }
}

#[tokio::test]
#[ignore = "starts Kafka Connect: make debezium"]
async fn recording_a_golden_file_again_gives_the_same_file() {
    let mut recorder = Recorder::start().await;
    for name in [
        "debezium/type/text",
        "debezium/type/timetz",
        "debezium/option/operations_warn",
        "debezium-json/type/numeric_12_2",
        "debezium-json/expand/envelope",
        "debezium-binary/payload/bytea",
    ] {
        let golden = golden_text(name);
        let scenario = Scenario::parse(&golden).unwrap();
        let seen = recorder.record(&scenario).await;
        for (line, (golden, seen)) in golden.lines().zip(seen.lines()).enumerate() {
            assert_eq!(seen, golden, "{name}, line {}", line + 1);
        }
        assert_eq!(seen, golden, "{name}");
    }
}

#[tokio::test]
#[ignore = "starts Kafka Connect: make debezium"]
async fn result_of_a_row_does_not_depend_on_earlier_rows() {
    let mut recorder = Recorder::start().await;
    for name in ["debezium-json/expand/text", "debezium-json/expand/envelope"] {
        let golden = golden_text(name);
        let mut scenario = Scenario::parse(&golden).unwrap();
        scenario.steps.reverse();
        let seen = recorder.record(&scenario).await;
        let (head, turned) = seen.split_once('\n').unwrap();
        let turned: Vec<_> = turned.lines().rev().collect();
        let golden: Vec<_> = golden.lines().collect();
        assert_eq!([&[head], &turned[..]].concat(), golden, "{name}");
    }
}

#[tokio::test]
#[ignore = "starts Kafka Connect: make debezium"]
async fn worker_resumes_after_a_stop_and_after_a_kill() {
    let postgres = Postgres::start(Major::V17).await;
    let kafka = Kafka::start().await;
    let outbox = "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, payload text)";
    postgres.execute(outbox).await;
    postgres.execute("CREATE PUBLICATION outbox FOR TABLE outbox").await;
    postgres.execute("SELECT pg_create_logical_replication_slot('outbox', 'pgoutput')").await;
    let debezium = Debezium::start(&postgres, &kafka).await;
    let follower = Follower::start(&kafka.bootstrap(), "outbox.event.order");
    debezium.add(&postgres, Connector::new("outbox", "outbox", "outbox")).await;
    let insert = async |id: u32| {
        let row = format!("INSERT INTO outbox VALUES ({id}, 'order', 'key', 'payload {id}')");
        postgres.execute(&row).await;
    };
    let await_value = async |value: &str| {
        let is_there =
            |seen: &[walpost_bed::Consumed]| seen.iter().any(|one| one.value_text() == Some(value));
        follower.until(value, MINUTE, is_there).await;
    };
    insert(1).await;
    await_value("payload 1").await;

    let pid = debezium.pid();
    assert!(debezium.stop(MINUTE).await, "{}", debezium.log_tail(20));
    insert(2).await;
    debezium.start_again().await;
    assert_ne!(debezium.pid(), pid);
    await_value("payload 2").await;

    debezium.kill9().await;
    assert_eq!(debezium.pid(), None);
    insert(3).await;
    debezium.start_again().await;
    debezium.streams(&postgres).await;
    await_value("payload 3").await;

    let directory = debezium.directory().to_owned();
    assert!(debezium.log_path().starts_with(&directory));
    drop(debezium);
    assert!(!directory.exists());
}
