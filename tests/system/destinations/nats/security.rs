//! TLS, and logins: right, wrong, and changed while walpost runs.

use serde_json::json;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::{CertificateAuthority, Nats};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::promise::Promise;

/// What the page lists, for a user of walpost's own.
const PERMISSIONS: &str = r#"{
  publish: ["outbox.>", "walpost.dead-letter", "$JS.API.INFO",
            "$JS.API.STREAM.INFO.orders", "$JS.API.STREAM.MSG.GET.orders",
            "$JS.API.STREAM.INFO.KV_walpost_orders", "$JS.API.STREAM.MSG.GET.KV_walpost_orders",
            "$JS.API.STREAM.CREATE.KV_walpost_orders", "$KV.walpost_orders.position"]
  subscribe: ["_INBOX.>"]
}"#;

const BED: &str = "{ user: bed, password: bed }";

/// Has a user of walpost's own, that may publish events to these subjects.
pub async fn limited_to(subjects: &str) -> NatsFixture {
    let lines = users(subjects);
    let nats = Nats::builder().configured(&lines).login("bed", "bed").start().await;
    let mut fixture = NatsFixture::bare(nats).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    fixture.url = format!("nats://walpost:s3cret@{}", address(&fixture));
    fixture
}

/// The server's configuration of that user.
pub fn users(subjects: &str) -> String {
    let permissions = PERMISSIONS.replace("outbox.>", subjects);
    format!(
        "authorization {{ users = [ {BED}, {{ user: walpost, password: s3cret, \
         permissions: {permissions} }} ] }}"
    )
}

fn address(fixture: &NatsFixture) -> String {
    format!("127.0.0.1:{}", fixture.nats.port())
}

async fn delivers(fixture: &NatsFixture) {
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_private_authority_is_used_and_verified() {
    let authority = CertificateAuthority::new();
    let nats = Nats::builder().tls(&authority).start().await;
    let stranger = CertificateAuthority::new();
    let fixture = NatsFixture::bare(nats).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    let ca = |authority: &CertificateAuthority| {
        format!("[nats]\nca_file = '{}'\n", authority.root().display())
    };
    let fixture = fixture.configured(&ca(&stranger));
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0));
    assert!(said.contains("certificate"), "{said}");
    let fixture = fixture.configured(&ca(&authority));
    fixture.adopt().await;
    delivers(&fixture).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_is_shown_to_servers_that_verify_it() {
    let authority = CertificateAuthority::new();
    let fixture = NatsFixture::bare(Nats::builder().mutual_tls(&authority).start().await).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    let root = format!("[nats]\nca_file = '{}'\n", authority.root().display());
    let fixture = fixture.configured(&root);
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0), "{said}");
    let own = authority.client("walpost", "walpost");
    let certificate = format!("{root}cert_file = '{}'\n", own.certificate.display());
    let fixture = fixture.configured(&certificate);
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("set nats.key_file"), "{said}");
    let fixture = fixture.configured(&format!("{certificate}key_file = '{}'\n", own.key.display()));
    fixture.adopt().await;
    delivers(&fixture).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_with_the_documented_rights_is_enough_and_its_password_is_never_shown() {
    let mut fixture = limited_to("outbox.>").await;
    fixture.url = format!("nats://walpost:wr0ng@{}", address(&fixture));
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("NATS refuses walpost's credentials"), "{said}");
    assert!(!said.contains("wr0ng"), "{said}");
    fixture.url = format!("nats://walpost:s3cret@{}", address(&fixture));
    fixture.adopt().await;
    delivers(&fixture).await;
    let (_, said) = fixture.ended("config", &[]).await;
    assert!(said.contains("nats.url") && !said.contains("s3cret"), "{said}");
    let (code, said) = fixture.ended("check", &[]).await;
    assert!(said.contains("[ok") || code.is_some(), "{said}");
    assert!(!said.contains("does not allow"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subject_that_walposts_user_may_not_publish_to_is_waited_for() {
    let mut fixture = limited_to("outbox.event.order").await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let other = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
                 VALUES ('other', 'k', 'placed')";
    fixture.inner.postgres.execute(other).await;
    fixture.insert(3, 3).await;
    let line = walpost.await_line("trying again until it can be delivered", LONG_TIMEOUT).await;
    assert!(line.contains("user may not publish to its subject `outbox.event.other`"), "{line}");
    fixture.nats.reload(&users("outbox.>"));
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_is_a_login() {
    let nats = Nats::builder().start().await;
    let mut fixture = NatsFixture::bare(nats).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    fixture.adopt().await;
    fixture.nats.reload("authorization { token: \"s3cret\" }");
    fixture.url = format!("nats://s3cret@{}", address(&fixture));
    let walpost = fixture.run().await;
    fixture.insert(10, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    fixture.url = format!("nats://wr0ng@{}", address(&fixture));
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    fixture.nats.reload("");
    fixture.url = fixture.nats.url();
    delivers(&fixture).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nkey_is_read_from_its_file_again_when_it_changes() {
    // Made for this test, and of no other use.
    let [old, new] =
        [1_u8, 2].map(|byte| nkeys::KeyPair::new_from_raw(nkeys::KeyPairType::User, [byte; 32]));
    let (old, new) = (old.expect("a key"), new.expect("a key"));
    let users = |key: &nkeys::KeyPair| {
        format!("authorization {{ users = [ {BED}, {{ nkey: {} }} ] }}", key.public_key())
    };
    let nats = Nats::builder().configured(&users(&old)).login("bed", "bed").start().await;
    let fixture = NatsFixture::bare(nats).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let seed = directory.path().join("seed");
    std::fs::write(&seed, old.seed().expect("a seed")).expect("it can be written");
    let toml = format!("[nats]\ncredentials_file = '{}'\n", seed.display());
    let mut fixture = fixture.configured(&toml);
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.nats.reload(&users(&new));
    fixture.insert(10, 5).await;
    walpost.await_line("the credentials are refused", LONG_TIMEOUT).await;
    std::fs::write(&seed, new.seed().expect("a seed")).expect("it can be written");
    fixture.assert_exact().await;
    assert!(walpost.stderr().iter().all(|line| !line.contains(&new.seed().unwrap())));
    stop(walpost).await;
    std::fs::write(&seed, "no seed").expect("it can be written");
    let (_, said) = fixture.ended("check", &[]).await;
    assert!(said.contains("neither a JWT with its seed nor the seed of an NKey"), "{said}");
}
