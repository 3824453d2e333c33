//! The topic is missing, is deleted, or gets more partitions (22, 30).

use walpost_bed::eventually;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, create_command, insert};
use walpost_bed::oracle::judge;
use walpost_bed::writer::Writer;

use super::{KAFKA_RECOVERED, confirms_nothing, fixture_with, strict_broker, times};
use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(22, "missing_topic_is_reported_and_used_once_created", missing),
        Case::new(22, "topic_deleted_at_run_time_blocks_later_records", deleted),
        Case::new(30, "added_partitions_are_logged_and_lose_nothing", grown),
    ]
}

async fn missing(report: CaseReport) {
    let kafka = strict_broker().await;
    let fixture = fixture_with(&kafka.bootstrap()).await;
    let walpost = fixture.run_with(&["--log-level", "info,walpost=debug"]).await;
    let writer = Writer::start(&fixture.postgres, 50);
    let topic = fixture.topic("order");
    let line = walpost.await_line("delivery failed; replaying", SHORT_TIMEOUT).await;
    assert!(line.contains(&create_command(&fixture.bootstrap, &topic)), "{line}");
    confirms_nothing(&fixture, &writer).await;
    // It keeps retrying, and has logged that already.
    let tried = async || times(&walpost, "a record still is not delivered") >= 2;
    eventually(SHORT_TIMEOUT, "further attempts", tried).await;
    assert_eq!(times(&walpost, "delivery failed; replaying"), 1, "{:?}", walpost.stderr());
    kafka.create_topic(&topic, 3).await;
    report.ok(&fixture.judge_after(writer).await);
    walpost.await_line(KAFKA_RECOVERED, SHORT_TIMEOUT).await;
    report.did("named the topic once");
    report.still_running(&walpost);
}

async fn deleted(report: CaseReport) {
    let kafka = strict_broker().await;
    let fixture = fixture_with(&kafka.bootstrap()).await;
    let topic = fixture.topic("order");
    kafka.create_topic(&topic, 3).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    kafka.delete_topic(&topic).await;
    fixture.postgres.execute("DELETE FROM public.outbox").await;
    fixture.postgres.execute(&insert(10, 3)).await;
    walpost.await_line(&format!("--create --topic {topic}"), SHORT_TIMEOUT).await;
    kafka.create_topic(&topic, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&walpost);
}

async fn grown(report: CaseReport) {
    let kafka = strict_broker().await;
    let fixture = fixture_with(&kafka.bootstrap()).await;
    let topic = fixture.topic("order");
    kafka.create_topic(&topic, 2).await;
    let walpost = fixture.run_with(&["-X", "topic.metadata.refresh.interval.ms=500"]).await;
    fixture.postgres.execute(&insert(100, 20)).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    let writer = Writer::start(&fixture.postgres, 200);
    writer.commits(50).await;
    kafka.administration().grow(&topic, 5).await;
    let line = walpost.await_line("partitions", SHORT_TIMEOUT).await;
    for word in [&topic, "2", "5", "order"] {
        assert!(line.contains(word), "{word:?} in {line}");
    }
    writer.commits(200).await;
    let rolled_back = writer.stop().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(times(&walpost, "partitions"), 1, "{:?}", walpost.stderr());
    let (rows, records) = (fixture.committed().await, fixture.records().await);
    assert!(records.iter().any(|record| record.partition >= 2), "the new ones are used");
    let verdict = judge(&rows, rolled_back.iter().map(String::as_str), &records);
    // Only the order of a key's records before and after that is not kept.
    assert!(verdict.missing.is_empty() && verdict.rolled_back.is_empty(), "{verdict}");
    assert!(verdict.unexpected.is_empty() && verdict.wrong_key.is_empty(), "{verdict}");
    // Within each partition it is: there the verdict is whole.
    for partition in 0..5 {
        let of_it: Vec<_> = records.iter().filter(|one| one.partition == partition).collect();
        let ids: Vec<_> = of_it.iter().filter_map(|one| one.header("id")).collect();
        let here: Vec<_> = rows.iter().filter(|row| ids.contains(&row.id.as_str())).collect();
        let here: Vec<_> = here.into_iter().cloned().collect();
        let of_it: Vec<_> = of_it.into_iter().cloned().collect();
        report.ok(&judge(&here, std::iter::empty(), &of_it));
    }
    report.did("warned once");
    report.still_running(&walpost);
}
