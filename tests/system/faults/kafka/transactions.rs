//! Faults of Kafka transactions and of the state topic, with exactly-once delivery (25 to 29).

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, Producer as _};
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Cluster, Disturbance, Endpoints, ExactlyOnce, Kafka, Proxy, eventually};

use super::fixture_with;
use crate::case::{Case, CaseReport};

/// `EndTxn` ([protocol](https://kafka.apache.org/protocol#The_Messages_EndTxn)).
const END_TXN: i16 = 26;
/// `AddPartitionsToTxn`.
const ADD_PARTITIONS_TO_TXN: i16 = 24;
/// `Produce`.
const PRODUCE: i16 = 0;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(25, "killed_transaction_coordinator_is_followed", coordinator_killed),
        Case::new(26, "lost_and_late_replies_to_a_commit_repeat_nothing", |report| {
            disturbed(report, END_TXN)
        }),
        Case::new(26, "lost_and_late_requests_of_a_transaction_repeat_nothing", |report| {
            disturbed(report, ADD_PARTITIONS_TO_TXN)
        }),
        Case::new(26, "lost_and_late_batches_repeat_nothing", |report| disturbed(report, PRODUCE))
            .long(),
        Case::new(27, "fenced_walpost_repeats_nothing", fenced),
        Case::new(28, "timed_out_transaction_is_published_again", timed_out),
        Case::new(29, "deleted_state_topic_stops_publishing", state_topic_deleted),
    ]
}

/// With a state topic that is not one of the fixture's.
async fn scene_of(fixture: Fixture) -> ExactlyOnce {
    let state_topic = format!("state-{}", fixture.topic("order"));
    ExactlyOnce::adopted(fixture, state_topic).await
}

async fn coordinator_killed(report: CaseReport) {
    let cluster = Cluster::shared().await;
    let fixture = fixture_with(&cluster.bootstrap()).await;
    let (topic, settings) = (fixture.topic("order"), [("min.insync.replicas", "2")]);
    cluster.administration().create(&topic, 3, &settings).await;
    let scene = scene_of(fixture).await;
    let walpost = scene.run().await;
    let writer = Writer::start(&scene.fixture.postgres, 200);
    let mut leaders = Vec::new();
    for _ in 0..2 {
        writer.commits(50).await;
        let coordinator = cluster.leader("__transaction_state", 0).await;
        leaders.push(coordinator);
        let node = cluster.node(coordinator);
        node.kill9().await;
        let postgres = &scene.fixture.postgres;
        let end = postgres.wal_end().await;
        let passed = format!("SELECT confirmed_flush_lsn > '{end}' FROM pg_replication_slots");
        eventually(LONG_TIMEOUT, "another one coordinates", async || {
            postgres.query_text(&passed).await == Some("t".into())
        })
        .await;
        node.start_again().await;
        cluster.administration().in_sync(&topic, 3, 3).await;
        cluster.administration().in_sync("__transaction_state", 1, 3).await;
    }
    assert_ne!(leaders[0], leaders[1], "it has moved");
    report.exact(&scene.fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

/// Requests of this kind, or their replies, are lost or late while walpost commits several times a
/// second.
async fn disturbed(report: CaseReport, api_key: i16) {
    let proxy = Proxy::start().await;
    let kafka = Kafka::builder().behind(proxy.port()).start().await;
    proxy.point_at(kafka.proxied_port().expect("it has a proxy"));
    let bootstrap = format!("127.0.0.1:{}", proxy.port());
    let mut scene = scene_of(fixture_with(&bootstrap).await).await;
    let walpost = scene.command().env("WALPOST_DELIVERY_COMMIT_INTERVAL", "50ms").start();
    // The oracle reads by the shorter way.
    scene.fixture.bootstrap = kafka.bootstrap();
    let writer = Writer::start(&scene.fixture.postgres, 200);
    // walpost has repeated the request by then, and its next transaction is open.
    let held = Disturbance::LateRequest(Duration::from_millis(2500));
    let late = Disturbance::DelayReply(Duration::from_millis(2500));
    for how in [Disturbance::LoseReply, Disturbance::LoseRequest, held, late].repeat(2) {
        writer.commits(30).await;
        tokio::time::timeout(LONG_TIMEOUT, proxy.disturb(api_key, how))
            .await
            .unwrap_or_else(|_| panic!("no such request: {:?}", walpost.stderr()));
    }
    tokio::time::timeout(LONG_TIMEOUT, proxy.late_answers(2))
        .await
        .expect("both late requests arrive");
    writer.commits(30).await;
    report.exact(&scene.fixture.judge_after(writer).await);
    // The late reply may have been to a repeated request.
    assert!(api_key != END_TXN || walpost.said("a commit took so long"), "{:?}", walpost.stderr());
    report.still_running(&walpost);
}

/// As by a walpost on the same slot that this one does not know of.
async fn fenced(report: CaseReport) {
    let kafka = Kafka::start().await;
    let scene = scene_of(fixture_with(&kafka.bootstrap()).await).await;
    let walpost = scene.command().args(["--admin-listen", "127.0.0.1:0"]).start();
    let endpoints = Endpoints::of(&walpost).await;
    let replaced = async || endpoints.metric("walpost_reconnects_total", "peer=\"kafka\"").await;
    let writer = Writer::start(&scene.fixture.postgres, 200);
    let identity = "SELECT 'walpost-' || system_identifier || '-' || oid || '-walpost-state' \
                    FROM pg_control_system(), pg_database WHERE datname = current_database()";
    let id = scene.fixture.postgres.query_text(identity).await.expect("an id");
    for _ in 0..3 {
        writer.commits(50).await;
        scene.fixture.confirmed(LONG_TIMEOUT).await;
        let before = replaced().await;
        let (id, bootstrap) = (id.clone(), kafka.bootstrap());
        let fencing = tokio::task::spawn_blocking(move || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", bootstrap).set("transactional.id", id);
            let producer: BaseProducer = config.create().expect("a producer");
            producer.init_transactions(SHORT_TIMEOUT).expect("the brokers answer");
        });
        fencing.await.expect("it fences");
        // With its next transaction, or in the middle of one.
        eventually(LONG_TIMEOUT, "it notices, and replaces the producer", async || {
            replaced().await > before
        })
        .await;
        // It delivers before it is fenced again.
        scene.fixture.confirmed(LONG_TIMEOUT).await;
    }
    report.exact(&scene.fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

/// walpost is frozen with an open transaction for longer than the brokers wait for its end.
async fn timed_out(report: CaseReport) {
    let interval = "transaction.abort.timed.out.transaction.cleanup.interval.ms";
    let kafka = Kafka::builder().property(interval, "200").start().await;
    let scene = scene_of(fixture_with(&kafka.bootstrap()).await).await;
    let timeout = Duration::from_secs(3);
    let limit = format!("transaction.timeout.ms={}", timeout.as_millis());
    let walpost = scene.command().args(["-X", &limit]).start();
    let writer = Writer::start(&scene.fixture.postgres, 300);
    for _ in 0..3 {
        writer.commits(50).await;
        walpost.pause();
        // Nothing outside tells when the brokers have aborted it.
        tokio::time::sleep(timeout * 2).await;
        walpost.resume();
    }
    writer.commits(50).await;
    report.exact(&scene.fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

async fn state_topic_deleted(report: CaseReport) {
    let kafka = Kafka::start().await;
    let scene = scene_of(fixture_with(&kafka.bootstrap()).await).await;
    let walpost = scene.run().await;
    scene.fixture.postgres.execute(&insert(50, 5)).await;
    scene.fixture.assert_exact(LONG_TIMEOUT).await;
    kafka.delete_topic(&scene.state_topic).await;
    let before = scene.fixture.records().await.len();
    scene.fixture.postgres.execute(&insert(50, 5)).await;
    walpost.await_line("aborting it", LONG_TIMEOUT).await;
    assert_eq!(scene.fixture.records().await.len(), before, "nothing is committed");
    report.still_running(&walpost);
    walpost.terminate();
    walpost.wait(LONG_TIMEOUT).await.expect("it ends");
    let again = scene.command().start();
    let said = report.ends(&again, 78).await;
    assert!(said.contains("walpost adopt --apply"), "{said}");
    // An empty one is no position either.
    kafka.create_topic(&scene.state_topic, 1).await;
    let again = scene.command().start();
    let said = report.ends(&again, 78).await;
    assert!(said.contains("has no position"), "{said}");
    scene.fixture.adopt(&scene.state_topic).await;
    let walpost = scene.run().await;
    scene.fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&scene.fixture.judge().await);
    stop(walpost).await;
}
