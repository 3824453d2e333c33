//! `walpost init --apply` writes the position of a slot that is new: from the first command on, a slot that
//! is not where walpost left it is noticed.

use walpost_bed::fixture::{
    AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, program, stop,
};
use walpost_bed::{Major, Postgres, Walpost, eventually};

use super::state_topic::{newest_state, topic};

/// A slot that `init` has made without a position, and a state topic that is not there.
async fn unwritten() -> (Fixture, String) {
    let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
    let topic = topic(&fixture).await;
    (fixture, topic)
}

/// `walpost init --apply` with these arguments ends with success; returns what it prints.
async fn init(fixture: &Fixture, arguments: &[&str]) -> String {
    let init = fixture.command("init").arg("--apply").args(arguments).start();
    let (code, said) = ended(&init).await;
    assert_eq!(code, Some(0), "{said}");
    init.stdout().join("\n")
}

/// `walpost init --apply` with these arguments ends with a failure; returns the error.
async fn refused_init(fixture: &Fixture, arguments: &[&str]) -> String {
    let init = fixture.command("init").arg("--apply").args(arguments).start();
    let (code, said) = ended(&init).await;
    assert_eq!(code, Some(1), "{said}");
    said
}

/// `walpost check` with these arguments: whether it finds no error of the position, and what it prints.
async fn checked(fixture: &Fixture, arguments: &[&str]) -> (bool, String) {
    let check = fixture.command("check").args(arguments).start();
    ended(&check).await;
    let text = check.stdout().join("\n");
    (!text.contains("[state_position]") && !text.contains("[state_topic_missing]"), text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_created_again_after_the_first_commands_is_noticed_and_repaired() {
    let (fixture, topic) = unwritten().await;
    let arguments = ["--state-topic", topic.as_str()];
    let (is_good, text) = checked(&fixture, &arguments).await;
    let fix = format!("walpost adopt --apply --source {}", fixture.source);
    assert!(!is_good && text.contains(&fix) && text.contains(&topic), "{text}");
    let printed = init(&fixture, &arguments).await;
    assert!(printed.contains(&format!("state topic {topic}: written, ")), "{printed}");
    let printed = init(&fixture, &arguments).await;
    assert!(printed.contains(&format!("state topic {topic}: already there, ")), "{printed}");
    let (is_good, text) = checked(&fixture, &arguments).await;
    assert!(is_good && text.contains("has the position of slot walpost"), "{text}");
    let walpost = fixture.run_with(&arguments).await;
    walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(20, 5)).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
    fixture.postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    fixture.postgres.execute(&insert(3, 5)).await;
    let printed = init(&fixture, &arguments).await;
    assert!(printed.contains("left as it is"), "{printed}");
    let (code, said) = fixture.run_to_its_end(&arguments).await;
    assert_eq!(code, Some(3), "{said}");
    let (is_good, text) = checked(&fixture, &arguments).await;
    assert!(!is_good, "{text}");
    let recover = fixture.command("recover").args(arguments).args(["--apply", "--all"]).start();
    let (code, said) = ended(&recover).await;
    assert_eq!(code, Some(0), "{said}\n{}", recover.stdout().join("\n"));
    let walpost = fixture.run_with(&arguments).await;
    eventually(LONG_TIMEOUT, "all rows are published", async || {
        fixture.records().await.len() == 23
    })
    .await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_init_writes_is_all_that_check_and_run_need() {
    let (fixture, topic) = unwritten().await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let file = file.to_str().expect("UTF-8");
    let arguments = ["--state-topic", &topic, "--create-topics", "2:1", "--config-file", file];
    let arguments = [&arguments[..], &["--admin-listen", "off"]].concat();
    let printed = init(&fixture, &arguments).await;
    assert!(printed.contains(&format!("{file}: written")), "{printed}");
    let printed = init(&fixture, &arguments).await;
    assert!(printed.contains(&format!("{file}: already there")), "{printed}");
    let command =
        |name| Walpost::builder(program()).args([name, "--config", file]).keeps_position().start();
    let check = command("check");
    let (code, said) = ended(&check).await;
    assert_eq!(code, Some(0), "{said}\n{}", check.stdout().join("\n"));
    let walpost = command("run");
    walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(20, 5)).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn position_of_a_slot_that_was_used_is_for_adopt() {
    let (fixture, topic) = unwritten().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(20, 5)).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    // It may run meanwhile.
    let printed = init(&fixture, &["--state-topic", &topic]).await;
    assert!(printed.contains("left as it is, since a client uses the slot"), "{printed}");
    stop(walpost).await;
    let sent = "SELECT total_txns > 0 FROM pg_stat_replication_slots";
    eventually(LONG_TIMEOUT, "the statistics have it", async || {
        fixture.postgres.query_text(sent).await.as_deref() == Some("t")
    })
    .await;
    let said = refused_init(&fixture, &["--state-topic", &topic]).await;
    assert!(said.contains("the slot may have sent events"), "{said}");
    fixture.postgres.execute("DELETE FROM outbox").await;
    let reset = "SELECT pg_stat_reset_replication_slot('walpost')";
    fixture.postgres.execute(reset).await;
    refused_init(&fixture, &["--state-topic", &topic]).await;
    assert_eq!(newest_state(&fixture, &topic).await, None);
}

/// They are never sent by the slot, so that somebody has to say what is to be done with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_from_before_the_slot_are_not_passed_over_in_silence() {
    let (fixture, topic) = unwritten().await;
    let arguments = ["--state-topic", topic.as_str()];
    let second = ["--state-topic", topic.as_str(), "--slot", "second"];
    // A slot waits for the transactions that are open, and does not send them.
    let writer = fixture.postgres.client().await;
    writer.batch_execute(&format!("BEGIN; {}", insert(3, 5))).await.expect("rows");
    let making = fixture.command("init").args(["--apply", "--no-role"]).args(second).start();
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
    eventually(LONG_TIMEOUT, "the slot waits", async || {
        fixture.postgres.query_text(waits).await.as_deref() == Some("1")
    })
    .await;
    writer.batch_execute("COMMIT").await.expect("committed");
    let (code, said) = ended(&making).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("may have rows from before the slot"), "{said}");
    assert!(said.contains("--existing-rows --no-role"), "{said}");
    // Nor is it known of a slot that was there, and has sent nothing; it may hold what has no row.
    let said = refused_init(&fixture, &arguments).await;
    assert!(said.contains("may have rows from before the slot"), "{said}");
    assert!(!said.contains("--existing-rows"), "{said}");
    assert_eq!(newest_state(&fixture, &topic).await, None);
    let (code, said) = fixture.run_to_its_end(&second).await;
    assert_eq!(code, Some(78), "{said}");
    fixture.postgres.execute("SELECT pg_drop_replication_slot('second')").await;
    let rows = ["--state-topic", topic.as_str(), "--slot", "second", "--existing-rows"];
    init(&fixture, &rows).await;
    let walpost = fixture.run_with(&second).await;
    eventually(LONG_TIMEOUT, "the rows are published", async || fixture.records().await.len() == 3)
        .await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_setup_is_completed_by_the_same_command() {
    let (fixture, topic) = unwritten().await;
    let arguments = ["--state-topic", topic.as_str()];
    let init_by = |arguments: &[&str]| {
        let init =
            Walpost::builder(program()).args(["init", "--apply", "--source", &fixture.source]);
        init.args(arguments).start()
    };
    let away = init_by(&[&arguments[..], &["--bootstrap-servers", "127.0.0.1:1"]].concat());
    let status = away.wait(LONG_TIMEOUT).await.expect("it ends");
    let said = away.stderr().join("\n");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("run the same command again"), "{said}");
    // Nor without brokers, which may be known to somebody else alone.
    let none = init_by(&arguments);
    let (code, said) = ended(&none).await;
    assert_eq!(code, Some(0), "{said}");
    let printed = none.stdout().join("\n");
    assert!(printed.contains("not written, since no brokers are given"), "{printed}");
    init(&fixture, &arguments).await;
    let walpost = fixture.run_with(&arguments).await;
    walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    stop(walpost).await;
}

/// "A second database" in docs/operations.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_database_shares_the_state_topic() {
    let (first, topic) = unwritten().await;
    let arguments = ["--state-topic", topic.as_str()];
    init(&first, &arguments).await;
    let walpost = first.run_with(&arguments).await;
    let (second, _) = unwritten().await;
    let (is_good, text) = checked(&second, &arguments).await;
    assert!(!is_good && text.contains("has no position for slot walpost"), "{text}");
    let (code, said) = second.run_to_its_end(&arguments).await;
    assert_eq!(code, Some(78), "{said}");
    // The failed start has read from the slot: the printed fix, not `init`.
    second.adopt(&topic).await;
    let other = second.run_with(&arguments).await;
    for fixture in [&first, &second] {
        fixture.postgres.execute(&insert(20, 5)).await;
        fixture.assert_exact(LONG_TIMEOUT).await;
    }
    stop(walpost).await;
    stop(other).await;
}
