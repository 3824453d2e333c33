//! A database with an outbox, a queue, and the walpost binary between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use tokio::sync::OnceCell;
use walpost_bed::{CertificateAuthority, Consumed, ElasticMq, Major, Postgres, SinkFixture};

use super::front::Front;
use crate::promise::{Destination, Promise, over_sink};
use crate::security::Secured;
use crate::tls_front::TlsFront;

/// Any credentials will do for ElasticMQ; nothing else is asked for some.
pub const VARIABLES: &[(&str, &str)] = &[
    ("AWS_ACCESS_KEY_ID", "AKIDBED"),
    ("AWS_SECRET_ACCESS_KEY", "s3cret"),
    ("AWS_REGION", "elasticmq"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
    ("AWS_CONFIG_FILE", "/nonexistent"),
    ("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent"),
];

pub struct SqsFixture {
    pub elasticmq: Arc<ElasticMq>,
    /// The queue, and that of dead letters.
    pub queue: String,
    pub letters: String,
    sink: SinkFixture,
    front: Option<Arc<Front>>,
}

over_sink!(SqsFixture);

/// One server for the tests that do not stop it.
async fn shared() -> Arc<ElasticMq> {
    static SHARED: OnceCell<Arc<ElasticMq>> = OnceCell::const_new();
    let start = async || Arc::new(ElasticMq::in_memory().await);
    Arc::clone(SHARED.get_or_init(start).await)
}

impl SqsFixture {
    /// With queues of its own on the shared server, after `walpost init --apply`.
    pub async fn new() -> Self {
        Self::with(shared().await).await
    }

    /// On a server of its own, which keeps what it has accepted.
    pub async fn alone() -> Self {
        Self::with(Arc::new(ElasticMq::durable().await)).await
    }

    pub async fn with(elasticmq: Arc<ElasticMq>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let (queue, letters) = (format!("orders{number}.fifo"), format!("letters{number}.fifo"));
        for name in [&queue, &letters] {
            elasticmq.add_queue(name, &json!({})).await;
        }
        let url = elasticmq.queue_url(&queue);
        let postgres = Postgres::start(Major::V15).await;
        let sink = SinkFixture::over(postgres, "sqs", url, VARIABLES).await;
        Self { elasticmq, queue, letters, sink, front: None }
    }

    pub async fn with_tls() -> Secured<Self> {
        let (mut fixture, authority) = (Self::new().await, CertificateAuthority::new());
        let front = TlsFront::before(fixture.port(), &authority.server("front"), None).await;
        fixture.url = fixture.url_at(front.port()).replace("http://", "https://");
        Secured { fixture, authority: Arc::new(authority), _front: Some(front) }
    }

    /// Behind a server that may answer otherwise.
    pub async fn behind_front() -> Self {
        let mut fixture = Self::new().await;
        let front = Front::start(fixture.elasticmq.port());
        fixture.url = ElasticMq::queue_url_at(front.port(), &fixture.queue);
        fixture.front = Some(Arc::new(front));
        fixture
    }

    /// The server in front, if there is one.
    pub fn front(&self) -> Arc<Front> {
        Arc::clone(self.front.as_ref().expect("it is behind one"))
    }
}

impl Promise for SqsFixture {
    const ONCE: bool = true;
    async fn records(&self) -> Vec<Consumed> {
        self.elasticmq.records(&self.queue).await
    }

    fn assert_one_at_a_time(&self) {
        if let Some(front) = &self.front {
            front.assert_one_at_a_time();
        }
    }
}

impl Destination for SqsFixture {
    const NAME: &str = "Amazon SQS";
    const SUBJECT: &str = "SQS";
    const HAS_CONNECTION: bool = false;
    // It may have forgotten what it was sent.
    const ONCE_LATER: bool = false;
    const BACKLOG: (u32, u32) = (2000, 500);
    // Its server syncs each message.
    const LOAD: u32 = 20;
    // It takes long to start.
    const KILLS: u32 = 3;
    const CRASHES: (&[u32], u32, u32) = (&[1, 40, 233], 300, 17);

    fn port(&self) -> u16 {
        self.elasticmq.port()
    }

    fn url_at(&self, port: u16) -> String {
        ElasticMq::queue_url_at(port, &self.queue)
    }

    fn described(&self, port: u16) -> String {
        self.url_at(port)
    }

    async fn kill(&self) {
        self.elasticmq.kill9().await;
    }

    async fn start_again(&self) {
        self.elasticmq.start_again().await;
    }
}
