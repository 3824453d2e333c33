//! `walpost prune` and what others have done: restored servers, other walposts, owners of types and
//! triggers, and rights that are missing.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, stop};
use walpost_bed::{Stop, eventually};

use super::prune::{Kept, WAL};
use super::state_topic::newest_state;

/// Transaction ids of other traffic.
const TRAFFIC: &str =
    "DO $$ BEGIN FOR i IN 1..4000 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$";

/// The history that the state topic knows has other transaction ids than that of the restored server,
/// which has no other event.
async fn rows_of_a_restored_server_are_kept(delivery: &'static str) {
    let kept = Kept::new(delivery).await;
    let postgres = &kept.fixture.postgres;
    let walpost = kept.run().await;
    postgres.execute(&insert(10, 5)).await;
    kept.delivered().await;
    stop(walpost).await;
    assert!(postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
    let saved = postgres.snapshot_data();
    postgres.start_again().await;
    let walpost = kept.run().await;
    postgres.execute(TRAFFIC).await;
    let last = postgres.query_text("SELECT txid_current()").await.expect("a transaction id");
    let last: u64 = last.parse().expect("a number");
    eventually(LONG_TIMEOUT, "there is a bookmark behind the traffic", async || {
        postgres.execute(WAL).await;
        let state = newest_state(&kept.fixture, &kept.topic).await?;
        (state["delivered"]["bookmarks"][0]["below"].as_u64()? > last).then_some(())
    })
    .await;
    stop(walpost).await;
    let acked = newest_state(&kept.fixture, &kept.topic).await.expect("a state");
    let acked = acked["acked_upto"].as_str().expect("a position").to_owned();
    assert!(postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
    postgres.restore_data(&saved);
    postgres.start_again().await;
    // WAL without events, as far as the state topic knows.
    eventually(LONG_TIMEOUT, "there is as much WAL as before", async || {
        postgres.execute("SELECT pg_logical_emit_message(true, '', repeat('x', 100000))").await;
        let query = format!("SELECT pg_current_wal_lsn() > '{acked}'");
        postgres.query_text(&query).await.as_deref() == Some("t")
    })
    .await;
    // No event differs: walpost goes on.
    let walpost = kept.run().await;
    let started = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";
    let started = postgres.query_text(started).await;
    eventually(LONG_TIMEOUT, "it has accepted the server", async || {
        postgres.execute(WAL).await;
        let state = newest_state(&kept.fixture, &kept.topic).await?;
        (Some(state["server_started"].to_string()) == started).then_some(())
    })
    .await;
    stop(walpost).await;
    let state = newest_state(&kept.fixture, &kept.topic).await.expect("a state");
    let now = postgres.query_text("SELECT txid_current()").await.expect("a transaction id");
    let now: u64 = now.parse().expect("a number");
    for bookmark in state["delivered"]["bookmarks"].as_array().expect("bookmarks") {
        assert!(bookmark["below"].as_u64() <= Some(now), "of the lost history: {state}");
    }
    postgres.execute(&insert(10, 5)).await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("10 rows deleted"), "{said}");
    assert_eq!(kept.left().await, 10, "{said}");
    let walpost = kept.run().await;
    kept.delivered().await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("10 rows deleted"), "{said}");
    assert_eq!(kept.deleted_ones_are_published().await, 20);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn rows_of_a_restored_server_are_kept_until_they_are_delivered_at_least_once() {
    rows_of_a_restored_server_are_kept("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_restored_server_are_kept_until_they_are_delivered_exactly_once() {
    rows_of_a_restored_server_are_kept("exactly-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_events_that_another_walpost_may_skip_are_kept() {
    let kept = Kept::new("at-least-once").await;
    let postgres = &kept.fixture.postgres;
    let slot = "SELECT pg_create_logical_replication_slot('second', 'pgoutput')";
    postgres.execute(slot).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = "poison.missing_field = 'skip'\ndelivery.id = 'second'\nadmin.listen = 'off'";
    std::fs::write(&file, toml).expect("written");
    let second = ["--config", file.to_str().expect("UTF-8"), "--slot", "second"];
    let adopt = kept.fixture.command("adopt").args(second).args(["--state-topic", &kept.topic]);
    let (code, said) = ended(&adopt.arg("--apply").start()).await;
    assert_eq!(code, Some(0), "{said}");
    let walpost = kept.run().await;
    let other = kept.fixture.command("run").args(kept.arguments()).args(second).start();
    postgres.execute(&insert(5, 5)).await;
    kept.delivered().await;
    let xmin = "SELECT min(catalog_xmin::text::bigint) > (SELECT max(xmin::text::bigint) FROM public.outbox)
                  FROM pg_replication_slots";
    eventually(LONG_TIMEOUT, "both slots have confirmed the rows", async || {
        postgres.execute("CHECKPOINT").await;
        postgres.query_text(xmin).await.as_deref() == Some("t")
    })
    .await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    let skipped = "may have been skipped by the walpost of replication slot \"second\"";
    assert!(code == Some(1) && said.contains(skipped), "{code:?} {said}");
    let (code, said) = kept.prune(&["--older-than", "0s", "--ignore-slot", "second"]).await;
    assert!(code == Some(0) && said.contains("5 rows deleted"), "{said}");
    stop(other).await;
    stop(walpost).await;
}

/// A type whose owner has written casts: whoever calls them runs the owner's code.
const STRANGE: &str = "
    CREATE ROLE mallory;
    CREATE SCHEMA shop AUTHORIZATION mallory;
    CREATE TABLE public.called (by text, what text);
    GRANT INSERT ON public.called TO PUBLIC;
    SET ROLE mallory;
    CREATE TYPE shop.odd AS (a int, b text);
    CREATE FUNCTION shop.to_json(shop.odd) RETURNS json LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO public.called VALUES (current_user, 'json'); RETURN '{}'; END$$;
    CREATE FUNCTION shop.to_text(shop.odd) RETURNS text LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO public.called VALUES (current_user, 'text'); RETURN ''; END$$;
    CREATE CAST (shop.odd AS json) WITH FUNCTION shop.to_json(shop.odd) AS IMPLICIT;
    CREATE CAST (shop.odd AS text) WITH FUNCTION shop.to_text(shop.odd) AS IMPLICIT;
    CREATE FUNCTION shop.checked(uuid) RETURNS boolean LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO public.called VALUES (current_user, 'check'); RETURN true; END$$;
    CREATE DOMAIN shop.id AS uuid CHECK (shop.checked(VALUE));
    RESET ROLE;
    GRANT USAGE ON SCHEMA shop TO PUBLIC";

/// `prune` and `replay` run as a superuser here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn code_of_the_owners_of_types_is_not_called() {
    let kept = Kept::new("at-least-once").await;
    let postgres = &kept.fixture.postgres;
    postgres.execute(STRANGE).await;
    let columns =
        "ALTER TABLE public.outbox ALTER id TYPE shop.id, ADD odd shop.odd DEFAULT (1, NULL)";
    postgres.execute(columns).await;
    let walpost = kept.run().await;
    postgres.execute(&insert(6, 1)).await;
    kept.delivered().await;
    postgres.execute("TRUNCATE public.called").await;
    let id = postgres.query_text("SELECT id FROM public.outbox WHERE n = 1").await.expect("an id");
    let directory = tempfile::TempDir::new().expect("a directory");
    let toml = directory.path().join("walpost.toml");
    std::fs::write(&toml, "outbox.columns.aggregate_type = 'odd'").expect("written");
    let replay = async |arguments: &[&str]| {
        let replay =
            kept.fixture.command("replay").args(["--config", toml.to_str().expect("UTF-8")]);
        let replay = replay.args(arguments).arg("--apply").start();
        let (code, said) = ended(&replay).await;
        (code, format!("{}\n{said}", replay.stdout().join("\n")))
    };
    let (code, said) = replay(&["--id", &id, "--aggregate-type", "(1,)"]).await;
    assert!(code == Some(0) && said.contains("1 events inserted again"), "{code:?} {said}");
    let (code, said) = replay(&["--id", &id, "--new-ids"]).await;
    assert!(code == Some(1) && said.contains("a type of role mallory"), "{code:?} {said}");
    kept.delivered().await;
    let file = directory.path().join("rows");
    let command = format!("cat > '{}'", file.display());
    let (code, said) = kept.prune(&["--older-than", "0s", "--archive-command", &command]).await;
    assert!(code == Some(0) && said.contains("6 rows archived"), "{code:?} {said}");
    let lines = std::fs::read_to_string(&file).expect("rows");
    assert_eq!(lines.matches("\"odd\":\"(1,)\"").count(), 6, "{lines}");
    let called = postgres.query_rows("SELECT by, what FROM public.called").await;
    assert!(called.is_empty(), "{called:?}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn superuser_is_warned_of_the_owners_triggers() {
    let kept = Kept::new("at-least-once").await;
    let postgres = &kept.fixture.postgres;
    let owned = "CREATE ROLE shopkeeper; ALTER TABLE public.outbox OWNER TO shopkeeper;
                 CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN RETURN NULL; END';
                 CREATE TRIGGER \"a\nb\" AFTER DELETE ON public.outbox
                        FOR EACH ROW EXECUTE FUNCTION public.look()";
    postgres.execute(owned).await;
    let walpost = kept.run().await;
    kept.delivered().await;
    let (_, said) = kept.prune(&["--dry-run", "--older-than", "0s"]).await;
    let warnings = [
        "public.outbox: trigger U&\"a\\000Ab\" fires",
        "public.outbox: its triggers run with the rights of this superuser; connect as its owner",
    ];
    assert!(warnings.iter().all(|warning| said.contains(warning)), "{said}");
    stop(walpost).await;
}

/// What walpost reads its configuration from is not for the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archive_command_gets_no_secrets() {
    let kept = Kept::new("at-least-once").await;
    let walpost = kept.run().await;
    kept.fixture.postgres.execute(&insert(1, 1)).await;
    kept.delivered().await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("environment");
    let command = format!("cat > /dev/null; env > '{}'", file.display());
    let prune = kept.pruning().args(["--older-than", "0s", "--archive-command", &command]);
    // The fixture sets variables of walpost's too.
    let prune = prune.env("PGPASSWORD", "sesame").env("BUCKET", "archive");
    let prune = prune.env("DATABASE_URL", "postgres://u:sesame@h/d").start();
    let (code, said) = ended(&prune).await;
    assert_eq!(code, Some(0), "{said}");
    let environment = std::fs::read_to_string(&file).expect("variables");
    let own = environment.lines().filter(|line| line.starts_with("WALPOST_"));
    assert_eq!(own.collect::<Vec<_>>(), ["WALPOST_TABLE=public.outbox"], "{environment}");
    assert!(
        !environment.contains("sesame") && environment.contains("BUCKET=archive"),
        "{environment}"
    );
    stop(walpost).await;
}
