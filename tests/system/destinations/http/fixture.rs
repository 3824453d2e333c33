//! A database with an outbox, an HTTP server, and the walpost binary between them.

use std::ops::{Deref, DerefMut};

use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::{Consumed, Major, Postgres, SinkFixture};

use super::receiver::Receiver;
use crate::promise::Promise;

pub struct HttpFixture {
    pub receiver: Receiver,
    sink: SinkFixture,
}

impl Deref for HttpFixture {
    type Target = SinkFixture;

    fn deref(&self) -> &SinkFixture {
        &self.sink
    }
}

impl DerefMut for HttpFixture {
    fn deref_mut(&mut self) -> &mut SinkFixture {
        &mut self.sink
    }
}

impl HttpFixture {
    /// After `walpost init --apply`.
    pub async fn new() -> Self {
        Self::with(Receiver::start()).await
    }

    pub async fn with(receiver: Receiver) -> Self {
        let postgres = Postgres::start(Major::V15).await;
        let url = format!("http://127.0.0.1:{}/events", receiver.port());
        let sink = SinkFixture::over(postgres, "http", url, &[]).await;
        Self { receiver, sink }
    }

    /// A configuration file that every command has from here on.
    #[must_use]
    pub fn configured(self, toml: &str) -> Self {
        self.configure(toml);
        self
    }
}

impl Promise for HttpFixture {
    const ONCE: bool = false;

    async fn records(&self) -> Vec<Consumed> {
        self.receiver.records()
    }

    /// And no key had two requests at a time.
    async fn assert_exact(&self) {
        self.confirmed(LONG_TIMEOUT).await;
        self.judge().await.assert_exact();
        self.receiver.assert_one_at_a_time();
    }
}
