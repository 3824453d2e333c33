//! A database with an outbox, a Redis server, and the walpost binary between them.

use std::sync::Arc;

use redis::Value;
use walpost_bed::{
    CertificateAuthority, Consumed, Major, Postgres, Redis, RedisBuilder, SinkFixture,
};

use crate::position::Keeper;
use crate::promise::{Destination, Promise, over_sink};
use crate::security::Secured;

/// The configured stream.
pub const STREAM: &str = "orders";

/// The state key beside it.
pub const KEY: &str = "walpost:{orders}";

/// What the page lists, for a user of walpost's own.
const RULES: &str = "on >s3cret ~orders ~walpost.dead-letter ~walpost:{orders} resetchannels -@all +evalsha +eval \
                     +script|load +xadd +xrevrange +xrange +xdel +xinfo|stream +xgroup|create +xgroup|destroy +hget \
                     +hmget +hset +hdel +ping +wait +hello +auth +select";

pub struct RedisFixture {
    pub redis: Redis,
    sink: SinkFixture,
}

over_sink!(RedisFixture);

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

    /// Before `walpost adopt --apply`, on a server that is the test's alone.
    pub async fn before_adopt() -> Self {
        Self::bare(Redis::start().await).await
    }

    /// The same with a user of walpost's own besides.
    pub async fn of_user() -> Self {
        let user = format!("walpost {RULES}");
        Self::bare(Redis::builder().setting("user", &user).start().await).await
    }

    /// Its data can be set back to a snapshot.
    pub async fn restorable() -> Self {
        Self::with(Redis::builder().setting("appendonly", "no")).await
    }

    /// Writes are synced once a second.
    pub async fn syncing_seldom() -> Self {
        Self::with(Redis::builder().setting("appendfsync", "everysec")).await
    }

    pub async fn with_tls() -> Secured<Self> {
        Self::secured("no").await
    }

    pub async fn with_mutual_tls() -> Secured<Self> {
        Self::secured("yes").await
    }

    async fn secured(verifies: &str) -> Secured<Self> {
        let authority = Arc::new(CertificateAuthority::new());
        let redis = Redis::builder().tls(&authority).setting("tls-auth-clients", verifies);
        Secured { fixture: Self::bare(redis.start().await).await, authority, _front: None }
    }

    /// A database with an identity of its own, after `walpost adopt --apply`.
    pub async fn of_own_server() -> Self {
        let server = Postgres::builder(Major::V15).own_identity().start().await;
        let fixture = Self::over(server, Redis::start().await).await;
        fixture.adopt().await;
        fixture
    }

    async fn over(postgres: Postgres, redis: Redis) -> Self {
        let sink =
            SinkFixture::over(postgres, "redis", redis.url(), &[("WALPOST_REDIS_STREAM", STREAM)])
                .await;
        Self { redis, sink }
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
    const HAS_POSITION: bool = true;

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

impl Keeper for RedisFixture {
    const PLACE: &str = KEY;
    const FOREIGN: &str = "another writer";
    const DELETED: &str = "redis_state";
    const MADE_AGAIN: &str = "made again";

    async fn another() -> Self {
        Self::of_own_server().await
    }

    async fn length(&self) -> usize {
        self.redis.length(STREAM).await
    }

    async fn generations(&self) -> Vec<Option<String>> {
        let entries = self.redis.entries(STREAM).await.into_iter();
        let first =
            |id: &str| id.split_once('-').expect("an id").0.parse::<u64>().expect("a number");
        entries.map(|entry| Some((first(&entry.id) >> 56).to_string())).collect()
    }

    /// Its id is the one that walpost would use next: it must not count as walpost's.
    async fn write_as_another(&self) {
        let _: String = self.redis.command(&format!("XADD {STREAM} * topic foreign")).await;
    }

    async fn delete_stream(&self) {
        let _: u32 = self.redis.command(&format!("DEL {STREAM}")).await;
    }

    async fn make_stream(&self) {
        let make = format!("XGROUP CREATE {STREAM} readers $ MKSTREAM");
        let _: Value = self.redis.command(&make).await;
    }

    async fn remove_oldest(&self, count: usize) {
        let left = self.length().await - count;
        let _: usize = self.redis.command(&format!("XTRIM {STREAM} MAXLEN = {left}")).await;
    }

    async fn replace_owner(&self, owner: &str) -> String {
        let former = self.redis.command(&format!("HGET {KEY} owner")).await;
        let _: u32 = self.redis.command(&format!("HSET {KEY} owner {owner}")).await;
        former
    }

    async fn snapshot(&self) {
        let _: () = self.redis.command("SAVE").await;
    }

    async fn set_back(&self) {
        self.kill().await;
        self.start_again().await;
    }
}
