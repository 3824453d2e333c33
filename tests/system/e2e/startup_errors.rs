//! Errors of `run` at startup, each with its documented exit code and a fix, and conditions that it
//! retries instead.

use std::time::Duration;

use walpost_bed::{Major, Postgres, eventually};

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, ended, insert};

const CONFIGURATION: Option<i32> = Some(78);

/// Runs it to its end, which is to be this one, in these words.
async fn refused(fixture: &Fixture, arguments: &[&str], words: &[&str]) {
    let (code, text) = fixture.run_to_its_end(arguments).await;
    assert_eq!(code, CONFIGURATION, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_incomplete_publication_is_an_error() {
    let fixture = Fixture::new().await;
    let words = ["does not exist in this database", "walpost init --apply"];
    refused(&fixture, &["--publication", "nosuch"], &words).await;
    fixture.postgres.execute("CREATE PUBLICATION empty").await;
    let words = ["does not publish table public.outbox", "ALTER PUBLICATION"];
    refused(&fixture, &["--publication", "empty"], &words).await;
    let create = "CREATE PUBLICATION deletes FOR TABLE outbox WITH (publish = 'delete')";
    fixture.postgres.execute(create).await;
    refused(&fixture, &["--publication", "deletes"], &["does not publish inserts"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_table_or_column_is_an_error() {
    let fixture = Fixture::new().await;
    refused(&fixture, &["--table", "public.nosuch"], &["there is no table public.nosuch"]).await;
    fixture.postgres.execute("ALTER TABLE public.outbox DROP COLUMN aggregate_id").await;
    refused(&fixture, &[], &["aggregate_id", "public.outbox"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_logical_decoding_is_an_error() {
    let postgres = Postgres::builder(Major::V15).setting("wal_level", "replica").start().await;
    let fixture = Fixture::bare(postgres, "127.0.0.1:1");
    refused(&fixture, &[], &["ALTER SYSTEM SET wal_level = logical"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_without_replication_is_an_error() {
    let mut fixture = Fixture::new().await;
    fixture.postgres.execute("CREATE ROLE plain LOGIN").await;
    fixture.source = fixture.postgres.url_for("plain");
    refused(&fixture, &[], &["REPLICATION"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password_is_an_error_and_not_printed() {
    let mut fixture = Fixture::new().await;
    fixture.postgres.execute("ALTER ROLE walpost PASSWORD 'right'").await;
    fixture.postgres.change_hba("host all all 127.0.0.1/32 scram-sha-256").await;
    let port = fixture.postgres.port();
    fixture.source = format!("postgres://walpost:mistaken@127.0.0.1:{port}/postgres");
    let (code, text) = fixture.run_to_its_end(&[]).await;
    assert_eq!(code, CONFIGURATION, "{text}");
    assert!(text.contains("the password is wrong"), "{text}");
    assert!(!text.contains("mistaken"), "{text}");
    fixture.source = format!("postgres://walpost:right@127.0.0.1:{port}/postgres");
    let _walpost = fixture.run().await;
    fixture.postgres.execute(&insert(1, 1)).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonexistent_database_is_an_error() {
    let mut fixture = Fixture::new().await;
    fixture.source = format!("postgres://postgres@127.0.0.1:{}/nosuch", fixture.postgres.port());
    refused(&fixture, &[], &["nosuch"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_names_are_rejected_with_a_suggestion() {
    let fixture = Fixture::bare(Postgres::start(Major::V15).await, "127.0.0.1:1");
    let (code, text) = fixture.run_to_its_end(&["--topik", "x"]).await;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--topic"), "{text}");
    let run = fixture.command("run").env("WALPOST_SOURCE_SLOOT", "x").start();
    let (code, text) = ended(&run).await;
    assert_eq!(code, CONFIGURATION, "{text}");
    assert!(text.contains("WALPOST_SOURCE_SLOT"), "{text}");
    let run = fixture.command("config").start();
    let file = run.directory().join("walpost.toml");
    ended(&run).await;
    std::fs::write(&file, "[source]\nsloot = \"x\"\n").expect("writable");
    let file = file.display().to_string();
    refused(&fixture, &["--config", &file], &["sloot", "slot", "walpost.toml:2"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_address_is_an_error() {
    let mut fixture = Fixture::bare(Postgres::start(Major::V15).await, "127.0.0.1:1");
    fixture.source = "postgres://walpost@127.0.0.1:notaport/postgres".to_owned();
    refused(&fixture, &[], &["--source"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_broker_is_retried_and_reported_by_check() {
    let mut fixture = Fixture::new().await;
    let shared = std::mem::replace(&mut fixture.bootstrap, "127.0.0.1:1".to_owned());
    let walpost = fixture.command("run").start();
    walpost.await_line("cannot deliver to Kafka; retrying", SHORT_TIMEOUT).await;
    let check = fixture.command("check").start();
    let (code, _) = ended(&check).await;
    assert_eq!(code, Some(1));
    assert!(check.said("127.0.0.1:1 cannot be reached"), "{:?}", check.stdout());
    fixture.postgres.execute(&insert(10, 3)).await;
    let sent = "SELECT sent_lsn >= pg_current_wal_insert_lsn() FROM pg_stat_replication";
    eventually(SHORT_TIMEOUT, "the rows are sent", async || {
        fixture.postgres.query_text(sent).await == Some("t".into())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    walpost.assert_runs();
    walpost.kill9().await;
    fixture.bootstrap = shared;
    let _walpost = fixture.run().await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_reports_columns_an_existing_table_lacks() {
    let fixture = Fixture::empty().await;
    fixture.postgres.execute("CREATE TABLE public.outbox (id int, payload text)").await;
    let init = fixture.command("init").arg("--apply").start();
    let (code, text) = ended(&init).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("would not start") && text.contains("aggregate_type"), "{text}");
}
