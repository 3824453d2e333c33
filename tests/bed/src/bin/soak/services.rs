//! The servers, the proxies between them and walpost, and how walpost is started.

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, proxied};
use walpost_bed::{Kafka, Major, Postgres, Proxy, Walpost, WalpostBuilder, within};

use crate::rng::Rng;
use crate::{Broken, Delivery};

/// How soon the server gives a session up: within what a dead link may last.
const SESSION_LIMIT: Duration = Duration::from_secs(3);

const STATE_TOPIC: &str = "walpost.state";

pub(crate) struct Services {
    pub(crate) fixture: Fixture,
    pub(crate) kafka: Kafka,
    pub(crate) postgres_link: Proxy,
    pub(crate) kafka_link: Proxy,
    pub(crate) walpost: Walpost,
    pub(crate) delivery: Delivery,
    /// How many producers walpost has; empty: as many as it chooses.
    producers: String,
    /// Starts of walpost after the first.
    pub(crate) restarts: u64,
    /// How often it was killed while something else was away.
    pub(crate) killed_meanwhile: u64,
}

impl Services {
    pub(crate) async fn set((delivery, producers): (Delivery, String)) -> Self {
        let kafka_link = Proxy::start().await;
        let kafka = Kafka::builder().behind(kafka_link.port()).start().await;
        kafka_link.point_at(kafka.proxied_port().expect("it is behind a proxy"));
        let postgres = Postgres::builder(Major::V15).wal_sender_timeout(SESSION_LIMIT);
        let bootstrap = format!("127.0.0.1:{}", kafka_link.port());
        let fixture = Fixture::with_brokers(postgres, &bootstrap).await;
        fixture.adopt(STATE_TOPIC).await;
        let fixture = fixture.option("--state-topic", STATE_TOPIC);
        let mut fixture = fixture.option("--delivery", delivery.name());
        let postgres_link = Proxy::to(fixture.postgres.port()).await;
        fixture.source = proxied(&postgres_link);
        let walpost = command(&fixture, &producers, None).start();
        Self {
            fixture,
            kafka,
            postgres_link,
            kafka_link,
            walpost,
            delivery,
            producers,
            restarts: 0,
            killed_meanwhile: 0,
        }
    }

    /// With a point armed at which it is to die, if any.
    pub(crate) fn start_walpost(&mut self, armed: Option<&str>) {
        self.walpost = command(&self.fixture, &self.producers, armed).start();
        self.restarts += 1;
    }

    /// Lets time pass while something is away; now and then walpost dies as well.
    pub(crate) async fn meanwhile(&mut self, time: Duration, rng: &mut Rng) {
        tokio::time::sleep(time / 2).await;
        if rng.of(0..3) == 0 {
            self.walpost.kill9().await;
            self.start_walpost(None);
            self.killed_meanwhile += 1;
        }
        tokio::time::sleep(time / 2).await;
    }

    /// The first value of a query's first row, asked again while the server recovers.
    pub(crate) async fn ask(&self, query: &str) -> Result<String, Broken> {
        let config = self.config();
        let asked = within(LONG_TIMEOUT, async || {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            client.simple_query(query).await
        });
        let answer = asked.await.map_err(|seen| format!("{query}: {seen}"))?;
        let value = answer.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        // No row is an answer as well.
        Ok(value.unwrap_or_default())
    }

    fn config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.fixture.postgres.socket_dir()).port(self.fixture.postgres.port());
        config.user("postgres").dbname("postgres").application_name("soak");
        config
    }

    /// Why something is wrong, with the last lines of walpost's log.
    pub(crate) fn said(&self, why: &str) -> Broken {
        let lines = self.walpost.stderr();
        let last = lines[lines.len().saturating_sub(15)..].join("\n");
        format!("{why}; walpost said last:\n{last}")
    }
}

/// `walpost run` with so many producers, if that is said, and a point armed at which it is to die, if
/// any.
fn command(fixture: &Fixture, producers: &str, armed: Option<&str>) -> WalpostBuilder {
    let mut points = armed.unwrap_or_default().to_owned();
    let mut command = fixture.command("run");
    if !producers.is_empty() {
        points = format!("several_producers=return;{points}");
        command = command.env("WALPOST_KAFKA_MAX_PRODUCERS", producers);
    }
    command.env("FAILPOINTS", points)
}
