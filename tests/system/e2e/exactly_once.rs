//! Exactly-once delivery: a consumer of committed records reads each committed row once, in order,
//! whatever is killed or frozen. All consumers of the bed read committed records only.

use walpost_bed::fixture::{AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{ExactlyOnce, Kafka, Major, Postgres, assert_aborts, eventually};

use super::catch_up::{IN_BATCHES, STREAMING, one_by_one, transactions};
use super::state_topic::topic;

async fn exactly_once() -> ExactlyOnce {
    exactly_once_with(&Kafka::shared().await.bootstrap()).await
}

async fn exactly_once_with(bootstrap: &str) -> ExactlyOnce {
    let postgres = Postgres::builder(Major::V15).own_identity();
    let fixture = Fixture::with_brokers(postgres, bootstrap).await;
    let topic = topic(&fixture).await;
    ExactlyOnce::adopted(fixture, topic).await
}

/// Transactions of one row to some thousands.
async fn write_all_sizes(fixture: &Fixture) {
    for rows in [1, 3000, 20, 1, 300] {
        fixture.postgres.execute(&insert(rows, 7)).await;
        one_by_one(fixture, 30).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_restarts_and_kills_repeat_nothing() {
    let once = exactly_once().await;
    let walpost = once.run().await;
    write_all_sizes(&once.fixture).await;
    once.fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
    write_all_sizes(&once.fixture).await;
    // How often a point is passed before walpost dies there; the first commit is the claim's.
    for (point, passed) in [
        ("received", [0, 1500]),
        ("produced", [7, 1500]),
        ("acknowledged", [0, 7]),
        ("state_acknowledged", [0, 4]),
        ("committed", [0, 1]),
    ] {
        for passed in passed {
            let armed = format!("{point}={passed}*off->return");
            let walpost = once.command().env("FAILPOINTS", &armed).start();
            write_all_sizes(&once.fixture).await;
            println!("{armed}");
            assert_aborts(&walpost).await;
        }
    }
    let walpost = once.run().await;
    once.fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_while_the_broker_is_frozen_repeat_nothing() {
    let kafka = Kafka::start().await;
    let once = exactly_once_with(&kafka.bootstrap()).await;
    let mut walpost = once.run().await;
    let writer = Writer::start(&once.fixture.postgres, 300);
    for _ in 0..3 {
        once.fixture.postgres.execute(&insert(3000, 7)).await;
        kafka.pause();
        writer.commits(40).await;
        walpost.kill9().await;
        walpost = once.command().start();
        writer.commits(40).await;
        kafka.resume();
        walpost.await_line(AGREES, LONG_TIMEOUT).await;
    }
    once.fixture.judge_after(writer).await.assert_exact();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_sessions_under_load_repeat_nothing() {
    let once = exactly_once().await;
    let walpost = once.run().await;
    let writer = Writer::start(&once.fixture.postgres, 300);
    for _ in 0..5 {
        writer.commits(40).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
        let mark = walpost.mark();
        once.fixture.postgres.execute(end).await;
        walpost.await_line_after(mark, STREAMING, LONG_TIMEOUT).await;
    }
    once.fixture.judge_after(writer).await.assert_exact();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_instance_publishes_nothing_after_another_took_over() {
    exactly_once().await.frozen_instance_repeats_nothing(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_above_the_limit_is_split_and_resumed_inside() {
    let once = exactly_once().await;
    let small = || once.command().env("WALPOST_DELIVERY_TRANSACTION_BYTES", "64KiB");
    for before in [1500, 2500] {
        once.fixture.postgres.execute(&insert(4000, 7)).await;
        let armed = format!("produced={before}*off->return");
        let walpost = small().env("FAILPOINTS", &armed).start();
        assert_aborts(&walpost).await;
        let published = once.fixture.records().await.len();
        assert!(published % 4000 > 0, "a part is committed: {published}");
    }
    // What numbers the events is another configuration: they cannot be told apart.
    let other = small().args(["--message-prefix", "events"]).start();
    let status = other.wait(LONG_TIMEOUT).await.expect("it ends");
    assert_eq!(status.code(), Some(3), "{:?}", other.stderr());
    assert!(other.said("were changed since"), "{:?}", other.stderr());
    let walpost = small().start();
    once.fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_that_is_killed_repeats_nothing() {
    let once = exactly_once().await;
    let catching_up = || {
        let command = once.command().env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB");
        command.args(["--in-flight-bytes", "1MiB"])
    };
    for step in ["batch", "moving", "moved", "over", "committed"] {
        transactions(&once.fixture, 3000, 1).await;
        once.fixture.postgres.execute(&insert(2000, 7)).await;
        let walpost = catching_up().env("FAILPOINTS", format!("{step}=1*off->return")).start();
        walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
        eventually(LONG_TIMEOUT, "it dies or streams", async || {
            walpost.pid().is_none() || walpost.said(STREAMING)
        })
        .await;
        walpost.kill9().await;
    }
    let walpost = catching_up().start();
    once.fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_commits_everything_before_it_ends() {
    let once = exactly_once().await;
    write_all_sizes(&once.fixture).await;
    let walpost = once.command().args(["--until", "current"]).start();
    let status = walpost.wait(LONG_TIMEOUT).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
    once.fixture.judge().await.assert_exact();
    let walpost = once.run().await;
    once.fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_between_the_modes_repeat_nothing_after_a_clean_stop() {
    let once = exactly_once().await;
    for _ in 0..2 {
        let walpost = once.fixture.run_with(&["--state-topic", &once.state_topic]).await;
        write_all_sizes(&once.fixture).await;
        once.fixture.assert_exact(LONG_TIMEOUT).await;
        stop(walpost).await;
        let walpost = once.run().await;
        write_all_sizes(&once.fixture).await;
        once.fixture.assert_exact(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_state_topic_it_does_not_start() {
    let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
    let topic = topic(&fixture).await;
    let exactly_once = ["--delivery", "exactly-once"];
    let off = [&exactly_once[..], &["--state-topic", "off"]].concat();
    let (code, said) = fixture.run_to_its_end(&off).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("needs a state topic"), "{said}");
    let missing = [&exactly_once[..], &["--state-topic", &topic]].concat();
    let (code, said) = fixture.run_to_its_end(&missing).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("walpost adopt --apply"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_records_become_dead_letters_once_and_in_order() {
    let once = exactly_once().await;
    let kafka = Kafka::shared().await;
    let dead = once.fixture.topic("dead");
    kafka.create_topic(&dead, 1).await;
    kafka
        .create_topic_with(&once.fixture.topic("order"), 2, &[("max.message.bytes", "20000")])
        .await;
    let large = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 SELECT 'order', (i % 5)::text, 'placed', jsonb_build_object('much', \
                 (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, \
                 CASE WHEN i % 100 = 50 THEN 1000 ELSE 1 END) j)) FROM generate_series(1, 300) i";
    one_by_one(&once.fixture, 20).await;
    once.fixture.postgres.execute(large).await;
    one_by_one(&once.fixture, 20).await;
    let walpost = once.command().start();
    let (code, said) = walpost_bed::fixture::ended(&walpost).await;
    assert_eq!(code, Some(4), "{said}");
    assert_eq!(once.fixture.records().await.len(), 20, "whole transactions before it only");
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = format!("[poison]\ntoo_large = 'dead_letter'\ndead_letter_topic = '{dead}'\n");
    std::fs::write(&file, toml).expect("it can be written");
    let letters = once.command().arg("--config").arg(&file).start();
    once.fixture.confirmed(LONG_TIMEOUT).await;
    let records = once.fixture.records().await;
    let (dead, delivered): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| record.topic == dead);
    assert_eq!((dead.len(), delivered.len()), (3, 20 + 297 + 20));
    walpost_bed::fixture::assert_in_log_order(&delivered);
    stop(letters).await;
}
