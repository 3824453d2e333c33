//! Passwords, certificates and CAs that change while rows are written.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use walpost_bed::fixture::{AGREES, LONG_TIMEOUT, SHORT_TIMEOUT};
use walpost_bed::writer::Writer;
use walpost_bed::{CertificateAuthority, KeyPair, Walpost, eventually};

use super::fixture::{
    Broker, CERTIFICATE, PASSWORD, ROLE_PASSWORD, SecureFixture, SecureKafka, USER, showing,
};

const NEW_SESSION: &str = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
const BACK: &str = "delivering to Kafka again";
const IN_FORCE: &str = "the reloaded Kafka properties are in effect";
const STREAMING: &str = "streaming from PostgreSQL";

/// Replaces a pair of files by that of another fixture, under the same names.
fn replace(pair: &KeyPair, by: &KeyPair) {
    fs::copy(&by.certificate, &pair.certificate).expect("copied");
    fs::copy(&by.key, &pair.key).expect("copied");
}

async fn said_after(walpost: &Walpost, mark: (usize, usize), text: &str) {
    walpost.await_line_after(mark, text, LONG_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_rotation_loses_nothing_without_a_restart() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let (broker, postgres) = (&fixture.kafka.kafka, &fixture.fixture.postgres);
    broker.set_password("rotating", "first").await;
    let source = fixture.file("url", &fixture.source_with(ROLE_PASSWORD, ""));
    let kafka = fixture.file("kafka", &fixture.login("SCRAM-SHA-512", "rotating", "first"));
    let walpost = fixture.command("run", &broker.secure_bootstrap(), &source, &kafka).start();
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    let (pid, writer) = (walpost.pid(), Writer::start(postgres, 100));
    writer.commits(50).await;
    let came = async || !fixture.fixture.records().await.is_empty();
    eventually(SHORT_TIMEOUT, "records come", came).await;

    // Kafka re-authenticates open sessions after two seconds, PostgreSQL never.
    let mark = walpost.mark();
    broker.set_password("rotating", "second").await;
    said_after(&walpost, mark, "the credentials are refused").await;
    postgres.execute("ALTER ROLE walpost PASSWORD 'second'").await;
    postgres.query_text(NEW_SESSION).await;
    said_after(&walpost, mark, "password authentication failed").await;
    writer.commits(50).await;

    let mark = walpost.mark();
    fixture.file("url", &fixture.source_with("second", ""));
    fixture.file("kafka", &fixture.login("SCRAM-SHA-512", "rotating", "second"));
    said_after(&walpost, mark, STREAMING).await;
    said_after(&walpost, mark, BACK).await;
    writer.commits(50).await;
    fixture.fixture.judge_after(writer).await.assert_ok();
    assert_eq!(walpost.pid(), pid, "it was not started again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_switches_the_kafka_user_without_duplicates() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let broker = &fixture.kafka.kafka;
    broker.set_password("leaving", "one").await;
    broker.set_password("coming", "two").await;
    let source = fixture.file("url", &fixture.source_with(ROLE_PASSWORD, ""));
    let kafka = fixture.file("kafka", &fixture.login("SCRAM-SHA-512", "leaving", "one"));
    let walpost = fixture.command("run", &broker.secure_bootstrap(), &source, &kafka).start();
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    let writer = Writer::start(&fixture.fixture.postgres, 200);
    writer.commits(50).await;

    // Unchanged settings have no effect, and unusable ones are refused.
    let mark = walpost.mark();
    walpost.hangup();
    said_after(&walpost, mark, "their files: unchanged").await;
    for (wrong, named) in [("linger.ms=soon", "`linger.ms`"), ("acks=1", "`acks`")] {
        let mark = walpost.mark();
        fixture.file("kafka", &format!("{}{wrong}\n", fixture.login("PLAIN", USER, "wrong")));
        walpost.hangup();
        let line = walpost.await_line_after(mark, named, SHORT_TIMEOUT).await;
        assert!(line.contains("ERROR") && !line.contains("wrong"), "{line}");
    }
    writer.commits(50).await;

    // Settings that the brokers reject are refused too.
    let mark = walpost.mark();
    fixture.file("kafka", &fixture.login("SCRAM-SHA-512", "coming", "three"));
    walpost.hangup();
    let line = walpost.await_line_after(mark, "keeping the current ones", SHORT_TIMEOUT).await;
    assert!(line.contains("ERROR") && line.contains("uthentication"), "{line}");
    writer.commits(50).await;

    let mark = walpost.mark();
    fixture.file("kafka", &fixture.login("SCRAM-SHA-512", "coming", "two"));
    walpost.hangup();
    said_after(&walpost, mark, IN_FORCE).await;
    // On re-authentication, within two seconds, the broker rejects it.
    broker.drop_password("leaving").await;
    let since = Instant::now();
    let over = async || since.elapsed() > Duration::from_secs(3);
    eventually(SHORT_TIMEOUT, "the old user would have been asked", over).await;
    writer.commits(50).await;
    let rolled_back = writer.stop().await;
    fixture.fixture.confirmed(LONG_TIMEOUT).await;
    fixture.fixture.judge_with(&rolled_back).await.assert_exact();
    // A connection whose re-authentication is late, on a busy machine, is closed and made again.
    for trouble in ["the credentials are refused", "delivery failed; replaying"] {
        assert!(!walpost.said(trouble), "{:?}", walpost.stderr());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_are_reloaded() {
    let fixture = SecureFixture::new(CERTIFICATE).await;
    let authority = &fixture.kafka.authority;
    let pair = authority.client("renewed", USER);
    let source = fixture.source(&showing(&pair));
    let (source, kafka) =
        (fixture.file("url", &source), fixture.file("kafka", &fixture.certified(&pair)));
    let mutual = fixture.kafka.kafka.mutual_bootstrap();
    let walpost = fixture.command("run", &mutual, &source, &kafka).start();
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    let writer = Writer::start(&fixture.fixture.postgres, 100);
    writer.commits(50).await;

    // A certificate whose key is not there yet.
    let (mark, next) = (walpost.mark(), authority.client("next", USER));
    fs::copy(&next.certificate, &pair.certificate).expect("copied");
    walpost.hangup();
    let line = walpost
        .await_line_after(mark, "cannot use the reloaded Kafka properties", SHORT_TIMEOUT)
        .await;
    assert!(line.contains("ssl.key.location"), "{line}");
    writer.commits(20).await;
    let mark = walpost.mark();
    replace(&pair, &next);
    walpost.hangup();
    said_after(&walpost, mark, IN_FORCE).await;

    // PostgreSQL loads it for new sessions.
    let mark = walpost.mark();
    fixture.fixture.postgres.query_text(NEW_SESSION).await;
    said_after(&walpost, mark, STREAMING).await;
    writer.commits(50).await;
    fixture.fixture.judge_after(writer).await.assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_ca_is_trusted_once_its_root_is_in_the_file() {
    let fixture =
        SecureFixture::with(Broker::Own(Box::new(SecureKafka::new().await)), PASSWORD).await;
    let broker = &fixture.kafka.kafka;
    broker.set_password(USER, "scram").await;
    let root = fixture.file("root.pem", &read(&fixture.kafka.authority.root()));
    let login = fixture.login("SCRAM-SHA-512", USER, "scram");
    let login = login.replace(
        &fixture.kafka.authority.root().display().to_string(),
        &root.display().to_string(),
    );
    let source = fixture.file("url", &fixture.source_with(ROLE_PASSWORD, ""));
    let kafka = fixture.file("kafka", &login);
    let command = fixture.command("run", &broker.secure_bootstrap(), &source, &kafka);
    let walpost = command.args(["--log-level", "debug"]).start();
    walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    let writer = Writer::start(&fixture.fixture.postgres, 100);
    let came = async || !fixture.fixture.records().await.is_empty();
    eventually(SHORT_TIMEOUT, "records come", came).await;

    let (mark, other) = (walpost.mark(), CertificateAuthority::new());
    broker.change_certificate(&other.server("kafka")).await;
    // Existing connections would stay open.
    broker.kill9().await;
    broker.start_again().await;
    said_after(&walpost, mark, "certificate verify failed").await;
    let mark = walpost.mark();
    fixture.file("root.pem", &read(&other.root()));
    said_after(&walpost, mark, BACK).await;
    writer.commits(20).await;
    fixture.fixture.judge_after(writer).await.assert_ok();
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("readable")
}

/// The clients of the state topic take up a new password too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_rotation_with_a_state_topic_loses_nothing_without_a_restart() {
    for mode in ["at-least-once", "exactly-once"] {
        let fixture = SecureFixture::new(PASSWORD).await;
        let (broker, postgres) = (&fixture.kafka.kafka, &fixture.fixture.postgres);
        // Servers of the bed are copies of one: this tells their positions apart.
        let user = format!("rotating-{}", fixture.fixture.topic(mode));
        broker.set_password(&user, "first").await;
        let source = fixture.file("url", &fixture.source_with(ROLE_PASSWORD, ""));
        let kafka = fixture.file("kafka", &fixture.login("SCRAM-SHA-512", &user, "first"));
        let position = ["--delivery-id", &user, "--state-topic", &format!("state-{user}")];
        let command = |name| {
            fixture.command(name, &broker.secure_bootstrap(), &source, &kafka).args(position)
        };
        let adopt = command("adopt").arg("--apply").start();
        let status = adopt.wait(LONG_TIMEOUT).await.expect("it ends");
        assert!(status.success(), "{:?}", adopt.stderr());
        fixture.file("kafka", &fixture.login("SCRAM-SHA-512", &user, "wrong"));
        let wrong = command("run").args(["--delivery", mode]).start();
        let status = wrong.wait(LONG_TIMEOUT).await.expect("it ends");
        assert_eq!(status.code(), Some(78), "{:?}", wrong.stderr());
        assert!(wrong.said("Kafka refuses walpost's credentials"), "{:?}", wrong.stderr());
        fixture.file("kafka", &fixture.login("SCRAM-SHA-512", &user, "first"));
        let walpost = command("run").args(["--delivery", mode]).start();
        walpost.await_line(AGREES, SHORT_TIMEOUT).await;
        let (pid, writer) = (walpost.pid(), Writer::start(postgres, 100));
        writer.commits(50).await;
        let mark = walpost.mark();
        broker.set_password(&user, "second").await;
        said_after(&walpost, mark, "the credentials are refused").await;
        writer.commits(50).await;
        fixture.file("kafka", &fixture.login("SCRAM-SHA-512", &user, "second"));
        writer.commits(50).await;
        let verdict = fixture.fixture.judge_after(writer).await;
        if mode == "exactly-once" {
            verdict.assert_exact();
        } else {
            verdict.assert_ok();
        }
        assert_eq!(walpost.pid(), pid, "it was not started again");
    }
}

/// In exactly-once mode the state topic's thread opens the producer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_once_keeps_its_properties_while_reloaded_ones_cannot_be_used() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let (broker, postgres) = (&fixture.kafka.kafka, &fixture.fixture.postgres);
    let user = format!("keeping-{}", fixture.fixture.topic("exact"));
    broker.set_password(&user, "one").await;
    let source = fixture.file("url", &fixture.source_with(ROLE_PASSWORD, ""));
    let login = |password: &str, more: &str| {
        fixture
            .file("kafka", &format!("{}{more}\n", fixture.login("SCRAM-SHA-512", &user, password)))
    };
    let kafka = login("one", "");
    let position = ["--delivery-id", &user, "--state-topic", &format!("state-{user}")];
    let command =
        |name| fixture.command(name, &broker.secure_bootstrap(), &source, &kafka).args(position);
    let adopt = command("adopt").arg("--apply").start();
    let status = adopt.wait(LONG_TIMEOUT).await.expect("it ends");
    assert!(status.success(), "{:?}", adopt.stderr());
    let walpost = command("run").args(["--delivery", "exactly-once"]).start();
    walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    let writer = Writer::start(postgres, 100);
    writer.commits(50).await;

    // The brokers refuse the login, and a timeout beyond transaction.max.timeout.ms (15 minutes).
    for (password, more) in [("two", ""), ("one", "transaction.timeout.ms=1000000")] {
        let mark = walpost.mark();
        login(password, more);
        walpost.hangup();
        let line = walpost.await_line_after(mark, "keeping the current ones", LONG_TIMEOUT).await;
        assert!(line.contains("ERROR"), "{line}");
        writer.commits(50).await;
        fixture.fixture.confirmed(LONG_TIMEOUT).await;
    }
    let mark = walpost.mark();
    login("one", "transaction.timeout.ms=6000");
    walpost.hangup();
    said_after(&walpost, mark, IN_FORCE).await;
    writer.commits(50).await;
    fixture.fixture.judge_after(writer).await.assert_exact();
}
