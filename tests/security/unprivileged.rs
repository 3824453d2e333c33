//! A role that may only connect to the database: what it creates or locks there stops no delivery.

use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use walpost_bed::scene::{SOON, Scene, insert, program, stop};
use walpost_bed::{Consumed, Kafka, Major, Postgres, Walpost, eventually};

const STREAMS: &str = "streaming from PostgreSQL";

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
