//! What `run` refuses at its start, each with the exit code of the interface
//! and a text that says what to change; and what it waits for instead.

use std::time::Duration;

use walpost_bed::{Major, Postgres, eventually};

use walpost_bed::scene::{SOON, Scene, ended, insert};

const CONFIGURATION: Option<i32> = Some(78);

/// Runs it to its end, which is to be this one, in these words.
async fn refused(scene: &Scene, arguments: &[&str], words: &[&str]) {
    let (code, text) = scene.run_to_its_end(arguments).await;
    assert_eq!(code, CONFIGURATION, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_that_is_missing_or_lacks_the_table_is_refused() {
    let scene = Scene::new().await;
    let words = ["does not exist in this database", "walpost init --apply"];
    refused(&scene, &["--publication", "nosuch"], &words).await;
    scene.postgres.execute("CREATE PUBLICATION empty").await;
    let words = ["does not publish table public.outbox", "ALTER PUBLICATION"];
    refused(&scene, &["--publication", "empty"], &words).await;
    let create = "CREATE PUBLICATION deletes FOR TABLE outbox WITH (publish = 'delete')";
    scene.postgres.execute(create).await;
    refused(&scene, &["--publication", "deletes"], &["does not publish inserts"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_missing_or_lacks_a_column_is_refused() {
    let scene = Scene::new().await;
    refused(&scene, &["--table", "public.nosuch"], &["there is no table public.nosuch"]).await;
    scene.postgres.execute("ALTER TABLE public.outbox DROP COLUMN aggregate_id").await;
    refused(&scene, &[], &["aggregate_id", "public.outbox"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_logical_decoding_is_refused() {
    let postgres = Postgres::builder(Major::V15).setting("wal_level", "replica").start().await;
    let scene = Scene::bare(postgres, "127.0.0.1:1");
    refused(&scene, &[], &["ALTER SYSTEM SET wal_level = logical"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_replicate_is_refused() {
    let mut scene = Scene::new().await;
    scene.postgres.execute("CREATE ROLE plain LOGIN").await;
    scene.source = scene.postgres.url_for("plain");
    refused(&scene, &[], &["REPLICATION"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_refused_and_not_shown() {
    let mut scene = Scene::new().await;
    scene.postgres.execute("ALTER ROLE walpost PASSWORD 'right'").await;
    scene.postgres.change_hba("host all all 127.0.0.1/32 scram-sha-256").await;
    let port = scene.postgres.port();
    scene.source = format!("postgres://walpost:mistaken@127.0.0.1:{port}/postgres");
    let (code, text) = scene.run_to_its_end(&[]).await;
    assert_eq!(code, CONFIGURATION, "{text}");
    assert!(text.contains("the password is wrong"), "{text}");
    assert!(!text.contains("mistaken"), "{text}");
    scene.source = format!("postgres://walpost:right@127.0.0.1:{port}/postgres");
    let _walpost = scene.run().await;
    scene.postgres.execute(&insert(1, 1)).await;
    scene.assert_exact(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_does_not_exist_is_refused() {
    let mut scene = Scene::new().await;
    scene.source = format!("postgres://postgres@127.0.0.1:{}/nosuch", scene.postgres.port());
    refused(&scene, &[], &["nosuch"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unknown_is_refused_with_the_nearest_known_name() {
    let scene = Scene::bare(Postgres::start(Major::V15).await, "127.0.0.1:1");
    let (code, text) = scene.run_to_its_end(&["--topik", "x"]).await;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--topic"), "{text}");
    let run = scene.command("run").env("WALPOST_SOURCE_SLOOT", "x").start();
    let (code, text) = ended(&run).await;
    assert_eq!(code, CONFIGURATION, "{text}");
    assert!(text.contains("WALPOST_SOURCE_SLOT"), "{text}");
    let run = scene.command("config").start();
    let file = run.directory().join("walpost.toml");
    ended(&run).await;
    std::fs::write(&file, "[source]\nsloot = \"x\"\n").expect("writable");
    let file = file.display().to_string();
    refused(&scene, &["--config", &file], &["sloot", "slot", "walpost.toml:2"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_none_is_refused() {
    let mut scene = Scene::bare(Postgres::start(Major::V15).await, "127.0.0.1:1");
    scene.source = "postgres://walpost@127.0.0.1:notaport/postgres".to_owned();
    refused(&scene, &[], &["--source"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_cannot_be_reached_is_waited_for_and_reported_by_check() {
    let mut scene = Scene::new().await;
    let shared = std::mem::replace(&mut scene.bootstrap, "127.0.0.1:1".to_owned());
    let walpost = scene.command("run").start();
    walpost.await_line("Kafka cannot be used, trying again until it can", SOON).await;
    let check = scene.command("check").start();
    let (code, _) = ended(&check).await;
    assert_eq!(code, Some(1));
    assert!(check.said("127.0.0.1:1 cannot be reached"), "{:?}", check.stdout());
    scene.postgres.execute(&insert(10, 3)).await;
    let sent = "SELECT sent_lsn >= pg_current_wal_insert_lsn() FROM pg_stat_replication";
    eventually(SOON, "the rows are sent", async || {
        scene.postgres.query_text(sent).await == Some("t".into())
    })
    .await;
    assert_eq!(walpost.wait(Duration::from_secs(2)).await, None, "it goes on trying");
    walpost.kill9().await;
    scene.bootstrap = shared;
    let _walpost = scene.run().await;
    scene.assert_exact(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_says_what_a_table_that_was_there_lacks() {
    let scene = Scene::empty().await;
    scene.postgres.execute("CREATE TABLE public.outbox (id int, payload text)").await;
    let init = scene.command("init").arg("--apply").start();
    let (code, text) = ended(&init).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("would not start") && text.contains("aggregate_type"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_of_a_domain_over_bytea_is_refused() {
    let scene = Scene::new().await;
    scene.postgres.execute("CREATE DOMAIN blob AS bytea; CREATE DOMAIN image AS blob").await;
    for domain in ["blob", "image"] {
        let change = format!("ALTER TABLE outbox DROP COLUMN payload, ADD COLUMN payload {domain}");
        scene.postgres.execute(&change).await;
        refused(&scene, &[], &["domain over bytea", "TYPE bytea"]).await;
    }
}
