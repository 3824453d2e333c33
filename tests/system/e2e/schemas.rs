//! Values with the prefix of a schema registry.

use std::time::Duration;

use serde_json::json;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, stop};
use walpost_bed::{
    Consumed, Endpoints, Kafka, SchemaRegistry, WalpostBuilder, eventually, unchanged,
};

use super::endpoints::Answering;

/// A database, and a registry for it.
struct Schemas {
    fixture: Fixture,
    registry: SchemaRegistry,
    directory: tempfile::TempDir,
}

impl Schemas {
    async fn over(registry: SchemaRegistry) -> Self {
        let fixture = Fixture::new().await;
        let directory = tempfile::TempDir::new().expect("a directory");
        Self { fixture, registry, directory }
    }

    async fn new() -> Self {
        Self::over(SchemaRegistry::start().await).await
    }

    /// Payloads are bytes, as an application serializes them.
    async fn of_bytes(self) -> Self {
        let alter = "ALTER TABLE outbox ALTER payload TYPE bytea USING ''::bytea";
        self.fixture.postgres.execute(alter).await;
        self
    }

    /// A command with this file besides the registry's address.
    fn command(&self, name: &str, toml: &str) -> WalpostBuilder {
        let file = self.directory.path().join("walpost.toml");
        let url = self.registry.url();
        std::fs::write(&file, format!("registry.url = '{url}'\n{toml}")).expect("it is written");
        self.fixture.command(name).arg("--config").arg(file)
    }

    async fn run(&self, toml: &str) -> Answering {
        Answering::over(self.command("run", toml)).await
    }

    /// Inserts an event with this payload, an expression of SQL.
    async fn insert(&self, aggregate_type: &str, key: &str, payload: &str) {
        let insert = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES \
             ('{aggregate_type}', '{key}', 'placed', {payload})"
        );
        self.fixture.postgres.execute(&insert).await;
    }

    /// The subject of a topic's values.
    fn subject(&self, aggregate_type: &str) -> String {
        self.fixture.topic(aggregate_type) + "-value"
    }

    /// The values of a topic, once all is confirmed.
    async fn values(&self, aggregate_type: &str) -> Vec<Vec<u8>> {
        self.fixture.confirmed(LONG_TIMEOUT).await;
        let topic = self.fixture.topic(aggregate_type);
        let records = self.fixture.records().await.into_iter();
        let mut records: Vec<Consumed> = records.filter(|record| record.topic == topic).collect();
        records.sort_by_key(|record| (record.partition, record.offset));
        records.into_iter().filter_map(|record| record.value).collect()
    }
}

const FRAME: &str = "record.value_encoding = 'frame'\nregistry.refresh = '500ms'\n";
const CHECK: &str = "record.value_encoding = 'check'\n";

fn framed(id: u8, payload: &str) -> Vec<u8> {
    [&[0, 0, 0, 0, id], payload.as_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_get_the_id_of_their_subject_and_of_its_new_version() {
    let schemas = Schemas::new().await;
    schemas.registry.register(&schemas.subject("order"), 7, &json!({"schemaType": "JSON"}));
    schemas.registry.register(&schemas.subject("bill"), 8, &json!({"schemaType": "PROTOBUF"}));
    let walpost = schemas.run(FRAME).await;
    schemas.insert("order", "k", "'{}'").await;
    schemas.insert("bill", "k", "'1'").await;
    assert_eq!(schemas.values("order").await, [framed(7, "{}")]);
    // The first message of the schema.
    assert_eq!(schemas.values("bill").await, [[&framed(8, "")[..], b"\x001"].concat()]);
    schemas.registry.register(&schemas.subject("order"), 9, &json!({}));
    eventually(SHORT_TIMEOUT, "the new version is used", async || {
        schemas.insert("order", "k", "'{}'").await;
        schemas.values("order").await.last() == Some(&framed(9, "{}"))
    })
    .await;
    // What is known stays in use.
    schemas.registry.say(Some((503, "", Duration::ZERO)));
    let asked = schemas.registry.asked("order");
    eventually(SHORT_TIMEOUT, "it is asked again", async || {
        schemas.registry.asked("order") > asked + 1
    })
    .await;
    schemas.insert("order", "k", "'[]'").await;
    assert_eq!(schemas.values("order").await.last(), Some(&framed(9, "[]")));
    assert_eq!(walpost.page("/readyz").await.0, 200);
    let scrape = walpost.scrape().await;
    assert!(scrape.sum("walpost_registry_requests_total", &[("result", "ok")]) >= Some(3.0));
    assert!(scrape.of("walpost_registry_schemas") >= 2.0);
    stop(walpost.walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_waits_for_a_registry_that_is_away_and_keeps_its_place() {
    let mut schemas = Schemas::over(SchemaRegistry::away()).await;
    schemas.registry.register(&schemas.subject("order"), 7, &json!({}));
    let walpost = schemas.run(FRAME).await;
    walpost.await_ready(200).await;
    for payload in ["'1'", "'2'"] {
        schemas.insert("order", "k", payload).await;
    }
    let text = walpost.await_ready(503).await;
    assert!(text.contains("cannot be read from the schema registry"), "{text}");
    let walsender = schemas.fixture.walsender().await;
    assert!(walsender.is_some(), "the session goes on");
    // Answers that are none of a registry.
    schemas.registry.say(Some((200, "<html>", Duration::ZERO)));
    schemas.registry.begin().await;
    let no_path = r#"{"error_code": 404, "message": "HTTP 404 Not Found"}"#;
    for answer in [(404, no_path), (404, "<html>"), (500, "{}"), (200, "{}"), (302, "")] {
        let asked = schemas.registry.asked("order");
        schemas.registry.say(Some((answer.0, answer.1, Duration::ZERO)));
        eventually(LONG_TIMEOUT, "it is asked again", async || {
            schemas.registry.asked("order") > asked + 1
        })
        .await;
    }
    assert_eq!(walpost.page("/readyz").await.0, 503);
    assert_eq!(schemas.fixture.walsender().await, walsender);
    schemas.registry.say(None);
    assert_eq!(schemas.values("order").await, [framed(7, "1"), framed(7, "2")]);
    walpost.await_ready(200).await;
    let waited = walpost.scrape().await.of("walpost_registry_wait_seconds_total");
    assert!(waited > 0.1, "{waited}");
    stop(walpost.walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_waits_until_its_schema_is_registered_also_through_a_kill() {
    let schemas = Schemas::new().await;
    schemas.registry.register(&schemas.subject("order"), 7, &json!({}));
    let walpost = schemas.run(FRAME).await;
    schemas.insert("order", "k", "'1'").await;
    schemas.fixture.confirmed(SHORT_TIMEOUT).await;
    schemas.insert("bill", "k", "'2'").await;
    schemas.insert("order", "k", "'3'").await;
    let text = walpost.await_ready(503).await;
    assert!(text.contains("does not have the latest schema of subject"), "{text}");
    assert!(text.contains("40401"), "{text}");
    walpost.walpost.kill9().await;
    let walpost = schemas.run(FRAME).await;
    walpost.await_ready(503).await;
    schemas.registry.register(&schemas.subject("bill"), 8, &json!({}));
    assert_eq!(schemas.values("order").await, [framed(7, "1"), framed(7, "3")]);
    assert_eq!(schemas.values("bill").await, [framed(8, "2")]);
    stop(walpost.walpost).await;
}

/// The transaction has events before and behind the one that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_once_event_in_mid_transaction_waits_too() {
    let schemas = Schemas::new().await;
    schemas.registry.register(&schemas.subject("order"), 7, &json!({}));
    let topic = super::state_topic::topic(&schemas.fixture).await;
    schemas.fixture.adopt(&topic).await;
    let run = schemas.command("run", FRAME).args(["--delivery", "exactly-once"]);
    let walpost = Answering::over(run.args(["--state-topic", &topic])).await;
    walpost.await_ready(200).await;
    let rows = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES \
                ('order', 'k', 'placed', '1'), ('bill', 'k', 'placed', '2'), ('order', 'k', 'placed', '3')";
    schemas.fixture.postgres.execute(rows).await;
    walpost.await_ready(503).await;
    schemas.registry.register(&schemas.subject("bill"), 8, &json!({}));
    assert_eq!(schemas.values("order").await, [framed(7, "1"), framed(7, "3")]);
    assert_eq!(schemas.values("bill").await, [framed(8, "2")]);
    stop(walpost.walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payload_with_a_prefix_is_passed_on_if_the_registry_has_its_schema() {
    let schemas = Schemas::new().await.of_bytes().await;
    let policies = "[poison]\nmissing_schema = 'dead_letter'\nschema_mismatch = 'dead_letter'\n";
    let dead = schemas.fixture.topic("dead");
    Kafka::shared().await.create_topic(&dead, 1).await;
    let toml = format!("{CHECK}{policies}dead_letter_topic = '{dead}'\n");
    schemas.registry.register("s", 7, &json!({"ruleSet": {"domainRules": [{}]}}));
    let walpost = schemas.run(&toml).await;
    let good = "'\\x00000000076869'";
    for (key, payload) in [("k", good), ("k", "'bare'"), ("j", "'\\x0000000009'"), ("k", good)] {
        schemas.insert("order", key, payload).await;
    }
    assert_eq!(schemas.values("order").await, [framed(7, "hi"), framed(7, "hi")]);
    let letters = schemas.fixture.records().await;
    let letters = letters.iter().filter(|record| record.topic == dead);
    let causes: Vec<_> = letters.filter_map(|letter| letter.header("walpost.cause")).collect();
    assert_eq!(causes, ["schema_mismatch", "missing_schema"]);
    // Once the schema is there the letter can be replayed, and the event's bytes are its own.
    schemas.registry.register("s", 9, &json!({}));
    stop(walpost.walpost).await;
    let replay = schemas.command("replay-dead-letters", &toml).args(["--from", &dead]).start();
    let (code, said) = ended(&replay).await;
    assert!(code == Some(4) && said.contains("still undeliverable"), "{code:?} {said}");
    let values = schemas.values("order").await;
    assert!(values.contains(&framed(9, "")) && values.len() == 3, "{values:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_are_refused_at_the_start_end_the_run_and_later_ones_are_waited_for() {
    let schemas = Schemas::new().await;
    schemas.registry.register(&schemas.subject("order"), 7, &json!({}));
    schemas.registry.require("Bearer right");
    schemas.insert("order", "k", "'1'").await;
    let refused =
        schemas.command("run", FRAME).env("WALPOST_REGISTRY_AUTHORIZATION", "Bearer s3cret");
    let (code, said) = ended(&refused.start()).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("refuses walpost's credentials") && !said.contains("s3cret"), "{said}");
    let secret = schemas.directory.path().join("authorization");
    std::fs::write(&secret, "Bearer right").expect("it is written");
    let run = schemas.command("run", FRAME).env("WALPOST_REGISTRY_AUTHORIZATION_FILE", &secret);
    let walpost = Answering::over(run).await;
    assert_eq!(schemas.values("order").await, [framed(7, "1")]);
    schemas.registry.require("Bearer rotated");
    schemas.registry.register(&schemas.subject("bill"), 8, &json!({}));
    schemas.insert("bill", "k", "'2'").await;
    let text = walpost.await_ready(503).await;
    assert!(text.contains("refuses walpost's credentials"), "{text}");
    std::fs::write(&secret, "Bearer rotated").expect("it is written");
    assert_eq!(schemas.values("bill").await, [framed(8, "2")]);
    stop(walpost.walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_and_tail_ask_the_registry() {
    let schemas = Schemas::new().await;
    let toml = format!("{FRAME}registry.value_subject = 's'\n");
    let check = async || {
        let check = schemas.command("check", &toml).start();
        ended(&check).await;
        check.stdout().join("\n")
    };
    let said = check().await;
    assert!(said.contains("registry_schema_missing") && said.contains("40401"), "{said}");
    schemas.registry.register("s", 7, &json!({"ruleSet": {"domainRules": [{}]}}));
    assert!(check().await.contains("registry_schema_unusable"));
    schemas.registry.register("s", 8, &json!({}));
    assert!(check().await.contains("it has the latest schema of subject `s`: id 8"));
    schemas.registry.say(Some((401, "", Duration::ZERO)));
    assert!(check().await.contains("registry_credentials"));
    schemas.registry.say(None);
    schemas.insert("order", "k", "'1'").await;
    let tail = schemas.command("tail", &toml).args(["--from-slot", "--limit", "1"]).start();
    let (code, said) = ended(&tail).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(tail.stdout().join("\n").contains("\\u0000\\u0000"), "{:?}", tail.stdout());
    schemas.registry.delete("s");
    let tail = schemas.command("tail", &toml).args(["--from-slot", "--limit", "1"]).start();
    let (code, said) = ended(&tail).await;
    assert!(code == Some(4) && said.contains("does not have the latest schema"), "{code:?} {said}");
}

/// The first address is one of another server, and the second one's path is not that of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_addresses_are_asked_if_one_has_no_answer() {
    let (schemas, other) = (Schemas::new().await, SchemaRegistry::start().await);
    other.say(Some((404, "<html>default backend</html>", Duration::ZERO)));
    schemas.registry.register("s", 7, &json!({}));
    let urls = format!("{}, {}", other.url(), schemas.registry.url());
    let toml = "record.value_encoding = 'frame'\nregistry.value_id = 7\n";
    let run = schemas.command("run", toml).env("WALPOST_REGISTRY_URL", urls);
    let walpost = Answering::over(run).await;
    schemas.insert("order", "k", "'1'").await;
    assert_eq!(schemas.values("order").await, [framed(7, "1")]);
    assert!(other.asked("/schemas/ids/7") > 0);
    stop(walpost.walpost).await;
}

/// A registry that never answers holds up what needs it, and nothing else. A stop gives it the time that it gives
/// a destination.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_registry_is_waited_for_and_a_stop_is_not() {
    let schemas = Schemas::new().await;
    schemas.registry.say(Some((200, "{}", Duration::from_secs(3600))));
    let walpost = schemas.run(&format!("{FRAME}registry.timeout = '1s'\n")).await;
    walpost.await_ready(200).await;
    schemas.insert("order", "k", "'1'").await;
    let text = walpost.await_ready(503).await;
    assert!(text.contains("no answer within 1s"), "{text}");
    let flushed = schemas.fixture.confirmed_flush().await;
    let still = unchanged(Duration::from_secs(1), SHORT_TIMEOUT, async || {
        schemas.fixture.confirmed_flush().await
    });
    assert_eq!(still.await, flushed, "nothing is confirmed");
    assert!(Endpoints::at(&walpost.address).page("/livez").await.0 == 200);
    let begun = std::time::Instant::now();
    stop(walpost.walpost).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "nothing of a transaction is published");
}
