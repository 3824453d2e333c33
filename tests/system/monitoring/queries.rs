//! Runs each query of the dashboard and of the pages in a Prometheus that scrapes a delivering
//! walpost.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, eventually, repository};

use crate::{endpoint, prometheus, rules, run_at};

/// Undeliverable events are dead-lettered, so that the relay continues.
const DEAD_LETTERED: &str =
    "[poison]\nmissing_field = \"skip\"\ntoo_large = \"dead_letter\"\nretries = 1\n";

#[ignore = "Prometheus and Python: make monitoring"]
#[tokio::test(flavor = "multi_thread")]
async fn every_dashboard_and_documentation_query_returns_data() {
    let (kafka, endpoint) = (Kafka::start().await, endpoint());
    let postgres = Postgres::builder(Major::V15).setting("max_slot_wal_keep_size", "4GB");
    let fixture = Fixture::with_brokers(postgres, &kafka.bootstrap()).await;
    kafka.create_topic(&fixture.topic("order"), 3).await;
    kafka.create_topic_with(&fixture.topic("small"), 1, &[("max.message.bytes", "2000")]).await;
    kafka.create_topic("walpost.dead-letter", 1).await;
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("walpost.toml");
    fs::write(&file, DEAD_LETTERED).unwrap();
    let state = fixture.topic("state");
    fixture.adopt(&state).await;
    let arguments = ["--config", file.to_str().unwrap(), "--state-topic", &state];
    let walpost = run_at(&fixture, &endpoint, &arguments).await;
    let prometheus = prometheus(rules::RULES, &endpoint).await;
    let writer = Writer::start(&fixture.postgres, 50);
    writer.commits(100).await;

    // Metrics that appear only after an event: poison, a rejection, a lost connection.
    fixture.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    fixture.postgres.execute(&insert(1, 1).replace("(i % 1)::text", "NULL")).await;
    walpost.await_line("skipped", SHORT_TIMEOUT).await;
    let large =
        insert(1, 1).replace("'order'", "'small'").replace("'i', i", "'i', repeat('x', 5000)");
    fixture.postgres.execute(&large).await;
    walpost.await_line("dead-letter topic", SHORT_TIMEOUT).await;
    let mark = walpost.mark();
    fixture.postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication").await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;

    for (panel, queries) in of_the_dashboard() {
        for query in queries {
            let query = substituted(&query);
            // A rate needs two scrapes, and the figures of the slot are read now and then.
            eventually(SHORT_TIMEOUT, &format!("{panel}: {query} has an answer"), async || {
                match prometheus.query(&query).await {
                    Ok(answer) if answer.is_empty() => Err("nothing".to_owned()),
                    Ok(answer) if answer.iter().all(|it| it.value.is_nan()) => {
                        Err("NaN".to_owned())
                    }
                    Ok(answer) => Ok(answer),
                    Err(error) => panic!("{panel}: {query}: {error}"),
                }
            })
            .await;
        }
    }
    let mut asked = 0;
    for query in of_the_pages() {
        prometheus.query(&query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
        asked += 1;
    }
    assert!(asked > 10, "only {asked} queries were found in the pages");
    let poison = prometheus.firing().await;
    assert!(poison.contains(&"WalpostPoisonEvents".to_owned()), "{poison:?}");
    let rolled_back = writer.stop().await;
    drop(rolled_back);
}

/// Each panel's queries, from the dashboard as Grafana's types parse it.
fn of_the_dashboard() -> BTreeMap<String, Vec<String>> {
    let here = repository().join("tests/system/monitoring");
    let types = Path::new(env!("CARGO_TARGET_TMPDIR")).join("grafana-types");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]);
    pip.arg("--upgrade").arg("--target").arg(&types).arg("-r").arg(here.join("requirements.txt"));
    output_of(&mut pip);
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", &types).arg("-B").arg(here.join("dashboard.py"));
    let read = output_of(python.arg(repository().join("docker/grafana/dashboards/walpost.json")));
    let panels: BTreeMap<String, Vec<String>> = serde_json::from_str(&read).unwrap();
    assert!(panels.len() > 20, "only {} panels were read", panels.len());
    panels
}

/// With Grafana's variables replaced: all values, and an interval of four scrapes.
fn substituted(query: &str) -> String {
    let all = ["$job", "$instance", "$database", "$slot"].into_iter();
    all.fold(query.replace("$__rate_interval", "4s"), |query, name| query.replace(name, ".*"))
}

/// The `promql` blocks of the pages, one query per line, without comments.
fn of_the_pages() -> Vec<String> {
    let docs = repository().join("docs");
    let mut queries = Vec::new();
    for folder in [docs.clone(), docs.join("runbooks")] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|it| it != "md") {
                continue;
            }
            let page = fs::read_to_string(&path).unwrap();
            let blocks = page.split("```promql\n").skip(1).filter_map(|it| it.split("```").next());
            let lines = blocks.flat_map(|block| block.lines());
            let bare = lines.map(|line| line.split('#').next().unwrap_or_default().trim());
            queries.extend(bare.filter(|line| !line.is_empty()).map(ToOwned::to_owned));
        }
    }
    queries
}

fn output_of(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?} failed:\n{said}");
    String::from_utf8(done.stdout).expect("it is text")
}
