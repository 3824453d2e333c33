//! The real Debezium: its PostgreSQL connector with the outbox event router, in a standalone Kafka
//! Connect worker, between a PostgreSQL and a Kafka of the bed.
//!
//! Each [`Connector`] reads an existing slot and publication. One worker runs any number of
//! connectors, since starting a worker takes seconds. Settings have Debezium's names, from [its
//! manual](https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html).

mod install;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Map, Value, json};

use crate::error::{BedError, Doing};
use crate::eventually::within;
use crate::http;
use crate::jars::Jvm;
use crate::kafka::Kafka;
use crate::port::Port;
use crate::postgres::Postgres;
use crate::server::{READY, Server};

const QUICK: Jvm = Jvm::Quick { heap_mebibytes: 256 };

/// A connector's name and settings.
#[derive(Clone, Debug)]
pub struct Connector {
    name: String,
    settings: Map<String, Value>,
}

impl Connector {
    /// One that reads this slot and publication as fast as it can and writes
    /// strings. It takes no snapshot, and ends at the first error.
    pub fn new(name: &str, slot: &str, publication: &str) -> Self {
        let string = "org.apache.kafka.connect.storage.StringConverter";
        let settings = [
            ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
            ("tasks.max", "1"),
            ("database.hostname", "127.0.0.1"),
            ("database.user", "postgres"),
            ("database.password", "none is asked for"),
            ("database.dbname", "postgres"),
            ("topic.prefix", name),
            ("plugin.name", "pgoutput"),
            ("slot.name", slot),
            ("publication.name", publication),
            ("publication.autocreate.mode", "disabled"),
            ("snapshot.mode", "no_data"),
            ("poll.interval.ms", "5"),
            ("status.update.interval.ms", "100"),
            ("errors.max.retries", "0"),
            ("extended.headers.enabled", "false"),
            ("tombstones.on.delete", "false"),
            ("key.converter", string),
            ("value.converter", string),
            ("transforms", "outbox"),
            ("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), json!(value)));
        Self { name: name.to_owned(), settings: settings.into_iter().collect() }
    }

    /// A setting of the connector; a later one of the same name wins.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), json!(value));
        self
    }

    /// A setting of the event router, such as `route.by.field`.
    #[must_use]
    pub fn router(self, name: &str, value: &str) -> Self {
        self.setting(&format!("transforms.outbox.{name}"), value)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn slot(&self) -> &str {
        self.settings["slot.name"].as_str().expect("settings are text")
    }
}

/// What a connector's only task does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// The worker has not made it yet.
    Absent,
    Running,
    /// It died of this: a stack trace.
    Failed(String),
}

/// A running (or stopped) worker. It is removed with its offsets on drop.
#[derive(Debug)]
pub struct Debezium {
    server: Server,
    installed: PathBuf,
    rest: Port,
    postgres_port: u16,
    jvm: Jvm,
    /// In the order in which they were added.
    connectors: Mutex<Vec<Connector>>,
}

impl Debezium {
    /// A worker without connectors.
    pub async fn start(postgres: &Postgres, kafka: &Kafka) -> Self {
        Self::try_start(postgres, kafka).await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(postgres: &Postgres, kafka: &Kafka) -> Result<Self, BedError> {
        let debezium = Self::laid_out(postgres, kafka.bootstrap(), QUICK).await?;
        debezium.try_start_again().await?;
        Ok(debezium)
    }

    /// A worker on the JVM of Kafka's own scripts that has this connector from its start on: for
    /// benches. It answers on return, and may have read something already.
    pub async fn with(postgres: &Postgres, bootstrap: &str, connector: Connector) -> Self {
        let laid_out = Self::laid_out(postgres, bootstrap.to_owned(), Jvm::Worker).await;
        let debezium = laid_out.unwrap_or_else(|error| panic!("{error}"));
        let port = postgres.port().to_string();
        debezium.connectors().push(connector.setting("database.port", &port));
        debezium.start_again().await;
        debezium
    }

    async fn laid_out(postgres: &Postgres, bootstrap: String, jvm: Jvm) -> Result<Self, BedError> {
        let port = postgres.port();
        let lay_out = move || Self::lay_out(port, &bootstrap, jvm);
        let laying = tokio::task::spawn_blocking(lay_out);
        laying.await.expect("laying out a worker does not panic")
    }

    fn lay_out(postgres_port: u16, bootstrap: &str, jvm: Jvm) -> Result<Self, BedError> {
        let debezium = Self {
            installed: install::install()?,
            server: Server::new("debezium", Signal::KILL)?,
            rest: Port::reserve()?,
            postgres_port,
            jvm,
            connectors: Mutex::default(),
        };
        let json = "org.apache.kafka.connect.json.JsonConverter";
        let properties = format!(
            "bootstrap.servers={bootstrap}\n\
             listeners=http://127.0.0.1:{}\n\
             key.converter={json}\nvalue.converter={json}\n\
             plugin.discovery=service_load\n\
             offset.storage.file.filename={}\noffset.flush.interval.ms=100\n\
             task.shutdown.graceful.timeout.ms=3000\n",
            debezium.rest.number(),
            debezium.directory().join("offsets").display(),
        );
        let path = debezium.directory().join("worker.properties");
        fs::write(&path, properties).doing(|| format!("writing {}", path.display()))?;
        Ok(debezium)
    }

    /// Which version its connector has.
    pub fn version() -> &'static str {
        install::version()
    }

    /// The directory of its settings, offsets and log.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    pub fn log_path(&self) -> PathBuf {
        self.server.log_path()
    }

    /// The last lines that the worker logged.
    pub fn log_tail(&self, lines: usize) -> String {
        self.server.log_tail(lines)
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Asks it to stop (SIGTERM); whether it had stopped within the deadline.
    pub async fn stop(&self, deadline: Duration) -> bool {
        self.server.signal(Signal::TERM);
        self.server.ended(deadline).await;
        self.pid().is_none()
    }

    /// Kills it, and returns once it has exited.
    pub async fn kill9(&self) {
        self.server.kill_all().await;
    }

    /// Starts a stopped worker with its connectors, which continue from their offsets.
    /// It answers on return; its connectors may not stream yet ([`Debezium::streams`]).
    pub async fn start_again(&self) {
        self.try_start_again().await.unwrap_or_else(|error| panic!("{error}"));
    }

    pub async fn try_start_again(&self) -> Result<(), BedError> {
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = self.server.cleanup().launcher(&install::java(&self.installed));
        command.args(self.jvm.arguments(&self.installed));
        command.arg("org.apache.kafka.connect.cli.ConnectStandalone");
        command.arg(self.directory().join("worker.properties"));
        let connectors = self.connectors().clone();
        for connector in &connectors {
            let path = self.directory().join(format!("{}.json", connector.name));
            fs::write(&path, connector_text(connector))
                .doing(|| format!("writing {}", path.display()))?;
            command.arg(path);
        }
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())?;
        let ask = async || self.ask("GET", "/connectors", "").await.map(drop);
        self.server.ready("Debezium", ask).await
    }

    /// Adds a connector, and awaits that it streams.
    pub async fn add(&self, postgres: &Postgres, connector: Connector) {
        let name = connector.name.clone();
        if let Err(reason) = self.try_add(postgres, connector).await {
            panic!("adding {name}: {reason}\n{}", self.log_tail(20));
        }
    }

    /// As [`Debezium::add`]; the error is Kafka Connect's, or the trace of what the
    /// connector died of at once. It is to be removed in either case.
    pub async fn try_add(&self, postgres: &Postgres, connector: Connector) -> Result<(), String> {
        let connector = connector.setting("database.port", &self.postgres_port.to_string());
        let text = connector_text(&connector);
        let slot = connector.slot().to_owned();
        let name = connector.name.clone();
        self.connectors().push(connector);
        self.ask("POST", "/connectors", &text).await?;
        self.await_stream(postgres, &name, &slot).await
    }

    /// Awaits that all connectors stream: only then they see all that is committed.
    pub async fn streams(&self, postgres: &Postgres) {
        let connectors = self.connectors().clone();
        for connector in &connectors {
            let (name, slot) = (connector.name(), connector.slot());
            if let Err(seen) = self.await_stream(postgres, name, slot).await {
                panic!("{name} does not stream: {seen}\n{}", self.log_tail(20));
            }
        }
    }

    async fn await_stream(
        &self,
        postgres: &Postgres,
        name: &str,
        slot: &str,
    ) -> Result<(), String> {
        let active = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
        let streaming = within(READY, async || {
            let active = postgres.query_text(&active).await;
            match self.task(name).await {
                Task::Running if active.as_deref() == Some("t") => Ok(Ok(())),
                Task::Failed(trace) => Ok(Err(trace)),
                seen => Err(format!("the slot's activity is {active:?}, the task {seen:?}")),
            }
        });
        streaming.await?
    }

    /// Ends a connector; its slot is free on return. What it wrote last may still
    /// be on its way.
    pub async fn remove(&self, postgres: &Postgres, name: &str) {
        let connector = {
            let mut connectors = self.connectors();
            let at = connectors.iter().position(|one| one.name == name);
            connectors.remove(at.unwrap_or_else(|| panic!("there is no connector {name}")))
        };
        let path = format!("/connectors/{name}");
        match self.ask("DELETE", &path, "").await {
            Err(error) if !error.contains(" 404 ") => panic!("removing {name}: {error}"),
            // One that was refused is not there.
            Ok(_) | Err(_) => {}
        }
        let slot = connector.slot();
        let idle = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
        crate::eventually(READY, "a free slot", async || {
            postgres.query_text(&idle).await.as_deref() != Some("t")
        })
        .await;
    }

    /// Asks for another state of a connector, which it takes some time to reach: `pause`,
    /// `stop` or `resume`.
    pub async fn turn(&self, name: &str, state: &str) {
        let path = format!("/connectors/{name}/{state}");
        if let Err(error) = self.ask("PUT", &path, "").await {
            panic!("asking {name} to {state}: {error}\n{}", self.log_tail(20));
        }
    }

    /// Has a connector that is stopped forget its offsets.
    pub async fn forget_offsets(&self, name: &str) {
        let path = format!("/connectors/{name}/offsets");
        crate::eventually(READY, "the offsets are deleted", async || {
            self.ask("DELETE", &path, "").await
        })
        .await;
    }

    /// What a connector's task does now.
    pub async fn task(&self, name: &str) -> Task {
        let Ok(status) = self.ask("GET", &format!("/connectors/{name}/status"), "").await else {
            return Task::Absent;
        };
        for part in [&status["tasks"][0], &status["connector"]] {
            if part["state"] == "FAILED" {
                return Task::Failed(part["trace"].as_str().unwrap_or_default().to_owned());
            }
        }
        if status["tasks"][0]["state"] == "RUNNING" { Task::Running } else { Task::Absent }
    }

    fn connectors(&self) -> MutexGuard<'_, Vec<Connector>> {
        self.connectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        http::request(self.rest.number(), method, path, body).await
    }
}

fn connector_text(connector: &Connector) -> String {
    json!({"name": connector.name, "config": connector.settings}).to_string()
}
