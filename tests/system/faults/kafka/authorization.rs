//! The broker rejects walpost's credentials or operations (23).

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, KafkaBuilder, Walpost};

use super::{KAFKA_RECOVERED, KAFKA_UNAVAILABLE, confirms_nothing, fixture_with, times};
use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(23, "credentials_rejected_at_startup_end_the_run", refused),
        Case::new(23, "missing_acl_is_reported_and_retried", not_allowed),
        Case::new(23, "credentials_revoked_at_run_time_are_retried", revoked),
    ]
}

/// Properties of a user who logs in, by this mechanism.
fn login(mechanism: &str, password: &str) -> Vec<String> {
    let properties = [
        "security.protocol=SASL_PLAINTEXT".to_owned(),
        format!("sasl.mechanism={mechanism}"),
        "sasl.username=relay".to_owned(),
        format!("sasl.password={password}"),
    ];
    properties.into_iter().flat_map(|one| ["-X".to_owned(), one]).collect()
}

/// A broker with the user `relay`, and a fixture whose own commands are the bed's.
async fn scene_of(builder: KafkaBuilder) -> (Kafka, Fixture) {
    let kafka = builder.user("relay", "right").start().await;
    let fixture = fixture_with(&kafka.bootstrap()).await;
    (kafka, fixture)
}

/// A command of the user that logs in; all else of the fixture needs no password.
fn command(kafka: &Kafka, fixture: &mut Fixture, name: &str, login: &[String]) -> Walpost {
    let guarded = kafka.sasl_bootstrap().expect("a user was added");
    let open = std::mem::replace(&mut fixture.bootstrap, guarded);
    let walpost = fixture.command(name).args(login).start();
    fixture.bootstrap = open;
    walpost
}

async fn refused(report: CaseReport) {
    let (kafka, mut fixture) = scene_of(Kafka::builder()).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    let mistaken = login("PLAIN", "mistaken");
    let text = report.ends(&command(&kafka, &mut fixture, "run", &mistaken), 78).await;
    assert!(text.contains("Kafka refuses walpost's credentials"), "{text}");
    assert!(!text.contains("mistaken"), "{text}");
    let check = command(&kafka, &mut fixture, "check", &mistaken);
    assert_eq!(ended(&check).await.0, Some(1));
    assert!(check.said("refuses walpost's credentials"), "{:?}", check.stdout());
    let _walpost = command(&kafka, &mut fixture, "run", &login("PLAIN", "right"));
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
}

async fn not_allowed(report: CaseReport) {
    let builder = Kafka::builder().guarded().property("auto.create.topics.enable", "false");
    let (kafka, mut fixture) = scene_of(builder).await;
    let topic = fixture.topic("order");
    kafka.create_topic(&topic, 3).await;
    let walpost = command(&kafka, &mut fixture, "run", &login("PLAIN", "right"));
    let writer = Writer::start(&fixture.postgres, 100);
    // The refusal of an event, and what the producer finds before the next one.
    let advice = ["the user", "it"]
        .map(|who| format!("give {who} the ACL operations WRITE and DESCRIBE on topic {topic}"));
    let mut named = 0;
    for round in 1..=2 {
        let said = || advice.each_ref().map(|advice| times(&walpost, advice));
        let says_it = async || said().iter().sum::<usize>() > named;
        walpost_bed::eventually(SHORT_TIMEOUT, "it says what to grant", says_it).await;
        confirms_nothing(&fixture, &writer).await;
        let said = said();
        assert!(said.iter().all(|times| *times <= round), "once: {:?}", walpost.stderr());
        named = said.iter().sum();
        kafka.allow("relay", &["Write", "Describe"], &topic).await;
        let rounds = async || times(&walpost, KAFKA_RECOVERED) == round;
        walpost_bed::eventually(SHORT_TIMEOUT, "it continues", rounds).await;
        if round == 1 {
            kafka.disallow("relay", &["Write", "Describe"], &topic).await;
        }
    }
    report.ok(&fixture.judge_after(writer).await);
    report.did("named the missing right once");
    report.still_running(&walpost);
}

async fn revoked(report: CaseReport) {
    // A broker that asks for the password again every two seconds.
    let again = "listener.name.sasl.scram-sha-512.connections.max.reauth.ms";
    let (kafka, mut fixture) = scene_of(Kafka::builder().property(again, "2000")).await;
    kafka.set_password("relay", "first").await;
    let walpost = command(&kafka, &mut fixture, "run", &login("SCRAM-SHA-512", "first"));
    let writer = Writer::start(&fixture.postgres, 100);
    writer.commits(100).await;
    let came = async || !fixture.records().await.is_empty();
    walpost_bed::eventually(SHORT_TIMEOUT, "records come", came).await;
    kafka.drop_password("relay").await;
    let line = walpost.await_line("the credentials are refused", LONG_TIMEOUT).await;
    assert!(line.contains(KAFKA_UNAVAILABLE), "{line}");
    // A new connection is refused at once, an older one within two seconds.
    let confirmed = async || fixture.confirmed_flush().await;
    walpost_bed::unchanged(Duration::from_secs(3), LONG_TIMEOUT, confirmed).await;
    confirms_nothing(&fixture, &writer).await;
    kafka.set_password("relay", "first").await;
    walpost.await_line(KAFKA_RECOVERED, SHORT_TIMEOUT).await;
    report.ok(&fixture.judge_after(writer).await);
    report.did("said that the credentials are refused");
    report.still_running(&walpost);
}
