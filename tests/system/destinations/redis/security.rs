//! A password that changes while walpost runs.

use walpost_bed::Redis;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};

use super::fixture::RedisFixture;
use crate::promise::Promise;

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
