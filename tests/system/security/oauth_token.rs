//! SASL/OAUTHBEARER with a token that is renewed in a file.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use walpost_bed::eventually;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended};
use walpost_bed::writer::Writer;

use super::fixture::{PASSWORD, ROLE_PASSWORD, SecureFixture, USER};

/// An unsigned token that the broker's own test module accepts, valid for that many seconds.
pub fn token(seconds: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let now = i64::try_from(now).expect("it fits");
    let claims = format!(r#"{{"sub":"{USER}","iat":{},"exp":{}}}"#, now - 60, now + seconds);
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.\n", part(r#"{"alg":"none"}"#), part(&claims))
}

fn properties(fixture: &SecureFixture, token: &Path) -> String {
    format!(
        "security.protocol=SASL_SSL\nssl.ca.location={}\nsasl.mechanism=OAUTHBEARER\n\
         sasl.oauthbearer.config=file={}\n",
        fixture.kafka.authority.root().display(),
        token.display()
    )
}

fn source(fixture: &SecureFixture) -> String {
    fixture.source_with(ROLE_PASSWORD, "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivers_with_tokens_from_a_renewed_file() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let file = fixture.file("token", &token(20));
    let kafka = fixture.file("kafka", &properties(&fixture, &file));
    let source = fixture.file("url", &source(&fixture));
    let secure = fixture.kafka.kafka.secure_bootstrap();
    let walpost = fixture.command("run", &secure, &source, &kafka).start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let writer = Writer::start(&fixture.fixture.postgres, 100);
    let came = async || !fixture.fixture.records().await.is_empty();
    eventually(SHORT_TIMEOUT, "records come", came).await;
    let first = SystemTime::now();
    fixture.file("token", &token(3600));
    // The broker ends a session with its token.
    let over = async || first.elapsed().is_ok_and(|since| since.as_secs() > 22);
    eventually(SHORT_TIMEOUT, "the first token expires", over).await;
    writer.commits(50).await;
    fixture.fixture.judge_after(writer).await.assert_ok();
    assert!(!walpost.said("the credentials are refused"), "{:?}", walpost.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_replayed_with_a_token() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let file = fixture.file("token", &token(3600));
    let kafka = fixture.file("kafka", &properties(&fixture, &file));
    let source = fixture.file("url", &source(&fixture));
    let dead = fixture.fixture.topic("dead");
    fixture.kafka.kafka.create_topic(&dead, 1).await;
    let settings =
        format!("[poison]\nmissing_field = 'dead_letter'\ndead_letter_topic = '{dead}'\n");
    let config = fixture.file("walpost.toml", &settings);
    let secure = fixture.kafka.kafka.secure_bootstrap();
    let command = fixture.command("replay-dead-letters", &secure, &source, &kafka);
    let replay = command.arg("--config").arg(&config).start();
    let (status, text) = ended(&replay).await;
    assert_eq!(status, Some(0), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_token_is_reported_with_its_file() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let secure = fixture.kafka.kafka.secure_bootstrap();
    for (text, part) in [("s3cret", "no JSON Web Token"), (&token(-10), "has expired")] {
        let file = fixture.file("token", text);
        let kafka = fixture.file("kafka", &properties(&fixture, &file));
        let source = fixture.file("url", &source(&fixture));
        let walpost = fixture.command("run", &secure, &source, &kafka).start();
        let (status, text) = ended(&walpost).await;
        assert_eq!(status, Some(78), "{text}");
        assert!(text.contains(part) && text.contains("token: "), "{text}");
        let check = fixture.command("check", &secure, &source, &kafka).start();
        let _ = check.wait(LONG_TIMEOUT).await;
        assert!(check.said(part), "{:?} {:?}", check.stdout(), check.stderr());
    }
}
