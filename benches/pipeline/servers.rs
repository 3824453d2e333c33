//! The PostgreSQL and Kafka servers of a bench: its own, or existing ones.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tokio_postgres::{Client, NoTls};
use walpost_bed::{Admin, Kafka, Major, Postgres, Tail, Topics};

use crate::Plan;

/// The database that is made on a server that was given.
const DATABASE: &str = "walpost_bench";

/// For how long a broker that has just been started is kept busy before anything is measured: so
/// long its virtual machine compiles its code, on the cores that are measured.
const WARM_UP: Duration = Duration::from_secs(20);

/// Where they are.
pub(crate) struct Servers {
    pub(crate) source: String,
    pub(crate) bootstrap: String,
    /// They end with this.
    pub(crate) own: Option<(Postgres, Kafka)>,
}

impl Servers {
    pub(crate) async fn of(plan: &Plan) -> Self {
        if let (Some(given), Some(bootstrap)) = (&plan.source, &plan.bootstrap_servers) {
            let source = recreated(given).await;
            return Self { source, bootstrap: bootstrap.clone(), own: None };
        }
        let postgres = Postgres::builder(Major::of_the_system().unwrap_or(Major::V15))
            .setting("max_wal_size", "8GB")
            .setting("shared_buffers", "512MB")
            .setting("synchronous_commit", "on")
            .start()
            .await;
        let kafka = Kafka::builder().as_shipped().start().await;
        let (source, bootstrap) = (postgres.url(), kafka.bootstrap());
        let servers = Self { source, bootstrap, own: Some((postgres, kafka)) };
        servers.warm_up().await;
        servers
    }

    async fn warm_up(&self) {
        let (topic, bootstrap) = ("walpost-bench-warm-up", self.bootstrap.clone());
        self.create_topic(topic).await;
        let consumer = Tail::start(&self.bootstrap, Topics::named([topic]), |_| {});
        let producing = tokio::task::spawn_blocking(move || keep_busy(&bootstrap, topic));
        producing.await.expect("producing does not panic");
        drop(consumer);
        self.delete_topic(topic).await;
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.source).await
    }

    pub(crate) async fn create_topic(&self, name: &str) {
        self.administration().create(name, 3, &[]).await;
    }

    pub(crate) async fn delete_topic(&self, name: &str) {
        self.administration().delete(name).await;
    }

    fn administration(&self) -> Admin {
        match self.own {
            Some(_) => Admin::of(self.bootstrap.clone(), 1),
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

async fn connect(url: &str) -> Client {
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
