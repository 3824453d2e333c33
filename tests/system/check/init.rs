//! `walpost init`: least privileges, failover slots, and what it leaves to the operator.

use walpost_bed::fixture::{SHORT_TIMEOUT, ended, program};
use walpost_bed::{Major, Walpost, eventually};

use crate::fixture::{Fixture, sound};

/// Runs it as this user; returns its exit status and its output.
async fn init_as(fixture: &Fixture, user: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let source = format!("postgres://{user}@127.0.0.1:{}/postgres", fixture.postgres.port());
    let init = Walpost::builder(program()).args(["init", "--apply", "--source", &source]);
    let init = init.args(arguments).start();
    let (code, errors) = ended(&init).await;
    (code, init.stdout().join("\n") + "\n" + &errors)
}

const SLOT: &str = "SELECT failover FROM pg_replication_slots WHERE slot_name = 'walpost'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_creates_a_failover_slot_where_supported() {
    let mut fixture = Fixture::bare(sound(Major::V17)).await;
    let (code, said) = init_as(&fixture, "postgres", &["--failover"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fixture.postgres.query_text(SLOT).await.as_deref(), Some("t"));
    let (code, said) = init_as(&fixture, "postgres", &["--failover"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("slot walpost: already there"), "{said}");
    fixture.log_in_as("walpost");
    let report = fixture.check().await;
    report.is_clean();
    report.finding("ok", "slot_failover");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_does_not_replace_a_slot_without_failover() {
    let fixture = Fixture::on(sound(Major::V17)).await;
    let (code, said) = init_as(&fixture, "postgres", &["--failover"]).await;
    assert_eq!(code, Some(1), "{said}");
    let command = said.lines().find_map(|line| line.find("psql ").map(|at| &line[at..]));
    fixture.shell(command.expect("the fix")).await;
    assert_eq!(fixture.postgres.query_text(SLOT).await.as_deref(), Some("t"));
    assert_eq!(init_as(&fixture, "postgres", &["--failover"]).await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_without_failover_slot_support_changes_nothing() {
    let fixture = Fixture::bare(sound(Major::V16)).await;
    let (code, said) = init_as(&fixture, "postgres", &["--failover"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("needs PostgreSQL 17 or later, and this is 16"), "{said}");
    let table = fixture.postgres.query_text("SELECT to_regclass('outbox') IS NULL").await;
    assert_eq!(table.as_deref(), Some("t"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_reports_missing_privileges_without_granting_them() {
    let fixture = Fixture::bare(sound(Major::V15)).await;
    for (change, lacks) in [
        ("CREATE ROLE walpost", "ALTER ROLE \"walpost\" LOGIN;"),
        ("SELECT", "ALTER ROLE \"walpost\" REPLICATION;"),
    ] {
        fixture.execute(change).await;
        let (code, said) = init_as(&fixture, "postgres", &[]).await;
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("role walpost: already there (it may not"), "{said}");
        assert!(said.contains(lacks), "{said}");
        fixture.psql(lacks);
    }
    let (_, said) = init_as(&fixture, "postgres", &[]).await;
    assert!(said.contains("role walpost: already there\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_names_the_language_that_is_missing() {
    let fixture = Fixture::bare(sound(Major::V17)).await;
    fixture.execute("DROP EXTENSION plpgsql").await;
    let (code, said) = init_as(&fixture, "postgres", &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("CREATE EXTENSION plpgsql"), "{said}");
    fixture.execute("CREATE EXTENSION plpgsql").await;
    assert_eq!(init_as(&fixture, "postgres", &[]).await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_prints_the_managed_services_grant_statement() {
    // Recognised by its role; the service defines the role's privileges.
    let fixture = Fixture::bare(sound(Major::V15)).await;
    fixture
        .execute(
            "CREATE ROLE rds_superuser CREATEROLE; \
             CREATE ROLE administrator LOGIN CREATEROLE CREATEDB IN ROLE rds_superuser; \
             GRANT CREATE ON DATABASE postgres TO administrator; \
             GRANT CREATE ON SCHEMA public TO administrator",
        )
        .await;
    let (code, said) = init_as(&fixture, "administrator", &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("table public.outbox: created"), "{said}");
    for words in
        ["on Amazon RDS", "CREATE ROLE \"walpost\" LOGIN; GRANT rds_replication TO", "--no-role"]
    {
        assert!(said.contains(words), "{words} in {said}");
    }
    // All the rest but the slot, which also needs the privilege.
    let (code, said) = init_as(&fixture, "administrator", &["--no-role"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("publication walpost: created"), "{said}");
    assert!(said.contains("GRANT rds_replication TO \"administrator\";"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_tolerates_a_role_created_concurrently() {
    let fixture = Fixture::bare(sound(Major::V17)).await;
    let other = fixture.postgres.client_of("postgres").await;
    other.batch_execute("BEGIN; CREATE ROLE walpost LOGIN REPLICATION").await.expect("created");
    let mut init = Box::pin(init_as(&fixture, "postgres", &[]));
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
    let is_waiting = eventually(SHORT_TIMEOUT, "init waits for the other", async || {
        fixture.postgres.query_text(waits).await.as_deref() == Some("1")
    });
    tokio::select! {
        ended = &mut init => panic!("it did not wait: {ended:?}"),
        () = is_waiting => {}
    }
    other.batch_execute("COMMIT").await.expect("committed");
    let (code, said) = init.await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("role walpost: already there"), "{said}");
    assert!(said.contains("slot walpost: created"), "{said}");
}

/// What other publications have says nothing about this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_looks_at_the_configured_publication_alone() {
    let fixture = Fixture::bare(sound(Major::V15)).await;
    fixture
        .execute(
            "CREATE PUBLICATION first FOR ALL TABLES; CREATE PUBLICATION second FOR ALL TABLES; \
             CREATE TABLE other (); CREATE PUBLICATION walpost FOR TABLE other",
        )
        .await;
    let (code, said) = init_as(&fixture, "postgres", &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("does not have the table public.outbox"), "{said}");
    fixture.execute("ALTER PUBLICATION walpost ADD TABLE outbox").await;
    let (code, said) = init_as(&fixture, "postgres", &[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("publication walpost: already there"), "{said}");
    let (code, said) = init_as(&fixture, "postgres", &["--publication", "first"]).await;
    assert_eq!(code, Some(0), "{said}");
}
