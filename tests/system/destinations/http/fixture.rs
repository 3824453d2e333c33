//! A database with an outbox, an HTTP server, and the walpost binary between them.

use std::ops::{Deref, DerefMut};

use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::{Consumed, Major, Postgres, SinkFixture};

use super::receiver::Receiver;
use crate::promise::{Destination, Promise};

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

    /// A fixture whose server is the test's alone, as it always is here.
    pub async fn alone() -> Self {
        Self::new().await
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

impl Destination for HttpFixture {
    const NAME: &str = "the HTTP endpoint";

    fn port(&self) -> u16 {
        self.receiver.port()
    }

    fn url_at(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}/events")
    }

    fn described(&self, port: u16) -> String {
        format!("127.0.0.1:{port}")
    }

    async fn kill(&self) {
        self.receiver.stop().await;
    }

    async fn start_again(&self) {
        self.receiver.start_again();
    }

    async fn meanwhile(&self, random: &mut fastrand::Rng) {
        if random.bool() {
            self.kill().await;
            self.start_again().await;
        }
    }
}
