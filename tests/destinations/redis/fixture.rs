//! A database with an outbox, a Redis server, and the walpost binary between them.

use std::ops::{Deref, DerefMut};

use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::oracle::Verdict;
use walpost_bed::writer::Writer;
use walpost_bed::{Consumed, Major, Postgres, Redis, RedisBuilder, SinkFixture};

use crate::kills::Promise;

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

    pub async fn records(&self) -> Vec<Consumed> {
        self.redis.records(STREAM).await
    }

    /// The oracle on everything: the table against the stream.
    pub async fn judge(&self) -> Verdict {
        self.judge_with(&[]).await
    }

    pub async fn judge_with(&self, rolled_back: &[String]) -> Verdict {
        self.verdict(&self.records().await, rolled_back).await
    }

    /// Everything is confirmed, and each row is in the stream once.
    pub async fn assert_exact(&self) {
        self.confirmed(LONG_TIMEOUT).await;
        self.judge().await.assert_exact();
    }

    /// The same once the writer has stopped, without its rolled-back rows.
    pub async fn assert_exact_after(&self, writer: Writer) {
        let rolled_back = writer.stop().await;
        self.confirmed(LONG_TIMEOUT).await;
        self.judge_with(&rolled_back).await.assert_exact();
    }
}

impl Promise for RedisFixture {
    async fn assert_kept(&self, rolled_back: &[String]) {
        self.judge_with(rolled_back).await.assert_exact();
    }
}
