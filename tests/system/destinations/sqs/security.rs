//! Credentials: right, wrong, missing, and changed while walpost runs.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, stop};
use walpost_bed::{WalpostBuilder, eventually};

use super::fixture::SqsFixture;
use super::front::{Deed, Received};
use crate::promise::Promise;

/// Accepts requests that are signed with this key for that region.
fn takes(key: &'static str, region: &'static str) -> impl Fn(&Received) -> Deed {
    move |request| {
        let signature = request.header("authorization").unwrap_or_default();
        let credential = signature.split("Credential=").nth(1).unwrap_or_default();
        let mut parts = credential.split('/');
        let (id, at) = (parts.next(), parts.nth(1));
        if id != Some(key) {
            return Deed::Error(403, "InvalidClientTokenId", "The security token is invalid.");
        }
        if at != Some(region) || !signature.starts_with("AWS4-HMAC-SHA256 ") {
            let said = "Credential should be scoped to a valid region.";
            return Deed::Error(403, "SignatureDoesNotMatch", said);
        }
        Deed::Pass
    }
}

/// Without the credentials of the fixture.
fn without_credentials(command: WalpostBuilder) -> WalpostBuilder {
    command.env("AWS_ACCESS_KEY_ID", "").env("AWS_SECRET_ACCESS_KEY", "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_and_region_end_the_start() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    front.does(takes("AKIDBED", "elasticmq"));
    fixture.insert(3, 3).await;
    let wrong = fixture.command("run").env("AWS_ACCESS_KEY_ID", "AKIDOTHER").start();
    let (code, said) = ended(&wrong).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("InvalidClientTokenId") && said.contains("AWS credentials"), "{said}");
    let wrong = fixture.command("run").env("WALPOST_SQS_REGION", "eu-central-1").start();
    let (code, said) = ended(&wrong).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("valid region") && said.contains("sqs.region"), "{said}");
    let none = without_credentials(fixture.command("run")).start();
    let (code, said) = ended(&none).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("no AWS credentials were found"), "{said}");
    assert!(said.contains("AWS_ACCESS_KEY_ID") && !said.contains("s3cret"), "{said}");
    let right = fixture.run().await;
    fixture.assert_exact().await;
    stop(right).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_region_is_named() {
    let fixture = SqsFixture::new().await;
    let walpost = fixture.command("run").env("AWS_REGION", "").start();
    walpost.await_line("set sqs.region or AWS_REGION", SHORT_TIMEOUT).await;
    stop(walpost).await;
}

/// A right that is missing is named, and rights that are revoked are waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_right_is_waited_for() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    let said = "User is not authorized to perform: sqs:sendmessage";
    let denied = move |_: &Received| Deed::Error(403, "AccessDenied", said);
    front.does(denied);
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("not authorized") && said.contains("docs/sqs.md"), "{said}");
    front.does(|_| Deed::Pass);
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    // The queue can still be asked about, which is no reason to send at once again.
    front.does(move |request| if request.is_batch() { denied(request) } else { Deed::Pass });
    fixture.insert(3, 3).await;
    walpost.await_line("not authorized", SHORT_TIMEOUT).await;
    let (begun, sent) = (Instant::now(), front.batches().len());
    eventually(LONG_TIMEOUT, "it sends again", async || front.batches().len() >= sent + 5).await;
    assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
    front.does(|_| Deed::Pass);
    fixture.assert_exact().await;
    walpost.await_line("delivering to Amazon SQS again", SHORT_TIMEOUT).await;
    stop(walpost).await;
}

/// Those of a profile are read again once they are rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_of_a_file_are_rotated_while_walpost_runs() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("credentials");
    let write = |key: &str| {
        let text =
            format!("[billing]\naws_access_key_id = {key}\naws_secret_access_key = s3cret\n");
        std::fs::write(&file, text).expect("written");
    };
    write("AKIDONE");
    front.does(takes("AKIDONE", "elasticmq"));
    let walpost = without_credentials(fixture.command("run"))
        .env("AWS_SHARED_CREDENTIALS_FILE", &file)
        .env("AWS_PROFILE", "billing")
        .start();
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    front.does(takes("AKIDTWO", "elasticmq"));
    fixture.insert(3, 3).await;
    walpost.await_line("InvalidClientTokenId", SHORT_TIMEOUT).await;
    write("AKIDTWO");
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// The server of the requests can be another one than that of the URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoint_is_where_requests_go() {
    let mut fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    front.does(takes("AKIDBED", "eu-west-3"));
    fixture.url = format!("https://sqs.eu-west-3.amazonaws.com/000000000000/{}", fixture.queue);
    let toml = format!("[sqs]\nendpoint = 'http://127.0.0.1:{}'\n", front.port());
    let fixture = fixture.configured(&toml);
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}
