//! A database with an outbox, an exchange of RabbitMQ with queues behind it, and the walpost binary
//! between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::OnceCell;
use walpost_bed::{
    CertificateAuthority, Consumed, Major, Postgres, RabbitMq, RabbitQueues, SinkFixture,
};

use crate::promise::{Destination, Promise, over_sink};
use crate::security::Secured;

/// What the page lists for a user of walpost's own: the exchange, and the default one for dead
/// letters.
const WRITES: &str = r"^(shared-\d+|amq\.default)$";

/// The size of a message that the shared server accepts, in bytes.
pub const SIZE_MAX: usize = 100_000;

/// A server that no test disturbs, and who signs its certificate.
pub struct SharedServer {
    pub rabbit: Arc<RabbitMq>,
    pub authority: Arc<CertificateAuthority>,
}

/// Starts with the first test that asks for it, and goes with the process.
pub async fn shared() -> &'static SharedServer {
    static SERVER: OnceCell<SharedServer> = OnceCell::const_new();
    let start = async || {
        let authority = Arc::new(CertificateAuthority::new());
        let rabbit = RabbitMq::builder()
            .tls(&authority)
            .user("walpost", WRITES)
            .user("certified", WRITES)
            .user("reader", "^$")
            .configured(&format!("max_message_size = {SIZE_MAX}"));
        SharedServer { rabbit: Arc::new(rabbit.start().await), authority }
    };
    SERVER.get_or_init(start).await
}

pub struct RabbitFixture {
    pub rabbit: Arc<RabbitMq>,
    /// The exchange, which spreads keys over its queues.
    pub exchange: String,
    /// The queue of dead letters.
    pub letters: String,
    sink: SinkFixture,
    queues: RabbitQueues,
}

over_sink!(RabbitFixture);

impl RabbitFixture {
    /// On a server of its own, which the test may kill.
    pub async fn alone() -> Self {
        let fixture = Self::bare(Arc::new(RabbitMq::start().await)).await;
        fixture.queues.declare_durably().await;
        fixture
    }

    /// On the shared server, with quorum queues that share the keys.
    pub async fn new() -> Self {
        let fixture = Self::bare(Arc::clone(&shared().await.rabbit)).await;
        fixture.queues.declare().await;
        fixture
    }

    /// On the shared server, with an exchange for routing keys and no queue yet.
    pub async fn routed(lines: &str) -> Self {
        let fixture = Self::bare(Arc::clone(&shared().await.rabbit)).await.configured(lines);
        fixture.rabbit.exchange(&fixture.exchange, "topic").await;
        fixture
    }

    /// Declares a queue for each of the keys 0 to 2.
    pub async fn queue_keys(&self) {
        for number in 0..3 {
            let queue = self.queue(number);
            self.rabbit.queue(&queue, &[]).await;
            self.rabbit.bind(&queue, &self.exchange, &number.to_string()).await;
        }
    }

    /// After `walpost init --apply`, before anything is declared.
    pub async fn bare(rabbit: Arc<RabbitMq>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let postgres = Postgres::start(Major::V15).await;
        let sink = SinkFixture::over(postgres, "rabbitmq", rabbit.url(), &[]).await;
        let exchange = format!("shared-{number}");
        let queues = RabbitQueues::new(Arc::clone(&rabbit), &exchange);
        let letters = format!("{exchange}.dead");
        let mut fixture = Self { rabbit, exchange, letters, sink, queues };
        let lines = format!(
            "rabbitmq.exchange = '{}'\npoison.dead_letter_topic = '{}'\n",
            fixture.exchange, fixture.letters
        );
        fixture.configure_always(lines);
        fixture
    }

    /// With a user of walpost's own besides, as the shared server has one.
    pub async fn of_user() -> Self {
        Self::new().await
    }

    pub async fn with_tls() -> Secured<Self> {
        let mut fixture = Self::new().await;
        fixture.url = fixture.rabbit.tls_url();
        Secured { fixture, authority: Arc::clone(&shared().await.authority), _front: None }
    }

    pub fn queue(&self, number: u32) -> String {
        self.queues.queue(number)
    }
}

impl Promise for RabbitFixture {
    const ONCE: bool = false;
    /// By now, in the order of each queue.
    async fn records(&self) -> Vec<Consumed> {
        self.queues.records().await
    }
}

impl Destination for RabbitFixture {
    const NAME: &str = "RabbitMQ";
    const ONCE_AFTER_OUTAGE: bool = false;
    // It takes long to start.
    const KILLS: u32 = 3;
    const CRASHES: (&[u32], u32, u32) = (&[1, 333], 500, 7);

    fn port(&self) -> u16 {
        self.rabbit.port()
    }

    fn url_at(&self, port: u16) -> String {
        format!("amqp://127.0.0.1:{port}")
    }

    fn described(&self, port: u16) -> String {
        format!("127.0.0.1:{port}")
    }

    async fn kill(&self) {
        self.rabbit.kill9().await;
    }

    async fn start_again(&self) {
        self.rabbit.start_again().await;
    }
}
