//! Brokers that are unreachable, reject walpost, or cannot be trusted.

use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, MutexGuard, OnceCell};
use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{CertificateAuthority, Kafka};

use crate::fixture::Fixture;
use crate::tls::other_authority;
use crate::unresponsive_servers::{FakeServer, listen};

/// A broker that requires authentication, and an ACL for each operation.
struct Guarded {
    authority: CertificateAuthority,
    kafka: Kafka,
}

/// Used by one test at a time, since tests change its certificate and ACLs.
async fn guarded() -> MutexGuard<'static, Guarded> {
    static SHARED: OnceCell<Mutex<Guarded>> = OnceCell::const_new();
    let start = async || {
        let authority = CertificateAuthority::new();
        let builder = Kafka::builder().guarded().tls(&authority).user("relay", "right");
        let builder = builder.property("auto.create.topics.enable", "false");
        // A new certificate may have other names than the previous one.
        let builder = builder.property("ssl.allow.san.changes", "true");
        // One more listener, which advertises an address without a broker.
        let kafka = builder.behind(1).start().await;
        // A topic that is missing is known before a listener is unreachable, or after it.
        kafka.create_topic("walpost.state", 1).await;
        Mutex::new(Guarded { authority, kafka })
    };
    SHARED.get_or_init(start).await.lock().await
}

/// A fixture with that broker, on its listener with TLS and passwords.
async fn fixture(guarded: &Guarded) -> Fixture {
    let mut fixture = Fixture::new().await;
    fixture.bootstrap = guarded.kafka.secure_bootstrap();
    fixture.administrator = guarded.kafka.bootstrap();
    fixture.property("security.protocol", "SASL_SSL");
    fixture.property("ssl.ca.location", &guarded.authority.root().display().to_string());
    fixture.property("sasl.mechanisms", "PLAIN");
    fixture.property("sasl.username", "relay");
    fixture.property("sasl.password", "right");
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_refused_by_kafka_is_reported() {
    let mut fixture = Fixture::new().await;
    let right = std::mem::replace(&mut fixture.bootstrap, "127.0.0.1:1".into());
    let follow = async |fixture: &mut Fixture, _: &str| fixture.bootstrap.clone_from(&right);
    fixture
        .finding_with_advice("error", "kafka_unreachable", &["--bootstrap-servers"], follow)
        .await;
}

/// `run` says the same as `check`, with a state topic and without.
async fn says_in_run(fixture: &Fixture, what: &str) {
    for keeps_position in [false, true] {
        let run = fixture.run();
        let run = if keeps_position { run.keeps_position() } else { run }.start();
        run.await_line(what, SHORT_TIMEOUT).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_of_another_protocol_is_reported() {
    let mut fixture = Fixture::new().await;
    let port = listen(FakeServer::Says(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    let right = std::mem::replace(&mut fixture.bootstrap, format!("127.0.0.1:{port}"));
    says_in_run(&fixture, "set security.protocol as the listener has it").await;
    let follow = async |fixture: &mut Fixture, _: &str| fixture.bootstrap.clone_from(&right);
    let words = ["security.protocol"];
    fixture.finding_with_advice("error", "kafka_security_protocol", &words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_advertised_listener_is_reported() {
    let guarded = guarded().await;
    let mut fixture = Fixture::new().await;
    let port = guarded.kafka.proxied_port().expect("such a listener");
    fixture.bootstrap = format!("127.0.0.1:{port}");
    says_in_run(&fixture, "correct advertised.listeners").await;
    let right = guarded.kafka.bootstrap();
    let follow = async |fixture: &mut Fixture, _: &str| fixture.bootstrap.clone_from(&right);
    let words = ["advertised.listeners"];
    fixture.finding_with_advice("error", "kafka_advertised_address", &words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_or_mechanism_are_reported() {
    let guarded = guarded().await;
    let mut fixture = fixture(&guarded).await;
    fixture.property("sasl.password", "mistaken");
    let follow = async |fixture: &mut Fixture, _: &str| fixture.property("sasl.password", "right");
    let report =
        fixture.finding_with_advice("error", "kafka_credentials", &["sasl.password"], follow).await;
    let what = report.finding("error", "kafka_credentials")["what"].to_string();
    assert!(!what.contains("mistaken"), "{what}");
    // The broker offers only SCRAM-SHA-512.
    fixture.property("sasl.mechanisms", "SCRAM-SHA-256");
    let follow =
        async |fixture: &mut Fixture, _: &str| fixture.property("sasl.mechanisms", "PLAIN");
    fixture
        .finding_with_advice("error", "kafka_mechanism", &["sasl.enabled.mechanisms"], follow)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_broker_certificate_is_reported() {
    let guarded = guarded().await;
    let (authority, kafka) = (&guarded.authority, &guarded.kafka);
    let mut fixture = fixture(&guarded).await;
    fixture.property("security.protocol", "SASL_PLAINTEXT");
    let follow =
        async |fixture: &mut Fixture, _: &str| fixture.property("security.protocol", "SASL_SSL");
    fixture.finding_with_advice("error", "kafka_security_protocol", &["SASL_SSL"], follow).await;

    let roots = authority.root().display().to_string();
    fixture.property("ssl.ca.location", &other_authority());
    let follow = async |fixture: &mut Fixture, _: &str| fixture.property("ssl.ca.location", &roots);
    fixture.finding_with_advice("error", "kafka_certificate", &["ssl.ca.location"], follow).await;

    // A listener that requires a client certificate.
    let secure = std::mem::replace(&mut fixture.bootstrap, kafka.mutual_bootstrap());
    fixture.property("security.protocol", "SSL");
    let follow = async |fixture: &mut Fixture, _: &str| {
        let pair = authority.client("relay", "relay");
        fixture.property("ssl.certificate.location", &pair.certificate.display().to_string());
        fixture.property("ssl.key.location", &pair.key.display().to_string());
    };
    fixture.finding_with_advice("error", "kafka_tls", &["ssl.certificate.location"], follow).await;
    fixture.bootstrap = secure;
    fixture.property("security.protocol", "SASL_SSL");

    let good = authority.server("good");
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    kafka.change_certificate(&authority.server_until("old", yesterday)).await;
    let follow = async |_: &mut Fixture, _: &str| kafka.change_certificate(&good).await;
    fixture
        .finding_with_advice("error", "kafka_certificate", &["renew", "subjectAltName"], follow)
        .await;

    // The broker advertises 127.0.0.1.
    kafka.change_certificate(&authority.server_of("named", "DNS:localhost")).await;
    let follow = async |_: &mut Fixture, _: &str| kafka.change_certificate(&good).await;
    fixture.finding_with_advice("error", "kafka_certificate", &["subjectAltName"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_write_acl_is_reported() {
    let guarded = guarded().await;
    let mut fixture = fixture(&guarded).await;
    // If rows name the topic, there is no topic to query.
    fixture.option("--topic", "shop.{aggregate_type}");
    let report = fixture.check().await;
    let fix = report.finding("error", "kafka_write")["fix"].to_string();
    assert!(fix.contains("--topic shop. --resource-pattern-type prefixed"), "{fix}");
    // A topic that walpost's user may not describe.
    guarded.kafka.create_topic("shop.order", 1).await;
    fixture.option("--topic", "shop.order");
    let report = fixture.finding_is_fixed("error", "topic_unauthorized").await;
    report.finding("error", "kafka_write");
    // That also granted it WRITE, and so a producer id.
    let report = fixture.check().await;
    report.finding("ok", "kafka_write");
    report.finding("ok", "topic");
    guarded.kafka.disallow("relay", &["Write"], "shop.order").await;
    fixture.finding_is_fixed("error", "kafka_write").await;
    // If brokers do not create topics, a missing one stops delivery.
    guarded.kafka.allow("relay", &["Describe"], "shop.gone").await;
    fixture.option("--topic", "shop.gone");
    fixture.property("allow.auto.create.topics", "true");
    fixture.check().await.finding("warning", "topic_missing");
    guarded.kafka.allow_on_cluster("relay", &["DescribeConfigs"]).await;
    fixture.finding_is_fixed("error", "topic_missing").await;
    // The state topic, and the id of the producer that writes it.
    fixture.option("--state-topic", "walpost.state");
    let report = fixture.check().await;
    report.finding("error", "topic_unauthorized");
    fixture.option("--delivery", "exactly-once");
    let report = fixture.finding_is_fixed("error", "topic_unauthorized").await;
    report.finding("error", "transactional_id_unauthorized");
    fixture.finding_is_fixed("error", "transactional_id_unauthorized").await;
    fixture.check().await.finding("ok", "transactional_id");
}
