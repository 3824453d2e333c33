//! The slot goes, loses its log, or is moved by somebody else (36 to 38):
//! walpost never goes on as if nothing had happened.

use std::time::Duration;

use walpost_bed::oracle::{Row, judge};
use walpost_bed::scene::{LATER, SOON, Scene, ended, insert, proxied};
use walpost_bed::{Kafka, Major, Postgres, PostgresBuilder, Proxy, Walpost, eventually};

use crate::case::{Account, Case};

const DROP: &str = "SELECT pg_drop_replication_slot('walpost')";

/// Moves it to where the WAL ends.
pub(super) const ADVANCE: &str = "pg_replication_slot_advance('walpost', pg_current_wal_lsn())";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(36, "a_slot_that_was_dropped_before_the_start_is_not_made_anew", dropped_before),
        Case::new(36, "a_slot_that_is_dropped_under_way_ends_the_run", dropped_under_way),
        Case::new(37, "a_slot_that_lost_its_log_before_the_start_ends_the_run", lost_before),
        Case::new(37, "a_slot_that_loses_its_log_under_way_ends_the_run", lost_between),
        Case::new(37, "a_slot_that_loses_its_log_while_kafka_is_away_ends_the_run", lost_in_use),
        Case::new(37, "a_slot_that_was_idle_for_too_long_ends_the_run", idle_for_too_long),
        Case::new(38, "a_slot_that_somebody_moved_ends_the_run_with_both_positions", moved),
        Case::new(38, "who_moves_the_slot_while_walpost_looks_is_no_other_walpost", moved_in_use),
        Case::new(
            36,
            "a_slot_dropped_in_the_catch_up_of_a_far_server_is_noticed",
            dropped_far_away,
        ),
        Case::new(
            36,
            "a_backlog_whose_slot_is_dropped_is_published_to_its_end",
            dropped_in_a_backlog,
        ),
        Case::new(38, "a_backlog_whose_slot_is_moved_is_published_to_its_end", moved_in_a_backlog),
        Case::new(
            38,
            "a_distant_standby_sees_that_the_active_one_halts",
            moved_beside_a_distant_one,
        )
        .long(),
        Case::new(38, "a_slot_that_somebody_made_anew_ends_the_run_with_both_positions", made_anew),
    ]
}

/// walpost on a scene, ten rows published and confirmed.
async fn ten_rows(scene: &Scene) -> (Walpost, Vec<Row>) {
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    (walpost, scene.committed().await)
}

async fn judged(account: &Account, scene: &Scene, rows: &[Row]) {
    account.exact(&judge(rows, std::iter::empty(), &scene.records().await));
}

async fn dropped_before(account: Account) {
    let scene = Scene::new().await;
    let (walpost, rows) = ten_rows(&scene).await;
    walpost.terminate();
    assert_eq!(ended(&walpost).await.0, Some(0));
    scene.postgres.execute(DROP).await;
    scene.postgres.execute(&insert(10, 3)).await;
    let text = account.ends(&scene.command("run").start(), 3).await;
    assert!(text.contains("find out who dropped it"), "{text}");
    assert_eq!(scene.confirmed_flush().await, None);
    judged(&account, &scene, &rows).await;
}

async fn dropped_under_way(account: Account) {
    let scene = Scene::new().await;
    let (walpost, rows) = ten_rows(&scene).await;
    // Before walpost is back: it waits for a moment after so short a session.
    let end_and_drop = "DO $$ BEGIN
           PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots;
           LOOP
             BEGIN
               PERFORM pg_drop_replication_slot('walpost');
               EXIT;
             EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.001); END;
           END LOOP;
         END $$";
    scene.postgres.execute(end_and_drop).await;
    scene.postgres.execute(&insert(10, 3)).await;
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("lost PostgreSQL, connecting again"), "{text}");
    assert!(text.contains("find out who dropped it"), "{text}");
    assert_eq!(scene.confirmed_flush().await, None);
    judged(&account, &scene, &rows).await;
}

/// A server that keeps little log for slots.
fn short_of_log() -> PostgresBuilder {
    let postgres = Postgres::builder(Major::V15).setting("max_slot_wal_keep_size", "1MB");
    postgres.setting("min_wal_size", "32MB").setting("max_wal_size", "32MB")
}

/// Writes log until the server gives the slot up.
async fn burn(scene: &Scene) {
    eventually(SOON, "the server invalidates the slot", async || {
        // A CHECKPOINT looks after each switch of the log's file.
        let burn = "CREATE TABLE IF NOT EXISTS burn (b text); INSERT INTO burn VALUES ('x')";
        scene.postgres.execute(burn).await;
        scene.postgres.execute("SELECT pg_switch_wal()").await;
        scene.postgres.execute("CHECKPOINT").await;
        let state = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'walpost'";
        let state = scene.postgres.query_text(state).await;
        if state.as_deref() == Some("lost") { Ok(()) } else { Err(state) }
    })
    .await;
}

async fn lost_before(account: Account) {
    let scene = Scene::with(short_of_log()).await;
    burn(&scene).await;
    let text = account.ends(&scene.command("run").start(), 3).await;
    assert!(text.contains("was invalidated by the server"), "{text}");
    judged(&account, &scene, &[]).await;
}

async fn lost_between(account: Account) {
    let mut scene = Scene::with(short_of_log()).await;
    let proxy = Proxy::to(scene.postgres.port()).await;
    scene.source = proxied(&proxy);
    let (walpost, rows) = ten_rows(&scene).await;
    cut_off(&scene, &proxy).await;
    burn(&scene).await;
    scene.postgres.execute(&insert(10, 3)).await;
    proxy.restore();
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("was invalidated by the server"), "{text}");
    judged(&account, &scene, &rows).await;
}

async fn lost_in_use(account: Account) {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(short_of_log(), &kafka.bootstrap()).await;
    let (walpost, _) = ten_rows(&scene).await;
    kafka.pause();
    scene.postgres.execute(&insert(10, 3)).await;
    let read = "SELECT sent_lsn >= pg_current_wal_lsn() FROM pg_stat_replication";
    eventually(SOON, "walpost has read the rows", async || {
        scene.postgres.query_text(read).await == Some("t".into())
    })
    .await;
    burn(&scene).await;
    kafka.resume();
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("was invalidated by the server"), "{text}");
    // What it had read it delivers still: nobody else can.
    judged(&account, &scene, &scene.committed().await).await;
}

/// Whoever reads the slot by SQL holds it meanwhile, as another walpost would.
async fn moved_in_use(account: Account) {
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(2));
    let scene = Scene::with(postgres).await;
    let (walpost, rows) = ten_rows(&scene).await;
    walpost.pause();
    eventually(SOON, "the slot is free", async || scene.walsender().await.is_none()).await;
    scene.postgres.execute(&insert(200_000, 3)).await;
    let client = scene.postgres.client().await;
    let read = "SELECT count(*) FROM pg_logical_slot_get_binary_changes('walpost', NULL, NULL,
                  'proto_version', '1', 'publication_names', 'walpost')";
    let moved = tokio::spawn(async move { client.batch_execute(read).await });
    let held = "SELECT active_pid::text FROM pg_replication_slots";
    eventually(SOON, "somebody holds it", async || scene.postgres.query_text(held).await.is_some())
        .await;
    walpost.resume();
    walpost.await_line("is in use by server process", SOON).await;
    moved.await.expect("it runs").expect("it is read");
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("by somebody else"), "{text}");
    judged(&account, &scene, &rows).await;
}

async fn idle_for_too_long(account: Account) {
    let postgres = Postgres::builder(Major::V18).setting("idle_replication_slot_timeout", "1s");
    let scene = Scene::with(postgres).await;
    let (walpost, rows) = ten_rows(&scene).await;
    walpost.terminate();
    assert_eq!(ended(&walpost).await.0, Some(0));
    eventually(SOON, "the server invalidates the slot", async || {
        scene.postgres.execute("CHECKPOINT").await;
        let reason = "SELECT invalidation_reason FROM pg_replication_slots";
        let reason = scene.postgres.query_text(reason).await;
        if reason.as_deref() == Some("idle_timeout") { Ok(()) } else { Err(reason) }
    })
    .await;
    scene.postgres.execute(&insert(10, 3)).await;
    let text = account.ends(&scene.command("run").start(), 3).await;
    assert!(text.contains("was invalidated by the server (idle_timeout)"), "{text}");
    judged(&account, &scene, &rows).await;
}

/// Cuts the connections through the proxy and lets none through; the slot is free then.
async fn cut_off(scene: &Scene, proxy: &Proxy) {
    proxy.refuse();
    proxy.cut();
    eventually(SOON, "the slot is free", async || scene.walsender().await.is_none()).await;
}

async fn moved(account: Account) {
    let advance =
        "SELECT end_lsn FROM pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    elsewhere(account, advance).await;
}

/// Does this to the slot while nobody moves it.
pub(super) fn at_rest(what: &str) -> String {
    format!(
        "DO $$ BEGIN LOOP BEGIN PERFORM {what}; EXIT;
           EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.001); END; END LOOP; END $$"
    )
}

async fn dropped_in_a_backlog(account: Account) {
    in_a_backlog(account, "pg_drop_replication_slot('walpost')", "find out who dropped it").await;
}

async fn moved_in_a_backlog(account: Account) {
    in_a_backlog(account, ADVANCE, "by somebody else").await;
}

/// Somebody lays hands on the slot while one instance reads a backlog and another one waits: the
/// first one publishes what its copy of the slot has, and neither continues.
async fn in_a_backlog(account: Account, what: &str, words: &str) {
    let scene = Scene::new().await;
    scene.postgres.execute(&many_transactions(600)).await;
    let (first, second) = (slow_in_batches(&scene), slow_in_batches(&scene));
    let begun = async || scene.records().await.len() > 500;
    eventually(SOON, "some come", begun).await;
    scene.postgres.execute(&at_rest(what)).await;
    assert!(scene.records().await.len() < 8_000, "in the midst");
    let texts = (account.ends(&first, 3).await, account.ends(&second, 3).await);
    let said = |text: &str| {
        text.contains(words) || text.contains("has halted, and a person has to decide")
    };
    assert!(said(&texts.0) && said(&texts.1), "{texts:?}");
    account.exact(&scene.judge().await);
}

/// Each answer takes longer than the relay waits before it looks at delivery reports.
async fn dropped_far_away(account: Account) {
    let mut scene = Scene::new().await;
    let proxy = Proxy::to(scene.postgres.port()).await;
    scene.source = proxied(&proxy);
    scene.postgres.execute(&many_transactions(1500)).await;
    proxy.slow(Duration::from_millis(100), None);
    let walpost = slow_in_batches(&scene);
    eventually(SOON, "some come", async || scene.records().await.len() > 500).await;
    scene.postgres.execute(&at_rest("pg_drop_replication_slot('walpost')")).await;
    walpost.await_line("the slot cannot be used any more", SOON).await;
    assert!(scene.records().await.len() < 25_000, "in the midst");
    let status = walpost.wait(LATER).await;
    assert_eq!(status.and_then(|status| status.code()), Some(3), "{:?}", walpost.stderr());
    let text = walpost.stderr().join("\n");
    assert!(text.contains("find out who dropped it"), "{text}");
    account.exact(&scene.judge().await);
    account.did("exit 3");
}

/// So many transactions of twenty rows.
pub(super) fn many_transactions(count: u32) -> String {
    format!(
        "DO $$ BEGIN FOR t IN 1..{count} LOOP
           INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', (i % 10)::text, 'placed', jsonb_build_object('t', t, 'i', i)
               FROM generate_series(1, 20) i;
           COMMIT;
         END LOOP; END $$"
    )
}

/// One that reads any backlog in batches, and has room for a few records at a time.
pub(super) fn slow_in_batches(scene: &Scene) -> Walpost {
    let slow = ["--in-flight-bytes", "8KiB", "-X", "linger.ms=10"];
    scene.command("run").args(slow).env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start()
}

/// Each answer takes a second for the one that waits, and it learns that the other
/// one halts all the same.
async fn moved_beside_a_distant_one(account: Account) {
    let mut scene = Scene::new().await;
    scene.postgres.execute(&many_transactions(1500)).await;
    let first = slow_in_batches(&scene);
    first.await_line("reading the backlog in batches", SOON).await;
    let proxy = Proxy::to(scene.postgres.port()).await;
    proxy.slow(Duration::from_millis(500), None);
    scene.source = proxied(&proxy);
    let second = slow_in_batches(&scene);
    second.await_line("is in use by", SOON).await;
    let move_it = "pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    scene.postgres.execute(&at_rest(move_it)).await;
    let status = first.wait(LATER).await;
    assert_eq!(status.and_then(|status| status.code()), Some(3), "{:?}", first.stderr());
    let text = account.ends(&second, 3).await;
    assert!(text.contains("has halted, and a person has to decide"), "{text}");
    account.exact(&scene.judge().await);
}

async fn made_anew(account: Account) {
    let make = "SELECT pg_drop_replication_slot('walpost'), \
                (pg_create_logical_replication_slot('walpost', 'pgoutput')).lsn";
    let make = format!("SELECT lsn FROM ({make}) AS one");
    elsewhere(account, &make).await;
}

/// Somebody else puts the slot elsewhere while walpost is cut off; gives where.
async fn elsewhere(account: Account, sql: &str) {
    let mut scene = Scene::new().await;
    let proxy = Proxy::to(scene.postgres.port()).await;
    scene.source = proxied(&proxy);
    let (walpost, mut rows) = ten_rows(&scene).await;
    cut_off(&scene, &proxy).await;
    let ours = scene.confirmed_flush().await.expect("the slot");
    scene.postgres.execute(&insert(5, 3)).await;
    let passed = scene.committed().await.len();
    let theirs = scene.postgres.query_text(sql).await.expect("the slot");
    scene.postgres.execute(&insert(5, 3)).await;
    proxy.restore();
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains(&format!("up to {theirs} by somebody else")), "{theirs} in {text}");
    assert!(text.contains(&format!("itself had confirmed {ours}")), "{ours} in {text}");
    assert_eq!(scene.confirmed_flush().await, Some(theirs));
    // What was committed between the two positions is for a person; the rest is not.
    let next = scene.run().await;
    scene.confirmed(Duration::from_secs(30)).await;
    rows.extend_from_slice(&scene.committed().await[passed..]);
    judged(&account, &scene, &rows).await;
    account.did("the next start went on from the slot");
    account.goes_on(&next);
}
