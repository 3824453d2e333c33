//! Whose fault is it: the event's, or the destination's? With an ACL for each topic, Kafka answers
//! alike for a topic that is misspelt and for one whose ACL is missing.

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, program, stop};
use walpost_bed::{Kafka, Walpost, eventually};

fn rows(aggregate_type: &str, count: usize) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT '{aggregate_type}', i, 'placed', '{{}}' FROM generate_series(1, {count}) AS i; "
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_for_topics_without_an_acl_are_skipped_and_missing_acls_skip_nothing() {
    let builder = Kafka::builder().guarded().property("auto.create.topics.enable", "false");
    let kafka = builder.user("relay", "right").start().await;
    let fixture = Fixture::with_brokers(
        walpost_bed::Postgres::builder(walpost_bed::Major::V15),
        &kafka.bootstrap(),
    )
    .await;
    let topic = fixture.topic("order");
    kafka.create_topic(&topic, 3).await;
    kafka.allow("relay", &["Write", "Describe"], &topic).await;
    // A user without any right to write gets no number for a producer, and so no answer for a topic.
    kafka.allow("relay", &["Write"], &fixture.topic("other")).await;
    // The first event after the start, some among others, and one alone at the end of its transaction.
    let events = [rows("ordre", 1), rows("order", 2), rows("odrer", 3), rows("order", 2)];
    for event in &events {
        fixture.postgres.execute(event).await;
    }
    let file = tempfile::NamedTempFile::with_suffix(".toml").expect("a file");
    std::fs::write(file.path(), "poison.missing_topic = 'skip'\n").expect("it is written");
    let run = || {
        let guarded = kafka.sasl_bootstrap().expect("a user was added");
        Walpost::builder(program())
            .args(["run", "--config", file.path().to_str().expect("UTF-8")])
            .args(["--source", &fixture.source, "--bootstrap-servers", &guarded])
            .args(["--topic", &fixture.topic("{aggregate_type}")])
            .args(["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN"])
            .args(["-X", "sasl.username=relay", "-X", "sasl.password=right"])
            .start()
    };
    let walpost = run();
    fixture.confirmed(LONG_TIMEOUT).await;
    let skipped = |walpost: &Walpost| {
        walpost.stderr().iter().filter(|line| line.contains(": skipped")).count()
    };
    assert_eq!(skipped(&walpost), 4, "{:?}", walpost.stderr());
    let line = walpost.await_line(": skipped", SHORT_TIMEOUT).await;
    assert!(line.contains(&fixture.topic("ordre")) && line.contains("missing_topic"), "{line}");
    let arrived = fixture.records().await;
    let ids: std::collections::BTreeSet<_> =
        arrived.iter().map(|record| (record.partition, record.offset)).collect();
    assert!(ids.len() >= 4 && arrived.iter().all(|record| record.topic == topic), "{arrived:?}");

    // Without the ACL nothing is skipped, however many are refused, also after a new start.
    kafka.disallow("relay", &["Write", "Describe"], &topic).await;
    fixture.postgres.execute(&rows("order", 50)).await;
    let names_it = |walpost: &Walpost| walpost.said("trying again") && walpost.said(&topic);
    eventually(LONG_TIMEOUT, "it names the event", async || names_it(&walpost)).await;
    assert_eq!(skipped(&walpost), 4, "{:?}", walpost.stderr());
    stop(walpost).await;
    let walpost = run();
    eventually(LONG_TIMEOUT, "it names the event", async || {
        walpost.said("ACL operations WRITE and DESCRIBE") && walpost.said(&topic)
    })
    .await;
    kafka.allow("relay", &["Write", "Describe"], &topic).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(skipped(&walpost), 0, "{:?}", walpost.stderr());
    stop(walpost).await;
}
