//! Rights and logins: right, wrong, and changed while walpost runs.

use walpost_bed::Nats;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::{BED, NatsFixture, limited_to, users};
use crate::promise::{Destination as _, Promise as _};

fn address(fixture: &NatsFixture) -> String {
    format!("127.0.0.1:{}", fixture.nats.port())
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
    let mut fixture = NatsFixture::new().await;
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
    fixture.delivers().await;
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
    let fixture = NatsFixture::of_server(nats).await;
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
