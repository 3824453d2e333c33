//! Faults of a three-broker cluster while walpost publishes to it (14, 15, 19).

use std::time::Duration;

use tokio::sync::MutexGuard;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert};
use walpost_bed::writer::Writer;
use walpost_bed::{Admin, Cluster, Kafka, Walpost, eventually};

use super::{KAFKA_RECOVERED, KAFKA_UNAVAILABLE, confirms_nothing, fixture_with, times};
use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(14, "rolling_restart_of_three_brokers_is_survived", rolling_restart),
        Case::new(15, "elected_leader_is_followed_in_order", elected),
        Case::new(15, "frozen_leader_is_replaced_in_order", frozen_leader),
        Case::new(17, "frozen_broker_holds_up_its_own_partitions_alone", one_frozen),
        Case::new(
            17,
            "restart_beside_a_frozen_broker_delivers_to_the_others",
            restart_beside_frozen,
        ),
        Case::new(19, "too_few_in_sync_replicas_are_reported_and_retried", too_few),
        Case::new(19, "repeated_loss_of_replicas_leaves_no_producer_stuck", repeated_loss).long(),
        Case::new(19, "stuck_producer_is_replaced", stuck_producer).long(),
    ]
}

/// The cluster, and a fixture whose topic has this many partitions and this `min.insync.replicas`.
async fn scene_of(
    min_in_sync: &str,
    partitions: i32,
) -> (MutexGuard<'static, Cluster>, Fixture, String) {
    let cluster = Cluster::shared().await;
    let fixture = fixture_with(&cluster.bootstrap()).await;
    let topic = fixture.topic("order");
    let settings = [("min.insync.replicas", min_in_sync)];
    cluster.administration().create(&topic, partitions, &settings).await;
    (cluster, fixture, topic)
}

async fn rolling_restart(report: CaseReport) {
    let (cluster, fixture, topic) = scene_of("2", 3).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 100);
    for node in cluster.nodes() {
        writer.commits(50).await;
        assert!(node.stop(LONG_TIMEOUT).await, "walpost stops");
        node.start_again().await;
        cluster.administration().in_sync(&topic, 3, 3).await;
    }
    writer.commits(50).await;
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

async fn elected(report: CaseReport) {
    let (cluster, fixture, topic) = scene_of("2", 1).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 200);
    let mut leaders = vec![cluster.leader(&topic, 0).await];
    for _ in 0..3 {
        writer.commits(50).await;
        leaders.push(cluster.move_leader(&topic).await);
    }
    writer.commits(50).await;
    assert!(leaders.windows(2).all(|pair| pair[0] != pair[1]), "{leaders:?}");
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

/// The old leader wakes up believing that it still leads.
async fn frozen_leader(report: CaseReport) {
    let (cluster, fixture, topic) = scene_of("2", 1).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 200);
    for _ in 0..2 {
        writer.commits(50).await;
        let old = cluster.leader(&topic, 0).await;
        cluster.node(old).pause();
        eventually(LONG_TIMEOUT, "another leads", async || cluster.leader(&topic, 0).await != old)
            .await;
        writer.commits(50).await;
        cluster.node(old).resume();
        cluster.administration().in_sync(&topic, 1, 3).await;
    }
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

/// Several producers, and a topic without replicas: the partitions of one broker stand still, and
/// all others go on.
async fn one_frozen(report: CaseReport) {
    let Shares { cluster, fixture, topics, topic, frozen, others } = shares().await;
    let walpost = start_several(&fixture);
    let all: Vec<i32> = (0..12).collect();
    // Writes some rows, and checks whether each partition has more than this many records.
    let flows = async |partitions: &[i32], beyond: &[i64]| {
        fixture.postgres.execute(&insert(400, 200)).await;
        are_beyond(&topics, &topic, partitions, beyond).await
    };
    let used = async || flows(&all, &[0; 12]).await;
    eventually(LONG_TIMEOUT, "each partition is in use", used).await;
    for _ in 0..2 {
        let before = topics.ends(&topic, &others).await.expect("the brokers answer");
        let beyond: Vec<_> = before.iter().map(|end| end + 200).collect();
        cluster.node(frozen).pause();
        let go_on = async || flows(&others, &beyond).await;
        eventually(SHORT_TIMEOUT, "the other partitions go on", go_on).await;
        cluster.node(frozen).resume();
        topics.in_sync(&topic, 12, 1).await;
    }
    assert_eq!(times(&walpost, "changed the number of producers"), 0, "there are several");
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&walpost);
}

/// A cluster, and a topic of twelve partitions without replicas.
struct Shares {
    cluster: MutexGuard<'static, Cluster>,
    fixture: Fixture,
    topics: Admin,
    topic: String,
    /// The broker that is to freeze, and the partitions that the others lead.
    frozen: i32,
    others: Vec<i32>,
}

async fn shares() -> Shares {
    let cluster = Cluster::shared().await;
    let fixture = fixture_with(&cluster.bootstrap()).await;
    let topic = fixture.topic("order");
    let topics = Admin::of(cluster.bootstrap(), 1);
    topics.create(&topic, 12, &[]).await;
    let placed = topics.partitions(&topic).await.expect("the brokers answer");
    let frozen = placed[0].leader;
    let led = (0..).zip(&placed).filter(|(_, partition)| partition.leader != frozen);
    let others = led.map(|(number, _)| number).collect();
    Shares { cluster, fixture, topics, topic, frozen, others }
}

/// `walpost run` with four producers. One that connects to a frozen broker first asks another one after
/// this time, which is half a minute by default.
fn start_several(fixture: &Fixture) -> Walpost {
    let several = fixture.command("run").env("FAILPOINTS", "several_producers=return");
    let several = several.args(["-X", "socket.connection.setup.timeout.ms=3000"]);
    several.env("WALPOST_KAFKA_MAX_PRODUCERS", "4").start()
}

/// Whether each of these partitions has more than this many records.
async fn are_beyond(
    topics: &Admin,
    topic: &str,
    partitions: &[i32],
    beyond: &[i64],
) -> Result<(), String> {
    let ends = topics.ends(topic, partitions).await?;
    let all_do = ends.iter().zip(beyond).all(|(end, beyond)| end > beyond);
    if all_do { Ok(()) } else { Err(format!("{ends:?}, not beyond {beyond:?}")) }
}

/// A walpost that starts while a broker is frozen: the first records of that broker's partitions are
/// not acknowledged, so all behind them wait, and those of the others do not. The first record of all
/// is one of the others: before a topic's first record is acknowledged, no partition is known.
async fn restart_beside_frozen(report: CaseReport) {
    let Shares { cluster, fixture, topics, topic, frozen, others } = shares().await;
    let walpost = start_several(&fixture);
    fixture.postgres.execute(&insert(400, 200)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    walpost.kill9().await;
    cluster.node(frozen).pause();
    let keys: Vec<_> = (0..100).map(|number| format!("first-{number}").into_bytes()).collect();
    let partitions = Kafka::shared().await.partitions_of(&keys, &[12]).await;
    let is_led_by_another =
        |partition: &Vec<u32>| others.iter().any(|other| [other.unsigned_abs()] == **partition);
    let key = partitions.iter().position(is_led_by_another).expect("there is one");
    let first = insert(1, 1).replace("(i % 1)::text", &format!("'first-{key}'"));
    fixture.postgres.execute(&first).await;
    let writer = Writer::start(&fixture.postgres, 200);
    let walpost = start_several(&fixture);
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let before = topics.ends(&topic, &others).await.expect("the brokers answer");
    let beyond: Vec<_> = before.iter().map(|end| end + 50).collect();
    let go_on = async || are_beyond(&topics, &topic, &others, &beyond).await;
    fixture.postgres.execute(&insert(4000, 1000)).await;
    eventually(SHORT_TIMEOUT, "the other partitions go on", go_on).await;
    confirms_nothing(&fixture, &writer).await;
    cluster.node(frozen).resume();
    topics.in_sync(&topic, 12, 1).await;
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

async fn too_few(report: CaseReport) {
    let (cluster, fixture, topic) = scene_of("3", 2).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.postgres, 50);
    writer.commits(50).await;
    let dead = &cluster.nodes()[2];
    dead.kill9().await;
    let line = walpost.await_line(KAFKA_UNAVAILABLE, Duration::from_secs(60)).await;
    for word in ["min.insync.replicas", &topic, "2 of 3"] {
        assert!(line.contains(word), "{word:?} in {line}");
    }
    confirms_nothing(&fixture, &writer).await;
    dead.start_again().await;
    walpost.await_line(KAFKA_RECOVERED, SHORT_TIMEOUT).await;
    report.ok(&fixture.judge_after(writer).await);
    report.did("said which replicas are missing");
    report.still_running(&walpost);
}

/// Each node is killed in its turn, the leader of a partition among them, with
/// several requests in flight; half a minute below the minimum each time.
async fn repeated_loss(report: CaseReport) {
    let (cluster, fixture, topic) = scene_of("3", 3).await;
    let several = ["-X", "max.in.flight.requests.per.connection=5"];
    let walpost = fixture.command("run").args(several).start();
    let writer = Writer::start(&fixture.postgres, 200);
    for (round, node) in (1..).zip(cluster.nodes().iter().cycle().take(6)) {
        writer.commits(200).await;
        node.kill9().await;
        let reported = async || times(&walpost, KAFKA_UNAVAILABLE) == round;
        eventually(LONG_TIMEOUT, "it is reported", reported).await;
        writer.commits(1500).await;
        node.start_again().await;
        cluster.administration().in_sync(&topic, 3, 3).await;
        let back = async || times(&walpost, KAFKA_RECOVERED) == round;
        eventually(LONG_TIMEOUT, "the producer resumes", back).await;
    }
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

/// One acknowledgement never arrives, although the broker is healthy.
async fn stuck_producer(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.command("run").env("FAILPOINTS", "unacknowledged=20*off->1*return->off");
    let walpost = walpost.start();
    fixture.postgres.execute(&insert(100, 5)).await;
    walpost.await_line(KAFKA_UNAVAILABLE, Duration::from_secs(40)).await;
    walpost.await_line("no acknowledgement came for long", LONG_TIMEOUT).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.did("replaced the producer");
    report.still_running(&walpost);
}
