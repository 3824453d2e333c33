//! The page at `/` for browsers.

use std::collections::BTreeSet;

use serde_json::Value;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Endpoints, Major, Postgres, eventually};

use super::endpoints::Answering;
use super::state_topic::topic;

/// A page for people; what programs ask for is the same with it and without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsers_get_a_page_unless_it_is_off() {
    let fixture = Fixture::new().await;
    let request = |path: &str, accept: &str| {
        format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")
    };
    for (page, is_shown) in [("on", true), ("off", false)] {
        let run = fixture.command("run").env("WALPOST_ADMIN_PAGE", page);
        let answering = Answering::over(run).await;
        answering.await_ready(200).await;
        let text = answering.raw(&request("/", "*/*")).await;
        assert!(text.contains("/livez    200"), "{text}");
        let answer = answering.raw(&request("/", "text/html,*/*;q=0.8")).await;
        let head = answer.to_lowercase();
        assert_eq!(head.contains("content-security-policy: default-src 'self';"), is_shown);
        assert_eq!(answer.contains("<h1 class=\"good\">Delivering</h1>"), is_shown);
        assert_eq!(answer.contains("source.slot</th><td>walpost</td>"), is_shown, "{answer}");
        for (path, content) in [("/page.css", "text/css"), ("/page.js", "text/javascript")] {
            let answer = answering.raw(&request(path, "*/*")).await;
            assert_eq!(answer.contains(content) && answer.starts_with("HTTP/1.0 200"), is_shown);
        }
        let foreign = request("/", "text/html").replace("localhost", "evil.example");
        assert!(answering.raw(&foreign).await.starts_with("HTTP/1.0 421"));
        stop(answering.walpost).await;
    }
}

/// The checks of `walpost check` run in the process, and the events that were acknowledged are shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_has_findings_of_checks_and_the_last_events() {
    let fixture = Fixture::new().await;
    let frequent = ("FAILPOINTS", "frequent_checks=return");
    let answering = Answering::over(fixture.command("run").env(frequent.0, frequent.1)).await;
    answering.await_ready(200).await;
    let status = async || {
        let text = answering.page("/status").await.1;
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let code = "topics_not_limited";
    eventually(SHORT_TIMEOUT, "the checks have run", async || {
        let findings = status().await["findings"].take();
        findings.as_array().is_some_and(|all| all.iter().any(|one| one["code"] == code))
    })
    .await;
    fixture.postgres.execute(&insert(3, 1)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let mut ids: Vec<_> = fixture
        .rows("SELECT id, aggregate_id FROM outbox")
        .await
        .into_iter()
        .map(|row| row.id)
        .collect();
    let events = status().await["events"].take();
    let events = events.as_array().expect("a list");
    let mut shown: Vec<_> =
        events.iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect();
    ids.sort_unstable();
    shown.sort_unstable();
    assert_eq!(shown, ids);
    let keys: BTreeSet<_> = events.iter().map(|event| event["key_hash"].to_string()).collect();
    assert_eq!(keys.len(), 1, "{events:?}");
    stop(answering.walpost).await;
}

/// Beside what moves: the slot, and the position in the state topic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_of_a_busy_walpost_find_no_error() {
    for delivery in ["at-least-once", "exactly-once"] {
        let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
        let topic = topic(&fixture).await;
        fixture.adopt(&topic).await;
        let run = fixture.command("run").args(["--state-topic", &topic, "--delivery", delivery]);
        let answering = Answering::over(run.env("FAILPOINTS", "frequent_checks=return")).await;
        answering.await_ready(200).await;
        let writer = Writer::start(&fixture.postgres, 200);
        Endpoints::at(&answering.address).checks_find_no_error().await;
        writer.stop().await;
        stop(answering.walpost).await;
    }
}
