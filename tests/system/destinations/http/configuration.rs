//! Settings of the wrong destination, commands that need Kafka, and what `check` finds.

use serde_json::Value;
use walpost_bed::fixture::LONG_TIMEOUT;

use super::fixture::HttpFixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_do_not_fit_are_errors() {
    let fixture = HttpFixture::new().await;
    for (toml, part) in [
        ("[kafka]\nbootstrap_servers = 'k:9092'\n", "`kafka.bootstrap_servers`"),
        ("[redis]\nstream = 'x'\n", "`redis.stream`"),
        ("[delivery]\nmode = 'exactly-once'\n", "`delivery.mode`"),
        ("[http]\nca_file = '/ca.pem'\n", "https://"),
        ("[http]\ncert_file = '/own.pem'\nkey_file = '/own.key'\n", "https://"),
        ("[http]\nsecret = 's3cret'\n", "openssl rand"),
        ("[http]\nlanes = 0\n", "`http.lanes`"),
        ("[http]\ntimeout = '0s'\n", "`http.timeout`"),
        ("[http]\nauthorization = \"Bearer s3cret\\n\"\n", "`http.authorization`"),
        ("[record]\nplace = ['n:partition']\n", "only topics of Kafka"),
        ("[poison]\nrefused = 'dead_letter'\n", "{topic}"),
        ("[poison]\ntoo_large = 'dead_letter'\n", "`poison.too_large`"),
    ] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let path = file.path().to_str().expect("UTF-8");
        let (code, said) = fixture.ended("run", &["--config", path]).await;
        assert_eq!(code, Some(78), "{toml}: {said}");
        assert!(said.contains(part) && !said.contains("s3cret"), "{toml}: {said}");
    }
    let without = fixture.command_without_url("run").start();
    let (code, said) = walpost_bed::fixture::ended(&without).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("http.url"), "{said}");
    let (code, said) = fixture.ended("prune", &["--older-than", "7d"]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("sink.kind = \"http\""), "{said}");
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0));
    assert!(said.contains("no position of its own"), "{said}");
}

async fn codes(fixture: &HttpFixture, arguments: &[&str]) -> Vec<(String, String)> {
    let check = fixture.command("check").args(["--json"]).args(arguments).start();
    check.wait(LONG_TIMEOUT).await.expect("check ends");
    let report: Value = serde_json::from_str(&check.stdout().join("\n")).expect("JSON");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("findings").iter();
    let of_http = findings.filter(|finding| finding["subject"] == "HTTP endpoint");
    of_http.map(|finding| (text(finding, "level"), text(finding, "code"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_sends_nothing_and_finds_a_server_that_is_away() {
    let mut fixture = HttpFixture::new().await;
    let of = |level: &str, code: &str| (level.to_owned(), code.to_owned());
    let unsigned = of("warning", "http_unsigned");
    assert_eq!(codes(&fixture, &["--offline"]).await, [unsigned.clone(), of("skipped", "http")]);
    assert_eq!(codes(&fixture, &[]).await, [unsigned.clone(), of("ok", "http_server")]);
    assert!(fixture.receiver.requests().is_empty());
    fixture.receiver.stop().await;
    assert_eq!(codes(&fixture, &[]).await, [unsigned, of("error", "http_unreachable")]);
    fixture.url = "ftp://h".to_owned();
    assert_eq!(codes(&fixture, &[]).await, [of("error", "http_config")]);
}
