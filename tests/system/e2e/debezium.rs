//! Debezium's golden records, made by walpost from the same rows in a real PostgreSQL.
//!
//! `crates/core/src/record/debezium` compares the records of the whole corpus; these tests check that rows,
//! data types and partitions arrive there as they are in the files.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, ended, program, stop};
use walpost_bed::{Consumed, Follower, Kafka, Major, Postgres, Topics, Walpost, repository};

/// Each way to write a value, to place a column and to choose a topic once; the types
/// that are not PostgreSQL's own; those with a modifier.
const SCENARIOS: [&str; 28] = [
    "debezium/type/text",
    "debezium/type/citext",
    "debezium/type/domain_int4",
    "debezium/type/domain_numeric",
    "debezium/type/domain_varchar",
    "debezium/type/enum",
    "debezium/type/enum_array",
    "debezium/type/float8",
    "debezium/type/hstore",
    "debezium/type/numeric_12_2",
    "debezium/type/timestamptz_2",
    "debezium/rare/citext_array",
    "debezium/rare/cube",
    "debezium/rare/domain_array",
    "debezium/rare/domain_domain_numeric",
    "debezium/rare/hstore_array",
    "debezium/rare/isbn",
    "debezium/placement/mixed",
    "debezium/placement/partition",
    "debezium/route/named",
    "debezium/option/timestamp_3",
    "debezium-json/type/bytea",
    "debezium-json/type/domain_numeric",
    "debezium-json/type/interval",
    "debezium-json/type/text_array",
    "debezium-json/tombstone/jsonb",
    "debezium-json/expand/jsonb",
    "debezium-binary/payload/bytea",
];

fn golden(name: &str) -> (Value, Vec<Value>) {
    let corpus = repository().join("tests/corpus/debezium");
    let text =
        std::fs::read_to_string(corpus.join(format!("{name}.jsonl"))).expect("a golden file");
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    (lines.next().expect("a scenario"), lines.collect())
}

/// The scenario's options as a configuration that continues after a row that kills Debezium.
fn configuration(head: &Value) -> String {
    let mut toml = format!("record.profile = {}\n[poison]\nretries = 0\n", head["profile"]);
    for cause in ["missing_field", "invalid_topic", "refused", "undecodable"] {
        writeln!(toml, "{cause} = 'skip'").expect("a String takes every text");
    }
    toml += "[debezium]\n";
    let options = ["router", "connector"].map(|key| head[key].as_object().expect("options"));
    for (name, value) in options.into_iter().flatten() {
        if !name.contains("converter") {
            writeln!(toml, "{name} = {value}").expect("a String takes every text");
        }
    }
    toml
}

/// A server, brokers and what they have got so far.
struct ProfileFixture {
    postgres: Postgres,
    kafka: Kafka,
    follower: Follower,
    directory: TempDir,
}

impl ProfileFixture {
    async fn new() -> Self {
        let kafka = Kafka::start().await;
        Self {
            postgres: Postgres::start(Major::V17).await,
            follower: Follower::start(&kafka.bootstrap(), Topics::starting_with("")),
            kafka,
            directory: TempDir::new().expect("a directory"),
        }
    }

    /// The records of a scenario's rows.
    async fn play(&self, name: &str, head: &Value, lines: &[Value]) -> Vec<Consumed> {
        let ddl = head["ddl"].as_str().expect("SQL");
        self.postgres
            .execute(&format!(
                "DROP PUBLICATION IF EXISTS walpost; DROP SCHEMA public CASCADE; \
                 CREATE SCHEMA public; {ddl}; CREATE PUBLICATION walpost FOR TABLE outbox"
            ))
            .await;
        let slot = "SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')";
        self.postgres.execute(slot).await;
        for line in lines {
            self.postgres.execute(line["sql"].as_str().expect("SQL")).await;
        }
        let file: PathBuf = self.directory.path().join("walpost.toml");
        std::fs::write(&file, configuration(head)).expect("it can be written");
        let before = self.follower.count();
        let walpost = Walpost::builder(program())
            .args(["run", "--until", "current", "--config"])
            .arg(&file)
            .args(["--source", &self.postgres.url()])
            .args(["--bootstrap-servers", &self.kafka.bootstrap()])
            .args(["-X", "allow.auto.create.topics=true"])
            .start();
        let status = walpost.wait(SHORT_TIMEOUT).await.expect("it reaches the end");
        assert!(status.success(), "{name}: {:?}", walpost.stderr());
        let last = walpost.stderr().into_iter().find(|line| line.contains("walpost stops"));
        let last: Value = serde_json::from_str(&last.expect("a last line")).expect("JSON");
        let published = last["delivered"].as_u64().expect("a count");
        let published = usize::try_from(published).expect("few");
        let mut records = self.follower.until_count(before + published, SHORT_TIMEOUT).await;
        self.postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
        records.split_off(before)
    }
}

fn text(bytes: Option<&[u8]>) -> Value {
    let Some(bytes) = bytes else { return Value::Null };
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    serde_json::json!({ "hex": hex })
}

/// A record in the form of a golden one.
fn shown(record: &Consumed, golden: &Value) -> Value {
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|(name, value)| serde_json::json!([name, text(value.as_deref())]))
        .collect();
    let mut shown = serde_json::json!({
        "topic": record.topic, "key": text(record.key.as_deref()),
        "value": text(record.value.as_deref()), "headers": headers,
    });
    // Left out where there is no key, and where it is the time of the run.
    if !golden["partition"].is_null() {
        shown["partition"] = record.partition.into();
    }
    if !golden["timestamp"].is_null() {
        // The first millisecond of 1970 cannot be sent: the second stands for it.
        let first = golden["timestamp"] == 0 && record.timestamp_ms == Some(1);
        shown["timestamp"] = if first { 0.into() } else { record.timestamp_ms.into() };
    }
    shown
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_equal_debeziums() {
    let setup = ProfileFixture::new().await;
    for name in SCENARIOS {
        let (head, lines) = golden(name);
        let mut records = setup.play(name, &head, &lines).await;
        let golden = lines.iter().filter_map(|line| line["records"].as_array()).flatten();
        for golden in golden.filter(|golden| !golden.to_string().contains("@?")) {
            let id = golden["headers"][0][1].as_str().expect("an id");
            let at = records.iter().position(|record| record.header("id") == Some(id));
            let record = records.remove(at.unwrap_or_else(|| panic!("{name}: no record {golden}")));
            assert_eq!(shown(&record, golden), *golden, "{name}");
        }
        let deviations = lines.iter().filter(|line| line.to_string().contains("@?")).count();
        assert_eq!(records.len(), deviations, "{name}: more than Debezium makes: {records:?}");
    }
}

/// A row whose topic cannot be becomes the record that it would have been, once it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replayed_dead_letter_is_byte_identical() {
    let setup = ProfileFixture::new().await;
    setup
        .postgres
        .execute(
            "CREATE TABLE outbox (id uuid, aggregatetype text, aggregateid text, type text, \
             payload jsonb, price numeric(12,2), columns timestamptz, raw bytea); \
             CREATE PUBLICATION walpost FOR TABLE outbox",
        )
        .await;
    let slot = "SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')";
    setup.postgres.execute(slot).await;
    let command = |name: &str, regex: &str| {
        let file: PathBuf = setup.directory.path().join("walpost.toml");
        let toml = format!(
            "record.profile = 'debezium-json'\n[poison]\ninvalid_topic = 'dead_letter'\n\
             dead_letter_topic = 'dead'\n[debezium]\n'route.topic.regex' = '{regex}'\n\
             'route.topic.replacement' = 'orders'\n'table.fields.additional.placement' = \
             'price:header,columns:header:at,raw:header'\n"
        );
        std::fs::write(&file, toml).expect("it can be written");
        Walpost::builder(program())
            .arg(name)
            .arg("--config")
            .arg(&file)
            .args(["--bootstrap-servers", &setup.kafka.bootstrap()])
            .args(["-X", "allow.auto.create.topics=true"])
            .args(["--source", &setup.postgres.url()])
    };
    for kind in ["order", "an order"] {
        let insert = format!(
            "INSERT INTO outbox VALUES ('c4ca4238-a0b9-2382-0dcc-509a6f75849b', '{kind}', 'A-7', 'placed', \
             '{{\"total\": 1.50}}', 1.50, '2026-11-21 14:55:01.5Z', '\\x00ff')"
        );
        setup.postgres.execute(&insert).await;
    }
    let run = command("run", "order").args(["--until", "current"]).start();
    assert!(
        run.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()),
        "{:?}",
        run.stderr()
    );
    let replay = command("replay-dead-letters", "(?:an )?order").start();
    assert!(
        replay.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()),
        "{:?}",
        replay.stderr()
    );
    let records = setup.follower.until_count(3, SHORT_TIMEOUT).await;
    let records: Vec<_> = records.into_iter().filter(|record| record.topic == "orders").collect();
    let [straight, put_back] = &records[..] else { panic!("{records:?}") };
    assert_eq!((&put_back.key, &put_back.value), (&straight.key, &straight.value));
    assert_eq!(put_back.headers, straight.headers);
    assert_eq!(straight.header("at"), Some("2026-11-21T14:55:01.500000Z"), "{straight:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn type_created_during_the_session_halts_and_the_next_run_decodes_it() {
    let fixture = Fixture::empty().await;
    let outbox = "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, payload text)";
    let fixture = fixture.over(outbox).await;
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = format!(
        "record.profile = 'debezium-json'\n[debezium]\nroute.topic.replacement = '{}'\n\
         table.field.additional.missing = 'ignore'\n\
         table.fields.additional.placement = 'amount:envelope'\n",
        fixture.topic("order")
    );
    std::fs::write(&file, toml).expect("it can be written");
    let start = || {
        Walpost::builder(program())
            .args(["run", "--config"])
            .arg(&file)
            .args(["--source", &fixture.source, "--bootstrap-servers", &fixture.bootstrap])
            .args(["-X", "allow.auto.create.topics=true"])
            .start()
    };
    let walpost = start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.postgres.execute("INSERT INTO outbox VALUES (1, 'order', 'a', 'x')").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    fixture
        .postgres
        .execute(
            "CREATE DOMAIN money_of_ours AS numeric(12,2); \
             ALTER TABLE outbox ADD COLUMN amount money_of_ours; \
             INSERT INTO outbox VALUES (2, 'order', 'a', 'x', 1.50)",
        )
        .await;
    let (code, text) = ended(&walpost).await;
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("`amount`") && text.contains("start walpost again"), "{text}");
    let walpost = start();
    fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
    let records = fixture.records().await;
    let values: Vec<_> = records.iter().filter_map(Consumed::value_text).collect();
    assert_eq!(values, [r#"{"payload":"x"}"#, r#"{"payload":"x","amount":"AJY="}"#]);
}
