//! Events that cannot be delivered, where they are not to stop the others: written
//! to the dead-letter topic, or skipped.

use serde_json::Value;
use tempfile::TempDir;
use walpost_bed::scene::{LATER, Scene, stop};
use walpost_bed::{Consumed, Kafka, Walpost, eventually};

/// What the bad event is refused for, and how it is made.
struct Bad {
    cause: &'static str,
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
    toml: "",
    aggregate_type: "'order'",
    aggregate_id: "'k'",
    payload: "'{\"bad\": true}'",
    headers: "NULL",
    created_at: "now()",
};

const BAD: [Bad; 5] = [
    Bad { cause: "missing_field", aggregate_id: "NULL", ..GOOD },
    Bad { cause: "invalid_topic", aggregate_type: "'an order'", ..GOOD },
    Bad { cause: "undecodable", headers: "'[1]'", ..GOOD },
    Bad {
        cause: "too_large",
        payload: "jsonb_build_object('bad', (SELECT string_agg(md5(i::text), '') \
                  FROM generate_series(1, 2000) AS i))",
        ..GOOD
    },
    Bad {
        cause: "refused",
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

/// Three good events, a bad one in the midst of a transaction, and three more; the
/// events of the topic, and the dead letters.
async fn around(bad: &Bad, policy: &str) -> (Vec<Consumed>, Vec<Consumed>, Walpost) {
    let scene = Scene::new().await;
    scene.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    let limits = [("max.message.bytes", "20000"), ("message.timestamp.before.max.ms", "3600000")];
    let (topic, dead) = (scene.topic("order"), scene.topic("dead"));
    Kafka::shared().await.create_topic_with(&topic, 2, &limits).await;
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = format!(
        "{}\n[poison]\n{} = '{policy}'\ndead_letter_topic = '{dead}'\nretries = 2\n",
        bad.toml, bad.cause
    );
    std::fs::write(&file, toml).expect("it can be written");
    let walpost = scene.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    let three = format!("{0}; {0}; {0}", GOOD.insert().replace("\"bad\": true", "\"good\": true"));
    scene.postgres.execute(&format!("BEGIN; {three}; {}; {three}; COMMIT", bad.insert())).await;
    scene.postgres.execute(&three).await;
    scene.confirmed(LATER).await;
    let records = scene.records().await;
    let (good, letters) = records.into_iter().partition(|record| record.topic != dead);
    (good, letters, walpost)
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
async fn a_dead_letter_keeps_the_event_and_says_why() {
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
        assert!(walpost.said("written to the dead-letter topic instead"), "{:?}", walpost.stderr());
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_skipped_is_named_and_counted() {
    for bad in &BAD {
        let (good, letters, walpost) = around(bad, "skip").await;
        assert_eq!((goods(&good), letters.len()), (9, 0), "{}: {:?}", bad.cause, walpost.stderr());
        let line = walpost.stderr().into_iter().find(|line| line.contains(": skipped"));
        let line = line.expect("it is named");
        assert!(line.contains(&format!("\"cause\":\"{}\"", bad.cause)), "{line}");
        walpost.terminate();
        walpost.await_line("\"skipped\":", LATER).await;
        assert!(!walpost.said("\"skipped\":0"), "{:?}", walpost.stderr());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_20_mb_does_not_stop_its_neighbours() {
    let scene = Scene::new().await;
    let (topic, dead) = (scene.topic("order"), scene.topic("dead"));
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
    let walpost = scene.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    let large = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 SELECT 'order', 'k', 'placed', jsonb_build_object('bad', string_agg(md5(i::text), '')) \
                   FROM generate_series(1, 655360) AS i";
    let good = GOOD.insert().replace("\"bad\": true", "\"good\": true");
    scene.postgres.execute(&format!("BEGIN; {good}; {large}; {good}; COMMIT; {good}")).await;
    eventually(LATER, "all is delivered", async || {
        let records = scene.records().await;
        let (letters, others): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.topic == dead);
        !letters.is_empty() && goods(&others) == 3
    })
    .await;
    scene.confirmed(LATER).await;
    stop(walpost).await;
}
