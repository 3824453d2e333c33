//! A database with an outbox, a NATS server, and the walpost binary between them.

use std::ops::{Deref, DerefMut};

use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::oracle::Verdict;
use walpost_bed::writer::Writer;
use walpost_bed::{Consumed, Major, Nats, NatsBuilder, Postgres, SinkFixture};

use crate::kills::Promise;

/// The configured stream.
pub const STREAM: &str = "orders";

/// Its subjects.
pub const SUBJECTS: &[&str] = &["outbox.>", "walpost.dead-letter", "orders.>"];

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
        let sink =
            SinkFixture::over(postgres, "nats", nats.url(), &[("WALPOST_NATS_STREAM", STREAM)])
                .await;
        Self { nats, sink }
    }

    /// A configuration file that every command has from here on.
    #[must_use]
    pub fn configured(self, toml: &str) -> Self {
        self.configure(toml);
        self
    }

    pub async fn records(&self) -> Vec<Consumed> {
        self.nats.records(STREAM).await
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

impl Promise for NatsFixture {
    async fn assert_kept(&self, rolled_back: &[String]) {
        self.judge_with(rolled_back).await.assert_exact();
    }
}
