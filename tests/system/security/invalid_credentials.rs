//! Credentials and files that become invalid at run time.

use std::fs;
use std::path::PathBuf;

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT};
use walpost_bed::{CertificateAuthority, Endpoints, Kafka, KeyPair, Walpost, eventually};

use super::fixture::{Broker, PASSWORD, ROLE_PASSWORD, SecureFixture, SecureKafka, USER};

const KEPT: &str = "keeping the current ones";

fn row(payload: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('small', 'k', 'e', {payload})"
    )
}

/// Larger than its topic accepts: walpost skips it, after a producer replacement.
fn large() -> String {
    row("to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) AS i))")
}

async fn come(fixture: &SecureFixture, count: usize) {
    eventually(LONG_TIMEOUT, "records come", async || {
        let found = fixture.fixture.records().await.len();
        if found == count { Ok(()) } else { Err(found) }
    })
    .await;
}

/// The file with PostgreSQL's connection string, which these tests do not change.
fn url(fixture: &SecureFixture) -> PathBuf {
    fixture.file("url", &fixture.source_with(ROLE_PASSWORD, ""))
}

/// A walpost with that certificate that has delivered a record.
async fn with_certificate(fixture: &SecureFixture, pair: &KeyPair) -> Walpost {
    let (source, kafka) = (url(fixture), fixture.file("kafka", &fixture.certified(pair)));
    let toml = fixture.file("walpost.toml", "[poison]\ntoo_large = 'skip'\n");
    let (broker, topic) = (&fixture.kafka.kafka, fixture.fixture.topic("small"));
    broker.create_topic_with(&topic, 1, &[("max.message.bytes", "20000")]).await;
    let walpost = fixture
        .command("run", &broker.mutual_bootstrap(), &source, &kafka)
        .args(["--config", toml.to_str().expect("UTF-8")])
        .start();
    fixture.fixture.postgres.execute(&row("'1'")).await;
    come(fixture, 1).await;
    walpost
}

/// The certificate exists without its key when walpost creates a new producer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_written_key_pair_is_retried() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let authority = &fixture.kafka.authority;
    let (pair, next) = (authority.client("half", USER), authority.client("next", USER));
    let walpost = with_certificate(&fixture, &pair).await;
    fs::copy(&next.certificate, &pair.certificate).expect("copied");
    walpost.hangup();
    walpost.await_line(KEPT, SHORT_TIMEOUT).await;
    fixture.fixture.postgres.execute(&row("'2'")).await;
    come(&fixture, 2).await;
    let mark = walpost.mark();
    for row in [large(), row("'3'")] {
        fixture.fixture.postgres.execute(&row).await;
    }
    walpost.await_line_after(mark, "key values mismatch", SHORT_TIMEOUT).await;
    fs::copy(&next.key, &pair.key).expect("copied");
    come(&fixture, 3).await;
    assert!(walpost.pid().is_some());
}

/// A new producer loads files that the brokers reject; then they are restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_files_are_reloaded() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let pair = fixture.kafka.authority.client("back", USER);
    let read = || [&pair.certificate, &pair.key].map(|file| fs::read(file).expect("read"));
    let before = read();
    let walpost = with_certificate(&fixture, &pair).await;
    let stranger = CertificateAuthority::new();
    let wrong = stranger.client("wrong", USER);
    fs::copy(&wrong.certificate, &pair.certificate).expect("copied");
    fs::copy(&wrong.key, &pair.key).expect("copied");
    walpost.hangup();
    walpost.await_line(KEPT, SHORT_TIMEOUT).await;
    let mark = walpost.mark();
    fixture.fixture.postgres.execute(&large()).await;
    walpost.await_line_after(mark, "cannot deliver to Kafka", LONG_TIMEOUT).await;
    fixture.fixture.postgres.execute(&row("'2'")).await;
    fs::write(&pair.certificate, &before[0]).expect("written");
    fs::write(&pair.key, &before[1]).expect("written");
    come(&fixture, 2).await;
}

/// A broker of its own that requires authentication, and users that may log in.
async fn guarded() -> SecureFixture {
    let authority = CertificateAuthority::new();
    let kafka = Kafka::builder().tls(&authority).user(USER, "pl4in").guarded().start().await;
    let fixture =
        SecureFixture::with(Broker::Own(Box::new(SecureKafka { authority, kafka })), PASSWORD)
            .await;
    let broker = &fixture.kafka.kafka;
    broker.set_password("may", "one").await;
    broker.set_password("may-not", "two").await;
    let topic = fixture.fixture.topic("small");
    broker.create_topic(&topic, 1).await;
    broker.allow("may", &["Write", "Describe", "Create"], &topic).await;
    fixture
}

/// walpost as one of these users, and its endpoints.
async fn as_user(fixture: &SecureFixture, user: &str, password: &str) -> (Walpost, Endpoints) {
    let source = url(fixture);
    let kafka = fixture.file("kafka", &fixture.login("SCRAM-SHA-512", user, password));
    let walpost = fixture
        .command("run", &fixture.kafka.kafka.secure_bootstrap(), &source, &kafka)
        .args(["--admin-listen", "127.0.0.1:0"])
        .start();
    let endpoints = Endpoints::of(&walpost).await;
    (walpost, endpoints)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_user_without_write_acl_is_not_switched_to() {
    let fixture = guarded().await;
    let (walpost, _) = as_user(&fixture, "may", "one").await;
    fixture.fixture.postgres.execute(&row("'1'")).await;
    come(&fixture, 1).await;
    fixture.file("kafka", &fixture.login("SCRAM-SHA-512", "may-not", "two"));
    walpost.hangup();
    let line = walpost.await_line(KEPT, LONG_TIMEOUT).await;
    assert!(line.contains("uthorization"), "{line}");
    fixture.fixture.postgres.execute(&row("'2'")).await;
    come(&fixture, 2).await;
    assert!(!walpost.said("are in effect"), "{:?}", walpost.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producer_without_write_acl_is_not_ready_even_when_idle() {
    let fixture = guarded().await;
    let (walpost, endpoints) = as_user(&fixture, "may-not", "two").await;
    walpost.await_line("delivery failed; replaying", SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "/readyz says why", async || {
        let (status, body) = endpoints.page("/readyz").await;
        assert_eq!(status, 503, "{body}");
        if body.contains("uthorization") { Ok(()) } else { Err(body) }
    })
    .await;
}
