//! A role that may only connect to the database: what it creates or locks there stops no delivery,
//! unless it uses up what all clients share; then no event is lost.

use std::process::Command;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};
use walpost_bed::scene::{LATER, SOON, Scene, insert, program, stop};
use walpost_bed::{Consumed, Kafka, Major, Postgres, Walpost, eventually};

const STREAMS: &str = "streaming from PostgreSQL";
const LOCKED_BY_ANOTHER: &str = "another role holds the advisory lock";

/// The lock by which instances of walpost take turns: its class is `walp`.
const KEY: &str = "2002873456, hashtext('walpost')";

/// A session of a new role with these rights.
async fn session_of(scene: &Scene, role: &str, rights: &str) -> Client {
    scene.postgres.execute(&format!("CREATE ROLE {role} LOGIN {rights}")).await;
    let (client, connection) = tokio_postgres::connect(&scene.postgres.url_for(role), NoTls)
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
async fn a_chain_of_domains_stops_no_delivery() {
    let scene = Scene::on(Major::V18).await;
    let mallory = session_of(&scene, "mallory", "").await;
    chain_of_domains(&mallory, 12_000).await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.assert_exact(SOON).await;
    stop(walpost).await;
    drop(mallory);
}

/// Where records depend on types, those of the outbox's columns are found among any others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_domains_stops_no_delivery_of_typed_records() {
    let postgres = Postgres::start(Major::V18).await;
    let scene = Scene::bare(postgres, &Kafka::shared().await.bootstrap());
    let mallory = session_of(&scene, "mallory", "").await;
    chain_of_domains(&mallory, 12_000).await;
    let scene = scene
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
        scene.topic("order")
    );
    std::fs::write(&file, toml).expect("it can be written");
    let walpost = Walpost::builder(program())
        .args(["run", "--config"])
        .arg(&file)
        .args(["--source", &scene.source, "--bootstrap-servers", &scene.bootstrap])
        .args(["-X", "allow.auto.create.topics=true"])
        .start();
    walpost.await_line(STREAMS, SOON).await;
    scene.postgres.execute("INSERT INTO outbox VALUES (1, 'order', 'a', 'x', 't', 1.50)").await;
    scene.confirmed(SOON).await;
    let records = scene.records().await;
    let values: Vec<_> = records.iter().filter_map(Consumed::value_text).collect();
    assert_eq!(values, [r#"{"payload":"x","amount":"AJY="}"#]);
    drop(mallory);
}

/// An attempt to connect that is given up leaves no statement behind that the server goes on with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_of_an_abandoned_attempt_ends() {
    let scene = Scene::new().await;
    let holder = scene.postgres.client().await;
    let lock = "BEGIN; LOCK TABLE pg_catalog.pg_publication IN ACCESS EXCLUSIVE MODE";
    holder.batch_execute(lock).await.expect("a superuser may");
    let walpost = scene.command("run").args(["--catch-up", "stream"]).start();
    walpost.await_line("PostgreSQL cannot be used", SOON * 2).await;
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walpost' \
                AND state = 'active' AND query_start < now() - interval '32 s'";
    eventually(Duration::from_secs(10), "no statement is left", async || {
        // A new session would wait for the lock.
        let row = holder.query_one(left, &[]).await.expect("an answer");
        row.get::<_, i64>(0) == 0
    })
    .await;
    holder.batch_execute("ROLLBACK").await.expect("released");
    walpost.await_line(STREAMS, SOON * 2).await;
}

/// Delivery goes on, in either feed, while somebody holds the lock by `statements`.
async fn delivers_despite(scene: &Scene, mallory: &Client, statements: &str) {
    mallory.batch_execute(statements).await.expect("PUBLIC may");
    for feed in ["stream", "auto"] {
        scene.postgres.execute(&insert(1000, 3)).await;
        let run = scene.command("run").args(["--catch-up", feed]);
        let walpost = run.env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start();
        walpost.await_line(STREAMS, SOON).await;
        scene.assert_exact(LATER).await;
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
async fn an_advisory_lock_of_a_role_without_replication_stops_no_delivery() {
    let scene = Scene::new().await;
    let mallory = session_of(&scene, "mallory", "").await;
    delivers_despite(&scene, &mallory, &format!("SELECT pg_advisory_lock({KEY})")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_advisory_locks_of_several_sessions_stop_no_delivery() {
    let scene = Scene::new().await;
    let mallory = session_of(&scene, "mallory", "").await;
    let moriarty = session_of(&scene, "moriarty", "").await;
    let lock = format!("SELECT pg_advisory_lock_shared({KEY})");
    moriarty.batch_execute(&lock).await.expect("PUBLIC may");
    delivers_despite(&scene, &mallory, &lock).await;
}

/// It has no session at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_advisory_lock_of_a_prepared_transaction_stops_no_delivery() {
    let postgres = Postgres::builder(Major::V15).setting("max_prepared_transactions", "2");
    let scene = Scene::with(postgres).await;
    let mallory = session_of(&scene, "mallory", "").await;
    let lock =
        format!("BEGIN; SELECT pg_advisory_xact_lock({KEY}); PREPARE TRANSACTION 'for ever'");
    mallory.batch_execute(&lock).await.expect("PUBLIC may");
    scene.postgres.execute(&insert(10, 3)).await;
    let walpost = scene.run_with(&["--catch-up", "stream"]).await;
    scene.assert_exact(SOON).await;
    let warning = walpost.await_line(LOCKED_BY_ANOTHER, SOON).await;
    assert!(warning.contains("ROLLBACK PREPARED"), "{warning}");
}

/// A role that may replicate can be another walpost, whatever it calls itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_replicate_is_waited_for() {
    let scene = Scene::new().await;
    let other = session_of(&scene, "other", "REPLICATION").await;
    other.batch_execute(&format!("SELECT pg_advisory_lock({KEY})")).await.expect("it may lock");
    scene.postgres.execute(&insert(10, 3)).await;
    let walpost = scene.command("run").args(["--catch-up", "stream"]).start();
    walpost.await_line("waiting for it", SOON).await;
    assert!(!walpost.said(STREAMS) && !walpost.said(LOCKED_BY_ANOTHER), "{:?}", walpost.stderr());
    other.batch_execute("SELECT pg_advisory_unlock_all()").await.expect("unlocked");
    walpost.await_line(STREAMS, SOON).await;
    scene.assert_exact(SOON).await;
}

/// The code of the error that a statement ends with.
fn code(done: Result<(), tokio_postgres::Error>) -> Option<String> {
    done.err().and_then(|error| error.code().map(|code| code.code().to_owned()))
}

/// Nobody can work then, and walpost resumes once it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_table_that_is_full_loses_no_event() {
    const OUT_OF_MEMORY: &str = "53200";
    let scene = Scene::new().await;
    let writer = scene.postgres.client().await;
    writer.batch_execute(&insert(10, 3)).await.expect("written");
    let mallory = session_of(&scene, "mallory", "").await;
    let process = mallory.query_one("SELECT pg_backend_pid()", &[]).await.expect("its own");
    let process: i32 = process.get(0);
    let fill = "SELECT pg_advisory_lock(i) FROM generate_series(1, 1000000) i";
    assert_eq!(code(mallory.batch_execute(fill).await).as_deref(), Some(OUT_OF_MEMORY));
    let written = writer.batch_execute(&insert(10, 3)).await;
    assert_eq!(code(written).as_deref(), Some(OUT_OF_MEMORY), "writers fail as well");
    let walpost = scene.command("run").start();
    let line = walpost.await_line("cannot be used", SOON).await;
    assert!(line.contains(OUT_OF_MEMORY), "{line}");
    // A statement, a superuser's too, may find no room.
    let killed = Command::new("kill").arg(process.to_string()).status().expect("it runs");
    assert!(killed.success());
    eventually(SOON, "the session is ended", async || mallory.is_closed()).await;
    walpost.await_line(STREAMS, SOON * 2).await;
    writer.batch_execute(&insert(10, 3)).await.expect("written");
    scene.assert_exact(SOON).await;
}

/// With connections that are reserved for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_other_roles_keep_nobody_from_those_that_are_reserved() {
    let postgres = Postgres::builder(Major::V18)
        .setting("max_connections", "20")
        .setting("reserved_connections", "5");
    let mut scene = Scene::with(postgres).await;
    scene.postgres.execute("CREATE ROLE ours LOGIN REPLICATION").await;
    scene.postgres.execute("GRANT pg_use_reserved_connections TO ours").await;
    scene.source = scene.postgres.url_for("ours");
    scene.postgres.execute(&insert(10, 3)).await;
    let mut all = vec![session_of(&scene, "mallory", "").await];
    let refused = loop {
        match tokio_postgres::connect(&scene.postgres.url_for("mallory"), NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                all.push(client);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code().map(SqlState::code), Some("53300"), "{refused}");
    let walpost = scene.run().await;
    scene.assert_exact(SOON).await;
    stop(walpost).await;
    drop(all);
}
