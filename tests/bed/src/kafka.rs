//! A real Apache Kafka: one node, broker and controller in one.
//!
//! Besides the plain listener that the bed itself uses it may have one with
//! passwords and one that advertises a proxy's address. It has no clusters.

mod install;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::Signal;
use tokio::sync::OnceCell;

use crate::cache;
use crate::error::{BedError, Doing};
use crate::eventually::within;
use crate::port::Port;
use crate::server::Server;

use install::install;

/// How long a broker may take to answer, recovery of its logs included.
const READY: Duration = Duration::from_secs(90);

/// What a broker is to be like; [`KafkaBuilder::start`] makes it.
#[derive(Clone, Debug, Default)]
pub struct KafkaBuilder {
    properties: Vec<(String, String)>,
    users: Vec<(String, String)>,
    advertised_port: Option<u16>,
}

impl KafkaBuilder {
    /// A line of `server.properties`; a later one of the same name wins.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a listener for SASL/PLAIN ([`Kafka::sasl_bootstrap`]) and this user to it.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Adds a listener ([`Kafka::proxied_port`]) that advertises this port of a
    /// proxy in place of its own, so that clients stay behind the proxy.
    #[must_use]
    pub fn behind(mut self, proxy_port: u16) -> Self {
        self.advertised_port = Some(proxy_port);
        self
    }

    /// Starts it and awaits that it answers for its metadata.
    pub async fn start(self) -> Kafka {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(self) -> Result<Kafka, BedError> {
        let kafka = tokio::task::spawn_blocking(move || self.lay_out())
            .await
            .expect("laying out a broker does not panic")?;
        kafka.try_start_again().await?;
        Ok(kafka)
    }

    /// A broker's directory with its settings, not running yet.
    fn lay_out(self) -> Result<Kafka, BedError> {
        let installed = install()?;
        let server = Server::new("kafka", Signal::KILL)?;
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(installed.join("formatted")).arg(server.directory().join("data"));
        cache::run(&mut copy, "cp", "coreutils")?;
        let reserve_if = |wanted: bool| wanted.then(Port::reserve).transpose();
        let kafka = Kafka {
            server,
            installed,
            port: Port::reserve()?,
            controller_port: Port::reserve()?,
            sasl_port: reserve_if(!self.users.is_empty())?,
            proxied_port: reserve_if(self.advertised_port.is_some())?,
        };
        let path = kafka.properties_path();
        fs::write(&path, self.server_properties(&kafka))
            .doing(|| format!("writing {}", path.display()))?;
        Ok(kafka)
    }

    /// Why this text: <https://kafka.apache.org/documentation/#brokerconfigs>.
    fn server_properties(&self, kafka: &Kafka) -> String {
        let controller = kafka.controller_port.number();
        let plain = format!("PLAINTEXT://127.0.0.1:{}", kafka.port.number());
        let mut listeners = format!("{plain},CONTROLLER://127.0.0.1:{controller}");
        let mut advertised = plain;
        let mut text = String::new();
        if let Some(port) = &kafka.sasl_port {
            let address = format!(",SASL://127.0.0.1:{}", port.number());
            listeners.push_str(&address);
            advertised.push_str(&address);
            text.push_str("listener.name.sasl.sasl.enabled.mechanisms=PLAIN\n");
            text.push_str("listener.name.sasl.plain.sasl.jaas.config=");
            text.push_str("org.apache.kafka.common.security.plain.PlainLoginModule required");
            for (name, password) in &self.users {
                let _ = write!(text, " user_{name}=\"{password}\"");
            }
            text.push_str(";\n");
        }
        if let (Some(own), Some(proxy)) = (&kafka.proxied_port, self.advertised_port) {
            let _ = write!(listeners, ",PROXIED://127.0.0.1:{}", own.number());
            let _ = write!(advertised, ",PROXIED://127.0.0.1:{proxy}");
        }
        let _ = write!(
            text,
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners={listeners}\n\
             advertised.listeners={advertised}\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,\
             SASL:SASL_PLAINTEXT,PROXIED:PLAINTEXT\n\
             log.dirs={}\n\
             auto.create.topics.enable=true\n\
             num.partitions=3\n\
             offsets.topic.num.partitions=1\n\
             offsets.topic.replication.factor=1\n\
             transaction.state.log.num.partitions=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             group.initial.rebalance.delay.ms=0\n",
            kafka.server.directory().join("data").display()
        );
        for (name, value) in &self.properties {
            let _ = writeln!(text, "{name}={value}");
        }
        text
    }
}

/// A running (or stopped) broker. Dropped, it is gone with its data.
#[derive(Debug)]
pub struct Kafka {
    server: Server,
    installed: PathBuf,
    port: Port,
    controller_port: Port,
    sasl_port: Option<Port>,
    proxied_port: Option<Port>,
}

impl Kafka {
    pub fn builder() -> KafkaBuilder {
        KafkaBuilder::default()
    }

    /// A broker that makes topics of three partitions when they are first named.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// One broker for the whole test process; each test takes topics of its own.
    ///
    /// It ends with the process. Nobody may stop, pause or kill it.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Kafka> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    /// The address for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// The address that wants SASL/PLAIN; there is one when a user was added.
    pub fn sasl_bootstrap(&self) -> Option<String> {
        let port = self.sasl_port.as_ref()?;
        Some(format!("127.0.0.1:{}", port.number()))
    }

    /// Where a proxy is to lead; there is such a port when the builder was told of a proxy.
    pub fn proxied_port(&self) -> Option<u16> {
        self.proxied_port.as_ref().map(Port::number)
    }

    /// The directory of its settings, data and log.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// The last lines that the broker logged.
    pub fn log_tail(&self, lines: usize) -> String {
        self.server.log_tail(lines)
    }

    /// Asks it to stop (SIGTERM) and returns at once.
    pub fn begin_stop(&self) {
        self.server.signal(Signal::TERM);
    }

    /// Asks it to stop; whether it had stopped within the deadline.
    pub async fn stop(&self, deadline: Duration) -> bool {
        self.begin_stop();
        self.server.ended(deadline).await;
        self.pid().is_none()
    }

    /// Kills it; it is gone on return.
    pub async fn kill9(&self) {
        self.server.kill_all().await;
    }

    /// Freezes it (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        self.server.signal(Signal::STOP);
    }

    /// Thaws it.
    pub fn resume(&self) {
        self.server.signal(Signal::CONT);
    }

    /// Starts a stopped broker on its ports with its data, and awaits that it answers.
    pub async fn start_again(&self) {
        self.try_start_again().await.unwrap_or_else(|error| panic!("{error}"));
    }

    pub async fn try_start_again(&self) -> Result<(), BedError> {
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let java = Path::new("java");
        let mut command = self.server.keeper().launcher(java);
        command.arg("-Xmx512m").args(install::jvm_arguments(&self.installed));
        command.arg("kafka.Kafka").arg(self.properties_path());
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())?;
        let ready = within(READY, async || match self.answers().await {
            Ok(()) => Ok(Ok(())),
            Err(_) if self.pid().is_none() => Ok(Err("it ended")),
            Err(seen) => Err(seen),
        })
        .await;
        let reason = match ready {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(reason)) => reason.to_owned(),
            Err(seen) => seen,
        };
        Err(BedError::Start { server: "Kafka".to_owned(), reason, log: self.log_tail(10) })
    }

    /// Makes a topic; it has leaders when this returns.
    pub async fn create_topic(&self, name: &str, partitions: i32) {
        self.create_topic_with(name, partitions, &[]).await;
    }

    /// Makes a topic with settings of its own, such as `max.message.bytes`.
    pub async fn create_topic_with(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (setting, value) in settings {
            topic = topic.set(setting, value);
        }
        let done = self.admin().create_topics([&topic], &AdminOptions::new()).await;
        let results = done.unwrap_or_else(|error| panic!("creating {name}: {error}"));
        for result in results {
            result.unwrap_or_else(|(_, code)| panic!("creating {name}: {code}"));
        }
        crate::eventually(READY, "leaders of a new topic", async || {
            let counted = self.partitions_led(name).await?;
            if counted == usize::try_from(partitions).unwrap_or(0) {
                Ok(())
            } else {
                Err(format!("{counted} of {partitions}"))
            }
        })
        .await;
    }

    pub async fn delete_topic(&self, name: &str) {
        let done = self.admin().delete_topics(&[name], &AdminOptions::new()).await;
        let results = done.unwrap_or_else(|error| panic!("deleting {name}: {error}"));
        for result in results {
            result.unwrap_or_else(|(_, code)| panic!("deleting {name}: {code}"));
        }
    }

    /// A client for all else that a test wants of the broker's administration.
    pub fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client_config().create().expect("a plain configuration makes a client")
    }

    fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.bootstrap());
        config.set("reconnect.backoff.max.ms", "100");
        config
    }

    fn properties_path(&self) -> PathBuf {
        self.server.directory().join("server.properties")
    }

    /// Whether a metadata fetch shows this broker.
    async fn answers(&self) -> Result<(), String> {
        let address = self.bootstrap();
        tokio::net::TcpStream::connect(&address).await.map_err(|error| error.to_string())?;
        let config = self.client_config();
        in_background(move || {
            let client: BaseConsumer = config.create().map_err(|error| error.to_string())?;
            let seen = client.fetch_metadata(None, Duration::from_secs(5));
            let seen = seen.map_err(|error| error.to_string())?;
            if seen.brokers().is_empty() {
                return Err("no broker in the metadata".to_owned());
            }
            Ok(())
        })
        .await
    }

    async fn partitions_led(&self, topic: &str) -> Result<usize, String> {
        let (config, topic) = (self.client_config(), topic.to_owned());
        in_background(move || {
            let client: BaseConsumer = config.create().map_err(|error| error.to_string())?;
            let seen = client.fetch_metadata(None, Duration::from_secs(5));
            let seen = seen.map_err(|error| error.to_string())?;
            let found = seen.topics().iter().find(|one| one.name() == topic);
            let partitions = found.map_or(&[][..], |one| one.partitions());
            Ok(partitions.iter().filter(|one| one.leader() >= 0).count())
        })
        .await
    }
}

/// librdkafka's calls block, so they run where blocking is allowed.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}
