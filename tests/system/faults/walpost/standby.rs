//! Two instances on one slot: one waits while the other works (7, 8).

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, proxied};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Proxy, eventually};

use crate::case::{Case, CaseReport};

const WAITS: &str = "is in use by server process";
const IN_BATCHES: &str = "starting a catch-up read";
const WORKS: &str = "streaming from PostgreSQL";
const GAVE_WAY: &str = "another walpost advanced the slot; resuming";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(7, "frozen_instance_becomes_standby_and_takes_over_again", frozen),
        Case::new(7, "instance_frozen_during_catch_up_becomes_standby", frozen_in_batches),
        Case::new(7, "resumed_instance_waits_while_the_slot_is_released", between_replays),
        Case::new(7, "disconnected_instance_becomes_standby_and_takes_over_again", cut_off),
        Case::new(8, "advisory_lock_of_another_role_halts_no_instance", foreign_lock),
        Case::new(8, "standby_takes_over_within_seconds", second),
    ]
}

async fn frozen(report: CaseReport) {
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(2));
    let fixture = Fixture::with(postgres).await;
    let writer = Writer::start(&fixture.postgres, 200);
    let first = fixture.run().await;
    writer.commits(50).await;
    first.pause();
    let second = fixture.command("run").start();
    second.await_line(WAITS, SHORT_TIMEOUT).await;
    second.await_line(WORKS, SHORT_TIMEOUT).await;
    writer.commits(50).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let mark = first.mark();
    first.resume();
    first
        .await_line_after(mark, "lost the connection to PostgreSQL; reconnecting", SHORT_TIMEOUT)
        .await;
    first.await_line_after(mark, WAITS, SHORT_TIMEOUT).await;
    writer.commits(50).await;
    assert!(!second.said("lost the connection to PostgreSQL"), "{:?}", second.stderr());
    let mark = first.mark();
    second.terminate();
    report.ends(&second, 0).await;
    first.await_line_after(mark, GAVE_WAY, SHORT_TIMEOUT).await;
    writer.commits(50).await;
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&first);
}

/// The other one reads the backlog meanwhile, and moves the slot without holding it.
async fn frozen_in_batches(report: CaseReport) {
    let fixture = Fixture::new().await;
    let rows = "DO $$ BEGIN FOR t IN 1..3000 LOOP
                  INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
                    SELECT 'order', (i % 10)::text, 'placed', jsonb_build_object('t', t, 'i', i)
                      FROM generate_series(1, 20) i;
                  COMMIT;
                END LOOP; END $$";
    fixture.postgres.execute(rows).await;
    let start = || {
        let slow = ["--in-flight-bytes", "8KiB", "-X", "linger.ms=10"];
        fixture.command("run").args(slow).env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start()
    };
    let first = start();
    first.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    let second = start();
    second.await_line(WAITS, SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 500)
        .await;
    first.pause();
    // As the server does with a client that is silent.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
    fixture.postgres.execute(end).await;
    second.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    let before = fixture.confirmed_flush().await;
    eventually(SHORT_TIMEOUT, "the other moves the slot", async || {
        fixture.confirmed_flush().await != before
    })
    .await;
    first.resume();
    first.await_line(WAITS, SHORT_TIMEOUT).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&first);
    report.still_running(&second);
}

/// The other one, which has moved the slot, releases it again and again, for a topic is missing.
async fn between_replays(report: CaseReport) {
    let kafka = Kafka::start().await;
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(2));
    let fixture = Fixture::with_brokers(postgres, &kafka.bootstrap()).await;
    kafka.create_topic(&fixture.topic("order"), 3).await;
    let start = || {
        let no = ["-X", "allow.auto.create.topics=false"];
        fixture.command("run").args(no).start()
    };
    let first = start();
    first.await_line(WORKS, SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    first.pause();
    let second = start();
    second.await_line(WORKS, SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3).replace("'order'", "'absent'")).await;
    second.await_line("replaying", SHORT_TIMEOUT * 2).await;
    // By then it waits for seconds each time.
    let mut free = 0;
    eventually(SHORT_TIMEOUT * 2, "the slot is free for long", async || {
        free = if fixture.walsender().await.is_none() { free + 1 } else { 0 };
        free > 10
    })
    .await;
    eventually(SHORT_TIMEOUT, "the slot is held", async || fixture.walsender().await.is_some())
        .await;
    eventually(SHORT_TIMEOUT, "the slot is free", async || fixture.walsender().await.is_none())
        .await;
    let mark = first.mark();
    first.resume();
    first
        .await_line_after(mark, "lost the connection to PostgreSQL; reconnecting", SHORT_TIMEOUT)
        .await;
    first.await_line_after(mark, WAITS, SHORT_TIMEOUT).await;
    kafka.create_topic(&fixture.topic("absent"), 3).await;
    fixture.confirmed(SHORT_TIMEOUT * 2).await;
    report.ok(&fixture.judge().await);
    report.still_running(&first);
    report.still_running(&second);
}

async fn cut_off(report: CaseReport) {
    let mut fixture = Fixture::new().await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    let direct = std::mem::replace(&mut fixture.source, proxied(&proxy));
    let first = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    proxy.refuse();
    proxy.cut();
    eventually(SHORT_TIMEOUT, "the slot is free", async || fixture.walsender().await.is_none())
        .await;
    fixture.source = direct;
    let second = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    proxy.restore();
    first.await_line(WAITS, SHORT_TIMEOUT).await;
    let mark = first.mark();
    second.kill9().await;
    first.await_line_after(mark, GAVE_WAY, SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&first);
}

/// Any role that may connect can take the lock by which an instance announces that it halts.
async fn foreign_lock(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("CREATE ROLE stranger LOGIN").await;
    let (client, connection) = tokio_postgres::connect(
        &format!("{}?application_name=walpost", fixture.postgres.url_for("stranger")),
        tokio_postgres::NoTls,
    )
    .await
    .expect("it can connect");
    tokio::spawn(connection);
    let lock = "SELECT pg_advisory_lock_shared(2002873448, hashtext('walpost'))";
    client.batch_execute(lock).await.expect("it may lock");
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
    drop(client);
}

async fn second(report: CaseReport) {
    let fixture = Fixture::new().await;
    let first = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let second = fixture.command("run").start();
    second.await_line(WAITS, SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    assert!(!second.said(WORKS), "only one may stream");
    first.kill9().await;
    second.await_line(WORKS, Duration::from_secs(5)).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&second);
}
