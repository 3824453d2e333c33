//! A database with an outbox, an HTTP server, and the walpost binary between them.

use std::ops::{Deref, DerefMut};

use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::oracle::Verdict;
use walpost_bed::writer::Writer;
use walpost_bed::{Major, Postgres, SinkFixture};

use super::receiver::Receiver;
use crate::kills::Promise;

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

    /// The oracle on everything: the table against the accepted requests.
    pub async fn judge_with(&self, rolled_back: &[String]) -> Verdict {
        self.verdict(&self.receiver.records(), rolled_back).await
    }

    /// Everything is confirmed, and each row was accepted once.
    pub async fn assert_exact(&self) {
        self.confirmed(LONG_TIMEOUT).await;
        self.judge_with(&[]).await.assert_exact();
        self.receiver.assert_one_at_a_time();
    }

    /// Once the writer has stopped, each row was accepted, in order; without its rolled-back rows.
    pub async fn assert_ok_after(&self, writer: Writer) -> Verdict {
        let rolled_back = writer.stop().await;
        self.confirmed(LONG_TIMEOUT).await;
        let verdict = self.judge_with(&rolled_back).await;
        verdict.assert_ok();
        verdict
    }
}

impl Promise for HttpFixture {
    async fn assert_kept(&self, rolled_back: &[String]) {
        self.judge_with(rolled_back).await.assert_ok();
    }
}
