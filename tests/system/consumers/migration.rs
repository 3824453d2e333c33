//! The steps of `docs/from-polling.md`, executed literally, with rows written between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, program};
use walpost_bed::page::blocks;
use walpost_bed::{Consumed, Kafka, Major, Postgres, Walpost, read_all};

const PAGE: &str = include_str!("../../../docs/from-polling.md");

/// What begins the part of the page that is not about these steps.
pub const TABLES: &str = "\n## Tables of common pollers\n";

/// A service with a poller that migrates.
struct Service {
    postgres: Postgres,
    brokers: String,
    topic: String,
    /// The page's configuration.
    config: tempfile::TempDir,
    written: i64,
    steps: std::vec::IntoIter<(String, String)>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_from_a_poller_and_back_loses_nothing() {
    let mut service = Service::with_a_poller("moving").await;
    service.write(100).await;
    service.poll(60).await;
    // 1 and 2: publication, slot, and a preflight check.
    service.step("sh").await;
    service.write(50).await;
    let seen = service.step("sh").await;
    assert_eq!(seen.lines().count(), 10, "{seen}");
    assert!(seen.starts_with(&format!(r#"{{"topic":"{}","key":"key "#, service.topic)), "{seen}");
    // 3: count the rows that the poller has not published.
    service.step("sql").await;
    service.write(40).await;
    // 4: the poller publishes them.
    let left = service.next_block("sql");
    while service.postgres.query_text(&left).await.as_deref() != Some("0") {
        service.poll(25).await;
    }
    service.write(20).await;
    // 5: walpost runs.
    let walpost = service.run();
    service.write(20).await;
    service.postgres.confirmed("walpost", LONG_TIMEOUT).await;
    let records = service.records().await;
    assert_eq!(ids(&records, Sender::Poller), (1..=160).collect::<Vec<_>>());
    assert_eq!(ids(&records, Sender::Walpost), (101..=230).collect::<Vec<_>>());
    assert_same_records(&records);
    assert_first_occurrences_in_order(&records);
    // More rows afterwards; walpost keeps running.
    service.step("sql").await;
    service.write(10).await;
    service.postgres.confirmed("walpost", LONG_TIMEOUT).await;
    assert_eq!(ids(&service.records().await, Sender::Walpost), (101..=240).collect::<Vec<_>>());
    service.go_back(walpost).await;
}

impl Service {
    /// With walpost still running, which has sent rows 101 to 240.
    async fn go_back(mut self, walpost: Walpost) {
        // 1: stop walpost.
        walpost.terminate();
        assert!(walpost.wait(SHORT_TIMEOUT).await.expect("it ends").success());
        self.write(10).await;
        self.step("sql").await;
        // 2: it publishes what is written by now.
        self.write(5).await;
        self.step("sh").await;
        self.write(5).await;
        // 3 and 4: the poller takes over.
        self.step("sql").await;
        self.poll(1000).await;
        // 5: drop the slot.
        self.step("sql").await;
        assert_eq!(self.steps.next(), None, "the page has steps that are not tested");
        let records = self.records().await;
        assert_eq!(ids(&records, Sender::Walpost), (101..=255).collect::<Vec<_>>());
        assert_eq!(ids(&records, Sender::Poller), (1..=160).chain(251..=260).collect::<Vec<_>>());
        assert_same_records(&records);
        assert_first_occurrences_in_order(&records);
        let slots = "SELECT count(*) FROM pg_replication_slots";
        assert_eq!(self.postgres.query_text(slots).await.as_deref(), Some("0"));
    }

    /// The page's table and configuration are there; the steps are still to be taken.
    async fn with_a_poller(name: &str) -> Self {
        let (page, _) = PAGE.split_once(TABLES).expect("the tables");
        let mut steps = blocks(page).into_iter();
        let (sql, table) = steps.next().expect("a table");
        let (toml, text) = steps.next().expect("a configuration");
        assert_eq!((&*sql, &*toml), ("sql", "toml"));
        let config = tempfile::TempDir::new().unwrap();
        std::fs::write(config.path().join("walpost.toml"), text).unwrap();
        let postgres = Postgres::builder(Major::V15).own_identity().start().await;
        postgres.execute(&table).await;
        let brokers = Kafka::shared().await.bootstrap();
        let topic = format!("{name}-{}", std::process::id());
        Kafka::shared().await.create_topic(&topic, 3).await;
        Self { postgres, brokers, topic, config, written: 0, steps }
    }

    /// The page's next block, which must be in that language.
    fn next_block(&mut self, language: &str) -> String {
        let (of, text) = self.steps.next().expect("a step");
        assert_eq!(of, language, "{text}");
        text
    }

    /// Executes the page's next step; returns its output.
    async fn step(&mut self, language: &str) -> String {
        let text = self.next_block(language);
        if language == "sql" {
            self.postgres.execute(&text).await;
            return String::new();
        }
        let mut shell = Command::new("sh");
        shell.args(["-euc", &text]).envs(self.environment()).current_dir(self.config.path());
        let done = tokio::task::spawn_blocking(move || shell.output().unwrap()).await.unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{text}\n{printed}\n{said}");
        printed
    }

    /// With `walpost` in PATH, and the addresses of both servers.
    fn environment(&self) -> Vec<(String, String)> {
        let mut path = program().parent().map(PathBuf::from).unwrap().into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        [
            ("PATH", path.into_string().unwrap()),
            ("WALPOST_CONFIG", self.config.path().join("walpost.toml").display().to_string()),
            ("WALPOST_SOURCE_URL", self.postgres.url()),
            ("WALPOST_KAFKA_BOOTSTRAP_SERVERS", self.brokers.clone()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn run(&self) -> Walpost {
        let mut walpost = Walpost::builder(program()).arg("run").keeps_position();
        for (name, value) in self.environment() {
            walpost = walpost.env(name, value);
        }
        walpost.start()
    }

    /// The application: one transaction for every two rows.
    async fn write(&mut self, count: i64) {
        let (first, last) = (self.written + 1, self.written + count);
        let mut sql = String::new();
        for number in first..=last {
            let begin = if number % 2 == 1 { "BEGIN;" } else { "" };
            let commit = if number % 2 == 0 || number == last { "COMMIT;" } else { "" };
            let _ = write!(
                sql,
                "{begin} INSERT INTO messages (topic, message_key, event_type, tenant, body) VALUES \
                   ('{}', 'key {}', 'order_placed', nullif('tenant {}', 'tenant 0'), '{{\"n\": {number}}}'); {commit}",
                self.topic,
                number % 7,
                number % 3
            );
        }
        self.postgres.execute(&sql).await;
        self.written = last;
    }

    /// The poller: publishes at most that many unpublished rows, and marks them.
    async fn poll(&self, count: i64) {
        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", &self.brokers)
            .set("partitioner", "murmur2_random")
            .create()
            .unwrap();
        let sql = format!(
            "SELECT id, message_key, event_type, tenant, body, floor(extract(epoch FROM created_at) * 1000)::bigint
               FROM messages WHERE published_at IS NULL ORDER BY id LIMIT {count}"
        );
        for row in self.postgres.query_rows(&sql).await {
            let [id, key, event_type, tenant, body, time] = &row[..] else { unreachable!() };
            let id = id.as_deref().unwrap();
            let mut headers = OwnedHeaders::new();
            for (key, value) in [
                ("id", Some(id)),
                ("event_type", event_type.as_deref()),
                ("tenant", tenant.as_deref()),
            ] {
                headers = headers.insert(Header { key, value });
            }
            let record = FutureRecord::to(&self.topic)
                .key(key.as_deref().unwrap())
                .payload(body.as_deref().unwrap())
                .timestamp(time.as_deref().unwrap().parse().unwrap())
                .headers(headers);
            producer.send(record, SHORT_TIMEOUT).await.unwrap();
            let mark = format!("UPDATE messages SET published_at = now() WHERE id = {id}");
            self.postgres.execute(&mark).await;
        }
    }

    async fn records(&self) -> Vec<Consumed> {
        read_all(&self.brokers, &*self.topic).await
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Poller,
    Walpost,
}

/// The records of one publisher, ordered by id.
fn ids(records: &[Consumed], sender: Sender) -> Vec<i64> {
    let mut ids: Vec<_> = records.iter().filter(|one| sent_by(one) == sender).map(id).collect();
    ids.sort_unstable();
    ids
}

/// Only walpost sends positions.
fn sent_by(record: &Consumed) -> Sender {
    match record.header("walpost.position") {
        Some(_) => Sender::Walpost,
        None => Sender::Poller,
    }
}

fn id(record: &Consumed) -> i64 {
    record.header("id").expect("an id").parse().expect("a number")
}

/// The records of both publishers differ only in the position.
#[track_caller]
fn assert_same_records(records: &[Consumed]) {
    let mut seen = BTreeMap::new();
    for record in records {
        let mut plain = record.clone();
        plain.headers.retain(|(name, _)| name != "walpost.position");
        plain.offset = 0;
        let first = seen.entry(id(record)).or_insert_with(|| plain.clone());
        assert_eq!(*first, plain);
    }
}

/// For each key, a consumer that deduplicates by id sees the events in commit order.
#[track_caller]
fn assert_first_occurrences_in_order(records: &[Consumed]) {
    let mut last = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for record in records.iter().filter(|record| seen.insert(id(record))) {
        let before = last.insert(record.key.clone(), id(record));
        assert!(before.is_none_or(|before| before < id(record)), "{before:?}, {}", id(record));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn value_written_by_a_trigger_is_published() {
    let mut service = Service::with_a_poller("trigger").await;
    let trigger = "ALTER TABLE messages ADD COLUMN value jsonb;
         CREATE FUNCTION write_value() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             NEW.value := jsonb_build_object('kind', NEW.event_type, 'data', NEW.body);
             RETURN NEW;
         END $$;
         CREATE TRIGGER write_value BEFORE INSERT ON messages
             FOR EACH ROW EXECUTE FUNCTION write_value()";
    service.postgres.execute(trigger).await;
    let file = service.config.path().join("walpost.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"body\"", "\"value\"")).unwrap();
    service.step("sh").await;
    let _walpost = service.run();
    service.write(2).await;
    service.postgres.confirmed("walpost", LONG_TIMEOUT).await;
    let records = service.records().await;
    let values: Vec<_> = records.iter().filter_map(Consumed::value_text).collect();
    assert_eq!(values.len(), 2);
    assert!(values.contains(&r#"{"data": {"n": 1}, "kind": "order_placed"}"#), "{values:?}");
}
