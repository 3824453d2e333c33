//! Connections that go dead without being closed, and one that only seems to
//! have; and a line that is narrow or long (35, 60, 71, 72).

use std::time::{Duration, Instant};

use walpost_bed::scene::{LATER, SOON, Scene, insert, proxied};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, PostgresBuilder, Proxy, Walpost, Way, eventually};

use super::repeated_transactions;
use super::slot::many_transactions;
use crate::case::{Account, Case};

/// `wal_sender_timeout` here. walpost takes ten seconds of silence for the end,
/// or twice this where it is more.
const TIMEOUT: Duration = Duration::from_secs(1);

/// walpost's connections where it streams, in their order.
const CONTROL: usize = 0;
const REPLICATION: usize = 1;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(35, "a_network_that_swallows_all_is_noticed_and_outlived", blackhole),
        Case::new(35, "a_stream_that_hears_nothing_any_more_is_replaced", |account| {
            idle(account, Way::ToClient)
        }),
        Case::new(35, "a_stream_that_nobody_hears_any_more_is_replaced", |account| {
            idle(account, Way::ToServer)
        }),
        Case::new(35, "a_stream_that_hears_nothing_any_more_under_load_is_replaced", |account| {
            under_load(account, Way::ToClient)
        })
        .long(),
        Case::new(35, "a_stream_that_nobody_hears_any_more_under_load_is_replaced", |account| {
            under_load(account, Way::ToServer)
        }),
        Case::new(35, "a_stream_that_hears_nothing_while_kafka_is_away_is_replaced", |account| {
            under_back_pressure(account, Way::ToClient)
        })
        .long(),
        Case::new(35, "a_stream_that_nobody_hears_while_kafka_is_away_is_replaced", |account| {
            under_back_pressure(account, Way::ToServer)
        })
        .long(),
        Case::new(35, "a_control_connection_that_hears_nothing_any_more_is_replaced", |account| {
            control(account, Way::ToClient)
        })
        .long(),
        Case::new(35, "a_control_connection_that_nobody_hears_any_more_is_replaced", |account| {
            control(account, Way::ToServer)
        })
        .long(),
        Case::new(60, "a_short_wal_sender_timeout_is_kept_while_kafka_takes_nothing", frozen_kafka),
        Case::new(71, "a_row_that_takes_longer_than_the_timeout_to_arrive_comes_once", narrow),
        Case::new(72, "the_last_confirmation_has_the_time_that_a_distant_server_takes", distant)
            .long(),
        Case::new(72, "the_backlog_of_a_distant_server_is_read_in_batches", distant_backlog).long(),
        Case::new(35, "a_connection_for_batches_that_never_opens_gives_way_to_a_stream", no_third),
        Case::new(72, "batches_that_never_begin_give_way_to_a_stream", never_begun).long(),
        Case::new(35, "a_catch_up_on_a_dead_connection_that_gives_way_can_be_stopped", stopped),
        Case::new(35, "a_catch_up_on_a_dead_connection_that_gives_way_is_replaced", gives_way)
            .long(),
    ]
}

fn impatient() -> PostgresBuilder {
    Postgres::builder(Major::V15).wal_sender_timeout(TIMEOUT)
}

/// A proxy before the scene's server, for connections that do not ask for TLS
/// first: then they are those that walpost keeps.
async fn behind_a_proxy(scene: &mut Scene) -> Proxy {
    let proxy = Proxy::to(scene.postgres.port()).await;
    scene.source = format!("{}?sslmode=disable", proxied(&proxy));
    proxy
}

async fn blackhole(account: Account) {
    let mut scene = Scene::with(impatient()).await;
    let proxy = behind_a_proxy(&mut scene).await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    let mark = walpost.mark();
    proxy.blackhole();
    eventually(SOON, "the server gives the session up", async || scene.walsender().await.is_none())
        .await;
    walpost.await_line_after(mark, "lost PostgreSQL, connecting again", SOON).await;
    scene.postgres.execute(&insert(10, 3)).await;
    proxy.restore();
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

/// What walpost says of a stream that went dead this way.
fn notice(way: Way) -> &'static str {
    match way {
        Way::ToClient => "nothing came from PostgreSQL for 10s, not even a keepalive",
        // The server has given up by then, and its end passes.
        Way::ToServer => "lost PostgreSQL, connecting again",
    }
}

/// Awaits that the dead stream is noticed and replaced.
async fn replaced(account: &Account, walpost: &Walpost, mark: (usize, usize), way: Way) {
    let since = Instant::now();
    walpost.await_line_after(mark, notice(way), SOON).await;
    account.did(format!("noticed after {} s", since.elapsed().as_secs()));
    walpost.await_line_after(mark, "streaming from PostgreSQL", SOON).await;
}

async fn idle(account: Account, way: Way) {
    let mut scene = Scene::with(impatient()).await.option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut scene).await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    let mark = walpost.mark();
    proxy.swallow(REPLICATION, way);
    replaced(&account, &walpost, mark, way).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

async fn control(account: Account, way: Way) {
    let mut scene = Scene::with(impatient()).await.option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut scene).await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    let mark = walpost.mark();
    proxy.swallow(CONTROL, way);
    let since = Instant::now();
    walpost.await_line_after(mark, "lost PostgreSQL, connecting again", LATER).await;
    account.did(format!("noticed after {} s", since.elapsed().as_secs()));
    walpost.await_line_after(mark, "streaming from PostgreSQL", SOON).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

async fn under_load(account: Account, way: Way) {
    let mut scene = Scene::with(impatient()).await.option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut scene).await;
    let walpost = scene.run().await;
    let writer = Writer::start(&scene.postgres, 200);
    writer.commits(50).await;
    let mark = walpost.mark();
    proxy.swallow(REPLICATION, way);
    replaced(&account, &walpost, mark, way).await;
    writer.commits(50).await;
    account.ok(&scene.judge_after(writer).await);
    let repeated = repeated_transactions(&scene.records().await);
    assert!(repeated <= 1, "rows of {repeated} transactions came again");
    account.goes_on(&walpost);
}

async fn under_back_pressure(account: Account, way: Way) {
    let kafka = Kafka::start().await;
    let mut scene =
        Scene::with_brokers(impatient(), &kafka.bootstrap()).await.option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut scene).await;
    let walpost = scene.run_with(&["--in-flight-bytes", "1MiB"]).await;
    // To each partition, so that it is the budget which stops the reading.
    scene.postgres.execute(&insert(50, 50)).await;
    scene.confirmed(SOON).await;
    kafka.pause();
    scene.postgres.execute(&larger_than_buffers()).await;
    await_standstill(&scene).await;
    let confirmed = scene.confirmed_at_rest().await;
    let mark = walpost.mark();
    proxy.swallow(REPLICATION, way);
    let since = Instant::now();
    eventually(SOON, "several times the timeout has passed", async || {
        assert_eq!(scene.confirmed_flush().await, confirmed, "after {:?}", since.elapsed());
        since.elapsed() > TIMEOUT * 5
    })
    .await;
    // Only one that reads misses anything.
    kafka.resume();
    replaced(&account, &walpost, mark, way).await;
    scene.confirmed(LATER).await;
    // The large transaction had been begun, and is published anew.
    account.ok(&scene.judge().await);
    account.goes_on(&walpost);
}

/// Inserts what no buffers on the way can hold, in one transaction.
fn larger_than_buffers() -> String {
    insert(12_000, 50).replace("jsonb_build_object('i', i)", "to_jsonb(repeat('x', 5000))")
}

/// Awaits that the server gets no further with sending.
async fn await_standstill(scene: &Scene) {
    let sent = "SELECT sent_lsn FROM pg_stat_replication WHERE sent_lsn < pg_current_wal_lsn()";
    let (mut last, mut looks) = (None, 0);
    eventually(LATER, "nothing more is read", async || {
        let now = scene.postgres.query_text(sent).await;
        looks = if now.is_some() && now == last { looks + 1 } else { 0 };
        last = now;
        if looks >= 20 { Ok(()) } else { Err((last.clone(), looks)) }
    })
    .await;
}

async fn frozen_kafka(account: Account) {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(impatient(), &kafka.bootstrap()).await;
    let walpost = scene.run_with(&["--in-flight-bytes", "1MiB"]).await;
    // To each partition, so that it is the budget which stops the reading.
    scene.postgres.execute(&insert(50, 50)).await;
    scene.confirmed(SOON).await;
    let session = scene.walsender().await.expect("a session");
    kafka.pause();
    scene.postgres.execute(&larger_than_buffers()).await;
    await_standstill(&scene).await;
    let confirmed = scene.confirmed_at_rest().await;
    let since = Instant::now();
    eventually(SOON, "several times the timeout has passed", async || {
        let now = scene.walsender().await;
        assert_eq!(now.as_ref(), Some(&session), "after {:?}", since.elapsed());
        assert_eq!(scene.confirmed_flush().await, confirmed, "after {:?}", since.elapsed());
        since.elapsed() > TIMEOUT * 5
    })
    .await;
    kafka.resume();
    scene.confirmed(LATER).await;
    account.exact(&scene.judge().await);
    assert_eq!(scene.walsender().await, Some(session));
    account.did("kept the session");
    account.goes_on(&walpost);
}

/// A row of so many bytes takes several times `wal_sender_timeout` at this rate.
const LARGE_BYTES: u32 = 8_000_000;
const NARROW_BYTES_PER_SECOND: u32 = 1_000_000;

async fn narrow(account: Account) {
    let mut scene = Scene::with(impatient()).await.option("--catch-up", "stream");
    let kafka = Kafka::shared().await;
    let limit = (2 * LARGE_BYTES).to_string();
    kafka.create_topic_with(&scene.topic("order"), 1, &[("max.message.bytes", &limit)]).await;
    let proxy = behind_a_proxy(&mut scene).await;
    let walpost = scene.run_with(&[&format!("-X=message.max.bytes={limit}")]).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    let session = scene.walsender().await.expect("a session");
    proxy.slow(Duration::ZERO, Some(NARROW_BYTES_PER_SECOND));
    let since = Instant::now();
    // Last of its transaction, so that the rows before it would come again each time.
    let large = format!("CASE i WHEN 100 THEN to_jsonb(repeat('x', {LARGE_BYTES}))");
    let small = "jsonb_build_object('i', i)";
    let rows = insert(100, 3).replace(small, &format!("{large} ELSE {small} END"));
    scene.postgres.execute(&rows).await;
    scene.confirmed(SOON).await;
    let took = since.elapsed();
    assert!(took > TIMEOUT * 4, "the line was not narrow: {took:?}");
    account.exact(&scene.judge().await);
    assert_eq!(scene.walsender().await, Some(session));
    account.did("kept the session");
    account.goes_on(&walpost);
}

async fn distant(account: Account) {
    let mut scene = Scene::new().await.option("--catch-up", "stream");
    let proxy = behind_a_proxy(&mut scene).await;
    scene.postgres.execute(&insert(10, 3)).await;
    proxy.slow(Duration::from_millis(700), None);
    let walpost = scene.command("run").args(["--until", "current"]).start();
    let status = walpost.wait(LATER).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
    account.exact(&scene.judge().await);
    account.did("exit 0");
}

/// There is a backlog, and each answer takes more than a second.
async fn distant_backlog(account: Account) {
    let mut scene = Scene::new().await;
    scene.postgres.execute(&insert(100, 3)).await;
    let proxy = behind_a_proxy(&mut scene).await;
    proxy.slow(Duration::from_millis(600), None);
    let walpost = in_batches(&scene);
    walpost.await_line("reading the backlog in batches", SOON * 2).await;
    scene.confirmed(LATER).await;
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

/// Nothing comes back over one of the connections for the batches.
async fn no_third(account: Account) {
    let mut scene = Scene::new().await;
    scene.postgres.execute(&insert(100, 3)).await;
    let proxy = behind_a_proxy(&mut scene).await;
    proxy.swallow(REPLICATION + 1, Way::ToClient);
    let walpost = in_batches(&scene);
    walpost.await_line("streaming it instead", SOON).await;
    walpost.await_line("streaming from PostgreSQL", SOON).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

/// A server process that is to serve the batches answers nothing.
async fn never_begun(account: Account) {
    let mut scene = Scene::new().await;
    scene.postgres.execute(&insert(100, 3)).await;
    let proxy = behind_a_proxy(&mut scene).await;
    proxy.slow(Duration::from_millis(300), None);
    let walpost = in_batches(&scene);
    let third = "SELECT pid::text FROM pg_stat_activity
                  WHERE application_name = 'walpost' AND backend_type = 'client backend'
                  ORDER BY backend_start OFFSET 1 LIMIT 1";
    let mut pid = None;
    eventually(SOON, "a connection beside the first one", async || {
        pid = scene.postgres.query_text(third).await;
        pid.is_some()
    })
    .await;
    let pid = pid.expect("its server process");
    signal("STOP", &pid);
    walpost.await_line("streaming it instead", SOON * 3).await;
    walpost.await_line("streaming from PostgreSQL", SOON).await;
    signal("CONT", &pid);
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

/// For how long nothing is taken before a catch-up gives way to a stream, and a little more.
const GIVES_WAY_AFTER: Duration = Duration::from_secs(13);

/// A catch-up of which Kafka takes nothing any more, and whose connections are dead once it gives
/// way to a stream for that.
async fn gives_way_in_silence() -> (Scene, Kafka, Proxy, Walpost) {
    let kafka = Kafka::start().await;
    let mut scene = Scene::with_brokers(impatient(), &kafka.bootstrap()).await;
    scene = scene.option("--in-flight-bytes", "8KiB").option("-X", "linger.ms=10");
    scene = scene.option("--drain-timeout", "5s");
    scene.postgres.execute(&many_transactions(600)).await;
    let proxy = behind_a_proxy(&mut scene).await;
    let walpost = in_batches(&scene);
    walpost.await_line("reading the backlog in batches", SOON).await;
    eventually(SOON, "some come", async || scene.records().await.len() > 500).await;
    kafka.pause();
    proxy.blackhole();
    let since = Instant::now();
    eventually(SOON, "it is time to give way", async || since.elapsed() > GIVES_WAY_AFTER).await;
    assert!(!walpost.said("lost PostgreSQL"), "{:?}", walpost.stderr());
    (scene, kafka, proxy, walpost)
}

async fn stopped(account: Account) {
    let (scene, kafka, proxy, walpost) = gives_way_in_silence().await;
    walpost.terminate();
    let status = walpost.wait(SOON).await;
    assert!(status.is_some(), "it ends within its drain timeout: {:?}", walpost.stderr());
    account.did("ended when it was told to");
    proxy.restore();
    kafka.resume();
    let next = scene.run().await;
    scene.confirmed(LATER).await;
    account.ok(&scene.judge().await);
    account.goes_on(&next);
}

async fn gives_way(account: Account) {
    let (scene, kafka, proxy, walpost) = gives_way_in_silence().await;
    walpost.await_line("lost PostgreSQL, connecting again", LATER).await;
    proxy.restore();
    kafka.resume();
    scene.confirmed(LATER).await;
    account.ok(&scene.judge().await);
    account.goes_on(&walpost);
}

fn in_batches(scene: &Scene) -> Walpost {
    scene.command("run").env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start()
}

fn signal(name: &str, pid: &str) {
    let status = std::process::Command::new("kill").args(["-s", name, pid]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -s {name} {pid}");
}
