//! Major upgrades of PostgreSQL, by the steps of `docs/postgresql-upgrade.md`.

use std::collections::BTreeSet;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, ended, insert, proxied, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Consumed, Kafka, Major, Postgres, PostgresBuilder, Proxy, Walpost, eventually};

use super::state_topic::topic;

const PAGE: &str = include_str!("../../../docs/postgresql-upgrade.md");

const MODES: [&str; 2] = ["at-least-once", "exactly-once"];

/// What the page shows.
#[track_caller]
fn shown(text: &'static str) -> &'static str {
    assert!(PAGE.contains(text), "the page does not show: {text}");
    text
}

fn server(major: Major) -> PostgresBuilder {
    Postgres::builder(major).tools()
}

async fn fixture_on(major: Major) -> Fixture {
    let bootstrap = Kafka::shared().await.bootstrap();
    let fixture = Fixture::over_server(server(major).start().await, &bootstrap, &[]).await;
    fixture.postgres.execute(APP).await;
    fixture
}

/// With a state topic, and a position in it.
async fn adopted(major: Major, mode: &'static str) -> Fixture {
    let fixture = fixture_on(major).await;
    let topic = topic(&fixture).await;
    fixture.adopt(&topic).await;
    fixture.option("--state-topic", &topic).option("--delivery", mode)
}

/// The role that writes to the outbox.
const APP: &str = "CREATE ROLE app LOGIN; GRANT SELECT, INSERT ON public.outbox TO app; \
                   GRANT USAGE ON SEQUENCE public.outbox_n_seq TO app";

/// What is known of the server whose events are delivered.
struct Delivered {
    next_xid: String,
    /// How many records are repetitions: walpost was killed.
    duplicates: usize,
    rolled_back: Vec<String>,
}

/// The page's steps on the old server, under load. The writer keeps trying.
async fn deliver(fixture: &Fixture, walpost: Walpost) -> (Delivered, Writer) {
    let writer = Writer::start_as(&fixture.postgres, "app", 200);
    writer.commits(100).await;
    fixture.postgres.execute(shown("REVOKE INSERT ON public.outbox FROM app;")).await;
    let wait = shown("BEGIN; LOCK TABLE public.outbox IN SHARE MODE; COMMIT;");
    fixture.postgres.execute(wait).await;
    fixture.postgres.execute(shown("ALTER SYSTEM SET autovacuum = off;")).await;
    fixture.postgres.execute(shown("SELECT pg_catalog.pg_reload_conf();")).await;
    // Undelivered rows are left too.
    walpost.kill9().await;
    deliver_rest(fixture).await;
    let xid = shown(
        "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.xid;",
    );
    let next_xid = fixture.postgres.query_text(xid).await.expect("a transaction id");
    let rolled_back = writer.rolled_back();
    let verdict = fixture.judge_with(&rolled_back).await;
    verdict.assert_ok();
    (Delivered { next_xid, duplicates: verdict.duplicates.len(), rolled_back }, writer)
}

async fn deliver_rest(fixture: &Fixture) {
    shown("walpost run --until current");
    let (code, said) = fixture.run_to_its_end(&["--until", "current"]).await;
    assert_eq!(code, Some(0), "{said}");
}

/// The ids of the rows that were written from that transaction on.
async fn rows_since(fixture: &Fixture, xid: &str) -> Vec<String> {
    let query = shown("SELECT id FROM public.outbox WHERE age(xmin) <= age('740'::xid);");
    let rows = fixture.postgres.query_rows(&query.replace("740", xid)).await;
    rows.into_iter().filter_map(|row| row.into_iter().next()?).collect()
}

/// walpost and the fixture work with this server from here on.
fn switch(fixture: &mut Fixture, server: Postgres) -> Postgres {
    fixture.source = server.url();
    std::mem::replace(&mut fixture.postgres, server)
}

/// `walpost run` publishes nothing before the new server is adopted.
async fn assert_not_adopted(fixture: &Fixture) {
    let before = fixture.records().await.len();
    let (code, said) = fixture.run_to_its_end(&[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("has no position") && said.contains("system identifier"), "{said}");
    assert_eq!(fixture.records().await.len(), before);
}

async fn adopt(fixture: &Fixture) {
    shown("walpost adopt --apply");
    let (code, said) = ended(&fixture.command("adopt").arg("--apply").start()).await;
    assert_eq!(code, Some(0), "{said}");
}

/// walpost publishes what is written to the new server, and has repeated nothing since the old one was
/// stopped.
async fn goes_on(fixture: &Fixture, old: &Delivered) {
    let walpost = fixture.run().await;
    let writer = Writer::start_as(&fixture.postgres, "app", 200);
    fixture.postgres.execute(shown("GRANT INSERT ON public.outbox TO app;")).await;
    writer.commits(100).await;
    let rolled_back = [&old.rolled_back[..], &writer.stop().await].concat();
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let verdict = fixture.judge_with(&rolled_back).await;
    verdict.assert_ok();
    assert_eq!(verdict.duplicates.len(), old.duplicates, "{verdict}");
}

/// The positions of all records.
async fn positions(fixture: &Fixture) -> BTreeSet<String> {
    let records = fixture.records().await;
    let position = |one: &Consumed| one.header("walpost.position").expect("a position").to_owned();
    records.iter().map(position).collect()
}

/// What came later has higher positions: consumers that go by the position need not know of the upgrade.
async fn assert_rises_from(before: &BTreeSet<String>, fixture: &Fixture) {
    let after: Vec<_> = positions(fixture).await.difference(before).cloned().collect();
    assert!(!after.is_empty() && after.first() > before.last(), "{before:?} {after:?}");
}

/// The slot is kept: from 17 on.
async fn with_the_slot(mode: &'static str) {
    let mut fixture = adopted(Major::V17, mode).await;
    let walpost = fixture.run().await;
    let (delivered, writer) = deliver(&fixture, walpost).await;
    fixture.postgres.stop_fast().await;
    drop(writer);
    let (published, before) = (fixture.records().await.len(), positions(&fixture).await);
    let new = fixture.postgres.pg_upgrade(server(Major::V18)).await.expect("it accepts the slot");
    let old = switch(&mut fixture, new);
    assert_eq!(rows_since(&fixture, &delivered.next_xid).await, Vec::<String>::new());
    assert_not_adopted(&fixture).await;
    // The way back is open as long as nothing is written to the new server.
    old.start_again().await;
    let new = switch(&mut fixture, old);
    deliver_rest(&fixture).await;
    assert_eq!(fixture.records().await.len(), published, "{mode}: nothing is repeated");
    fixture.postgres.stop_fast().await;
    let old = switch(&mut fixture, new);
    adopt(&fixture).await;
    deliver_rest(&fixture).await;
    assert_eq!(fixture.records().await.len(), published, "{mode}: nothing is repeated");
    goes_on(&fixture, &delivered).await;
    assert_rises_from(&before, &fixture).await;
    drop(old);
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_upgrade_with_the_slot_loses_and_repeats_nothing_at_least_once() {
    with_the_slot(MODES[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_upgrade_with_the_slot_loses_and_repeats_nothing_exactly_once() {
    with_the_slot(MODES[1]).await;
}

/// Without a state topic; walpost runs throughout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_upgrade_under_a_running_walpost_needs_an_operator() {
    let mut fixture = fixture_on(Major::V17).await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = proxied(&proxy);
    // Rows are left.
    fixture.postgres.execute(&insert(50, 5)).await;
    fixture.postgres.stop_fast().await;
    let refused = fixture.postgres.pg_upgrade(server(Major::V18)).await.expect_err("rows are left");
    assert!(refused.contains("consume the pending WAL"), "{refused}");
    fixture.postgres.start_again().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute("ALTER SYSTEM SET autovacuum = off").await;
    fixture.postgres.execute("SELECT pg_reload_conf()").await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.postgres.stop_fast().await;
    let new = fixture.postgres.pg_upgrade(server(Major::V18)).await.expect("it accepts the slot");
    let old = std::mem::replace(&mut fixture.postgres, new);
    proxy.point_at(fixture.postgres.port());
    let (code, said) = ended(&walpost).await;
    let delivered = Delivered { next_xid: String::new(), duplicates: 0, rolled_back: Vec::new() };
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("another server answers at this address"), "{said}");
    goes_on(&fixture, &delivered).await;
    drop(old);
}

/// The slot is not kept: a new one is created.
async fn without_the_slot(major: Major, mode: &'static str) {
    let mut fixture = adopted(major, mode).await;
    let walpost = fixture.run().await;
    let (delivered, writer) = deliver(&fixture, walpost).await;
    fixture.postgres.stop_fast().await;
    drop(writer);
    let before = positions(&fixture).await;
    let new = fixture.postgres.pg_upgrade(server(Major::V18)).await.expect("it upgrades");
    let old = switch(&mut fixture, new);
    let (code, said) = fixture.run_to_its_end(&[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("does not exist"), "{said}");
    begin_anew(&fixture).await;
    assert_eq!(rows_since(&fixture, &delivered.next_xid).await, Vec::<String>::new());
    goes_on(&fixture, &delivered).await;
    assert_rises_from(&before, &fixture).await;
    drop(old);
}

/// A new slot, and its position.
async fn begin_anew(fixture: &Fixture) {
    shown("walpost init --apply --no-state");
    fixture.init(&["--no-state"]).await;
    assert_not_adopted(fixture).await;
    adopt(fixture).await;
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_upgrade_without_the_slot_loses_and_repeats_nothing_at_least_once() {
    without_the_slot(Major::V14, MODES[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn pg_upgrade_without_the_slot_loses_and_repeats_nothing_exactly_once() {
    without_the_slot(Major::V16, MODES[1]).await;
}

/// The page's last query finds what was written after the last delivery, and replay publishes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_written_after_the_last_delivery_are_found_and_replayed() {
    let mut fixture = adopted(Major::V16, MODES[1]).await;
    let walpost = fixture.run().await;
    let (Delivered { next_xid, rolled_back, .. }, writer) = deliver(&fixture, walpost).await;
    drop(writer);
    fixture.postgres.execute(&insert(5, 5)).await;
    fixture.postgres.stop_fast().await;
    let new = fixture.postgres.pg_upgrade(server(Major::V18)).await.expect("it upgrades");
    let old = switch(&mut fixture, new);
    begin_anew(&fixture).await;
    let rows = rows_since(&fixture, &next_xid).await;
    let missing = fixture.judge_with(&rolled_back).await.missing;
    assert!(rows.len() >= 5, "{rows:?}");
    let mut ids: Vec<_> = missing.into_iter().map(|row| row.id).collect();
    ids.sort();
    let mut found = rows.clone();
    found.sort();
    assert_eq!(found, ids, "these and no others");
    shown("walpost replay --id");
    let walpost = fixture.run().await;
    let replay = fixture.command("replay").arg("--apply");
    let replay = rows.iter().fold(replay, |replay, id| replay.args(["--id", id]));
    let (code, said) = ended(&replay.start()).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&rolled_back).await.assert_exact();
    stop(walpost).await;
    drop(old);
}

/// The old server is stopped, and walpost goes on from the new one, which has the tables.
async fn move_to(new: Postgres, fixture: &mut Fixture, (delivered, writer): (&Delivered, Writer)) {
    fixture.postgres.stop_fast().await;
    drop(writer);
    let old = switch(fixture, new);
    begin_anew(fixture).await;
    goes_on(fixture, delivered).await;
    drop(old);
}

async fn by_a_dump(mode: &'static str) {
    let mut fixture = adopted(Major::V16, mode).await;
    let walpost = fixture.run().await;
    let (delivered, writer) = deliver(&fixture, walpost).await;
    let new = server(Major::V18).start().await;
    new.restore_dump_of(&fixture.postgres).await;
    move_to(new, &mut fixture, (&delivered, writer)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn dump_and_restore_loses_and_repeats_nothing() {
    for mode in MODES {
        by_a_dump(mode).await;
    }
}

async fn by_logical_replication(mode: &'static str) {
    let mut fixture = adopted(Major::V16, mode).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(50, 5)).await;
    fixture.postgres.execute(shown("CREATE PUBLICATION upgrade FOR ALL TABLES;")).await;
    let new = server(Major::V18).start().await;
    new.restore_schema_of(&fixture.postgres).await;
    let subscribe = format!(
        "CREATE SUBSCRIPTION upgrade CONNECTION '{}' PUBLICATION upgrade",
        fixture.postgres.url()
    );
    shown("CREATE SUBSCRIPTION upgrade CONNECTION");
    new.execute(&subscribe).await;
    eventually(LONG_TIMEOUT, "the tables are copied", async || {
        let copied = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'";
        new.query_text(copied).await.as_deref() == Some("0")
    })
    .await;
    let (delivered, writer) = deliver(&fixture, walpost).await;
    let end = fixture.postgres.wal_end().await;
    eventually(LONG_TIMEOUT, "the new server has everything", async || {
        let query = shown(
            "SELECT confirmed_flush_lsn >= pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = 'upgrade';",
        );
        let query = query.replace("pg_current_wal_lsn()", &format!("'{end}'"));
        fixture.postgres.query_text(&query).await.as_deref() == Some("t")
    })
    .await;
    new.execute(shown("DROP SUBSCRIPTION upgrade;")).await;
    // Sequences are not replicated.
    new.execute("SELECT setval('public.outbox_n_seq', (SELECT max(n) FROM public.outbox))").await;
    new.execute(shown("DROP PUBLICATION upgrade;")).await;
    move_to(new, &mut fixture, (&delivered, writer)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn logical_replication_loses_and_repeats_nothing() {
    for mode in MODES {
        by_logical_replication(mode).await;
    }
}

const RUNBOOK: &str = include_str!("../../../docs/runbooks/upgraded.md");

/// The runbook's comparison of table and topics, with the addresses of these servers; what it prints.
async fn missing_rows(fixture: &Fixture) -> String {
    let (_, text) = RUNBOOK.split_once("   kafka-console-consumer.sh").expect("the comparison");
    let (text, _) = text.split_once("```").expect("its end");
    let consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer";
    let java = Kafka::shared().await.java();
    let java = java.get_args().map(|one| format!("'{}'", one.to_string_lossy()));
    let java = java.collect::<Vec<_>>().join(" ");
    let topics = fixture.topic("").replace('.', "\\.");
    let psql = fixture.postgres.tool("psql");
    let script = format!("set -o pipefail; kafka-console-consumer.sh{text}")
        .replace("kafka-console-consumer.sh", &format!("java {java} {consumer}"))
        .replace("kafka:9092", &fixture.bootstrap)
        .replace("outbox\\.", &topics)
        .replace("psql ", &format!("{} ", psql.display()))
        .replace("postgres://owner@db/shop", &fixture.source);
    let directory = tempfile::TempDir::new().expect("a directory");
    let run = move || {
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &script]).current_dir(directory.path()).output()
    };
    let done = tokio::task::spawn_blocking(run).await.expect("no panic").expect("bash");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// Nobody cared about walpost: it is killed with rows that are not delivered, the slot is gone, and the
/// new server has rows from before its slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn upgrade_without_the_steps_is_repaired_by_the_runbook() {
    let mut fixture = adopted(Major::V16, MODES[1]).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(50, 5)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    walpost.kill9().await;
    fixture.postgres.execute(&insert(30, 5)).await;
    fixture.postgres.stop_fast().await;
    let new = fixture.postgres.pg_upgrade(server(Major::V18)).await.expect("it upgrades");
    let stopped = new.query_text("SELECT now()").await.expect("a time");
    new.execute(&insert(20, 5)).await;
    let old = switch(&mut fixture, new);
    assert_eq!(missing_rows(&fixture).await.lines().count(), 50);
    fixture.init(&["--no-state"]).await;
    fixture.postgres.execute(&insert(10, 5)).await;
    old.start_again().await;
    let new = switch(&mut fixture, old);
    deliver_rest(&fixture).await;
    fixture.postgres.stop_fast().await;
    let old = switch(&mut fixture, new);
    adopt(&fixture).await;
    let walpost = fixture.run().await;
    let replay = fixture.command("replay").args(["--since", &stopped, "--apply"]).start();
    let (code, said) = ended(&replay).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(missing_rows(&fixture).await, "");
    let verdict = fixture.judge().await;
    assert_eq!((verdict.expected, verdict.missing.len()), (110, 0), "{verdict}");
    assert_eq!(verdict.duplicates.len(), 10, "those that the slot has sent too: {verdict}");
    stop(walpost).await;
    drop(old);
}
