//! TLS, and logins: right, wrong, and changed while walpost runs.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::{CertificateAuthority, Redis};

use super::fixture::RedisFixture;
use crate::promise::Promise;

/// What the page lists, for a user of walpost's own.
pub const RULES: &str = "on >s3cret ~orders ~walpost.dead-letter ~walpost:{orders} resetchannels -@all +evalsha +eval \
                     +script|load +xadd +xinfo|stream +xgroup|create +xgroup|destroy +hget \
                     +hmget +hset +hdel +ping +wait +hello +auth +select";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_private_authority_is_used_and_verified() {
    let authority = CertificateAuthority::new();
    let redis = Redis::builder().tls(&authority).start().await;
    let stranger = CertificateAuthority::new();
    let fixture = RedisFixture::bare(redis).await;
    let ca = |authority: &CertificateAuthority| {
        format!("[redis]\nca_file = '{}'\n", authority.root().display())
    };
    let fixture = fixture.configured(&ca(&stranger));
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0));
    assert!(said.contains("TLS to 127.0.0.1"), "{said}");
    let fixture = fixture.configured(&ca(&authority));
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_is_shown_to_a_server_that_verifies_it() {
    let authority = CertificateAuthority::new();
    let redis = Redis::builder().tls(&authority).setting("tls-auth-clients", "yes").start().await;
    let fixture = RedisFixture::bare(redis).await;
    let root = format!("[redis]\nca_file = '{}'\n", authority.root().display());
    let fixture = fixture.configured(&root);
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0), "{said}");
    let own = authority.client("walpost", "walpost");
    let certificate = format!("{root}cert_file = '{}'\n", own.certificate.display());
    let fixture = fixture.configured(&certificate);
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("set redis.key_file"), "{said}");
    let fixture = fixture.configured(&format!("{certificate}key_file = '{}'\n", own.key.display()));
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_with_the_documented_rights_is_enough_and_its_password_is_never_shown() {
    let redis = Redis::builder().setting("user", &format!("walpost {RULES}")).start().await;
    let mut fixture = RedisFixture::bare(redis).await;
    let address = fixture.url.trim_start_matches("redis://").to_owned();
    fixture.url = format!("redis://walpost:wr0ng@{address}");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("Redis refuses walpost's credentials"), "{said}");
    assert!(!said.contains("wr0ng"), "{said}");
    fixture.url = format!("redis://walpost:s3cret@{address}");
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let (_, said) = fixture.ended("config", &[]).await;
    assert!(said.contains("redis.url") && !said.contains("s3cret"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_password_is_read_from_its_file() {
    let redis = Redis::builder().setting("requirepass", "").start().await;
    let fixture = RedisFixture::bare(redis).await;
    fixture.adopt().await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("url");
    std::fs::write(&file, &fixture.url).expect("it can be written");
    let command = fixture.command("run");
    let walpost = command.env("WALPOST_REDIS_URL_FILE", &file);
    // One of the two alone may be set.
    let walpost = walpost.env("WALPOST_REDIS_URL", "");
    let both = walpost.start();
    both.wait(SHORT_TIMEOUT).await.expect("it ends");
    assert!(both.said("WALPOST_REDIS_URL"), "{:?}", both.stderr());
    let walpost = fixture.command_without_url("run").env("WALPOST_REDIS_URL_FILE", &file).start();
    fixture.insert(10, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let _: () = fixture.redis.command("CONFIG SET requirepass n3w").await;
    // Redis keeps sessions that were logged in: this one is closed.
    let mut client = redis_client(&fixture, "n3w").await;
    let _: u32 = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .arg("SKIPME")
        .arg("yes")
        .query_async(&mut client)
        .await
        .expect("clients are killed");
    fixture.insert(10, 5).await;
    walpost.await_line("the credentials are refused", SHORT_TIMEOUT).await;
    let address = fixture.url.trim_start_matches("redis://");
    std::fs::write(&file, format!("redis://:n3w@{address}")).expect("it can be written");
    walpost.await_line("delivering to Redis again", LONG_TIMEOUT).await;
    // By then both connections are logged in: without a password Redis refuses this one, too.
    fixture.confirmed(LONG_TIMEOUT).await;
    let _: () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("requirepass")
        .arg("")
        .query_async(&mut client)
        .await
        .expect("it is set");
    fixture.assert_exact().await;
    stop(walpost).await;
}

async fn redis_client(fixture: &RedisFixture, password: &str) -> redis::aio::MultiplexedConnection {
    let address = fixture.url.trim_start_matches("redis://");
    let client = redis::Client::open(format!("redis://:{password}@{address}")).expect("a URL");
    client.get_multiplexed_async_connection().await.expect("a connection")
}
