//! Settings that do not fit, commands that need another destination, and what `check` finds.

use serde_json::{Value, json};
use walpost_bed::ElasticMq;
use walpost_bed::fixture::{LONG_TIMEOUT, ended};

use super::fixture::SqsFixture;
use super::front::Deed;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_do_not_fit_are_errors() {
    let mut fixture = SqsFixture::new().await;
    let own = fixture.url.clone();
    let same = format!("[sqs]\ndead_letter_queue_url = '{own}'\n");
    let letters = own.replace(&fixture.queue, &fixture.letters);
    let large = format!(
        "[poison]\ntoo_large = 'dead_letter'\n[sqs]\ndead_letter_queue_url = '{letters}'\n"
    );
    for (toml, part) in [
        ("[kafka]\nbootstrap_servers = 'k:9092'\n", "`kafka.bootstrap_servers`"),
        ("[http]\nurl = 'http://h'\n", "`http.url`"),
        ("[delivery]\nmode = 'exactly-once'\n", "`delivery.mode`"),
        ("[sqs]\nca_file = '/ca.pem'\n", "https://"),
        ("[sqs]\nendpoint = '127.0.0.1'\n", "`sqs.endpoint`"),
        ("[sqs]\nregion = 'EU (Frankfurt)'\n", "`sqs.region`"),
        ("[sqs]\ndead_letter_queue_url = 'http://h/1/letters'\n", "not a FIFO queue"),
        ("[sqs]\ndead_letter_queue_url = 'http://h/1/l.fifo'\n", "another server"),
        (&same, "the queue of the events"),
        ("[record]\nplace = ['n:partition']\n", "only topics of Kafka"),
        ("[poison]\nrefused = 'dead_letter'\n", "`sqs.dead_letter_queue_url`"),
        (&large, "`poison.too_large`"),
    ] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let path = file.path().to_str().expect("UTF-8");
        let (code, said) = fixture.ended("run", &["--config", path]).await;
        assert_eq!(code, Some(78), "{toml}: {said}");
        assert!(said.contains(part), "{toml}: {said}");
    }
    fixture.url = own.replace(".fifo", "");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("is not a FIFO queue") && said.contains("create-queue"), "{said}");
    fixture.url = own;
    let without = fixture.command_without_url("run").start();
    let (code, said) = ended(&without).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("sqs.queue_url"), "{said}");
    for (name, arguments) in [
        ("prune", &["--older-than", "7d"][..]),
        ("recover", &[]),
        ("replay-dead-letters", &[]),
        ("init", &["--apply", "--existing-rows"]),
    ] {
        let (code, said) = fixture.ended(name, arguments).await;
        assert_eq!(code, Some(78), "{name}: {said}");
        assert!(said.contains("does not support sink.kind = \"sqs\""), "{name}: {said}");
    }
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0));
    assert!(said.contains("no position of its own"), "{said}");
}

async fn codes(fixture: &SqsFixture, arguments: &[&str]) -> Vec<(String, String)> {
    let check = fixture.command("check").args(["--json"]).args(arguments).start();
    check.wait(LONG_TIMEOUT).await.expect("check ends");
    let report: Value = serde_json::from_str(&check.stdout().join("\n")).expect("JSON");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("findings").iter();
    let of_sqs = findings.filter(|finding| finding["subject"] == "SQS");
    of_sqs.map(|finding| (text(finding, "level"), text(finding, "code"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_sends_nothing_and_finds_what_is_wrong() {
    let (mut fixture, front) = SqsFixture::behind_front().await;
    let of = |level: &str, code: &str| (level.to_owned(), code.to_owned());
    assert_eq!(codes(&fixture, &["--offline"]).await, [of("skipped", "sqs")]);
    assert_eq!(codes(&fixture, &[]).await, [of("ok", "sqs_queue")]);
    assert!(front.batches().is_empty());
    front.does(|_| Deed::Error(403, "AccessDenied", "no"));
    assert_eq!(codes(&fixture, &[]).await, [of("error", "sqs_credentials")]);
    front.does(|_| Deed::Pass);
    let letters = fixture.url.replace(&fixture.queue, &fixture.letters);
    let toml =
        format!("[sqs]\ndead_letter_queue_url = '{letters}'\n[poison]\nrefused = 'dead_letter'\n");
    fixture.configure(&toml);
    let both = [of("ok", "sqs_queue"), of("ok", "sqs_dead_letter_queue")];
    assert_eq!(codes(&fixture, &[]).await, both);
    fixture.elasticmq.delete_queue(&fixture.letters).await;
    assert_eq!(codes(&fixture, &[]).await, [of("error", "sqs_unusable")]);
    fixture.configure("");
    fixture.url = ElasticMq::queue_url_at(1, &fixture.queue);
    assert_eq!(codes(&fixture, &[]).await, [of("error", "sqs_unreachable")]);
    fixture.url = "http://h/plain".to_owned();
    assert_eq!(codes(&fixture, &[]).await, [of("error", "sqs_config")]);
}

/// A queue whose name alone is that of a FIFO queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_that_is_no_fifo_queue_is_found() {
    let (fixture, front) = SqsFixture::behind_front().await;
    front.does(|request| match request.action.as_str() {
        "GetQueueAttributes" => Deed::Answer(json!({ "Attributes": { "DelaySeconds": "0" } })),
        _ => Deed::Pass,
    });
    let (code, said) = fixture.ended("check", &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is not a FIFO queue: create one"), "{said}");
    let walpost = fixture.command("run").start();
    walpost.await_line("is not a FIFO queue", LONG_TIMEOUT).await;
    assert!(front.batches().is_empty());
    walpost.kill9().await;
}
