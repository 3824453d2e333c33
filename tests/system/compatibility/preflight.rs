//! `walpost adopt` creates the state topic as it should be, and `walpost check` reads all that it
//! judges.

use std::collections::BTreeSet;

use serde_json::Value;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, ended};
use walpost_bed::{Kfake, Major, Postgres};

use super::STATE_TOPIC;

/// Codes of the findings of one level.
struct Report(Vec<Value>);

impl Report {
    async fn of(fixture: &Fixture) -> Self {
        let arguments = ["--json", "--delivery", "exactly-once", "--state-topic", STATE_TOPIC];
        let check = fixture.command("check").args(arguments).start();
        check.wait(SHORT_TIMEOUT).await.expect("check ends");
        let text = check.stdout().join("\n");
        let report: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}\n{:?}", check.stderr()));
        Self(report["findings"].as_array().expect("findings").clone())
    }

    fn codes(&self, levels: &[&str]) -> BTreeSet<&str> {
        let chosen = self.0.iter().filter(|one| levels.iter().any(|level| one["level"] == *level));
        chosen.filter_map(|one| one["code"].as_str()).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn check_finds_what_is_missing_and_then_nothing() {
    let kfake = Kfake::start().await;
    let postgres = Postgres::builder(Major::V15).setting("max_slot_wal_keep_size", "20GB");
    let fixture = Fixture::with_brokers(postgres, &kfake.bootstrap()).await.template("all");
    let amiss = ["warning", "error", "skipped"];
    let missing = Report::of(&fixture).await;
    let codes = missing.codes(&amiss);
    assert!(
        codes.contains("topic_missing") && codes.contains("state_topic_missing"),
        "{:#?}",
        missing.0
    );
    let settings = [("min.insync.replicas", "2"), ("max.message.bytes", "5000")];
    kfake.administration().create(&fixture.topic("all"), 3, &settings).await;
    fixture.adopt(STATE_TOPIC).await;
    let small = Report::of(&fixture).await;
    assert_eq!(small.codes(&amiss), BTreeSet::from(["topic_max_message_bytes"]), "{:#?}", small.0);
    let settings = [("min.insync.replicas", "2"), ("max.message.bytes", "104857600")];
    let other = fixture.template("other");
    kfake.administration().create(&other.topic("other"), 3, &settings).await;
    let report = Report::of(&other).await;
    assert_eq!(report.codes(&amiss), BTreeSet::new(), "{:#?}", report.0);
    assert!(report.codes(&["ok"]).contains("transactional_id"), "{:#?}", report.0);
    let (code, said) = ended(&other.command("check").start()).await;
    assert_eq!(code, Some(0), "{said}");
}
