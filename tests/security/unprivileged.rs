//! A role that may only connect to the database: what it creates or locks there stops no delivery.

use std::time::Duration;

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

/// Where all tables are published, those of others are, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_a_published_table_of_its_own_stops_no_delivery() {
    for published in ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public, theirs"] {
        let postgres = Postgres::start(Major::V18).await;
        let scene = Scene::bare(postgres, &Kafka::shared().await.bootstrap());
        let publication = format!(
            "CREATE SCHEMA theirs; GRANT CREATE, USAGE ON SCHEMA theirs TO PUBLIC; \
             CREATE PUBLICATION walpost {published} WITH (publish = 'insert')"
        );
        scene.postgres.execute(&publication).await;
        // A new slot waits for every transaction, whatever it locks.
        scene.init(&[]).await;
        scene.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
        let mallory = session_of(&scene, "mallory", "").await;
        mallory.batch_execute("CREATE TABLE theirs.own (i int)").await.expect("its own table");
        mallory.batch_execute("BEGIN; LOCK TABLE theirs.own").await.expect("its own table");
        // It looks at a publication that is there.
        scene.init(&[]).await;
        scene.postgres.execute(&insert(10, 3)).await;
        let walpost = scene.command("run").start();
        walpost.await_line(STREAMS, SOON).await;
        scene.assert_exact(SOON).await;
        let check = scene.command("check").start();
        assert!(check.wait(SOON).await.is_some(), "check ends: {:?}", check.stderr());
        let lines = check.stdout().join("\n");
        assert!(!lines.contains("could not be looked at"), "{lines}");
        stop(walpost).await;
    }
}
