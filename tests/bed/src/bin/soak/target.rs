//! Where walpost publishes to: how it is started for that, what is read there, and what is promised.

use std::collections::HashSet;
use std::time::Duration;

use walpost_bed::fixture::Fixture;
use walpost_bed::{
    Consumed, Destination, Kafka, Postgres, Proxy, ReadPosition, SinkFixture, WalpostBuilder,
    read_all,
};

use crate::{Broken, Delivery};

const STATE_TOPIC: &str = "walpost.state";

/// Less than the longest time for which the endpoint is frozen, so that requests are given up.
const REQUEST_LIMIT: &str = "[http]\ntimeout = '2s'\n";

/// The points at which a build for tests can be made to die, and how it does there.
const POINTS: [(&str, &str); 3] =
    [("received", "return"), ("produced", "return"), ("acknowledged", "return")];

/// Another one of Kafka's.
const CALLBACK_POINT: (&str, &str) = ("callback", "panic");

/// What is to be published to.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    /// How many producers walpost has; empty: as many as it chooses.
    Kafka {
        delivery: Delivery,
        producers: String,
    },
    Sink(&'static str),
}

impl Wanted {
    /// Kafka, or another destination, for which the other two make no sense.
    pub(crate) fn parse(kind: &str, delivery: &str, producers: &str) -> Result<Self, String> {
        let delivery = Delivery::from_name(delivery)
            .ok_or("WALPOST_SOAK_DELIVERY is neither at-least-once nor exactly-once")?;
        if kind == "kafka" {
            return Ok(Self::Kafka { delivery, producers: producers.to_owned() });
        }
        let known = Destination::KINDS.into_iter().find(|one| *one == kind);
        let kind = known.ok_or_else(|| {
            format!("WALPOST_SOAK_SINK is neither kafka nor one of {:?}", Destination::KINDS)
        })?;
        if delivery != Delivery::AtLeastOnce || !producers.is_empty() {
            return Err("delivery modes and producers are those of Kafka".to_owned());
        }
        Ok(Self::Sink(kind))
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Kafka { delivery, .. } => format!("Kafka, {}", delivery.name()),
            Self::Sink(kind) => (*kind).to_owned(),
        }
    }
}

/// The servers that are published to, and the database with how walpost is started.
pub(crate) enum Target {
    Kafka { kafka: Kafka, fixture: Box<Fixture>, delivery: Delivery, producers: String },
    Sink { server: Destination, fixture: Box<SinkFixture> },
}

/// The rows of an epoch: their topic, and what was there before.
pub(crate) struct Epoch {
    pub(crate) name: String,
    topic: String,
    before: ReadPosition,
}

impl Target {
    /// Behind the proxy, with `walpost init` and `walpost adopt` done.
    pub(crate) async fn set(wanted: Wanted, postgres: Postgres, proxy: &Proxy) -> Self {
        match wanted {
            Wanted::Kafka { delivery, producers } => {
                let kafka = Kafka::builder().behind(proxy.port()).start().await;
                proxy.point_at(kafka.proxied_port().expect("it is behind a proxy"));
                let bootstrap = format!("127.0.0.1:{}", proxy.port());
                let fixture = Fixture::over_server(postgres, &bootstrap, &[]).await;
                fixture.adopt(STATE_TOPIC).await;
                let fixture = fixture.option("--state-topic", STATE_TOPIC);
                let fixture = Box::new(fixture.option("--delivery", delivery.name()));
                Self::Kafka { kafka, fixture, delivery, producers }
            }
            Wanted::Sink(kind) => {
                let server = Destination::start(kind).await;
                proxy.point_at(server.port());
                let url = server.url_at(proxy.port());
                let fixture =
                    SinkFixture::over(postgres, server.kind(), url, server.variables()).await;
                fixture.configure(if kind == "http" { REQUEST_LIMIT } else { "" });
                if server.has_position() {
                    fixture.adopt().await;
                }
                Self::Sink { server, fixture: Box::new(fixture) }
            }
        }
    }

    pub(crate) fn fixture(&self) -> &Fixture {
        match self {
            Self::Kafka { fixture, .. } => fixture,
            Self::Sink { fixture, .. } => &fixture.inner,
        }
    }

    /// The address of the database for walpost, from here on.
    pub(crate) fn read_from(&mut self, source: String) {
        match self {
            Self::Kafka { fixture, .. } => fixture.source = source,
            Self::Sink { fixture, .. } => fixture.inner.source = source,
        }
    }

    /// `walpost run` with a point armed at which it is to die, if any.
    pub(crate) fn command(&self, armed: Option<&str>) -> WalpostBuilder {
        let mut points = armed.unwrap_or_default().to_owned();
        let command = match self {
            Self::Kafka { fixture, producers, .. } if !producers.is_empty() => {
                points = format!("several_producers=return;{points}");
                fixture.command("run").env("WALPOST_KAFKA_MAX_PRODUCERS", producers)
            }
            Self::Kafka { fixture, .. } => fixture.command("run"),
            Self::Sink { fixture, .. } => fixture.command("run"),
        };
        command.env("FAILPOINTS", points)
    }

    /// The points at which it can die, outside a Kafka transaction.
    pub(crate) fn points(&self) -> Vec<(&'static str, &'static str)> {
        let of_kafka = matches!(self, Self::Kafka { .. }).then_some(CALLBACK_POINT);
        POINTS.into_iter().chain(of_kafka).collect()
    }

    pub(crate) fn has_transactions(&self) -> bool {
        matches!(self, Self::Kafka { delivery: Delivery::ExactlyOnce, .. })
    }

    /// Transactions that are committed per second, of three rows on average. ElasticMQ syncs each
    /// message, some 130 per second.
    pub(crate) fn load(&self) -> u32 {
        match self {
            Self::Sink { server, .. } if server.kind() == "sqs" => 20,
            _ => 150,
        }
    }

    /// Whether no row may be there twice.
    pub(crate) fn is_exact(&self) -> bool {
        match self {
            Self::Kafka { delivery, .. } => *delivery == Delivery::ExactlyOnce,
            Self::Sink { server, .. } => server.has_position(),
        }
    }

    pub(crate) async fn kill9(&self) {
        match self {
            Self::Kafka { kafka, .. } => kafka.kill9().await,
            Self::Sink { server, .. } => server.kill9().await,
        }
    }

    pub(crate) async fn stop(&self, deadline: Duration) -> bool {
        match self {
            Self::Kafka { kafka, .. } => kafka.stop(deadline).await,
            Self::Sink { server, .. } => server.stop(deadline).await,
        }
    }

    pub(crate) fn pause(&self) {
        match self {
            Self::Kafka { kafka, .. } => kafka.pause(),
            Self::Sink { server, .. } => server.pause(),
        }
    }

    pub(crate) fn resume(&self) {
        match self {
            Self::Kafka { kafka, .. } => kafka.resume(),
            Self::Sink { server, .. } => server.resume(),
        }
    }

    pub(crate) async fn start_again(&self) {
        match self {
            Self::Kafka { kafka, .. } => kafka.start_again().await,
            Self::Sink { server, .. } => server.start_again().await,
        }
    }

    /// Makes room for the rows of an epoch of that name.
    pub(crate) async fn begin(&self, name: String) -> Epoch {
        match self {
            Self::Kafka { kafka, fixture, .. } => {
                let topic = fixture.topic(&name);
                kafka.create_topic(&topic, 3).await;
                Epoch { name, topic, before: ReadPosition::default() }
            }
            Self::Sink { server, .. } => {
                let topic = format!("outbox.event.{name}");
                Epoch { name, topic, before: server.end().await }
            }
        }
    }

    /// What was published of an epoch so far.
    pub(crate) async fn records(&self, epoch: &Epoch) -> Vec<Consumed> {
        match self {
            Self::Kafka { kafka, .. } => read_all(&kafka.bootstrap(), epoch.topic.as_str()).await,
            Self::Sink { server, .. } => {
                let mut records = server.records_after(&epoch.before).await;
                records.retain(|record| record.topic == epoch.topic);
                records
            }
        }
    }

    /// Whether all epochs together are that many rows: none is missing from a stream that was read
    /// before, or was repeated epochs later. The topics of Kafka are not read again.
    pub(crate) async fn check_whole(&self, rows: usize) -> Result<(), Broken> {
        let Self::Sink { server, .. } = self else { return Ok(()) };
        let records = server.records_after(&ReadPosition::default()).await;
        let ids: HashSet<_> = records.iter().filter_map(|record| record.header("id")).collect();
        let repeats = records.len() - ids.len();
        println!("read from the beginning: {} rows, {repeats} repeats", ids.len());
        if ids.len() != rows || (self.is_exact() && repeats > 0) {
            return Err(format!("{rows} rows were committed"));
        }
        Ok(())
    }
}
