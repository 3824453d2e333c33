//! Certificates as logins, and rights: right, wrong, and changed while walpost runs.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};

use super::fixture::RabbitFixture;
use crate::promise::{Destination as _, Promise as _};
use crate::security::Secured;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_can_be_the_login() {
    let Secured { fixture, authority, .. } = RabbitFixture::with_tls().await;
    let show = |user: &str| {
        let own = authority.client(user, user);
        fixture.configure(&format!(
            "rabbitmq.ca_file = '{}'\nrabbitmq.cert_file = '{}'\nrabbitmq.key_file = '{}'\n",
            authority.root().display(),
            own.certificate.display(),
            own.key.display()
        ));
    };
    show("certified");
    fixture.delivers().await;
    show("nobody");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("EXTERNAL"), "{said}");
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
