//! Exactly-once delivery: a consumer of committed records reads each committed row once, in order,
//! whatever is killed or frozen.

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use walpost_bed::fixture::{AGREES, LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{ExactlyOnce, Kfake, assert_aborts};

use super::{STATE_TOPIC, fixture, write_all_sizes};

/// Each topic has so many partitions.
const PARTITIONS: i32 = 3;

async fn exactly_once(kfake: &Kfake) -> ExactlyOnce {
    let fixture = fixture(kfake).await;
    kfake.administration().create(&fixture.topic("order"), PARTITIONS, &[]).await;
    ExactlyOnce::adopted(fixture, STATE_TOPIC.to_owned()).await
}

/// How many records, markers included, the topic has for a consumer of uncommitted records.
async fn appended(once: &ExactlyOnce) -> i64 {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &once.fixture.bootstrap);
    config.set("isolation.level", "read_uncommitted");
    let topic = once.fixture.topic("order");
    let ends = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let end = |partition| consumer.fetch_watermarks(&topic, partition, SHORT_TIMEOUT);
        (0..PARTITIONS).map(|partition| end(partition).expect("an end").1).sum()
    });
    ends.await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn kills_under_load_repeat_nothing() {
    let kfake = Kfake::start().await;
    let once = exactly_once(&kfake).await;
    let writer = Writer::start(&once.fixture.postgres, 300);
    for rows in [1, 3000, 20, 5000, 300, 1, 10_000, 50] {
        let walpost = once.run().await;
        writer.commits(20).await;
        once.fixture.postgres.execute(&insert(rows, 7)).await;
        writer.commits(5).await;
        walpost.kill9().await;
    }
    let walpost = once.run().await;
    once.fixture.judge_after(writer).await.assert_exact();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn kills_at_each_step_of_a_transaction_repeat_nothing() {
    let kfake = Kfake::start().await;
    let once = exactly_once(&kfake).await;
    // How often a point is passed before walpost dies there; the first commit is the claim's.
    for (point, passed) in [
        ("produced", [0, 1500]),
        ("acknowledged", [0, 1500]),
        ("state_acknowledged", [0, 1]),
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
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn transaction_of_a_killed_walpost_is_aborted_by_the_next_one() {
    let kfake = Kfake::start().await;
    let once = exactly_once(&kfake).await;
    once.fixture.postgres.execute(&insert(3000, 7)).await;
    // After the claim's commit, before that of the rows.
    let walpost = once.command().env("FAILPOINTS", "state_acknowledged=1*off->return").start();
    assert_aborts(&walpost).await;
    assert!(appended(&once).await >= 3000);
    assert_eq!(once.fixture.records().await, [], "nothing is committed");
    let walpost = once.run().await;
    once.fixture.assert_exact(LONG_TIMEOUT).await;
    assert!(appended(&once).await >= 6000, "the aborted records are still there");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn transaction_above_the_limit_is_resumed_inside() {
    let kfake = Kfake::start().await;
    let once = exactly_once(&kfake).await;
    let small = || once.command().env("WALPOST_DELIVERY_TRANSACTION_BYTES", "64KiB");
    once.fixture.postgres.execute(&insert(4000, 7)).await;
    let walpost = small().env("FAILPOINTS", "produced=2500*off->return").start();
    assert_aborts(&walpost).await;
    let published = once.fixture.records().await.len();
    assert!(published > 0 && published < 4000, "a part is committed: {published}");
    let walpost = small().start();
    once.fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn frozen_instance_publishes_nothing_after_another_took_over() {
    let kfake = Kfake::start().await;
    exactly_once(&kfake).await.frozen_instance_repeats_nothing(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn outages_of_the_brokers_repeat_nothing() {
    let kfake = Kfake::start().await;
    let once = exactly_once(&kfake).await;
    let mut walpost = once.run().await;
    let writer = Writer::start(&once.fixture.postgres, 300);
    for _ in 0..3 {
        once.fixture.postgres.execute(&insert(3000, 7)).await;
        kfake.pause();
        writer.commits(40).await;
        walpost.kill9().await;
        walpost = once.command().start();
        writer.commits(40).await;
        kfake.resume();
        walpost.await_line(AGREES, LONG_TIMEOUT).await;
        once.fixture.postgres.execute(&insert(3000, 7)).await;
        assert!(kfake.stop(SHORT_TIMEOUT).await, "the brokers stop");
        writer.commits(40).await;
        kfake.start_again().await;
    }
    once.fixture.judge_after(writer).await.assert_exact();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn older_releases_transactions_repeat_nothing() {
    for release in ["0.11.0", "1.1", "2.4", "2.8", "3.9", "4.0"] {
        println!("{release}");
        let kfake = Kfake::start_as(release).await;
        let once = exactly_once(&kfake).await;
        for _ in 0..2 {
            let walpost = once.run().await;
            write_all_sizes(&once.fixture).await;
            walpost.kill9().await;
        }
        let walpost = once.run().await;
        once.fixture.assert_exact(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
}
