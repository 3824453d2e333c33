//! The destinations beside Kafka, all alike: started, killed, frozen, and read.
//!
//! Each keeps what it has acknowledged when its process is killed: Redis and NATS sync each write,
//! RabbitMQ has quorum queues, and the receiver of HTTP requests and ElasticMQ write before they answer.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::sync::mpsc;

use crate::consumer::Consumed;
use crate::elasticmq::ElasticMq;
use crate::error::BedError;
use crate::http_receiver::HttpReceiver;
use crate::nats::Nats;
use crate::rabbit_queues::RabbitQueues;
use crate::rabbitmq::RabbitMq;
use crate::redis::Redis;
use crate::server::Server;

/// The stream of Redis and of NATS, which is walpost's default.
const STREAM: &str = "outbox";

/// The exchange of RabbitMQ, which is walpost's default.
const EXCHANGE: &str = "outbox";

/// The queue of ElasticMQ.
const QUEUE: &str = "outbox.fifo";

/// Variables of walpost with it: any credentials will do.
const AWS: [(&str, &str); 3] =
    [("AWS_ACCESS_KEY_ID", "bed"), ("AWS_SECRET_ACCESS_KEY", "bed"), ("AWS_REGION", "elasticmq")];

/// The subjects of the stream of NATS.
const SUBJECTS: [&str; 2] = ["outbox.>", "walpost.dead-letter"];

/// A running (or stopped) destination. It is removed with its data on drop.
#[derive(Debug)]
pub enum Destination {
    Redis(Redis),
    Nats(Nats),
    RabbitMq(RabbitQueues),
    Http(HttpReceiver),
    Sqs(ElasticMq),
}

/// Up to where a destination was read; by default its beginning.
#[derive(Debug, Clone, Default)]
pub struct ReadPosition {
    /// Of Redis.
    id: Option<String>,
    /// The sequence number of NATS, the bytes of the receiver's file, or how many messages of RabbitMQ's
    /// queues or of SQS were read.
    number: u64,
}

impl Destination {
    /// The kinds, by the names that `sink.kind` has for them.
    pub const KINDS: [&str; 5] = ["redis", "nats", "rabbitmq", "http", "sqs"];

    /// Starts one of that kind, which must be one of [`Destination::KINDS`].
    pub async fn start(kind: &str) -> Self {
        Self::try_start(kind).await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(kind: &str) -> Result<Self, BedError> {
        Ok(match kind {
            "redis" => Self::Redis(Redis::builder().try_start().await?),
            "nats" => {
                let nats = Nats::builder().try_start().await?;
                nats.add_stream(STREAM, &SUBJECTS, &json!({})).await;
                Self::Nats(nats)
            }
            "rabbitmq" => {
                let rabbit = Arc::new(RabbitMq::builder().try_start().await?);
                let queues = RabbitQueues::new(rabbit, EXCHANGE);
                queues.declare_durably().await;
                Self::RabbitMq(queues)
            }
            "http" => Self::Http(HttpReceiver::try_start().await?),
            "sqs" => {
                let elasticmq = ElasticMq::try_start(true).await?;
                elasticmq.add_queue(QUEUE, &json!({})).await;
                Self::Sqs(elasticmq)
            }
            other => panic!("there is no destination {other}"),
        })
    }

    /// The name that `sink.kind` has for it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::Nats(_) => "nats",
            Self::RabbitMq(_) => "rabbitmq",
            Self::Http(_) => "http",
            Self::Sqs(_) => "sqs",
        }
    }

    /// As people call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "Redis",
            Self::Nats(_) => "NATS",
            Self::RabbitMq(_) => "RabbitMQ",
            Self::Http(_) => "the HTTP endpoint",
            Self::Sqs(_) => "ElasticMQ",
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Redis(redis) => redis.port(),
            Self::Nats(nats) => nats.port(),
            Self::RabbitMq(queues) => queues.rabbit().port(),
            Self::Http(receiver) => receiver.port(),
            Self::Sqs(elasticmq) => elasticmq.port(),
        }
    }

    /// The URL for walpost, at its port or at that of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        match self {
            Self::Redis(_) => format!("redis://127.0.0.1:{port}"),
            Self::Nats(_) => format!("nats://127.0.0.1:{port}"),
            Self::RabbitMq(_) => format!("amqp://127.0.0.1:{port}"),
            Self::Http(_) => format!("http://127.0.0.1:{port}/events"),
            Self::Sqs(_) => ElasticMq::queue_url_at(port, QUEUE),
        }
    }

    /// Variables of walpost besides.
    pub fn variables(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Sqs(_) => &AWS,
            // It syncs each write.
            Self::Nats(_) => &[("WALPOST_NATS_SYNC_INTERVAL", "0s")],
            Self::Redis(_) | Self::RabbitMq(_) | Self::Http(_) => &[],
        }
    }

    /// Whether it keeps walpost's position, which `walpost adopt` begins.
    pub fn has_position(&self) -> bool {
        match self {
            Self::Redis(_) | Self::Nats(_) => true,
            Self::RabbitMq(_) | Self::Http(_) | Self::Sqs(_) => false,
        }
    }

    fn server(&self) -> &Server {
        match self {
            Self::Redis(redis) => &redis.server,
            Self::Nats(nats) => &nats.server,
            Self::RabbitMq(queues) => &queues.rabbit().server,
            Self::Http(receiver) => &receiver.server,
            Self::Sqs(elasticmq) => &elasticmq.server,
        }
    }

    /// Kills it, and returns once it has exited.
    pub async fn kill9(&self) {
        self.server().kill_all().await;
    }

    /// Asks it to stop (SIGTERM); whether it had stopped within the deadline.
    pub async fn stop(&self, deadline: Duration) -> bool {
        self.server().stop(deadline).await
    }

    /// Freezes it (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        self.server().signal(Signal::STOP);
    }

    /// Thaws it.
    pub fn resume(&self) {
        self.server().signal(Signal::CONT);
    }

    /// Starts it again on its port with its data, and awaits that it answers.
    pub async fn start_again(&self) {
        match self {
            Self::Redis(redis) => redis.start_again().await,
            Self::Nats(nats) => nats.start_again().await,
            Self::RabbitMq(queues) => queues.rabbit().start_again().await,
            Self::Http(receiver) => receiver.start_again().await,
            Self::Sqs(elasticmq) => elasticmq.start_again().await,
        }
    }

    /// Its end now, to read from later.
    pub async fn end(&self) -> ReadPosition {
        match self {
            Self::Redis(redis) => {
                ReadPosition { id: redis.last_id(STREAM).await, ..ReadPosition::default() }
            }
            Self::Nats(nats) => {
                let number = nats.last_sequence(STREAM).await;
                ReadPosition { number, ..ReadPosition::default() }
            }
            Self::RabbitMq(queues) => {
                let number = queues.count().await as u64;
                ReadPosition { number, ..ReadPosition::default() }
            }
            Self::Http(receiver) => {
                ReadPosition { number: receiver.end(), ..ReadPosition::default() }
            }
            Self::Sqs(elasticmq) => {
                let number = elasticmq.messages(QUEUE).await.len() as u64;
                ReadPosition { number, ..ReadPosition::default() }
            }
        }
    }

    /// The records behind that position, as a consumer reads them.
    pub async fn records_after(&self, position: &ReadPosition) -> Vec<Consumed> {
        match self {
            Self::Redis(redis) => {
                redis.records_after(STREAM, position.id.as_deref().unwrap_or("0-0")).await
            }
            Self::Nats(nats) => nats.records_after(STREAM, position.number).await,
            Self::RabbitMq(queues) => {
                let before = usize::try_from(position.number).expect("few records");
                queues.records_after(before).await
            }
            Self::Http(receiver) => receiver.records_after(position.number),
            Self::Sqs(elasticmq) => {
                let mut records = elasticmq.records(QUEUE).await;
                let read = usize::try_from(position.number).expect("few messages");
                records.split_off(read)
            }
        }
    }

    /// The records from the beginning, as they come; of RabbitMQ, those from here on.
    pub async fn follow(&self) -> mpsc::UnboundedReceiver<Consumed> {
        match self {
            Self::Redis(redis) => redis.follow(STREAM).await,
            Self::Nats(nats) => nats.follow(STREAM).await,
            Self::RabbitMq(queues) => queues.follow().await,
            Self::Http(receiver) => receiver.follow(),
            Self::Sqs(elasticmq) => elasticmq.follow(QUEUE),
        }
    }
}
