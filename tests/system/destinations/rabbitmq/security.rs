//! TLS, logins and rights: right, wrong, and changed while walpost runs.

use walpost_bed::CertificateAuthority;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};

use super::fixture::{RabbitFixture, shared};
use crate::promise::Promise;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_private_authority_is_verified_and_a_certificate_can_be_the_login() {
    let server = shared().await;
    let mut fixture = RabbitFixture::new().await;
    fixture.url = server.rabbit.tls_url();
    let stranger = CertificateAuthority::new();
    let ca = |authority: &CertificateAuthority| {
        format!("rabbitmq.ca_file = '{}'\n", authority.root().display())
    };
    fixture.reconfigure(&ca(&stranger));
    fixture.insert(1, 1).await;
    let walpost = fixture.command("run").start();
    walpost.await_line("TLS to 127.0.0.1", SHORT_TIMEOUT).await;
    stop(walpost).await;
    let pair = server.authority.client("certified", "certified");
    let (certificate, key) = (pair.certificate.display(), pair.key.display());
    let own = format!("rabbitmq.cert_file = '{certificate}'\nrabbitmq.key_file = '{key}'\n");
    fixture.reconfigure(&(ca(&server.authority) + &own));
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let unknown = server.authority.client("unknown", "nobody");
    let (certificate, key) = (unknown.certificate.display(), unknown.key.display());
    let own = format!("rabbitmq.cert_file = '{certificate}'\nrabbitmq.key_file = '{key}'\n");
    fixture.reconfigure(&(ca(&server.authority) + &own));
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("EXTERNAL"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_with_the_documented_rights_is_enough_and_its_password_is_never_shown() {
    let mut fixture = RabbitFixture::new().await;
    let address = fixture.url.trim_start_matches("amqp://").to_owned();
    fixture.url = format!("amqp://walpost:wr0ng@{address}");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("RabbitMQ refuses walpost's credentials"), "{said}");
    assert!(!said.contains("wr0ng"), "{said}");
    fixture.url = format!("amqp://walpost:s3cret@{address}");
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let (_, said) = fixture.ended("config", &[]).await;
    assert!(said.contains("rabbitmq.url") && !said.contains("s3cret"), "{said}");
}

/// What one user may not do is not the fault of an event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_right_is_said_and_waited_for() {
    let fixture = RabbitFixture::new().await.configured("poison.refused = 'skip'\n");
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("url");
    let address = fixture.url.trim_start_matches("amqp://");
    let write = |login: &str, vhost: &str| {
        std::fs::write(&file, format!("amqp://{login}@{address}{vhost}")).expect("it is written");
    };
    write("walpost:s3cret", "/forbidden");
    let walpost =
        fixture.command_without_url("run").env("WALPOST_RABBITMQ_URL_FILE", &file).start();
    fixture.insert(10, 5).await;
    let line = walpost.await_line("NOT_ALLOWED", SHORT_TIMEOUT).await;
    assert!(line.contains("docs/rabbitmq.md"), "{line}");
    write("reader:s3cret", "");
    walpost.await_line("ACCESS_REFUSED", LONG_TIMEOUT).await;
    write("walpost:s3cret", "");
    fixture.assert_exact().await;
    walpost.await_line("delivering to RabbitMQ again", SHORT_TIMEOUT).await;
    stop(walpost).await;
}
