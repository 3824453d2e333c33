//! The PostgreSQL and Kafka servers of a bench: its own, or existing ones.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tokio_postgres::{Client, NoTls};
use walpost_bed::{Admin, Cluster, DelayProxy, Kafka, Postgres, Tail, Topics};

use crate::Plan;
use crate::conditions::Conditions;

/// The database that is made on a server that was given.
const DATABASE: &str = "walpost_bench";

/// For how long a broker that has just been started is kept busy before anything is measured: so
/// long its virtual machine compiles its code, on the cores that are measured.
const WARM_UP: Duration = Duration::from_secs(20);

/// Where they are.
pub(crate) struct Servers {
    pub(crate) source: String,
    /// The brokers' address for consumers.
    pub(crate) bootstrap: String,
    /// They end with this.
    pub(crate) own: Option<Own>,
}

/// Servers of the bench's own.
pub(crate) struct Own {
    pub(crate) postgres: Postgres,
    brokers: Brokers,
    /// One before each broker, where a round trip is measured.
    proxies: Vec<DelayProxy>,
}

enum Brokers {
    One(Box<Kafka>),
    Three(Cluster),
}

impl Brokers {
    async fn start(count: u8, proxies: &[DelayProxy]) -> Self {
        let ports: Vec<u16> = proxies.iter().map(DelayProxy::port).collect();
        let brokers = if count == 1 {
            let kafka = Kafka::builder().as_shipped();
            let kafka = ports.first().map_or(kafka.clone(), |port| kafka.behind(*port));
            Self::One(Box::new(kafka.start().await))
        } else {
            Self::Three(Cluster::for_bench(&ports).await)
        };
        for (proxy, broker) in proxies.iter().zip(brokers.nodes()) {
            proxy.point_at(broker.proxied_port().expect("it is behind a proxy"));
        }
        brokers
    }

    fn nodes(&self) -> &[Kafka] {
        match self {
            Self::One(kafka) => std::slice::from_ref(&**kafka),
            Self::Three(cluster) => cluster.nodes(),
        }
    }
}

impl Servers {
    /// Servers for these cells, which have the same number of brokers.
    pub(crate) async fn of(plan: &Plan, cells: &[Conditions]) -> Self {
        if let (Some(given), Some(bootstrap)) = (&plan.source, &plan.bootstrap_servers) {
            let source = recreated(given).await;
            return Self { source, bootstrap: bootstrap.clone(), own: None };
        }
        let postgres = Postgres::builder(plan.major())
            .setting("max_wal_size", "8GB")
            .setting("shared_buffers", "512MB")
            .setting("synchronous_commit", "on")
            // For many databases with a walpost each.
            .setting("max_connections", "600")
            .setting("max_wal_senders", "200")
            .setting("max_replication_slots", "200")
            .start()
            .await;
        let count = cells.first().map_or(1, |cell| cell.brokers);
        let delayed = cells.iter().any(|cell| !cell.round_trip.is_zero());
        let proxies: Vec<_> = (0..count).filter(|_| delayed).map(|_| DelayProxy::start()).collect();
        let brokers = Brokers::start(count, &proxies).await;
        let addresses: Vec<_> = brokers.nodes().iter().map(Kafka::bootstrap).collect();
        let (source, bootstrap) = (postgres.url(), addresses.join(","));
        let servers = Self { source, bootstrap, own: Some(Own { postgres, brokers, proxies }) };
        servers.warm_up().await;
        servers
    }

    /// The brokers' address for what is measured, with a round trip that it has from now on.
    pub(crate) fn bootstrap_after(&self, round_trip: Duration) -> String {
        if round_trip.is_zero() {
            return self.bootstrap.clone();
        }
        let own = self.own.as_ref().expect("a round trip is measured on servers of its own");
        let address = |proxy: &DelayProxy| {
            proxy.set_round_trip(round_trip);
            format!("127.0.0.1:{}", proxy.port())
        };
        let addresses: Vec<_> = own.proxies.iter().map(address).collect();
        addresses.join(",")
    }

    async fn warm_up(&self) {
        let (topic, bootstrap) = ("walpost-bench-warm-up", self.bootstrap.clone());
        self.create_topic(topic, 3).await;
        let consumer = Tail::start(&self.bootstrap, Topics::named([topic]), |_| {});
        let producing = tokio::task::spawn_blocking(move || keep_busy(&bootstrap, topic));
        producing.await.expect("producing does not panic");
        drop(consumer);
        self.delete_topic(topic).await;
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.source).await
    }

    pub(crate) async fn create_topic(&self, name: &str, partitions: u16) {
        self.administration().create(name, partitions.into(), &[]).await;
    }

    pub(crate) async fn delete_topic(&self, name: &str) {
        self.administration().delete(name).await;
    }

    fn administration(&self) -> Admin {
        match &self.own {
            Some(Own { brokers: Brokers::One(kafka), .. }) => kafka.administration(),
            Some(Own { brokers: Brokers::Three(cluster), .. }) => cluster.administration(),
            None => Admin::by_default(self.bootstrap.clone()),
        }
    }
}

/// The version of the server that was given, if one was; why it cannot be used.
pub(crate) async fn given_version(plan: &Plan) -> Result<Option<String>, String> {
    let Some(given) = &plan.source else { return Ok(None) };
    // The database in it is put in the place of another.
    if !["postgres://", "postgresql://"].iter().any(|scheme| given.starts_with(scheme)) {
        return Err("not a URL: postgres://user@host:port/database".to_owned());
    }
    let said = |error: tokio_postgres::Error| match error.as_db_error() {
        Some(error) => error.message().to_owned(),
        None => std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string),
    };
    let client = try_connect(given).await.map_err(said)?;
    let row = client.query_one("SELECT current_setting('server_version')", &[]).await;
    Ok(Some(row.map_err(said)?.get(0)))
}

/// Takes the database and its slots, which keep log, off that server again.
pub(crate) async fn clear(given: &str) {
    let client = connect(given).await;
    let slots = format!(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
         WHERE database = '{DATABASE}'"
    );
    let drop = format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)");
    for sql in [slots, drop] {
        execute(&client, &sql).await;
    }
}

async fn execute(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// The URL of an empty database on that server; one of an earlier run goes, with its slots.
async fn recreated(given: &str) -> String {
    clear(given).await;
    execute(&connect(given).await, &format!("CREATE DATABASE {DATABASE}")).await;
    let (server, parameters) = given.split_once('?').map_or((given, None), |(a, b)| (a, Some(b)));
    let (scheme, rest) =
        server.split_once("://").expect("a URL: postgres://user@host:port/database");
    let host = rest.split('/').next().unwrap_or(rest);
    let parameters = parameters.map(|text| format!("?{text}")).unwrap_or_default();
    format!("{scheme}://{host}/{DATABASE}{parameters}")
}

/// A session with this database.
pub(crate) async fn connect(url: &str) -> Client {
    try_connect(url).await.unwrap_or_else(|error| panic!("connecting: {error:?}"))
}

async fn try_connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // It ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    Ok(client)
}

/// Many small requests, and now and then large ones.
fn keep_busy(bootstrap: &str, topic: &str) {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("linger.ms", "0")
        .set("enable.idempotence", "true")
        .create()
        .expect("a producer");
    let (until, value) = (Instant::now() + WARM_UP, [b'x'; 250]);
    for turn in 0_u32.. {
        let records = if turn % 100 == 0 { 5_000 } else { 5 };
        for number in 0..records {
            let key = number.to_string();
            let record = || BaseRecord::to(topic).key(&key).payload(&value[..]);
            while producer.send(record()).is_err() {
                producer.poll(Duration::from_millis(1));
            }
        }
        producer.poll(Duration::from_millis(1));
        if Instant::now() > until {
            break;
        }
    }
    producer.flush(Duration::from_secs(60)).expect("a broker that answers");
}
