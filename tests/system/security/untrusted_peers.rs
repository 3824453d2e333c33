//! Servers that walpost does not trust or that reject it: reported with a fix.

use walpost_bed::CertificateAuthority;
use walpost_bed::fixture::{SHORT_TIMEOUT, ended};

use super::fixture::{CERTIFICATE, PASSWORD, ROLE_PASSWORD, SecureFixture, USER, showing};

/// The error of `walpost run` with this source; it never connects to Kafka.
async fn turned_away(fixture: &SecureFixture, source: &str) -> String {
    let (source, kafka) = (fixture.file("url", source), fixture.file("kafka", ""));
    let bootstrap = fixture.kafka.kafka.bootstrap();
    let (status, text) = ended(&fixture.command("run", &bootstrap, &source, &kafka).start()).await;
    assert_eq!(status, Some(78), "{text}");
    text
}

/// The error with which Kafka cannot be used with these properties.
async fn out_of_reach(fixture: &SecureFixture, bootstrap: &str, kafka: &str) -> String {
    let right = fixture.source_with(ROLE_PASSWORD, "");
    let (source, kafka) = (fixture.file("url", &right), fixture.file("kafka", kafka));
    let walpost = fixture.command("run", bootstrap, &source, &kafka).start();
    let line = walpost.await_line("cannot deliver to Kafka", SHORT_TIMEOUT).await;
    let check = fixture.command("check", bootstrap, &source, &kafka).start();
    let (status, _) = ended(&check).await;
    assert_eq!(status, Some(1), "{:?}", check.stdout());
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_certificate_of_another_ca_or_name_is_rejected() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let stranger = CertificateAuthority::new();
    let own = fixture.kafka.authority.root().display().to_string();
    let right = fixture.source_with(ROLE_PASSWORD, "");
    let text =
        turned_away(&fixture, &right.replace(&own, &stranger.root().display().to_string())).await;
    assert!(text.contains("sslrootcert"), "{text}");
    let pair = fixture.kafka.authority.server_of("elsewhere", "DNS:db.example.com");
    fixture.fixture.postgres.change_certificate(&pair.certificate, &pair.key).await;
    let text = turned_away(&fixture, &right).await;
    assert!(text.contains("db.example.com") && text.contains("127.0.0.1"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_requiring_a_client_certificate_is_reported() {
    let fixture = SecureFixture::new(CERTIFICATE).await;
    let text = turned_away(&fixture, &fixture.source("")).await;
    assert!(text.contains("requires a valid client certificate"), "{text}");
    let other = fixture.kafka.authority.client("other", "somebody");
    let text = turned_away(&fixture, &fixture.source(&showing(&other))).await;
    assert!(text.contains("certificate authentication failed for user"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_certificate_of_another_ca_is_rejected() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let (broker, stranger) = (&fixture.kafka.kafka, CertificateAuthority::new());
    let own = fixture.kafka.authority.root().display().to_string();
    let right = fixture.login("SCRAM-SHA-512", USER, "scr4m-s3cret");
    let secure = broker.secure_bootstrap();
    let wrong = right.replace(&own, &stranger.root().display().to_string());
    let line = out_of_reach(&fixture, &secure, &wrong).await;
    assert!(
        line.contains("certificate verify failed") && line.contains("ssl.ca.location"),
        "{line}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_requiring_a_client_certificate_is_reported() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let mutual = fixture.kafka.kafka.mutual_bootstrap();
    let bare = format!(
        "security.protocol=SSL\nssl.ca.location={}\n",
        fixture.kafka.authority.root().display()
    );
    let line = out_of_reach(&fixture, &mutual, &bare).await;
    assert!(line.contains("certificate"), "{line}");
    let stranger = CertificateAuthority::new();
    let line =
        out_of_reach(&fixture, &mutual, &fixture.certified(&stranger.client("stranger", USER)))
            .await;
    assert!(line.contains("certificate"), "{line}");
}
