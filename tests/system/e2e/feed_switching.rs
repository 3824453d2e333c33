//! Switches between catch-up reads and streaming: when they must happen, when they must not, and
//! faults during a switch.

use std::time::Duration;

use walpost_bed::{Direction, Kafka, Major, Postgres, Proxy, eventually, under_load};

use walpost_bed::fixture::{
    Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, assert_in_log_order, insert, proxied, stop,
};

use crate::catch_up::{IN_BATCHES, STREAMING, catching_up, one_by_one, transactions};

/// How many log lines contain this text.
fn times(walpost: &walpost_bed::Walpost, text: &str) -> usize {
    walpost.stderr().iter().filter(|line| line.contains(text)).count()
}

/// Writes rows of another table: the server decodes for seconds before it sends anything.
async fn others(fixture: &Fixture) {
    let rows = "CREATE TABLE public.other (i int);
                INSERT INTO public.other SELECT generate_series(1, 2000000)";
    fixture.postgres.execute(rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn failover_slot_is_streamed_by_one_session() {
    let fixture = Fixture::on(Major::V17).await;
    let kept = "SELECT pg_drop_replication_slot('walpost');
                SELECT pg_create_logical_replication_slot('walpost', 'pgoutput', false, false, true)";
    fixture.postgres.execute(kept).await;
    others(&fixture).await;
    one_by_one(&fixture, 1000).await;
    let walpost = catching_up(&fixture).start();
    fixture.assert_exact(SHORT_TIMEOUT * 2).await;
    assert_eq!(times(&walpost, STREAMING), 1, "{:?}", walpost.stderr());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_publication_change_prevents_catch_up() {
    let fixture = Fixture::new().await;
    let changing = fixture.postgres.client().await;
    let change = "BEGIN; ALTER PUBLICATION walpost SET (publish = 'insert, update')";
    changing.batch_execute(change).await.expect("changed");
    others(&fixture).await;
    one_by_one(&fixture, 1000).await;
    let walpost = catching_up(&fixture).start();
    eventually(SHORT_TIMEOUT * 2, "all records arrive", async || {
        fixture.records().await.len() >= 1000
    })
    .await;
    assert_eq!(times(&walpost, STREAMING), 1, "{:?}", walpost.stderr());
    changing.batch_execute("ROLLBACK").await.expect("as it was");
    fixture.assert_exact(SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_limit_prevents_catch_up() {
    for limit in [2, 3] {
        let mut fixture = Fixture::new().await;
        let role = format!("CREATE ROLE few LOGIN REPLICATION CONNECTION LIMIT {limit}");
        fixture.postgres.execute(&role).await;
        fixture.source = fixture.postgres.url_for("few");
        one_by_one(&fixture, 1000).await;
        let walpost = catching_up(&fixture).start();
        walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
        fixture.assert_exact(SHORT_TIMEOUT).await;
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn catch_up_continues_with_a_slow_kafka() {
    let fixture = Fixture::new().await;
    transactions(&fixture, 3000, 20).await;
    // Some 25 records each ten milliseconds at most.
    let slow = ["--in-flight-bytes", "8KiB", "-X", "linger.ms=10"];
    let walpost = catching_up(&fixture).args(slow).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    let begun = std::time::Instant::now();
    walpost.await_line(STREAMING, LONG_TIMEOUT).await;
    let (took, count) = (begun.elapsed(), fixture.records().await.len());
    assert!(count > 55_000, "it streams after {count}, {took:?}");
    assert!(took > Duration::from_secs(15), "Kafka was not slow: {took:?}");
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_catch_up_reads_fall_back_to_streaming() {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&insert(400_000, 100)).await;
    let client = fixture.postgres.client().await;
    let ends = tokio::spawn(async move {
        let long = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE query LIKE 'COPY %' AND state = 'active'
                       AND query_start < now() - interval '1 second'";
        loop {
            client.simple_query(long).await.expect("ended");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let walpost = catching_up(&fixture).args(["--in-flight-bytes", "64KiB"]).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    let said = walpost.await_line("cannot read the backlog in SQL batches", SHORT_TIMEOUT).await;
    assert!(said.contains("lost before the end of the first batch"), "{said}");
    walpost.await_line("lost the connection to PostgreSQL", SHORT_TIMEOUT).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    ends.abort();
    fixture.judge().await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temp_file_limit_falls_back_to_streaming() {
    let fixture = Fixture::new().await;
    one_by_one(&fixture, 1000).await;
    fixture.postgres.execute(&insert(300_000, 100)).await;
    one_by_one(&fixture, 1000).await;
    for statement in ["ALTER SYSTEM SET temp_file_limit = '1MB'", "SELECT pg_reload_conf()"] {
        fixture.postgres.execute(statement).await;
    }
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    let said = walpost.await_line("cannot read the backlog in SQL batches", LONG_TIMEOUT).await;
    assert!(said.contains("temp_file_limit"), "{said}");
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    for statement in ["ALTER SYSTEM RESET temp_file_limit", "SELECT pg_reload_conf()"] {
        fixture.postgres.execute(statement).await;
    }
    eventually(SHORT_TIMEOUT, "it is read", async || {
        fixture.postgres.query_text("SHOW temp_file_limit").await == Some("-1".into())
    })
    .await;
    fixture.judge().await.assert_exact();
    assert_in_log_order(&fixture.records().await);
    stop(walpost).await;
}

/// Commits transactions with rows of 1.5 kB each.
async fn large(fixture: &Fixture, count: u32, rows: u32) {
    let payload =
        "to_jsonb((SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, 45) n))";
    let insert = insert(rows, 100).replace("jsonb_build_object('i', i)", payload);
    for _ in 0..count {
        fixture.postgres.execute(&insert).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_broken_within_a_transaction_repeats_no_record() {
    for catch_up in ["auto", "stream"] {
        let fixture = Fixture::new().await;
        large(&fixture, 1, 30_000).await;
        // Some 40 records each ten milliseconds at most.
        let slow = ["--in-flight-bytes", "64KiB", "-X", "linger.ms=10", "--catch-up", catch_up];
        let walpost = catching_up(&fixture).args(slow).start();
        eventually(SHORT_TIMEOUT, "some records arrive", async || {
            fixture.records().await.len() > 2000
        })
        .await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE state = 'active' AND (query LIKE 'COPY %' OR query LIKE 'START_REPL%')";
        fixture.postgres.execute(end).await;
        walpost.await_line("lost the connection to PostgreSQL; reconnecting", SHORT_TIMEOUT).await;
        assert!(fixture.records().await.len() < 30_000, "in the middle");
        fixture.assert_exact(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
}

/// The connections that a backlog is read and the slot is moved on, by their number: the first
/// of all asks for TLS, which the server has not.
const READING: usize = 3;
const MOVING: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn silent_auxiliary_connection_is_abandoned() {
    let server = || Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(1));
    for (connection, way) in [(READING, Direction::ToClient), (MOVING, Direction::ToServer)] {
        let mut fixture = Fixture::with(server()).await;
        let proxy = Proxy::to(fixture.postgres.port()).await;
        fixture.source = proxied(&proxy);
        // More than walpost reads ahead.
        large(&fixture, 30, 1000).await;
        let walpost = catching_up(&fixture).args(["--in-flight-bytes", "32KiB"]).start();
        walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
        eventually(SHORT_TIMEOUT, "some records arrive", async || {
            fixture.records().await.len() > 100
        })
        .await;
        proxy.blackhole_direction(connection, way);
        let said = walpost.await_line("lost the connection to PostgreSQL", SHORT_TIMEOUT * 2).await;
        assert!(said.contains("is idle and has sent nothing"), "{connection} {way:?}: {said}");
        // The server sees late that the session which had the lock has no client.
        fixture.assert_ok(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unmoved_slot_does_not_become_inactive() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V18), &kafka.bootstrap()).await;
    fixture.postgres.execute(&insert(100_000, 10)).await;
    let walpost = catching_up(&fixture).args(["--in-flight-bytes", "64KiB"]).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 1000)
        .await;
    kafka.pause();
    let since = "SELECT inactive_since FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let before = fixture.postgres.query_text(since).await.expect("no client streams");
    eventually(SHORT_TIMEOUT, "it is used", async || {
        let now = fixture.postgres.query_text(since).await;
        if now.as_ref().is_some_and(|now| *now > before) {
            Ok(())
        } else {
            Err((now, walpost.stderr()))
        }
    })
    .await;
    assert!(!walpost.said(STREAMING), "{:?}", walpost.stderr());
    kafka.resume();
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_timeouts_do_not_end_long_reads() {
    for catch_up in ["auto", "stream"] {
        let mut fixture = Fixture::on(Major::V17).await;
        let role = "CREATE ROLE hurried LOGIN REPLICATION;
                    ALTER ROLE hurried SET transaction_timeout = '1s';
                    ALTER ROLE hurried SET statement_timeout = '1s';
                    ALTER ROLE hurried SET idle_in_transaction_session_timeout = '1s';
                    ALTER ROLE hurried SET idle_session_timeout = '1s';
                    ALTER ROLE hurried SET default_transaction_read_only = on";
        fixture.postgres.execute(role).await;
        fixture.source = fixture.postgres.url_for("hurried");
        fixture.postgres.execute(&insert(300_000, 100)).await;
        let options = ["--in-flight-bytes", "128KiB", "--catch-up", catch_up];
        let walpost = catching_up(&fixture).args(options).start();
        fixture.assert_exact(LONG_TIMEOUT).await;
        for wrong in ["lost the connection to PostgreSQL", "cannot read the backlog in SQL batches"]
        {
            assert!(!walpost.said(wrong), "{catch_up}: {:?}", walpost.stderr());
        }
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transaction_is_published_despite_repeated_kills() {
    let fixture = Fixture::new().await;
    one_by_one(&fixture, 1000).await;
    fixture.postgres.execute(&insert(200_000, 100)).await;
    one_by_one(&fixture, 1000).await;
    let mut before = 1000;
    for _ in 0..3 {
        let walpost = catching_up(&fixture).args(["--in-flight-bytes", "64KiB"]).start();
        walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
        eventually(SHORT_TIMEOUT, "some records arrive", async || {
            fixture.records().await.len() > before + 2000
        })
        .await;
        walpost.kill9().await;
        before = fixture.records().await.len();
        assert!(before < 150_000, "in the middle: {before}");
    }
    let walpost = catching_up(&fixture).start();
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_holds_the_slot_while_kafka_is_unavailable_in_the_first_transaction() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    fixture.postgres.execute(&insert(20_000, 10)).await;
    kafka.pause();
    let walpost = catching_up(&fixture).args(["--in-flight-bytes", "64KiB"]).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    assert_eq!(times(&walpost, IN_BATCHES), 1, "{:?}", walpost.stderr());
    kafka.resume();
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
}

/// Sends a signal; whether the process still existed.
fn takes(signal: &str, pid: &str) -> bool {
    let sent = std::process::Command::new("kill").args([signal, pid]).status();
    sent.expect("kill is there").success()
}

/// Signals the server processes that this query finds, and says how many took it: one may end
/// between the look and the signal.
async fn signal(fixture: &Fixture, signal: &str, query: &str) -> usize {
    let found = format!("SELECT pid::text FROM pg_stat_activity WHERE {query}");
    let rows = fixture.postgres.query_rows(&found).await;
    rows.iter().filter_map(|row| row[0].as_deref()).filter(|pid| takes(signal, pid)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_does_not_wait_for_frozen_server_processes() {
    const READING: &str = "query LIKE 'COPY (SELECT data%'";
    const MOVING: &str =
        "query LIKE '%pg_replication_slot_advance%' AND application_name = 'walpost'";
    for held in [READING, MOVING] {
        let fixture = Fixture::new().await;
        large(&fixture, 30, 1000).await;
        let walpost = catching_up(&fixture)
            .args(["--in-flight-bytes", "32KiB", "--drain-timeout", "5s"])
            .start();
        walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
        eventually(SHORT_TIMEOUT, "it is there", async || {
            signal(&fixture, "-STOP", held).await == 1
        })
        .await;
        let begun = std::time::Instant::now();
        stop(walpost).await;
        assert!(
            begun.elapsed() < under_load(Duration::from_secs(10)),
            "{held}: {:?}",
            begun.elapsed()
        );
        let pids = "state = 'active' AND application_name = 'walpost'";
        signal(&fixture, "-CONT", held).await;
        eventually(SHORT_TIMEOUT, "they end", async || signal(&fixture, "-CONT", pids).await == 0)
            .await;
        let walpost = catching_up(&fixture).start();
        fixture.assert_ok(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn read_ahead_memory_is_bounded() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    one_by_one(&fixture, 1000).await;
    let walpost = catching_up(&fixture).args(["--in-flight-bytes", "64KiB"]).start();
    fixture.confirmed(SHORT_TIMEOUT).await;
    let before = walpost.rss_bytes().expect("it runs");
    stop(walpost).await;
    one_by_one(&fixture, 400_000).await;
    kafka.pause();
    let walpost = catching_up(&fixture).args(["--in-flight-bytes", "64KiB"]).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    let peak = walpost.peak_rss_bytes().expect("it runs");
    eprintln!("{} KiB before, {} KiB at the most", before >> 10, peak >> 10);
    assert!(peak < before + (64 << 20), "{} MiB after {} MiB", peak >> 20, before >> 20);
    kafka.resume();
    fixture.assert_ok(LONG_TIMEOUT).await;
    stop(walpost).await;
}
