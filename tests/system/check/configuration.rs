//! Findings on the configuration that need no connection.

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_in_the_process_list_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.log_in_as("postgres:secret");
    let follow = async |fixture: &mut Fixture, _: &str| fixture.log_in_as("postgres");
    let words = ["WALPOST_SOURCE_URL_FILE", "PGPASSWORD"];
    fixture.finding_with_advice("warning", "password_on_command_line", &words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offline_mode_checks_only_the_configuration() {
    let mut fixture = Fixture::empty().await;
    fixture.source = "postgres://nobody@127.0.0.1:1/nothing".into();
    fixture.bootstrap = "127.0.0.1:1".into();
    let report = fixture.check_with(&["--offline"]).await;
    report.is_clean();
    for code in ["postgresql", "kafka", "admin_listen"] {
        report.skipped(code);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_mechanism_or_property_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.property("security.protocol", "SASL_PLAINTEXT");
    fixture.property("sasl.mechanisms", "GSSAPI");
    let report = fixture.check_with(&["--offline"]).await;
    report.finding("error", "sasl_mechanism");
    let follow = async |fixture: &mut Fixture, _: &str| {
        fixture.property("sasl.mechanisms", "SCRAM-SHA-256");
        fixture.property("sasl.username", "relay");
        fixture.property("sasl.password", "right");
    };
    // Another finding covers the broker's view of that mechanism.
    let words = ["PLAIN", "SCRAM-SHA-256"];
    fixture.finding_with_advice("error", "sasl_mechanism", &words, follow).await;
    fixture.property("linger.mss", "5");
    let follow = async |fixture: &mut Fixture, _: &str| {
        let last = fixture.options.last_mut().expect("a property");
        "linger.ms=5".clone_into(last);
    };
    fixture.finding_with_advice("error", "kafka_property", &["-X"], follow).await;
}

/// A self-signed certificate of a user `relay`, valid for more than two centuries.
const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyZWxheSIsImV4cCI6OTk5OTk5OTk5OX0.c2lnbmVk";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_token_location_is_reported() {
    let mut fixture = Fixture::new().await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), TOKEN).expect("written");
    fixture.property("security.protocol", "SASL_PLAINTEXT");
    fixture.property("sasl.mechanisms", "OAUTHBEARER");
    let report = fixture.check_with(&["--offline"]).await;
    let what = report.finding("error", "sasl_token")["what"].to_string();
    assert!(what.contains("set sasl.oauthbearer.config to file=PATH"), "{what}");
    let follow = async |fixture: &mut Fixture, _: &str| {
        fixture.property("sasl.oauthbearer.config", &format!("file={}", file.path().display()));
    };
    // Another finding covers the broker's view of it.
    fixture.finding_with_advice("error", "sasl_token", &["[kafka.properties]"], follow).await;
}
