//! walpost's own position: a slot that is not where walpost left it is not read from.

use super::catch_up::{catching_up, one_by_one};
use walpost_bed::fixture::{AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, stop};
use walpost_bed::{Kafka, Major, Postgres, Topics, Walpost, eventually, read_all};

/// A state topic of the test's own: the broker is shared.
pub(crate) async fn topic(fixture: &Fixture) -> String {
    let id = "SELECT system_identifier::text FROM pg_control_system()";
    format!("state-{}", fixture.postgres.query_text(id).await.expect("an identifier"))
}

/// The newest position in the state topic.
pub(crate) async fn newest_state(fixture: &Fixture, topic: &str) -> Option<serde_json::Value> {
    let records = read_all(&fixture.bootstrap, Topics::named([topic])).await;
    let is_state = |key: &[u8]| key.starts_with(b"[\"state\"");
    let newest = records.iter().rev().find(|record| record.key.as_deref().is_some_and(is_state))?;
    serde_json::from_slice(newest.value.as_deref()?).ok()
}

/// A walpost that has published and confirmed 50 rows, and its state topic.
async fn adopted() -> (Fixture, String, Walpost) {
    let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
    let topic = topic(&fixture).await;
    fixture.adopt(&topic).await;
    let walpost = fixture.run_with(&["--state-topic", &topic]).await;
    walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(50, 5)).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    (fixture, topic, walpost)
}

async fn assert_refused(fixture: &Fixture, topic: &str) -> String {
    let before = fixture.records().await.len();
    let (code, said) = fixture.run_to_its_end(&["--state-topic", topic]).await;
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(fixture.records().await.len(), before, "something was published");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_continue_without_repeats_and_kills_without_loss() {
    let (fixture, topic, walpost) = adopted().await;
    stop(walpost).await;
    fixture.postgres.execute(&insert(50, 5)).await;
    let walpost = fixture.run_with(&["--state-topic", &topic]).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    for _ in 0..3 {
        fixture.postgres.execute(&insert(500, 7)).await;
        fixture.postgres.execute(&insert(20, 7)).await;
    }
    walpost.kill9().await;
    let walpost = fixture.run_with(&["--state-topic", &topic]).await;
    walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_created_again_while_walpost_was_down_is_not_read_from() {
    let (fixture, topic, walpost) = adopted().await;
    stop(walpost).await;
    let left = fixture.confirmed_flush().await.expect("a position");
    fixture.postgres.execute(&insert(20, 5)).await;
    fixture.postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    let create = "SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')";
    fixture.postgres.execute(create).await;
    let found = fixture.confirmed_flush().await.expect("a position");
    let said = assert_refused(&fixture, &topic).await;
    let text = format!("is confirmed up to {found}");
    assert!(said.contains(&text) && said.contains("walpost adopt --apply"), "{said}");
    assert!(!said.contains(&format!("committed before {found}")), "{said}");
    let printed = fixture.adopt(&topic).await.join("\n");
    assert!(
        printed.contains(&found) && printed.contains("were not published"),
        "{left}: {printed}"
    );
    let walpost = fixture.run_with(&["--state-topic", &topic]).await;
    let before = fixture.records().await.len();
    fixture.postgres.execute(&insert(7, 5)).await;
    eventually(LONG_TIMEOUT, "the new rows are published", async || {
        fixture.records().await.len() == before + 7
    })
    .await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_advanced_while_walpost_was_down_is_not_read_from() {
    let (fixture, topic, walpost) = adopted().await;
    stop(walpost).await;
    assert_refused_after_advance(&fixture, &topic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn position_of_another_delivery_id_does_not_count() {
    let (fixture, topic, walpost) = adopted().await;
    stop(walpost).await;
    let arguments = ["--state-topic", &topic, "--delivery-id", "clone"];
    let (code, said) = fixture.run_to_its_end(&arguments).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("has no position") && said.contains("clone"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_does_not_start_without_the_topic() {
    let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
    let (code, said) = fixture.run_to_its_end(&["--state-topic", &topic(&fixture).await]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("walpost adopt --apply") && said.contains("delivery.state_topic ="),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_confirmed_while_the_topic_cannot_be_written() {
    let (fixture, topic, walpost) = adopted().await;
    let kafka = Kafka::shared().await;
    kafka.delete_topic(&topic).await;
    let unconfirmed = fixture.postgres.commit(&insert(50, 5)).await;
    walpost.await_line("nothing is confirmed to PostgreSQL", LONG_TIMEOUT).await;
    eventually(LONG_TIMEOUT, "the rows are published", async || {
        fixture.records().await.len() >= 100
    })
    .await;
    fixture.assert_unconfirmed(&unconfirmed).await;
    // One that an operator or a tool has made anew has no position.
    kafka.create_topic(&topic, 1).await;
    let (code, said) = ended(&walpost).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("has no position"), "{said}");
    fixture.assert_unconfirmed(&unconfirmed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_compares_with_the_topic_and_loses_nothing() {
    let (fixture, topic, walpost) = adopted().await;
    walpost.kill9().await;
    one_by_one(&fixture, 5000).await;
    let walpost = catching_up(&fixture).args(["--state-topic", &topic]).start();
    walpost.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    walpost.kill9().await;
    one_by_one(&fixture, 3000).await;
    let walpost = catching_up(&fixture).args(["--state-topic", &topic]).start();
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
    assert_refused_after_advance(&fixture, &topic).await;
}

async fn assert_refused_after_advance(fixture: &Fixture, topic: &str) {
    fixture.postgres.execute(&insert(20, 5)).await;
    let advance = "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    fixture.postgres.execute(advance).await;
    let said = assert_refused(fixture, topic).await;
    assert!(said.contains("advanced by another client"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_takes_over_the_topic_from_a_killed_and_from_a_frozen_walpost() {
    let (fixture, topic, first) = adopted().await;
    let arguments = ["--state-topic", &topic];
    let second = fixture.command("run").args(arguments).start();
    second.await_line("waiting for it", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(500, 5)).await;
    first.kill9().await;
    second.await_line(AGREES, LONG_TIMEOUT).await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    // The server ends the frozen one's session; it wakes up while the third one works.
    second.pause();
    let walsender = fixture.walsender().await.expect("a walsender");
    fixture.postgres.execute(&format!("SELECT pg_terminate_backend({walsender})")).await;
    let third = fixture.run_with(&arguments).await;
    third.await_line(AGREES, LONG_TIMEOUT).await;
    fixture.postgres.execute(&insert(500, 5)).await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    let mark = second.mark();
    second.resume();
    second.await_line("lost the connection to PostgreSQL", SHORT_TIMEOUT).await;
    // Otherwise it could not tell who has advanced the slot.
    second.await_line_after(mark, "waiting for it", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(500, 5)).await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(third).await;
    second.await_line_after(mark, AGREES, LONG_TIMEOUT).await;
    fixture.postgres.execute(&insert(50, 5)).await;
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(second).await;
}
