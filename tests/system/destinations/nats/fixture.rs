//! A database with an outbox, a NATS server, and the walpost binary between them.

use std::ops::{Deref, DerefMut};

use walpost_bed::{Consumed, Major, Nats, NatsBuilder, Postgres, SinkFixture};

use crate::promise::{Destination, Promise};

/// The configured stream.
pub const STREAM: &str = "orders";

/// Its subjects.
pub const SUBJECTS: &[&str] = &["outbox.>", "walpost.dead-letter", "orders.>"];

/// What is acknowledged is confirmed at once: it is lost only by what a test does to the server's files.
const VARIABLES: &[(&str, &str)] =
    &[("WALPOST_NATS_STREAM", STREAM), ("WALPOST_NATS_SYNC_INTERVAL", "0s")];

pub struct NatsFixture {
    pub nats: Nats,
    sink: SinkFixture,
}

impl Deref for NatsFixture {
    type Target = SinkFixture;

    fn deref(&self) -> &SinkFixture {
        &self.sink
    }
}

impl DerefMut for NatsFixture {
    fn deref_mut(&mut self) -> &mut SinkFixture {
        &mut self.sink
    }
}

impl NatsFixture {
    /// After `walpost init --apply` and `walpost adopt --apply`.
    pub async fn new() -> Self {
        Self::with(Nats::builder()).await
    }

    /// A fixture whose server is the test's alone, as it always is here.
    pub async fn alone() -> Self {
        Self::new().await
    }

    pub async fn with(nats: NatsBuilder) -> Self {
        let fixture = Self::bare(nats.start().await).await;
        fixture.nats.add_stream(STREAM, SUBJECTS, &serde_json::json!({})).await;
        fixture.adopt().await;
        fixture
    }

    /// Without a stream, and before `walpost adopt --apply`.
    pub async fn bare(nats: Nats) -> Self {
        Self::over(Postgres::start(Major::V15).await, nats).await
    }

    /// The same on this server.
    pub async fn over(postgres: Postgres, nats: Nats) -> Self {
        let sink = SinkFixture::over(postgres, "nats", nats.url(), VARIABLES).await;
        Self { nats, sink }
    }

    /// A configuration file that every command has from here on.
    #[must_use]
    pub fn configured(self, toml: &str) -> Self {
        self.configure(toml);
        self
    }
}

impl Promise for NatsFixture {
    const ONCE: bool = true;
    async fn records(&self) -> Vec<Consumed> {
        self.nats.records(STREAM).await
    }
}

impl Destination for NatsFixture {
    const NAME: &str = "NATS";

    fn port(&self) -> u16 {
        self.nats.port()
    }

    fn url_at(&self, port: u16) -> String {
        format!("nats://127.0.0.1:{port}")
    }

    fn described(&self, _: u16) -> String {
        format!("\"stream\":\"{STREAM}\"")
    }

    async fn kill(&self) {
        self.nats.kill9().await;
    }

    async fn start_again(&self) {
        self.nats.start_again().await;
    }
}
