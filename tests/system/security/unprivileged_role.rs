//! A role that can only connect to the database: what it creates or locks there does not block
//! delivery, unless it exhausts what all clients share; then no event is lost.

use std::process::Command;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, program, stop};
use walpost_bed::{Consumed, Kafka, Major, Postgres, Walpost, eventually};

const STREAMS: &str = "streaming from PostgreSQL";
const LOCKED_BY_ANOTHER: &str = "another role holds the advisory lock";

/// The lock by which one instance of walpost works at a time: its class is `walp`.
const KEY: &str = "2002873456, hashtext('walpost')";

/// A session of a new role with these privileges.
async fn session_of(fixture: &Fixture, role: &str, rights: &str) -> Client {
    fixture.postgres.execute(&format!("CREATE ROLE {role} LOGIN {rights}")).await;
    let (client, connection) = tokio_postgres::connect(&fixture.postgres.url_for(role), NoTls)
        .await
        .expect("the role may connect");
    tokio::spawn(connection);
    client
}

/// A chain of domains, each over the one before.
async fn chain_of_domains(client: &Client, length: u32) {
    for from in (0..length).step_by(1000) {
        let sql = format!(
            "DO $$ BEGIN FOR i IN {from}..{from} + 999 LOOP
               EXECUTE format('CREATE DOMAIN pg_temp.d%s AS %s', i,
                              CASE WHEN i = 0 THEN 'text' ELSE 'pg_temp.d' || (i - 1) END);
             END LOOP; END $$"
        );
        client.batch_execute(&sql).await.expect("its own schema");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain_of_domains_does_not_block_delivery() {
    let fixture = Fixture::on(Major::V18).await;
    let mallory = session_of(&fixture, "mallory", "").await;
    chain_of_domains(&mallory, 12_000).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    stop(walpost).await;
    drop(mallory);
}

/// Where records depend on types, those of the outbox's columns are found among any others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain_of_domains_does_not_block_delivery_of_typed_records() {
    let postgres = Postgres::start(Major::V18).await;
    let fixture = Fixture::bare(postgres, &Kafka::shared().await.bootstrap());
    let mallory = session_of(&fixture, "mallory", "").await;
    chain_of_domains(&mallory, 12_000).await;
    let fixture = fixture
        .over(
            "CREATE DOMAIN money_of_ours AS numeric(12,2); CREATE DOMAIN price AS money_of_ours; \
             CREATE TABLE outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, \
                                  payload text, type text, amount price)",
        )
        .await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = format!(
        "record.profile = 'debezium-json'\n[debezium]\nroute.topic.replacement = '{}'\n\
         table.fields.additional.placement = 'amount:envelope'\n",
        fixture.topic("order")
    );
    std::fs::write(&file, toml).expect("it can be written");
    let walpost = Walpost::builder(program())
        .args(["run", "--config"])
        .arg(&file)
        .args(["--source", &fixture.source, "--bootstrap-servers", &fixture.bootstrap])
        .args(["-X", "allow.auto.create.topics=true"])
        .start();
    walpost.await_line(STREAMS, SHORT_TIMEOUT).await;
    fixture.postgres.execute("INSERT INTO outbox VALUES (1, 'order', 'a', 'x', 't', 1.50)").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    let values: Vec<_> = records.iter().filter_map(Consumed::value_text).collect();
    assert_eq!(values, [r#"{"payload":"x","amount":"AJY="}"#]);
    drop(mallory);
}

/// An attempt to connect that is given up leaves no statement behind that the server continues with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statement_of_an_abandoned_attempt_is_cancelled() {
    let fixture = Fixture::new().await;
    let holder = fixture.postgres.client().await;
    let lock = "BEGIN; LOCK TABLE pg_catalog.pg_publication IN ACCESS EXCLUSIVE MODE";
    holder.batch_execute(lock).await.expect("a superuser is allowed to");
    let walpost = fixture.command("run").args(["--catch-up", "stream"]).start();
    walpost.await_line("cannot connect to PostgreSQL", SHORT_TIMEOUT * 2).await;
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walpost' \
                AND state = 'active' AND query_start < now() - interval '32 s'";
    eventually(Duration::from_secs(10), "no statement is left", async || {
        // A new session would wait for the lock.
        let row = holder.query_one(left, &[]).await.expect("an answer");
        row.get::<_, i64>(0) == 0
    })
    .await;
    holder.batch_execute("ROLLBACK").await.expect("released");
    walpost.await_line(STREAMS, SHORT_TIMEOUT * 2).await;
}

/// Delivery continues with either feed while a session holds the lock taken by `statements`.
async fn delivers_despite(fixture: &Fixture, mallory: &Client, statements: &str) {
    mallory.batch_execute(statements).await.expect("PUBLIC is allowed to");
    for feed in ["stream", "auto"] {
        fixture.postgres.execute(&insert(1000, 3)).await;
        let run = fixture.command("run").args(["--catch-up", feed]);
        let walpost = run.env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start();
        walpost.await_line(STREAMS, SHORT_TIMEOUT).await;
        fixture.assert_exact(LONG_TIMEOUT).await;
        let lines = walpost.stderr();
        let warnings: Vec<_> =
            lines.iter().filter(|line| line.contains(LOCKED_BY_ANOTHER)).collect();
        assert_eq!(warnings.len(), 1, "{feed}: {lines:?}");
        assert!(warnings[0].contains("pg_terminate_backend"), "{feed}: {}", warnings[0]);
        assert!(!walpost.said("waiting for it"), "{feed}: nobody has the slot: {lines:?}");
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advisory_lock_of_an_unprivileged_role_does_not_block_delivery() {
    let fixture = Fixture::new().await;
    let mallory = session_of(&fixture, "mallory", "").await;
    delivers_despite(&fixture, &mallory, &format!("SELECT pg_advisory_lock({KEY})")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_advisory_locks_do_not_block_delivery() {
    let fixture = Fixture::new().await;
    let mallory = session_of(&fixture, "mallory", "").await;
    let moriarty = session_of(&fixture, "moriarty", "").await;
    let lock = format!("SELECT pg_advisory_lock_shared({KEY})");
    moriarty.batch_execute(&lock).await.expect("PUBLIC is allowed to");
    delivers_despite(&fixture, &mallory, &lock).await;
}

/// The holder has no session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advisory_lock_of_a_prepared_transaction_does_not_block_delivery() {
    let postgres = Postgres::builder(Major::V15).setting("max_prepared_transactions", "2");
    let fixture = Fixture::with(postgres).await;
    let mallory = session_of(&fixture, "mallory", "").await;
    let lock =
        format!("BEGIN; SELECT pg_advisory_xact_lock({KEY}); PREPARE TRANSACTION 'for ever'");
    mallory.batch_execute(&lock).await.expect("PUBLIC is allowed to");
    fixture.postgres.execute(&insert(10, 3)).await;
    let walpost = fixture.run_with(&["--catch-up", "stream"]).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    let warning = walpost.await_line(LOCKED_BY_ANOTHER, SHORT_TIMEOUT).await;
    assert!(warning.contains("ROLLBACK PREPARED"), "{warning}");
}

/// A role that may replicate can be another walpost, whatever its `application_name`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advisory_lock_of_a_replication_role_is_waited_for() {
    let fixture = Fixture::new().await;
    let other = session_of(&fixture, "other", "REPLICATION").await;
    other.batch_execute(&format!("SELECT pg_advisory_lock({KEY})")).await.expect("it may lock");
    fixture.postgres.execute(&insert(10, 3)).await;
    let walpost = fixture.command("run").args(["--catch-up", "stream"]).start();
    walpost.await_line("waiting for it", SHORT_TIMEOUT).await;
    assert!(!walpost.said(STREAMS) && !walpost.said(LOCKED_BY_ANOTHER), "{:?}", walpost.stderr());
    other.batch_execute("SELECT pg_advisory_unlock_all()").await.expect("unlocked");
    walpost.await_line(STREAMS, SHORT_TIMEOUT).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
}

/// If all tables are published, walpost receives those of other roles too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_on_another_published_table_does_not_block_delivery() {
    for published in ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public, theirs"] {
        let postgres = Postgres::start(Major::V18).await;
        let fixture = Fixture::bare(postgres, &Kafka::shared().await.bootstrap());
        let publication = format!(
            "CREATE SCHEMA theirs; GRANT CREATE, USAGE ON SCHEMA theirs TO PUBLIC; \
             CREATE PUBLICATION walpost {published} WITH (publish = 'insert')"
        );
        fixture.postgres.execute(&publication).await;
        // A new slot waits for every transaction, whatever it locks.
        fixture.init(&[]).await;
        fixture.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
        let mallory = session_of(&fixture, "mallory", "").await;
        mallory.batch_execute("CREATE TABLE theirs.own (i int)").await.expect("its own table");
        mallory.batch_execute("BEGIN; LOCK TABLE theirs.own").await.expect("its own table");
        // The publication exists already.
        fixture.init(&[]).await;
        fixture.postgres.execute(&insert(10, 3)).await;
        let catching_up = fixture.command("run").env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB");
        for run in [fixture.command("run"), catching_up] {
            fixture.postgres.execute(&insert(2000, 3)).await;
            let walpost = run.start();
            fixture.assert_exact(SHORT_TIMEOUT).await;
            stop(walpost).await;
        }
        let walpost = fixture.command("run").start();
        walpost.await_line(STREAMS, SHORT_TIMEOUT).await;
        let check = fixture.command("check").start();
        assert!(check.wait(SHORT_TIMEOUT).await.is_some(), "check ends: {:?}", check.stderr());
        let lines = check.stdout().join("\n");
        assert!(!lines.contains("checks that depend on it were skipped"), "{lines}");
        stop(walpost).await;
    }
}

/// The SQLSTATE with which a statement fails.
fn code(done: Result<(), tokio_postgres::Error>) -> Option<String> {
    done.err().and_then(|error| error.code().map(|code| code.code().to_owned()))
}

/// No client can work meanwhile; walpost resumes once it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_lock_table_loses_no_event() {
    const OUT_OF_MEMORY: &str = "53200";
    let fixture = Fixture::new().await;
    let writer = fixture.postgres.client().await;
    writer.batch_execute(&insert(10, 3)).await.expect("written");
    let mallory = session_of(&fixture, "mallory", "").await;
    let process = mallory.query_one("SELECT pg_backend_pid()", &[]).await.expect("its own");
    let process: i32 = process.get(0);
    let fill = "SELECT pg_advisory_lock(i) FROM generate_series(1, 1000000) i";
    assert_eq!(code(mallory.batch_execute(fill).await).as_deref(), Some(OUT_OF_MEMORY));
    let written = writer.batch_execute(&insert(10, 3)).await;
    assert_eq!(code(written).as_deref(), Some(OUT_OF_MEMORY), "writers fail as well");
    let walpost = fixture.command("run").start();
    let line = walpost.await_line("cannot connect to PostgreSQL", SHORT_TIMEOUT).await;
    assert!(line.contains(OUT_OF_MEMORY), "{line}");
    // The lock table may be full for a superuser too.
    let killed = Command::new("kill").arg(process.to_string()).status().expect("it runs");
    assert!(killed.success());
    eventually(SHORT_TIMEOUT, "the session is ended", async || mallory.is_closed()).await;
    walpost.await_line(STREAMS, SHORT_TIMEOUT * 2).await;
    writer.batch_execute(&insert(10, 3)).await.expect("written");
    fixture.assert_exact(SHORT_TIMEOUT).await;
}

/// With connections reserved for walpost's role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserved_connections_are_used_when_all_others_are_taken() {
    let postgres = Postgres::builder(Major::V18)
        .setting("max_connections", "20")
        .setting("reserved_connections", "5");
    let mut fixture = Fixture::with(postgres).await;
    fixture.postgres.execute("CREATE ROLE ours LOGIN REPLICATION").await;
    fixture.postgres.execute("GRANT pg_use_reserved_connections TO ours").await;
    fixture.source = fixture.postgres.url_for("ours");
    fixture.postgres.execute(&insert(10, 3)).await;
    let mut all = vec![session_of(&fixture, "mallory", "").await];
    let refused = loop {
        match tokio_postgres::connect(&fixture.postgres.url_for("mallory"), NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                all.push(client);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code().map(SqlState::code), Some("53300"), "{refused}");
    let walpost = fixture.run().await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    stop(walpost).await;
    drop(all);
}
