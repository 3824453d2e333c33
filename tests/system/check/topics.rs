//! Topics that are missing, lose data, or accept less than walpost sends.

use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{Cluster, Kafka, eventually};

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_too_small_topic_is_reported() {
    let mut fixture = Fixture::new().await;
    let administration = Kafka::shared().await.administration();
    let topic = format!("check.{}", fixture.database);
    fixture.option("--topic", &topic);
    fixture.check().await.finding("error", "topic_missing");
    // Brokers create the topic only if both client and broker allow it.
    fixture.property("allow.auto.create.topics", "true");
    fixture.check().await.finding("warning", "topic_missing");
    // `check` does not create the topic, although the brokers would.
    assert_eq!(administration.partitions(&topic).await, Ok(Vec::new()));
    fixture.finding_is_fixed("warning", "topic_missing").await;
    assert_eq!(administration.partitions(&topic).await.map(|all| all.len()), Ok(6));

    administration.set(&topic, "max.message.bytes", "5000").await;
    fixture.finding_is_fixed("warning", "topic_max_message_bytes").await;
    // An outage over a weekend is longer.
    administration.set(&topic, "retention.ms", "172800000").await;
    fixture.finding_is_fixed("warning", "topic_retention_short").await;
    administration.set(&topic, "min.insync.replicas", "2").await;
    fixture.finding_is_fixed("error", "topic_min_insync_above_replicas").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_short_lived_dead_letter_topic_is_reported() {
    let mut fixture = Fixture::new().await;
    let administration = Kafka::shared().await.administration();
    let topic = format!("dead.{}", fixture.database);
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let write = |cause: &str| {
        let toml = format!("[poison]\n{cause} = 'dead_letter'\ndead_letter_topic = '{topic}'\n");
        std::fs::write(&file, toml).expect("it can be written");
    };
    fixture.option("--config", file.to_str().expect("UTF-8"));
    write("missing_field");
    fixture.finding_is_fixed("error", "topic_missing").await;
    administration.set(&topic, "cleanup.policy", "compact").await;
    fixture.finding_is_fixed("warning", "topic_compacted").await;
    // Its limit matters only if events that are too large are dead-lettered.
    administration.set(&topic, "max.message.bytes", "5000").await;
    fixture.check().await.has_no("topic_max_message_bytes");
    write("too_large");
    fixture.finding_is_fixed("warning", "topic_max_message_bytes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_short_lived_state_topic_is_reported() {
    let mut fixture = Fixture::new().await;
    let topic = format!("state.{}", fixture.database);
    fixture.option("--state-topic", &topic);
    let report = fixture.finding_is_fixed("error", "state_topic_missing").await;
    report.finding("ok", "transactional_id");
    let administration = Kafka::shared().await.administration();
    administration.set(&topic, "cleanup.policy", "compact,delete").await;
    fixture.finding_is_fixed("error", "state_topic_not_compacted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrestricted_topic_template_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.environment.clear();
    let follow = async |fixture: &mut Fixture, _: &str| {
        let allowed = ("WALPOST_RECORD_TOPICS_ALLOWED".to_owned(), "outbox.event.*".to_owned());
        fixture.environment.push(allowed);
    };
    fixture
        .finding_with_advice("warning", "topics_not_limited", &["record.topics_allowed"], follow)
        .await;
    // A template without fields: rows do not choose the topic.
    fixture.environment.clear();
    fixture.option("--topic", "check.static");
    fixture.check().await.has_no("topics_not_limited");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producer_limit_above_the_brokers_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.property("message.max.bytes", "200000000");
    let follow = async |fixture: &mut Fixture, advice: &str| {
        let numbers = advice.split(' ').filter_map(|word| word.parse::<u64>().ok());
        let limit = numbers.max().expect("a limit");
        fixture.property("message.max.bytes", &limit.to_string());
    };
    let words = ["message.max.bytes"];
    fixture.finding_with_advice("error", "socket_request_max_bytes", &words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_topic_replicas_are_reported() {
    let cluster = Cluster::shared().await;
    let mut fixture = Fixture::new().await;
    fixture.bootstrap = cluster.bootstrap();
    fixture.administrator = cluster.bootstrap();
    let (single, topic) = ("check.single", "check.whole");
    fixture.option("--topic", single);
    cluster.nodes()[0].create_topic(single, 1).await;
    cluster.administration().create(topic, 1, &[]).await;
    let follow = async |fixture: &mut Fixture, _: &str| fixture.option("--topic", topic);
    let words = ["kafka-reassign-partitions.sh", "--replication-factor 3"];
    fixture.finding_with_advice("warning", "topic_replication_factor", &words, follow).await;
    fixture.finding_is_fixed("warning", "topic_min_insync_replicas").await;
    fixture.check().await.is_clean();

    // Stops the broker with the only replica.
    cluster.administration().set(topic, "min.insync.replicas", "3").await;
    let leader = cluster.leader(single, 0).await;
    cluster.node(leader).kill9().await;
    eventually(SHORT_TIMEOUT, "the others notice", async || {
        let seen = cluster.administration().partitions(topic).await?;
        if seen.iter().all(|one| one.in_sync.len() == 2) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await;
    fixture.check().await.finding("error", "topic_not_in_sync");
    fixture.option("--topic", single);
    let follow = async |fixture: &mut Fixture, _: &str| {
        cluster.node(leader).start_again().await;
        cluster.administration().in_sync(topic, 1, 3).await;
        fixture.option("--topic", topic);
        fixture.check().await.has_no("topic_not_in_sync");
        fixture.option("--topic", single);
    };
    fixture.finding_with_advice("error", "topic_leaderless", &["bring back"], follow).await;

    // The defaults for topics without settings of their own.
    fixture.option("--topic", "check.{aggregate_type}");
    fixture.property("message.max.bytes", "5000000");
    fixture.finding_is_fixed("warning", "broker_message_max_bytes").await;
}
