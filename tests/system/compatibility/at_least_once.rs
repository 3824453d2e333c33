//! At-least-once delivery with a position in a state topic.

use walpost_bed::fixture::{AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Kfake, Walpost};

use super::{STATE_TOPIC, fixture, write_all_sizes};

const ARGUMENTS: [&str; 2] = ["--state-topic", STATE_TOPIC];

async fn run(fixture: &Fixture) -> Walpost {
    let walpost = fixture.run_with(&ARGUMENTS).await;
    walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    walpost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn restarts_repeat_nothing_and_kills_lose_nothing() {
    let kfake = Kfake::start().await;
    let fixture = fixture(&kfake).await;
    fixture.adopt(STATE_TOPIC).await;
    for _ in 0..3 {
        let walpost = run(&fixture).await;
        write_all_sizes(&fixture).await;
        fixture.assert_exact(LONG_TIMEOUT).await;
        stop(walpost).await;
        write_all_sizes(&fixture).await;
    }
    let writer = Writer::start(&fixture.postgres, 300);
    for rows in [1, 3000, 20, 300] {
        let walpost = run(&fixture).await;
        fixture.postgres.execute(&insert(rows, 7)).await;
        writer.commits(40).await;
        walpost.kill9().await;
    }
    let walpost = run(&fixture).await;
    fixture.judge_after(writer).await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn slot_created_again_is_not_read_from_before_adopt() {
    let kfake = Kfake::start().await;
    let fixture = fixture(&kfake).await;
    fixture.adopt(STATE_TOPIC).await;
    let walpost = run(&fixture).await;
    write_all_sizes(&fixture).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
    let recreate = "SELECT pg_drop_replication_slot('walpost'); \
                    SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')";
    fixture.postgres.execute(recreate).await;
    let (code, said) = fixture.run_to_its_end(&ARGUMENTS).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("walpost adopt --apply"), "{said}");
    fixture.adopt(STATE_TOPIC).await;
    let walpost = run(&fixture).await;
    write_all_sizes(&fixture).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make other-kafka"]
async fn outages_of_the_brokers_lose_nothing() {
    let kfake = Kfake::start().await;
    let fixture = fixture(&kfake).await;
    fixture.adopt(STATE_TOPIC).await;
    let walpost = run(&fixture).await;
    let writer = Writer::start(&fixture.postgres, 300);
    for _ in 0..3 {
        writer.commits(40).await;
        assert!(kfake.stop(SHORT_TIMEOUT).await, "the brokers stop");
        writer.commits(40).await;
        kfake.start_again().await;
        writer.commits(40).await;
        kfake.pause();
        writer.commits(40).await;
        kfake.resume();
    }
    fixture.judge_after(writer).await.assert_ok();
    stop(walpost).await;
}
