//! A real Apache Kafka: one node that is broker and controller, or a [`Cluster`] of three.
//!
//! Besides the plain listener for the bed itself it can have a SASL listener, and one that
//! advertises a proxy's address.

mod cluster;
mod install;
mod properties;
mod secure;
mod tools;
mod topics;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::Signal;
use tokio::sync::OnceCell;

use crate::ca::{CertificateAuthority, KeyPair};
use crate::cache;
use crate::disk::SmallDisk;
use crate::error::{BedError, Doing};
use crate::jars::Jvm;
use crate::port::Port;
use crate::server::Server;

pub use cluster::Cluster;
pub use topics::{Admin, Partition};

use install::install;

/// What a broker is to be like; [`KafkaBuilder::start`] makes it.
#[derive(Clone, Debug, Default)]
pub struct KafkaBuilder {
    properties: Vec<(String, String)>,
    users: Vec<(String, String)>,
    advertised_port: Option<u16>,
    jvm: Option<Jvm>,
    disk_mebibytes: Option<u32>,
    /// The broker's own certificate, and the authority of its clients'.
    tls: Option<(KeyPair, PathBuf)>,
    /// `controller.quorum.voters`, where it is not the node alone.
    voters: Option<String>,
}

impl KafkaBuilder {
    /// A line of `server.properties`; a later one of the same name wins.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a listener for passwords ([`Kafka::sasl_bootstrap`]) and to it this
    /// user of SASL/PLAIN; it takes SASL/SCRAM too ([`Kafka::set_password`]).
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Adds two listeners with TLS: one for passwords and tokens
    /// ([`Kafka::secure_bootstrap`]), in place of that without TLS, and one for clients'
    /// certificates ([`Kafka::mutual_bootstrap`]).
    #[must_use]
    pub fn tls(mut self, authority: &CertificateAuthority) -> Self {
        self.tls = Some((authority.server("kafka"), authority.root()));
        self
    }

    /// Adds a listener ([`Kafka::proxied_port`]) that advertises this port of a
    /// proxy in place of its own, so that clients stay behind the proxy.
    #[must_use]
    pub fn behind(mut self, proxy_port: u16) -> Self {
        self.advertised_port = Some(proxy_port);
        self
    }

    /// How much memory its JVM may take for objects.
    #[must_use]
    pub fn heap_mebibytes(mut self, mebibytes: u32) -> Self {
        self.jvm = Some(Jvm::Quick { heap_mebibytes: mebibytes });
        self
    }

    /// Gives it the JVM of Kafka's own scripts, which starts more slowly and then is faster and
    /// pauses for less: for benches.
    #[must_use]
    pub fn as_shipped(mut self) -> Self {
        self.jvm = Some(Jvm::Broker);
        self
    }

    /// Puts its topics on a disk of this size. Only root may.
    #[must_use]
    pub fn disk_mebibytes(mut self, mebibytes: u32) -> Self {
        self.disk_mebibytes = Some(mebibytes);
        self
    }

    /// Asks of each user but the bed itself to be allowed what it does
    /// ([`Kafka::allow`]).
    #[must_use]
    pub fn guarded(self) -> Self {
        let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
        self.property("authorizer.class.name", authorizer).property("super.users", "User:ANONYMOUS")
    }

    /// Starts it and awaits that it answers for its metadata.
    pub async fn start(self) -> Kafka {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(self) -> Result<Kafka, BedError> {
        let kafka =
            tokio::task::spawn_blocking(move || self.lay_out(install()?, 1, Port::reserve()?))
                .await
                .expect("laying out a broker does not panic")?;
        kafka.try_start_again().await?;
        Ok(kafka)
    }

    /// A broker's directory with its settings, not running yet.
    fn lay_out(
        self,
        installed: PathBuf,
        node: u32,
        controller_port: Port,
    ) -> Result<Kafka, BedError> {
        let server = Server::new("kafka", Signal::KILL)?;
        let reserve_if = |wanted: bool| wanted.then(Port::reserve).transpose();
        let data = server.directory().join("data");
        let disk = self
            .disk_mebibytes
            .map(|size| SmallDisk::mount(&data, u64::from(size) << 20))
            .transpose()?;
        let mut copy = Command::new("cp");
        copy.arg("-aT").arg(installed.join("formatted")).arg(&data);
        cache::run(&mut copy, "cp", "coreutils")?;
        let kafka = Kafka {
            node,
            port: Port::reserve()?,
            controller_port,
            sasl_port: reserve_if(!self.users.is_empty() && self.tls.is_none())?,
            secure_port: reserve_if(self.tls.is_some())?,
            mutual_port: reserve_if(self.tls.is_some())?,
            proxied_port: reserve_if(self.advertised_port.is_some())?,
            jvm: self.jvm.unwrap_or(Jvm::QUICK),
            installed,
            disk,
            server,
        };
        kafka.take_identity()?;
        if let Some((pair, root)) = &self.tls {
            kafka.write_certificates(pair, root)?;
        }
        let path = kafka.properties_path();
        fs::write(&path, properties::text(&self, &kafka))
            .doing(|| format!("writing {}", path.display()))?;
        Ok(kafka)
    }
}

/// A running (or stopped) broker. It is removed with its data on drop.
#[derive(Debug)]
pub struct Kafka {
    /// Before the server, which removes the directory that it is mounted in.
    disk: Option<SmallDisk>,
    server: Server,
    installed: PathBuf,
    node: u32,
    jvm: Jvm,
    port: Port,
    controller_port: Port,
    sasl_port: Option<Port>,
    secure_port: Option<Port>,
    mutual_port: Option<Port>,
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

    /// Which Apache Kafka it is.
    pub fn version() -> &'static str {
        install::version()
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

    /// The address that wants TLS and a password or a token.
    pub fn secure_bootstrap(&self) -> String {
        Self::address(self.secure_port.as_ref())
    }

    /// The address that wants TLS and a client's certificate.
    pub fn mutual_bootstrap(&self) -> String {
        Self::address(self.mutual_port.as_ref())
    }

    fn address(port: Option<&Port>) -> String {
        let port = port.expect("it was made with TLS");
        format!("127.0.0.1:{}", port.number())
    }

    /// The port that a proxy must forward to, if the builder has a proxy.
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

    /// Kills it, and returns once it has exited.
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
        self.launch()?;
        self.ready().await
    }

    fn launch(&self) -> Result<(), BedError> {
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let java = Path::new("java");
        let mut command = self.server.cleanup().launcher(java);
        command.args(install::jvm_arguments(self.jvm, &self.installed));
        command.arg("kafka.Kafka").arg(self.properties_path());
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())
    }

    /// Awaits that it answers for itself.
    async fn ready(&self) -> Result<(), BedError> {
        self.server.ready("Kafka", async || self.answers().await).await
    }

    /// Makes a topic; it has leaders when this returns.
    pub async fn create_topic(&self, name: &str, partitions: i32) {
        self.create_topic_with(name, partitions, &[]).await;
    }

    /// Makes a topic with settings of its own, such as `max.message.bytes`.
    pub async fn create_topic_with(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.administration().create(name, partitions, settings).await;
    }

    pub async fn delete_topic(&self, name: &str) {
        self.administration().delete(name).await;
    }

    /// All else that a test wants of its topics.
    pub fn administration(&self) -> Admin {
        Admin::of(self.bootstrap(), 1)
    }

    /// Makes its disk larger, or smaller.
    pub fn resize_disk(&self, mebibytes: u32) {
        let disk = self.disk.as_ref().expect("it was made with a disk of its own");
        disk.resize(u64::from(mebibytes) << 20).unwrap_or_else(|error| panic!("{error}"));
    }

    fn data_directory(&self) -> PathBuf {
        self.server.directory().join("data")
    }

    /// All nodes are copies of one: each takes an id of its own, and one for its
    /// directory.
    fn take_identity(&self) -> Result<(), BedError> {
        let path = self.data_directory().join("meta.properties");
        let text = fs::read_to_string(&path).doing(|| format!("reading {}", path.display()))?;
        let node = self.node;
        let line = |line: &str| match line.split_once('=') {
            Some(("node.id", _)) => format!("node.id={node}\n"),
            Some(("directory.id", id)) => format!("directory.id={node}{}\n", &id[1..]),
            _ => format!("{line}\n"),
        };
        let text: String = text.lines().map(line).collect();
        fs::write(&path, text).doing(|| format!("writing {}", path.display()))
    }

    fn properties_path(&self) -> PathBuf {
        self.server.directory().join("server.properties")
    }

    /// Whether a metadata fetch shows this broker.
    async fn answers(&self) -> Result<(), String> {
        let address = self.bootstrap();
        tokio::net::TcpStream::connect(&address).await.map_err(|error| error.to_string())?;
        let (config, node) = (client_config(&address), self.node);
        in_background(move || {
            let client: BaseConsumer = config.create().map_err(|error| error.to_string())?;
            let seen = client.fetch_metadata(None, Duration::from_secs(5));
            let seen = seen.map_err(|error| error.to_string())?;
            let known = |id: i32| u32::try_from(id) == Ok(node);
            if seen.brokers().iter().any(|broker| known(broker.id())) {
                Ok(())
            } else {
                Err("it is not in the metadata".to_owned())
            }
        })
        .await
    }
}

fn client_config(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config.set("reconnect.backoff.max.ms", "100");
    config
}

/// librdkafka's calls block, so they run where blocking is allowed.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}
