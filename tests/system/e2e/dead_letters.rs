//! Undeliverable events that must not stop the others: diverted to the dead-letter topic, or
//! skipped.

use serde_json::Value;
use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, ended, stop};
use walpost_bed::{Consumed, Kafka, Walpost, eventually};

/// What the bad event is refused for, and how it is made.
struct Bad {
    cause: &'static str,
    /// A part of the error with which it halts the run.
    says: &'static str,
    /// More of the configuration.
    toml: &'static str,
    aggregate_type: &'static str,
    aggregate_id: &'static str,
    payload: &'static str,
    headers: &'static str,
    created_at: &'static str,
}

/// One that would be good.
const GOOD: Bad = Bad {
    cause: "",
    says: "",
    toml: "",
    aggregate_type: "'order'",
    aggregate_id: "'k'",
    payload: "'{\"bad\": true}'",
    headers: "NULL",
    created_at: "now()",
};

const BAD: [Bad; 5] = [
    Bad {
        cause: "missing_field",
        says: "`aggregate_id` is NULL or empty",
        aggregate_id: "NULL",
        ..GOOD
    },
    Bad { cause: "invalid_topic", says: "an order` has ' '", aggregate_type: "'an order'", ..GOOD },
    Bad { cause: "undecodable", says: "`headers` is not", headers: "'[1]'", ..GOOD },
    Bad {
        cause: "too_large",
        says: "raise max.message.bytes of the topic",
        payload: "jsonb_build_object('bad', (SELECT string_agg(md5(i::text), '') \
                  FROM generate_series(1, 2000) AS i))",
        ..GOOD
    },
    Bad {
        cause: "refused",
        says: "message.timestamp.before.max.ms",
        toml: "record.timestamp = 'column'\noutbox.columns.timestamp = 'created_at'\n",
        created_at: "now() - interval '2 days'",
        ..GOOD
    },
];

impl Bad {
    fn insert(&self) -> String {
        let Self { aggregate_type, aggregate_id, payload, headers, created_at, .. } = self;
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers, \
             created_at) VALUES ({aggregate_type}, {aggregate_id}, 'placed', {payload}, {headers}, \
             {created_at})"
        )
    }
}

/// Three good events, a bad one in the middle of a transaction, and three more, with
/// that policy for its cause.
async fn stage(bad: &Bad, policy: &str) -> (Fixture, Walpost) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    let limits = [("max.message.bytes", "20000"), ("message.timestamp.before.max.ms", "3600000")];
    let (topic, dead) = (fixture.topic("order"), fixture.topic("dead"));
    Kafka::shared().await.create_topic_with(&topic, 2, &limits).await;
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = format!(
        "{}\n[poison]\n{} = '{policy}'\ndead_letter_topic = '{dead}'\n",
        bad.toml, bad.cause
    );
    std::fs::write(&file, toml).expect("it can be written");
    let walpost = fixture.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    let three = format!("{0}; {0}; {0}", GOOD.insert().replace("\"bad\": true", "\"good\": true"));
    fixture.postgres.execute(&format!("BEGIN; {three}; {}; {three}; COMMIT", bad.insert())).await;
    fixture.postgres.execute(&three).await;
    (fixture, walpost)
}

/// The events of the topic, and the dead letters, once all is confirmed.
async fn around(bad: &Bad, policy: &str) -> (Vec<Consumed>, Vec<Consumed>, Walpost) {
    let (fixture, walpost) = stage(bad, policy).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let (good, letters) = parted(&fixture).await;
    (good, letters, walpost)
}

async fn parted(fixture: &Fixture) -> (Vec<Consumed>, Vec<Consumed>) {
    let dead = fixture.topic("dead");
    fixture.records().await.into_iter().partition(|record| record.topic != dead)
}

fn goods(records: &[Consumed]) -> usize {
    let mut ids: Vec<_> = records.iter().map(|record| record.header("id")).collect();
    let is_good = |record: &Consumed| record.value_text() == Some("{\"good\": true}");
    assert!(records.iter().all(is_good), "{records:?}");
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_contains_the_event_and_its_cause() {
    for bad in &BAD {
        let (good, letters, walpost) = around(bad, "dead_letter").await;
        assert_eq!(goods(&good), 9, "{}: {:?}", bad.cause, walpost.stderr());
        // A replay may repeat it.
        let letter = letters.first().unwrap_or_else(|| panic!("no letter of {}", bad.cause));
        let positions = letters.iter().filter_map(|letter| letter.header("walpost.position"));
        assert!(positions.clone().all(|position| Some(position) == positions.clone().next()));
        assert_eq!(letter.header("walpost.cause"), Some(bad.cause));
        assert!(!letter.header("walpost.error").expect("why").is_empty());
        assert_eq!(letter.header("walpost.origin"), Some("public.outbox"));
        assert!(letter.value_text().expect("a value").contains("\"bad\""));
        let key = (bad.aggregate_id != "NULL").then_some("k");
        assert_eq!(letter.key_text(), key, "{}", bad.cause);
        let fields = letter.header("walpost.fields").expect("the other fields");
        let fields: Value = serde_json::from_str(fields).expect("JSON");
        assert_eq!(fields["event_type"], "placed");
        assert!(walpost.said("goes to the dead-letter topic"), "{:?}", walpost.stderr());
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_poison_cause_halts_and_names_the_fix() {
    for bad in &BAD {
        let (fixture, walpost) = stage(bad, "halt").await;
        let (code, text) = ended(&walpost).await;
        assert_eq!(code, Some(4), "{}: {text}", bad.cause);
        let id = fixture.postgres.query_text("SELECT id FROM outbox ORDER BY n OFFSET 3 LIMIT 1");
        let id = id.await.expect("the bad row");
        let error = text.lines().last().expect("it says why");
        let parts = ["table public.outbox", "/00000003 ", &id, "pg_replication_slot_advance("];
        for part in parts.into_iter().chain([bad.says]) {
            assert!(error.contains(part), "{}: {part} in {error}", bad.cause);
        }
        let (good, letters) = parted(&fixture).await;
        assert_eq!((goods(&good), letters.len()), (3, 0), "{}", bad.cause);
        let other = if bad.cause == "too_large" { "undecodable" } else { "too_large" };
        assert_eq!(policy_of_another(&fixture, bad, other).await, Some(4), "{}", bad.cause);
    }
}

/// How a run ends where only another cause's events are to be skipped.
async fn policy_of_another(fixture: &Fixture, bad: &Bad, other: &str) -> Option<i32> {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, format!("{}\n[poison]\n{other} = 'skip'\n", bad.toml)).expect("a file");
    fixture.run_to_its_end(&["--config", file.to_str().expect("UTF-8")]).await.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skipped_events_are_logged_and_counted() {
    for bad in &BAD {
        let (good, letters, walpost) = around(bad, "skip").await;
        assert_eq!((goods(&good), letters.len()), (9, 0), "{}: {:?}", bad.cause, walpost.stderr());
        let line = walpost.stderr().into_iter().find(|line| line.contains(": skipped"));
        let line = line.expect("it is named");
        assert!(line.contains(&format!("\"cause\":\"{}\"", bad.cause)), "{line}");
        walpost.terminate();
        walpost.await_line("\"skipped\":", LONG_TIMEOUT).await;
        assert!(!walpost.said("\"skipped\":0"), "{:?}", walpost.stderr());
    }
}

const TWENTY_MB: &str = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
    SELECT 'order', 'k', 'placed', jsonb_build_object('bad', string_agg(md5(i::text), '')) \
      FROM generate_series(1, 655360) AS i";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_of_20_mb_halts_until_limits_are_raised() {
    let fixture = Fixture::new().await;
    let (topic, kafka) = (fixture.topic("order"), Kafka::shared().await);
    kafka.create_topic_with(&topic, 1, &[("max.message.bytes", "1000000")]).await;
    let good = GOOD.insert().replace("\"bad\": true", "\"good\": true");
    fixture.postgres.execute(&good).await;
    fixture.postgres.execute(&format!("BEGIN; {good}; {TWENTY_MB}; {good}; COMMIT")).await;
    fixture.postgres.execute(&good).await;
    let raised = ["-X", "message.max.bytes=41943040"];
    let of_the_producer = "raise its limit (-X message.max.bytes=";
    let of_the_topic = "raise max.message.bytes of the topic";
    for (arguments, fix) in [(&[][..], of_the_producer), (&raised, of_the_topic)] {
        let (code, text) = fixture.run_to_its_end(arguments).await;
        assert_eq!(code, Some(4), "{text}");
        let error = text.lines().last().expect("it says why");
        assert!(error.contains("/00000001 ") && error.contains(fix), "{error}");
        assert_eq!(goods(&fixture.records().await), 2, "what stands before it");
    }
    kafka.administration().set(&topic, "max.message.bytes", "41943040").await;
    let walpost = fixture.run_with(&raised).await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_of_20_mb_is_diverted_without_affecting_others() {
    let fixture = Fixture::new().await;
    let (topic, dead) = (fixture.topic("order"), fixture.topic("dead"));
    let kafka = Kafka::shared().await;
    kafka.create_topic_with(&topic, 2, &[("max.message.bytes", "1000000")]).await;
    kafka.create_topic_with(&dead, 1, &[("max.message.bytes", "41943040")]).await;
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = format!(
        "[poison]\ntoo_large = 'dead_letter'\ndead_letter_topic = '{dead}'\n\
         [kafka.properties]\nmessage.max.bytes = 41943040\n"
    );
    std::fs::write(&file, toml).expect("it can be written");
    let walpost = fixture.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    let good = GOOD.insert().replace("\"bad\": true", "\"good\": true");
    fixture.postgres.execute(&format!("BEGIN; {good}; {TWENTY_MB}; {good}; COMMIT; {good}")).await;
    eventually(LONG_TIMEOUT, "all is delivered", async || {
        let records = fixture.records().await;
        let (letters, others): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.topic == dead);
        !letters.is_empty() && goods(&others) == 3
    })
    .await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
}

/// A row takes its memory once, whatever is wrong with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn huge_topic_name_is_skipped_without_copying_it() {
    let fixture = Fixture::new().await;
    let columns = "(aggregate_type, aggregate_id, event_type, payload)";
    let wide = "repeat('k', 80000000)";
    for kind in [wide, "'order'"] {
        let row = format!("INSERT INTO public.outbox {columns} VALUES ({kind}, '1', 'e', '{{}}')");
        fixture.postgres.execute(&row).await;
    }
    let walpost = fixture.command("run").args(["--catch-up", "stream"]);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, "[poison]\ninvalid_topic = 'skip'\n").expect("written");
    let walpost = walpost.arg("--config").arg(&file).start();
    fixture.confirmed(LONG_TIMEOUT).await;
    assert!(walpost.said("skipped") && walpost.said("(80000000 bytes)"));
    let peak = walpost.peak_rss_bytes().expect("it runs");
    assert!(peak < 200 << 20, "{} MiB", peak >> 20);
    stop(walpost).await;
}
