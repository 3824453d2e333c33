//! Signatures and credentials: right, wrong, and changed while walpost runs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};

use super::fixture::HttpFixture;
use super::receiver::{Answer, Received};
use crate::promise::Promise;

const SECRETS: [[u8; 32]; 2] = [[1; 32], [2; 32]];

pub fn secret(number: usize) -> String {
    format!("whsec_{}", STANDARD.encode(SECRETS[number]))
}

/// Whether one of its signatures is that of a secret.
pub fn is_signed(request: &Received, number: usize) -> bool {
    let part = |name: &str| request.header(name).expect(name);
    let (id, seconds) = (part("webhook-id"), part("webhook-timestamp"));
    let key = ring_key(&SECRETS[number]);
    let content = [id.as_bytes(), b".", seconds.as_bytes(), b".", &request.body].concat();
    part("webhook-signature").split(' ').any(|signature| {
        let tag = signature.strip_prefix("v1,").expect("a version");
        let tag = STANDARD.decode(tag).expect("base64");
        ring::hmac::verify(&key, &content, &tag).is_ok()
    })
}

fn ring_key(secret: &[u8]) -> ring::hmac::Key {
    ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_signed_with_each_secret_of_the_file() {
    let fixture = HttpFixture::new().await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), secret(0)).expect("written");
    let command = fixture.command("run").env("WALPOST_HTTP_SECRET_FILE", file.path());
    let walpost = command.start();
    fixture.insert(5, 2).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let before = fixture.receiver.accepted();
    assert!(before.iter().all(|request| is_signed(request, 0) && !is_signed(request, 1)));
    // It is read again with each connection.
    std::fs::write(file.path(), format!("{} {}\n", secret(0), secret(1))).expect("written");
    fixture.receiver.stop().await;
    fixture.receiver.start_again();
    fixture.insert(5, 2).await;
    fixture.assert_exact().await;
    let after = fixture.receiver.accepted().split_off(before.len());
    assert!(after.iter().all(|request| is_signed(request, 0) && is_signed(request, 1)));
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization_is_sent_and_a_wrong_one_is_named_and_costs_no_event() {
    let fixture = HttpFixture::new().await.configured("[poison]\nrefused = 'skip'\n");
    fixture.receiver.answers(|request| match request.header("authorization") {
        Some("Bearer right") => Answer::of(200),
        _ => Answer::of(401),
    });
    fixture.insert(3, 3).await;
    let wrong = fixture.command("run").env("WALPOST_HTTP_AUTHORIZATION", "Bearer wr0ng").start();
    let line = wrong.await_line("answered 401", SHORT_TIMEOUT).await;
    assert!(line.contains("http.authorization"), "{line}");
    assert!(!wrong.said("wr0ng"), "{:?}", wrong.stderr());
    stop(wrong).await;
    let right = fixture.command("run").env("WALPOST_HTTP_AUTHORIZATION", "Bearer right").start();
    fixture.assert_exact().await;
    stop(right).await;
}

/// An endpoint's error page may repeat the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_an_answer_is_logged_at_debug_alone() {
    let fixture = HttpFixture::new().await;
    fixture.insert(3, 3).await;
    // One that is tried again, and one that makes the event a suspect.
    for (status, level, is_logged) in
        [(500, "info", false), (500, "debug", true), (403, "debug", true)]
    {
        fixture.receiver.answers(move |request| {
            let body = format!("denied: {}", request.header("authorization").unwrap_or_default());
            Answer { body, ..Answer::of(status) }
        });
        let walpost = fixture
            .command("run")
            .args(["--log-level", level])
            .env("WALPOST_HTTP_AUTHORIZATION", "Bearer t0ken")
            .start();
        walpost.await_line(&format!("answered {status}"), SHORT_TIMEOUT).await;
        if is_logged {
            walpost.await_line("t0ken", SHORT_TIMEOUT).await;
        }
        assert_eq!(walpost.said("t0ken"), is_logged, "{:?}", walpost.stderr());
        // A stop would wait for the event.
        walpost.kill9().await;
    }
}
