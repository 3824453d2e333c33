//! Replaying dead letters after their cause is fixed.

use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, stop};
use walpost_bed::{Consumed, Kafka, eventually};

/// What is the matter with one event of each cause; all are refused by this configuration.
const BAD: [(&str, &str); 5] = [
    ("missing_field", "('order', NULL, 'placed', '{\"n\": 1}', NULL, now())"),
    ("invalid_topic", "('an order', 'k2', 'placed', '{\"n\": 2}', '{\"h\": \"x\"}', now())"),
    ("undecodable", "('order', 'k3', 'placed', '{\"n\": 3}', '[1]', now())"),
    (
        "too_large",
        "('order', 'k4', 'placed', jsonb_build_object('n', 4, 'much', (SELECT string_agg(md5(i::text), '') \
          FROM generate_series(1, 2000) AS i)), NULL, now())",
    ),
    ("refused", "('order', 'k5', 'placed', '{\"n\": 5}', NULL, now() - interval '2 days')"),
];

const BY_COLUMN: &str = "record.timestamp = 'column'\noutbox.columns.timestamp = 'created_at'\n";

/// With all of these the events can be delivered.
const FIXED: &str = "record.null_keys = 'allow'\nrecord.topic_regex = '(.*)an order'\n\
                      record.topic_replacement = '$1order'\nrecord.headers = ['id', 'walpost.position']\n";

/// With this policy the events diverted because of their topic can be delivered.
const TOPIC_FIXED: &str =
    "record.topic_regex = '(.*)an order'\nrecord.topic_replacement = '$1order'\n";

struct ReplayFixture {
    fixture: Fixture,
    dead: String,
    directory: TempDir,
}

impl ReplayFixture {
    /// An outbox with a topic that takes little, and a dead-letter topic.
    async fn new() -> Self {
        let fixture = Fixture::new().await;
        fixture.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
        let kafka = Kafka::shared().await;
        let limits =
            [("max.message.bytes", "20000"), ("message.timestamp.before.max.ms", "3600000")];
        kafka.create_topic_with(&fixture.topic("order"), 2, &limits).await;
        let dead = fixture.topic("dead");
        kafka.create_topic_with(&dead, 2, &[]).await;
        Self { fixture, dead, directory: TempDir::new().expect("a directory") }
    }

    /// The arguments for a configuration with this in it.
    fn configured(&self, toml: &str) -> [String; 2] {
        let policies = BAD.map(|(cause, _)| format!("{cause} = 'dead_letter'\n")).concat();
        let dead = &self.dead;
        let toml =
            format!("{toml}\n[poison]\n{policies}dead_letter_topic = '{dead}'\nretries = 1\n");
        let file = self.directory.path().join("walpost.toml");
        std::fs::write(&file, toml).expect("it can be written");
        ["--config".to_owned(), file.to_str().expect("UTF-8").to_owned()]
    }

    /// Has these rows diverted.
    async fn diverted(&self, toml: &str, rows: &[&str]) {
        let arguments = self.configured(toml);
        let walpost = self.fixture.run_with(&arguments.each_ref().map(String::as_str)).await;
        for row in rows {
            let insert = format!(
                "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers, \
                 created_at) VALUES {row}"
            );
            self.fixture.postgres.execute(&insert).await;
            // One after the other: a refusal repeats what is in flight next to it, letters too.
            self.fixture.confirmed(LONG_TIMEOUT).await;
        }
        stop(walpost).await;
    }

    /// Has so many rows diverted, in one transaction, for their topic: of a key each.
    async fn divert_many(&self, count: u32) {
        let rows: Vec<_> = (1..=count)
            .map(|n| format!("('an order', 'k{n}', 'placed', '{{\"n\": {n}}}', NULL, now())"))
            .collect();
        self.diverted("", &[&rows.join(", ")]).await;
    }

    /// How a replay with that configuration ends: its code, and what it prints.
    async fn replay(&self, toml: &str, arguments: &[&str]) -> (Option<i32>, Vec<String>) {
        let command = self.fixture.command("replay-dead-letters").args(self.configured(toml));
        let walpost = command.args(arguments).start();
        let (code, said) = ended(&walpost).await;
        eprintln!("{said}");
        (code, walpost.stdout())
    }

    /// The records of the topics, and the dead letters.
    async fn records(&self) -> (Vec<Consumed>, Vec<Consumed>) {
        let records = self.fixture.records().await;
        records.into_iter().partition(|record| record.topic != self.dead)
    }

    /// The numbers in the payloads of what was published, in order of partition and offset.
    async fn published(&self) -> Vec<i64> {
        let (records, _) = self.records().await;
        let number = |record: &Consumed| {
            let value = serde_json::from_str::<serde_json::Value>(record.value_text()?).ok()?;
            value["n"].as_i64()
        };
        records.iter().map(|record| number(record).expect("a number")).collect()
    }
}

fn summary(replayed: u64, poison: u64, held_back: u64, skipped: u64) -> String {
    format!("replayed {replayed}, still poison {poison}, held back {held_back}, skipped {skipped}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_replayed_once_after_the_fix() {
    let setup = ReplayFixture::new().await;
    setup.diverted(BY_COLUMN, &BAD.map(|(_, row)| row)).await;
    let (published, letters) = setup.records().await;
    assert_eq!((published.len(), letters.len()), (0, 5));
    // The cause is not fixed yet; a dry run reports what it would do, and does nothing.
    let (code, lines) = setup.replay(BY_COLUMN, &["--dry-run"]).await;
    assert_eq!(
        lines.last(),
        Some(&format!("would {}", summary(2, 3, 0, 0).replace("replayed", "replay")))
    );
    assert_eq!((code, lines.len()), (Some(4), 3), "{lines:?}");
    let order = setup.fixture.topic("order");
    assert!(lines.iter().any(|line| line.contains("(too_large, event ") && line.contains(&order)));
    let unmended = setup.replay(BY_COLUMN, &[]).await;
    assert_eq!(unmended, (Some(4), vec![summary(0, 5, 0, 0)]));
    // The topic is fixed first, then the rest.
    let administration = Kafka::shared().await.administration();
    administration.set(&order, "max.message.bytes", "1000000").await;
    let some = setup.replay(BY_COLUMN, &["--cause", "too_large"]).await;
    assert_eq!(some, (Some(0), vec![summary(1, 0, 0, 4)]));
    assert_eq!(setup.published().await, [4]);
    let fixed = format!("{BY_COLUMN}{FIXED}");
    let two = setup.replay(&fixed, &["--limit", "2"]).await;
    assert_eq!(two, (Some(0), vec![summary(2, 0, 0, 0)]));
    let rest = setup.replay(&fixed, &[]).await;
    assert_eq!(rest, (Some(0), vec![summary(2, 0, 0, 0)]));
    for _ in 0..2 {
        assert_eq!(setup.replay(&fixed, &[]).await, (Some(0), vec![summary(0, 0, 0, 0)]));
    }
    let mut numbers = setup.published().await;
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_as_they_were(&setup, &letters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_dead_letter_is_replayed_once() {
    let setup = ReplayFixture::new().await;
    // Each time that the broker is asked again, the one before is written again.
    setup.diverted(BY_COLUMN, &[&[BAD[2].1, BAD[4].1].join(", ")]).await;
    let (_, letters) = setup.records().await;
    assert!(letters.len() > 2, "{letters:?}");
    let order = setup.fixture.topic("order");
    let administration = Kafka::shared().await.administration();
    administration.set(&order, "message.timestamp.before.max.ms", "864000000").await;
    let fixed = format!("{BY_COLUMN}{FIXED}");
    let again = u64::try_from(letters.len()).expect("few") - 2;
    assert_eq!(setup.replay(&fixed, &[]).await, (Some(0), vec![summary(2, 0, 0, again)]));
    let mut numbers = setup.published().await;
    numbers.sort_unstable();
    assert_eq!(numbers, [3, 5]);
    assert_eq!(setup.replay(&fixed, &[]).await, (Some(0), vec![summary(0, 0, 0, 0)]));
}

/// Each record is its letter's event: position, id, key and value; and the timestamp is
/// the row's own.
async fn assert_as_they_were(setup: &ReplayFixture, letters: &[Consumed]) {
    let (records, _) = setup.records().await;
    for letter in letters {
        let position = letter.header("walpost.position");
        let mut same = records.iter().filter(|one| one.header("walpost.position") == position);
        let (record, again) = (same.next().expect("a record"), same.next());
        assert_eq!(again, None);
        assert_eq!((&record.key, &record.value), (&letter.key, &letter.value));
        let id = record.header("id").expect("an id");
        let query = format!(
            "SELECT floor(extract(epoch FROM created_at) * 1000)::bigint FROM outbox WHERE id = '{id}'"
        );
        let millis = setup.fixture.postgres.query_text(&query).await.expect("its row");
        assert_eq!(record.timestamp_ms.map(|millis| millis.to_string()), Some(millis));
        assert!(!record.headers.iter().any(|(name, _)| name == "walpost.cause"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_keeps_the_commit_time_and_all_headers() {
    let setup = ReplayFixture::new().await;
    setup.diverted("", &[BAD[1].1]).await;
    let (_, letters) = setup.records().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(setup.replay(TOPIC_FIXED, &[]).await.0, Some(0));
    let (records, _) = setup.records().await;
    let [record] = &records[..] else { panic!("one record: {records:?}") };
    assert_eq!(record.timestamp_ms, letters[0].timestamp_ms);
    let names: Vec<_> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["id", "event_type", "h", "walpost.position"]);
    assert_eq!(record.header("h"), Some("x"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_that_is_still_poison_blocks_only_its_key() {
    let setup = ReplayFixture::new().await;
    let rows = [
        "('order', 'k', 'placed', '{\"n\": 1}', '[1]', now())",
        "('an order', 'k', 'placed', '{\"n\": 2}', NULL, now())",
        "('an order', 'm', 'placed', '{\"n\": 3}', NULL, now())",
        // It ends up among the dead letters, and is none.
        "('dead', 'k', 'placed', '{\"n\": 0}', NULL, now())",
        "('an order', 'm', 'placed', '{\"n\": 4}', NULL, now())",
    ];
    setup.diverted("", &rows).await;
    let first = setup.replay(TOPIC_FIXED, &[]).await;
    assert_eq!(first, (Some(4), vec![summary(2, 1, 1, 1)]));
    assert_eq!(setup.published().await, [3, 4]);
    // What is no letter was named once.
    let again = setup.replay(TOPIC_FIXED, &[]).await;
    assert_eq!(again, (Some(4), vec![summary(0, 1, 1, 0)]));
    let last = setup.replay(&format!("{TOPIC_FIXED}record.headers = []\n"), &[]).await;
    assert_eq!(last, (Some(0), vec![summary(2, 0, 0, 0)]));
    let mut numbers = setup.published().await;
    numbers.retain(|number| *number < 3);
    assert_eq!(numbers, [1, 2], "in their order");
    let (_, letters) = setup.records().await;
    assert_eq!(letters.len(), 5, "nothing is taken out of the topic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_uses_the_current_configuration() {
    let fixture = Fixture::new().await.option("--message-prefix", "outbox");
    let (dead, order) = (fixture.topic("dead"), fixture.topic("order"));
    let kafka = Kafka::shared().await;
    kafka.create_topic_with(&dead, 1, &[]).await;
    kafka.create_topic_with(&order, 1, &[]).await;
    let setup = ReplayFixture { fixture, dead, directory: TempDir::new().expect("a directory") };
    let fixture = &setup.fixture;
    fixture.postgres.execute("ALTER TABLE outbox ADD tenant text, ADD region text").await;
    let arguments = setup.configured("record.place = ['tenant:header']\n");
    let walpost = fixture.run_with(&arguments.each_ref().map(String::as_str)).await;
    let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, tenant) \
               VALUES ('an order', 'a', 'placed', '{\"n\": 1}', 'Acme'); \
               SELECT pg_logical_emit_message(true, 'outbox', 'no JSON'); \
               SELECT pg_logical_emit_message(true, 'outbox', '{\"aggregate_type\": \"an order\", \
               \"aggregate_id\": \"b\", \"payload\": {\"n\": 2}, \"tenant\": null}')";
    fixture.postgres.execute(sql).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
    // A column that was not placed is not in the letters.
    let place = "record.place = ['tenant:header', 'region:header']\n";
    let missing = setup.replay(&format!("{TOPIC_FIXED}{place}"), &["--dry-run"]).await;
    assert_eq!(missing.0, Some(4));
    assert_eq!(missing.1, ["would replay 0, still poison 3, held back 0, skipped 0"]);
    let place = "record.place = ['tenant:header', 'aggregate_type:header:kind']\n";
    let replayed = setup.replay(&format!("{TOPIC_FIXED}{place}"), &[]).await;
    assert_eq!(replayed, (Some(4), vec![summary(2, 1, 0, 0)]));
    let (records, _) = setup.records().await;
    let tenants: Vec<_> = records.iter().map(|record| record.header("tenant")).collect();
    assert_eq!(tenants, [Some("Acme"), None]);
    assert!(records.iter().all(|record| record.header("kind") == Some("an order")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_replay_keeps_the_dead_letter() {
    let setup = ReplayFixture::new().await;
    let (code, lines) = setup.replay("", &["--from", "no-such-topic"]).await;
    assert_eq!((code, lines.len()), (Some(1), 0), "{lines:?}");
    let walpost =
        setup.fixture.command("replay-dead-letters").args(["-X", "linger.ms=never"]).start();
    assert_eq!(ended(&walpost).await.0, Some(78));
    setup.diverted("", &[BAD[1].1]).await;
    let own = ["--group", "another"];
    assert_eq!(setup.replay(TOPIC_FIXED, &own).await.1, [summary(1, 0, 0, 0)]);
    assert_eq!(setup.replay(TOPIC_FIXED, &own).await.1, [summary(0, 0, 0, 0)]);
    assert_eq!(
        setup.replay(TOPIC_FIXED, &[]).await.1,
        [summary(1, 0, 0, 0)],
        "another group's marks"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_replay_commits_its_progress() {
    let setup = ReplayFixture::new().await;
    setup.divert_many(3000).await;
    for terminate in [true, false] {
        let command =
            setup.fixture.command("replay-dead-letters").args(setup.configured(TOPIC_FIXED));
        let stopped = command.start();
        stopped.await_line("replayed: ", SHORT_TIMEOUT).await;
        if terminate {
            stopped.terminate();
        } else {
            stopped.interrupt();
        }
        let (code, said) = ended(&stopped).await;
        assert_eq!(code, Some(1));
        assert!(said.contains("stopped by a signal"), "{said}");
    }
    assert_eq!(setup.replay(TOPIC_FIXED, &[]).await.0, Some(0));
    let mut numbers = setup.published().await;
    let came = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3000);
    // At each stop the one letter whose acknowledgement was awaited may come again.
    assert!(came <= 3002, "{came}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_replays_lose_no_dead_letter() {
    let setup = ReplayFixture::new().await;
    setup.divert_many(3000).await;
    let command = setup.fixture.command("replay-dead-letters").args(setup.configured(TOPIC_FIXED));
    let both = [command.clone().start(), command.start()];
    let mut ends = Vec::new();
    for one in &both {
        let (code, said) = ended(one).await;
        assert_eq!(code == Some(1), said.contains("another replay is running"), "{said}");
        ends.push(code);
    }
    ends.sort_unstable();
    assert_eq!(ends, [Some(0), Some(1)]);
    assert_eq!(setup.replay(TOPIC_FIXED, &[]).await, (Some(0), vec![summary(0, 0, 0, 0)]));
    let mut numbers = setup.published().await;
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_killed_before_its_commit_duplicates_but_loses_nothing() {
    let setup = ReplayFixture::new().await;
    setup.divert_many(20).await;
    let command = setup.fixture.command("replay-dead-letters").args(setup.configured(TOPIC_FIXED));
    let dying = command.env("FAILPOINTS", "replayed=7*off->return").start();
    let status = dying.wait(SHORT_TIMEOUT).await.expect("it dies");
    assert!(!status.success() && status.code().is_none(), "{status:?}");
    assert_eq!(setup.published().await.len(), 8);
    let (code, lines) = setup.replay(TOPIC_FIXED, &[]).await;
    assert_eq!(code, Some(0), "{lines:?}");
    let mut numbers = setup.published().await;
    let came = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    assert!((21..=28).contains(&came), "{came}: what was not marked came again");
    assert_eq!(setup.replay(TOPIC_FIXED, &[]).await.1, [summary(0, 0, 0, 0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remaining_dead_letters_use_bounded_memory() {
    const KEYS: usize = 300;
    let setup = ReplayFixture::new().await;
    let rows = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'an order', concat(i % {KEYS}, repeat('k', 900000)), 'placed', '{{}}'
           FROM generate_series(1, {}) AS i",
        KEYS + 10
    );
    let arguments = setup.configured("");
    let walpost = setup.fixture.run_with(&arguments.each_ref().map(String::as_str)).await;
    setup.fixture.postgres.execute(&rows).await;
    setup.fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let replay = setup.fixture.command("replay-dead-letters").args(arguments).start();
    let mut peak = 0;
    eventually(LONG_TIMEOUT, "it ends", async || match replay.peak_rss_bytes() {
        Some(bytes) => {
            peak = bytes;
            false
        }
        None => true,
    })
    .await;
    let status = replay.wait(LONG_TIMEOUT).await.expect("it ends");
    assert_eq!(replay.stdout().last(), Some(&summary(0, KEYS as u64, 10, 0)), "{status}");
    assert!(peak > 0 && peak < 128 << 20, "{} MiB", peak >> 20);
}
