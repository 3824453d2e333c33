//! A listen address that is in use or not on this machine, and traces that cannot be exported.

use tokio::net::TcpListener;
use walpost_bed::Walpost;
use walpost_bed::fixture::{SHORT_TIMEOUT, ended, program};

use crate::connection::free_port;
use crate::fixture::Fixture;

const LISTEN: &str = "--admin-listen";

fn free() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// `walpost run` on the fixture: until it exits, or until it is ended.
fn run(fixture: &Fixture) -> Walpost {
    Walpost::builder(program())
        .args(["run", "--source", &fixture.source, "--bootstrap-servers", &fixture.bootstrap])
        .args(&fixture.options)
        .envs(&fixture.environment)
        .start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_address_used_by_another_program_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.option(LISTEN, &free());
    fixture.check().await.finding("ok", "admin_listen");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let taken = listener.local_addr().expect("an address").to_string();
    fixture.option(LISTEN, &taken);
    // It closes every connection.
    let other = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    assert_eq!(ended(&run(&fixture)).await.0, Some(78), "`run` would not start");
    let follow = async |fixture: &mut Fixture, _: &str| fixture.option(LISTEN, &free());
    let words = ["admin.listen", "off"];
    let report = fixture.finding_with_advice("error", "admin_listen_in_use", &words, follow).await;
    let what = report.finding("error", "admin_listen_in_use")["what"].to_string();
    assert!(what.contains(&taken) && what.contains("another program"), "{what}");
    other.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_address_used_by_another_walpost_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.option(LISTEN, &free());
    let walpost = run(&fixture);
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    // The running walpost that is to be upgraded.
    let report = fixture.check().await;
    let what = report.finding("ok", "admin_listen")["what"].to_string();
    assert!(what.contains("the walpost of this slot") && what.contains("127.0.0.1"), "{what}");
    let (slot, another) = (fixture.slot().to_owned(), format!("{}_2", fixture.slot()));
    fixture.walpost(&["init", "--apply", "--slot", &another]).await;
    fixture.option("--slot", &another);
    assert_eq!(ended(&run(&fixture)).await.0, Some(78), "`run` would not start");
    let follow = async |fixture: &mut Fixture, _: &str| fixture.option(LISTEN, "off");
    let report = fixture
        .finding_with_advice("error", "admin_listen_in_use", &["admin.listen"], follow)
        .await;
    let what = report.finding("error", "admin_listen_in_use")["what"].as_str().expect("text");
    assert!(what.contains(&format!("walpost of slot \"{slot}\"")), "{what}");
    walpost.terminate();
    assert!(walpost.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_address_not_on_this_machine_is_reported() {
    let mut fixture = Fixture::new().await;
    // TEST-NET-1 (RFC 5737): an address of no machine.
    fixture.option(LISTEN, "192.0.2.1:9641");
    assert_eq!(ended(&run(&fixture)).await.0, Some(78), "`run` would not start");
    let follow = async |fixture: &mut Fixture, _: &str| fixture.option(LISTEN, &free());
    fixture.finding_with_advice("error", "admin_listen", &["this machine"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_trace_exporter_settings_are_reported() {
    let mut fixture = Fixture::new().await;
    fixture.check().await.has_no("traces");
    let set = |fixture: &mut Fixture, value: &str| {
        fixture.environment = vec![("OTEL_EXPORTER_OTLP_ENDPOINT".into(), value.into())];
    };
    set(&mut fixture, "http://[collector:4318");
    let run = ended(&run(&fixture)).await;
    assert_eq!(run.0, Some(78), "{}", run.1);
    let follow = async |fixture: &mut Fixture, _: &str| set(fixture, "http://127.0.0.1:4318");
    let report = fixture.finding_with_advice("error", "traces", &["OTEL_*"], follow).await;
    let what = report.finding("error", "traces")["what"].to_string();
    assert!(what.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{what}");
    // `check` sends nothing, so no collector is needed.
    let report = fixture.check_with(&["--offline"]).await;
    report.finding("ok", "traces");
}
