//! A database with an outbox, a Redis server, and the walpost binary between them.

use std::ops::{Deref, DerefMut};

use walpost_bed::{Consumed, Major, Postgres, Redis, RedisBuilder, SinkFixture};

use crate::promise::{Destination, Promise};

/// The configured stream.
pub const STREAM: &str = "orders";

pub struct RedisFixture {
    pub redis: Redis,
    sink: SinkFixture,
}

impl Deref for RedisFixture {
    type Target = SinkFixture;

    fn deref(&self) -> &SinkFixture {
        &self.sink
    }
}

impl DerefMut for RedisFixture {
    fn deref_mut(&mut self) -> &mut SinkFixture {
        &mut self.sink
    }
}

impl RedisFixture {
    /// After `walpost init --apply` and `walpost adopt --apply`.
    pub async fn new() -> Self {
        Self::with(Redis::builder()).await
    }

    /// A fixture whose server is the test's alone, as it always is here.
    pub async fn alone() -> Self {
        Self::new().await
    }

    pub async fn with(redis: RedisBuilder) -> Self {
        let fixture = Self::bare(redis.start().await).await;
        fixture.adopt().await;
        fixture
    }

    /// Before `walpost adopt --apply`.
    pub async fn bare(redis: Redis) -> Self {
        Self::over(Postgres::start(Major::V15).await, redis).await
    }

    /// The same on this server.
    pub async fn over(postgres: Postgres, redis: Redis) -> Self {
        let sink =
            SinkFixture::over(postgres, "redis", redis.url(), &[("WALPOST_REDIS_STREAM", STREAM)])
                .await;
        Self { redis, sink }
    }

    /// A configuration file that every command has from here on.
    #[must_use]
    pub fn configured(self, toml: &str) -> Self {
        self.configure(toml);
        self
    }
}

impl Promise for RedisFixture {
    const ONCE: bool = true;
    async fn records(&self) -> Vec<Consumed> {
        self.redis.records(STREAM).await
    }
}

impl Destination for RedisFixture {
    const NAME: &str = "Redis";

    fn port(&self) -> u16 {
        self.redis.port()
    }

    fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}")
    }

    fn described(&self, _: u16) -> String {
        format!("\"stream\":\"{STREAM}\"")
    }

    async fn kill(&self) {
        self.redis.kill9().await;
    }

    async fn start_again(&self) {
        self.redis.start_again().await;
    }
}
