//! A database with an outbox, an HTTP server, and the walpost binary between them.

use std::sync::Arc;

use walpost_bed::{CertificateAuthority, Consumed, Major, Postgres, SinkFixture};

use super::receiver::Receiver;
use crate::promise::{Destination, Promise, over_sink};
use crate::security::Secured;
use crate::tls_front::TlsFront;

pub struct HttpFixture {
    pub receiver: Receiver,
    sink: SinkFixture,
}

over_sink!(HttpFixture);

impl HttpFixture {
    /// After `walpost init --apply`.
    pub async fn new() -> Self {
        Self::with(Receiver::start()).await
    }

    /// A fixture whose server is the test's alone, as it always is here.
    pub async fn alone() -> Self {
        Self::new().await
    }

    pub async fn with_tls() -> Secured<Self> {
        Self::secured(false).await
    }

    pub async fn with_mutual_tls() -> Secured<Self> {
        Self::secured(true).await
    }

    async fn secured(verifies: bool) -> Secured<Self> {
        let (mut fixture, authority) = (Self::new().await, CertificateAuthority::new());
        let (own, root) = (authority.server("front"), authority.root());
        let front = TlsFront::before(fixture.port(), &own, verifies.then_some(&*root)).await;
        fixture.url = fixture.url_at(front.port()).replace("http://", "https://");
        Secured { fixture, authority: Arc::new(authority), _front: Some(front) }
    }

    pub async fn with(receiver: Receiver) -> Self {
        let postgres = Postgres::start(Major::V15).await;
        let url = format!("http://127.0.0.1:{}/events", receiver.port());
        let sink = SinkFixture::over(postgres, "http", url, &[]).await;
        Self { receiver, sink }
    }
}

impl Promise for HttpFixture {
    const ONCE: bool = false;
    async fn records(&self) -> Vec<Consumed> {
        self.receiver.records()
    }

    fn assert_one_at_a_time(&self) {
        self.receiver.assert_one_at_a_time();
    }
}

impl Destination for HttpFixture {
    const NAME: &str = "the HTTP endpoint";
    const SUBJECT: &str = "HTTP endpoint";

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
