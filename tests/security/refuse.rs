//! Whom walpost does not trust, and who does not let it in: said so that somebody can
//! fix it.

use walpost_bed::Authority;
use walpost_bed::scene::{SOON, ended};

use super::place::{CERTIFICATE, PASSWORD, Place, ROLE_PASSWORD, USER, showing};

/// What `walpost run` ends with, with this source and a Kafka that is never asked.
async fn turned_away(place: &Place, source: &str) -> String {
    let (source, kafka) = (place.file("url", source), place.file("kafka", ""));
    let bootstrap = place.kafka.kafka.bootstrap();
    let (status, text) = ended(&place.command("run", &bootstrap, &source, &kafka).start()).await;
    assert_eq!(status, Some(78), "{text}");
    text
}

/// The reason for which Kafka cannot be used with these properties.
async fn out_of_reach(place: &Place, bootstrap: &str, kafka: &str) -> String {
    let right = place.source_with(ROLE_PASSWORD, "");
    let (source, kafka) = (place.file("url", &right), place.file("kafka", kafka));
    let walpost = place.command("run", bootstrap, &source, &kafka).start();
    let line = walpost.await_line("Kafka cannot be used", SOON).await;
    let check = place.command("check", bootstrap, &source, &kafka).start();
    let (status, _) = ended(&check).await;
    assert_eq!(status, Some(1), "{:?}", check.stdout());
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_another_authority_or_name_is_not_trusted() {
    let place = Place::new(PASSWORD).await;
    let stranger = Authority::new();
    let own = place.kafka.authority.root().display().to_string();
    let right = place.source_with(ROLE_PASSWORD, "");
    let text =
        turned_away(&place, &right.replace(&own, &stranger.root().display().to_string())).await;
    assert!(text.contains("sslrootcert"), "{text}");
    let pair = place.kafka.authority.server_of("elsewhere", "DNS:db.example.com");
    place.scene.postgres.change_certificate(&pair.certificate, &pair.key).await;
    let text = turned_away(&place, &right).await;
    assert!(text.contains("db.example.com") && text.contains("127.0.0.1"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_asks_for_a_certificate_says_so() {
    let place = Place::new(CERTIFICATE).await;
    let text = turned_away(&place, &place.source("")).await;
    assert!(text.contains("requires a valid client certificate"), "{text}");
    let other = place.kafka.authority.client("other", "somebody");
    let text = turned_away(&place, &place.source(&showing(&other))).await;
    assert!(text.contains("certificate authentication failed for user"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_another_authority_is_not_trusted() {
    let place = Place::new(PASSWORD).await;
    let (broker, stranger) = (&place.kafka.kafka, Authority::new());
    let own = place.kafka.authority.root().display().to_string();
    let right = place.login("SCRAM-SHA-512", USER, "scr4m-s3cret");
    let secure = broker.secure_bootstrap();
    let wrong = right.replace(&own, &stranger.root().display().to_string());
    let line = out_of_reach(&place, &secure, &wrong).await;
    assert!(
        line.contains("certificate verify failed") && line.contains("ssl.ca.location"),
        "{line}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_asks_for_a_certificate_says_so() {
    let place = Place::new(PASSWORD).await;
    let mutual = place.kafka.kafka.mutual_bootstrap();
    let bare = format!(
        "security.protocol=SSL\nssl.ca.location={}\n",
        place.kafka.authority.root().display()
    );
    let line = out_of_reach(&place, &mutual, &bare).await;
    assert!(line.contains("certificate"), "{line}");
    let stranger = Authority::new();
    let line =
        out_of_reach(&place, &mutual, &place.certified(&stranger.client("stranger", USER))).await;
    assert!(line.contains("certificate"), "{line}");
}
