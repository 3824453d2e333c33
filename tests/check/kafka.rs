//! Brokers that cannot be reached, that do not let walpost in, or that it cannot trust.

use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, MutexGuard, OnceCell};
use walpost_bed::{Authority, Kafka};

use crate::stage::Stage;
use crate::tls::other_authority;

/// A broker that asks who comes, and allows each only what it was told to.
struct Guarded {
    authority: Authority,
    kafka: Kafka,
}

/// To one test at a time, since they change its certificate and its rights.
async fn guarded() -> MutexGuard<'static, Guarded> {
    static SHARED: OnceCell<Mutex<Guarded>> = OnceCell::const_new();
    let start = async || {
        let authority = Authority::new();
        let builder = Kafka::builder().guarded().tls(&authority).user("relay", "right");
        let builder = builder.property("auto.create.topics.enable", "false");
        // A certificate may come with other names than the one before.
        let builder = builder.property("ssl.allow.san.changes", "true");
        // One more listener, which sends clients where nobody is.
        let builder = builder.behind(1);
        Mutex::new(Guarded { kafka: builder.start().await, authority })
    };
    SHARED.get_or_init(start).await.lock().await
}

/// A stage with that broker, by its listener with TLS and passwords.
async fn stage(guarded: &Guarded) -> Stage {
    let mut stage = Stage::new().await;
    stage.bootstrap = guarded.kafka.secure_bootstrap();
    stage.administrator = guarded.kafka.bootstrap();
    stage.property("security.protocol", "SASL_SSL");
    stage.property("ssl.ca.location", &guarded.authority.root().display().to_string());
    stage.property("sasl.mechanisms", "PLAIN");
    stage.property("sasl.username", "relay");
    stage.property("sasl.password", "right");
    stage
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_listens() {
    let mut stage = Stage::new().await;
    let right = std::mem::replace(&mut stage.bootstrap, "127.0.0.1:1".into());
    let follow = async |stage: &mut Stage, _: &str| stage.bootstrap.clone_from(&right);
    stage.advised("error", "kafka_unreachable", &["--bootstrap-servers"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_brokers_advertise_an_address_where_nobody_is() {
    let guarded = guarded().await;
    let mut stage = Stage::new().await;
    let port = guarded.kafka.proxied_port().expect("such a listener");
    stage.bootstrap = format!("127.0.0.1:{port}");
    let right = guarded.kafka.bootstrap();
    let follow = async |stage: &mut Stage, _: &str| stage.bootstrap.clone_from(&right);
    let words = ["advertised.listeners"];
    stage.advised("error", "kafka_advertised_address", &words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_or_mechanism_are_not_the_brokers() {
    let guarded = guarded().await;
    let mut stage = stage(&guarded).await;
    stage.property("sasl.password", "mistaken");
    let follow = async |stage: &mut Stage, _: &str| stage.property("sasl.password", "right");
    let report = stage.advised("error", "kafka_credentials", &["sasl.password"], follow).await;
    let what = report.finding("error", "kafka_credentials")["what"].to_string();
    assert!(!what.contains("mistaken"), "{what}");
    // The broker offers 512 alone.
    stage.property("sasl.mechanisms", "SCRAM-SHA-256");
    let follow = async |stage: &mut Stage, _: &str| stage.property("sasl.mechanisms", "PLAIN");
    stage.advised("error", "kafka_mechanism", &["sasl.enabled.mechanisms"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_brokers_tls_proves_nothing() {
    let guarded = guarded().await;
    let (authority, kafka) = (&guarded.authority, &guarded.kafka);
    let mut stage = stage(&guarded).await;
    stage.property("security.protocol", "SASL_PLAINTEXT");
    let follow = async |stage: &mut Stage, _: &str| stage.property("security.protocol", "SASL_SSL");
    stage.advised("error", "kafka_security_protocol", &["SASL_SSL"], follow).await;

    let roots = authority.root().display().to_string();
    stage.property("ssl.ca.location", &other_authority());
    let follow = async |stage: &mut Stage, _: &str| stage.property("ssl.ca.location", &roots);
    stage.advised("error", "kafka_certificate", &["ssl.ca.location"], follow).await;

    // A listener that wants a certificate of the client.
    let secure = std::mem::replace(&mut stage.bootstrap, kafka.mutual_bootstrap());
    stage.property("security.protocol", "SSL");
    let follow = async |stage: &mut Stage, _: &str| {
        let pair = authority.client("relay", "relay");
        stage.property("ssl.certificate.location", &pair.certificate.display().to_string());
        stage.property("ssl.key.location", &pair.key.display().to_string());
    };
    stage.advised("error", "kafka_tls", &["ssl.certificate.location"], follow).await;
    stage.bootstrap = secure;
    stage.property("security.protocol", "SASL_SSL");

    let good = authority.server("good");
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    kafka.change_certificate(&authority.server_until("old", yesterday)).await;
    let follow = async |_: &mut Stage, _: &str| kafka.change_certificate(&good).await;
    stage.advised("error", "kafka_certificate", &["renew", "subjectAltName"], follow).await;

    // The broker advertises 127.0.0.1.
    kafka.change_certificate(&authority.server_of("named", "DNS:localhost")).await;
    let follow = async |_: &mut Stage, _: &str| kafka.change_certificate(&good).await;
    stage.advised("error", "kafka_certificate", &["subjectAltName"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_may_not_write() {
    let guarded = guarded().await;
    let mut stage = stage(&guarded).await;
    // Where rows name the topic, there is none to ask for.
    stage.option("--topic", "shop.{aggregate_type}");
    let report = stage.check().await;
    let fix = report.finding("error", "kafka_write")["fix"].to_string();
    assert!(fix.contains("--topic shop. --resource-pattern-type prefixed"), "{fix}");
    // One that walpost's user may not even see.
    guarded.kafka.create_topic("shop.order", 1).await;
    stage.option("--topic", "shop.order");
    let report = stage.fixed("error", "topic_unauthorized").await;
    report.finding("error", "kafka_write");
    // That gave it the right to write, too, and so an id for its producer.
    let report = stage.check().await;
    report.finding("ok", "kafka_write");
    report.finding("ok", "topic");
    guarded.kafka.disallow("relay", &["Write"], "shop.order").await;
    stage.fixed("error", "kafka_write").await;
    // Where brokers make no topics by themselves, a missing one stops delivery.
    guarded.kafka.allow("relay", &["Describe"], "shop.gone").await;
    stage.option("--topic", "shop.gone");
    stage.property("allow.auto.create.topics", "true");
    stage.check().await.finding("warning", "topic_missing");
    guarded.kafka.allow_on_cluster("relay", &["DescribeConfigs"]).await;
    stage.fixed("error", "topic_missing").await;
}
