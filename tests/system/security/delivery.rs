//! Delivers with every authentication method, as `docs/security.md` shows it.

use walpost_bed::fixture::{SHORT_TIMEOUT, insert};

use super::examples::{file, hba};
use super::fixture::{ROLE_PASSWORD, SecureFixture, USER, showing};
use super::oauth_token::token;

/// Twenty rows through a walpost that authenticates by these examples.
async fn delivers(
    fixture: &SecureFixture,
    bootstrap: &str,
    database: &str,
    broker: &str,
    password: &str,
) {
    fixture.file("pgpass", "");
    file(fixture, "pgpass", "A password", "pgpass", "p0stgres-s3cret");
    fixture.file("token", &token(3600));
    let source = file(fixture, "url", database, "url", "p0stgres-s3cret");
    let kafka = file(fixture, "kafka", broker, "properties", password);
    let walpost = fixture.command("run", bootstrap, &source, &kafka).start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.fixture.postgres.execute(&insert(20, 3)).await;
    fixture.fixture.assert_exact(SHORT_TIMEOUT).await;
    walpost.terminate();
    let status = walpost.wait(SHORT_TIMEOUT).await.expect("walpost stops");
    assert!(status.success(), "{:?}", walpost.stderr());
    // The first preflight check on such a fixture has no finding.
    let check = fixture.command("check", bootstrap, &source, &kafka).start();
    let status = check.wait(SHORT_TIMEOUT).await.expect("it ends");
    assert!(status.success(), "{:?} {:?}", check.stdout(), check.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivers_with_passwords_over_tls() {
    let fixture = SecureFixture::new(&hba("A password")).await;
    let secure = fixture.kafka.kafka.secure_bootstrap();
    delivers(&fixture, &secure, "A password", "SCRAM", "scr4m-s3cret").await;
    delivers(&fixture, &secure, "A password", "PLAIN", "pl4in-s3cret").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivers_with_client_certificates_and_tokens() {
    let fixture = SecureFixture::new(&hba("A certificate")).await;
    let broker = &fixture.kafka.kafka;
    let mutual = broker.mutual_bootstrap();
    delivers(&fixture, &mutual, "A certificate", "A client certificate", "").await;
    delivers(&fixture, &broker.secure_bootstrap(), "A certificate", "OAUTHBEARER", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivers_with_password_and_client_certificate() {
    let both = "hostssl all walpost 127.0.0.1/32 scram-sha-256 clientcert=verify-full";
    let fixture = SecureFixture::new(both).await;
    let pair = fixture.kafka.authority.client("beside", USER);
    let source = fixture.file("url", &fixture.source_with(ROLE_PASSWORD, &showing(&pair)));
    let kafka = fixture.file("kafka", &fixture.login("SCRAM-SHA-512", USER, "scr4m-s3cret"));
    let secure = fixture.kafka.kafka.secure_bootstrap();
    let walpost = fixture.command("run", &secure, &source, &kafka).start();
    fixture.fixture.postgres.execute(&insert(20, 3)).await;
    fixture.fixture.assert_exact(SHORT_TIMEOUT).await;
    drop(walpost);
}
