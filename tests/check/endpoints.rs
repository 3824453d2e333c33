//! The address of the endpoints is another's or none of this machine, and traces that cannot
//! be sent.

use tokio::net::TcpListener;
use walpost_bed::Walpost;
use walpost_bed::scene::{SOON, ended, program};

use crate::connection::free_port;
use crate::stage::Stage;

const LISTEN: &str = "--admin-listen";

fn free() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// `walpost run` on the stage, to its end or for good.
fn run(stage: &Stage) -> Walpost {
    Walpost::builder(program())
        .args(["run", "--source", &stage.source, "--bootstrap-servers", &stage.bootstrap])
        .args(&stage.options)
        .envs(&stage.environment)
        .start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_the_endpoints_is_another_programs() {
    let mut stage = Stage::new().await;
    stage.option(LISTEN, &free());
    stage.check().await.finding("ok", "admin_listen");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let taken = listener.local_addr().expect("an address").to_string();
    stage.option(LISTEN, &taken);
    // It hangs up on everybody.
    let other = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    assert_eq!(ended(&run(&stage)).await.0, Some(78), "`run` would not start");
    let follow = async |stage: &mut Stage, _: &str| stage.option(LISTEN, &free());
    let words = ["admin.listen", "off"];
    let report = stage.advised("error", "admin_listen_in_use", &words, follow).await;
    let what = report.finding("error", "admin_listen_in_use")["what"].to_string();
    assert!(what.contains(&taken) && what.contains("another program"), "{what}");
    other.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_the_endpoints_is_another_walposts() {
    let mut stage = Stage::new().await;
    stage.option(LISTEN, &free());
    let walpost = run(&stage);
    walpost.await_line("streaming from PostgreSQL", SOON).await;
    // The one that is to be upgraded.
    let report = stage.check().await;
    let what = report.finding("ok", "admin_listen")["what"].to_string();
    assert!(what.contains("the walpost of this slot") && what.contains("127.0.0.1"), "{what}");
    let (slot, another) = (stage.slot().to_owned(), format!("{}_2", stage.slot()));
    stage.walpost(&["init", "--apply", "--slot", &another]).await;
    stage.option("--slot", &another);
    assert_eq!(ended(&run(&stage)).await.0, Some(78), "`run` would not start");
    let follow = async |stage: &mut Stage, _: &str| stage.option(LISTEN, "off");
    let report = stage.advised("error", "admin_listen_in_use", &["admin.listen"], follow).await;
    let what = report.finding("error", "admin_listen_in_use")["what"].as_str().expect("text");
    assert!(what.contains(&format!("walpost of slot \"{slot}\"")), "{what}");
    walpost.terminate();
    assert!(walpost.wait(SOON).await.is_some_and(|status| status.success()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_the_endpoints_is_none_of_this_machine() {
    let mut stage = Stage::new().await;
    // Of TEST-NET-1 (RFC 5737), which nobody has.
    stage.option(LISTEN, "192.0.2.1:9641");
    assert_eq!(ended(&run(&stage)).await.0, Some(78), "`run` would not start");
    let follow = async |stage: &mut Stage, _: &str| stage.option(LISTEN, &free());
    stage.advised("error", "admin_listen", &["this machine"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_cannot_be_sent_as_the_variables_say() {
    let mut stage = Stage::new().await;
    stage.check().await.has_no("traces");
    let set = |stage: &mut Stage, value: &str| {
        stage.environment = vec![("OTEL_EXPORTER_OTLP_ENDPOINT".into(), value.into())];
    };
    set(&mut stage, "http://[collector:4318");
    let run = ended(&run(&stage)).await;
    assert_eq!(run.0, Some(78), "{}", run.1);
    let follow = async |stage: &mut Stage, _: &str| set(stage, "http://127.0.0.1:4318");
    let report = stage.advised("error", "traces", &["OTEL_*"], follow).await;
    let what = report.finding("error", "traces")["what"].to_string();
    assert!(what.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{what}");
    // Nothing is sent, so that nobody has to be there.
    let report = stage.check_with(&["--offline"]).await;
    report.finding("ok", "traces");
}
