//! A real RabbitMQ, Debian's, and a consumer that reads its queues.
//!
//! It is one process, which the bed starts without the scripts around it: the Erlang machine itself,
//! so that a signal reaches it. Its port mapper is a process of its own, for this server alone. The
//! consumer uses the usual client, and nothing of walpost's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
};
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::ca::{CertificateAuthority, KeyPair};
use crate::consumer::Consumed;
use crate::error::{BedError, Doing};
use crate::eventually::under_load;
use crate::port::Port;
use crate::server::Server;

/// Where Debian's package has its scripts, in a folder of its version.
const PACKAGES: &str = "/usr/lib/rabbitmq/lib";

/// How long the next message may take.
const STALL: Duration = Duration::from_secs(30);

/// How many messages are read at most before they are acknowledged.
const CHUNK: u16 = 500;

/// What a server is to be like; [`RabbitMqBuilder::start`] makes it.
#[derive(Debug, Default)]
pub struct RabbitMqBuilder {
    configuration: String,
    definitions: serde_json::Value,
    users: Vec<(String, String)>,
    tls: Option<(KeyPair, PathBuf)>,
}

impl RabbitMqBuilder {
    /// Further lines of its configuration file.
    #[must_use]
    pub fn configured(mut self, lines: &str) -> Self {
        self.configuration.push_str(lines);
        self.configuration.push('\n');
        self
    }

    /// Exchanges, queues, bindings, users and rights, as RabbitMQ exports them.
    #[must_use]
    pub fn defined(mut self, definitions: serde_json::Value) -> Self {
        self.definitions = definitions;
        self
    }

    /// A user with the password `s3cret`, who may write where the pattern says, and do nothing else.
    #[must_use]
    pub fn user(mut self, name: &str, write: &str) -> Self {
        self.users.push((name.to_owned(), write.to_owned()));
        self
    }

    /// Takes connections with TLS too, on a second port, and client certificates in place of a login.
    #[must_use]
    pub fn tls(mut self, authority: &CertificateAuthority) -> Self {
        self.tls = Some((authority.server("rabbitmq"), authority.root()));
        self
    }

    /// Starts it and awaits that it answers.
    pub async fn start(self) -> RabbitMq {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(self) -> Result<RabbitMq, BedError> {
        let rabbit = RabbitMq {
            scripts: scripts()?,
            server: Server::new("rabbitmq", Signal::KILL)?,
            mapper: Server::new("epmd", Signal::KILL)?,
            port: Port::reserve()?,
            tls_port: Port::reserve()?,
            cluster_port: Port::reserve()?,
            mapper_port: Port::reserve()?,
            builder: self,
        };
        rabbit.launch_mapper()?;
        rabbit.launch()?;
        rabbit.ready().await?;
        Ok(rabbit)
    }
}

/// The folder of the scripts.
fn scripts() -> Result<PathBuf, BedError> {
    let found = std::fs::read_dir(PACKAGES)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .doing(|| format!("looking into {PACKAGES} (apt-get install rabbitmq-server)"))?;
    let mut folders = found.into_iter().map(|entry| entry.path().join("sbin"));
    let folder = folders.find(|folder| folder.join("rabbitmq-server").is_file());
    Ok(folder.unwrap_or_else(|| panic!("{PACKAGES} has no rabbitmq-server")))
}

/// A running (or stopped) server. It is removed with its data on drop.
#[derive(Debug)]
pub struct RabbitMq {
    scripts: PathBuf,
    pub(crate) server: Server,
    /// Erlang's port mapper.
    mapper: Server,
    port: Port,
    tls_port: Port,
    cluster_port: Port,
    mapper_port: Port,
    builder: RabbitMqBuilder,
}

/// A message of a queue, as a consumer reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RabbitMessage {
    pub routing_key: String,
    pub message_id: String,
    pub content_type: Option<String>,
    pub delivery_mode: Option<u8>,
    pub timestamp: Option<u64>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl RabbitMessage {
    /// A header, where it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(one, _)| one == name)?;
        std::str::from_utf8(value).ok()
    }

    /// Its record, in the queue of that number.
    pub fn record(self, partition: i32, offset: i64) -> Consumed {
        let own = |name: &str| self.header(name).map(str::to_owned);
        let is_gone = own("walpost.tombstone").is_some();
        let mut record = Consumed {
            topic: own("walpost.topic").unwrap_or_default(),
            partition,
            offset,
            key: own("walpost.key").map(String::into_bytes),
            timestamp_ms: own("walpost.timestamp").and_then(|text| text.parse().ok()),
            value: None,
            headers: Vec::new(),
        };
        let is_own = |name: &str| name.starts_with("walpost.") && name != "walpost.position";
        let others = self.headers.into_iter().filter(|(name, _)| !is_own(name));
        record.headers = others.map(|(name, value)| (name, Some(value))).collect();
        record.value = (!is_gone).then_some(self.body);
        record
    }
}

impl RabbitMq {
    pub fn builder() -> RabbitMqBuilder {
        RabbitMqBuilder::default()
    }

    pub async fn start() -> Self {
        Self::builder().start().await
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address for walpost, without a login: as `guest`.
    pub fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port.number())
    }

    /// The same with TLS.
    pub fn tls_url(&self) -> String {
        format!("amqps://127.0.0.1:{}", self.tls_port.number())
    }

    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
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

    /// Starts a stopped server on its port with its data, and awaits that it answers.
    pub async fn start_again(&self) {
        self.launch().unwrap_or_else(|error| panic!("{error}"));
        self.ready().await.unwrap_or_else(|error| panic!("{error}"));
    }

    fn launch_mapper(&self) -> Result<(), BedError> {
        let mut command = self.mapper.cleanup().launcher(Path::new("epmd"));
        let log = self.mapper.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        command
            .args(["-port", &self.mapper_port.number().to_string(), "-address", "127.0.0.1"])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        self.mapper.launch(&mut command, |_| ())
    }

    fn node(&self) -> String {
        format!("bed-{}@localhost", self.port.number())
    }

    /// The environment of the server, and of the commands that ask it.
    fn environment(&self, command: &mut Command) {
        command
            .env("HOME", self.server.directory())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", self.mapper_port.number().to_string())
            .env("RABBITMQ_NODENAME", self.node())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null");
    }

    fn launch(&self) -> Result<(), BedError> {
        let file = |name: &str| self.server.directory().join(name);
        let write = |name: &str, text: String| {
            let path = file(name);
            std::fs::write(&path, text).doing(|| format!("writing {}", path.display()))
        };
        write("rabbitmq.conf", self.configuration())?;
        write("definitions.json", self.definitions())?;
        let plugins = "[rabbitmq_consistent_hash_exchange,rabbitmq_auth_mechanism_ssl].\n";
        write("enabled_plugins", plugins.to_owned())?;
        let program = self.scripts.join("rabbitmq-server");
        let mut command = self.server.cleanup().launcher(&program);
        self.environment(&mut command);
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        command
            // The script then becomes the Erlang machine instead of waiting for it.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("RABBITMQ_MNESIA_BASE", file("data"))
            .env("RABBITMQ_LOG_BASE", file("logs"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("enabled_plugins"))
            .env("RABBITMQ_PID_FILE", file("own-pid"))
            .env("RABBITMQ_DIST_PORT", self.cluster_port.number().to_string())
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
            )
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        self.server.launch(&mut command, |_| ())
    }

    fn configuration(&self) -> String {
        let definitions = self.server.directory().join("definitions.json");
        let mut text = format!(
            "listeners.tcp.1 = 127.0.0.1:{}\nload_definitions = {}\nlog.console.level = warning\n\
             disk_free_limit.absolute = 10MB\nauth_mechanisms.1 = PLAIN\n\
             auth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name\n",
            self.port.number(),
            definitions.display()
        );
        if let Some((pair, root)) = &self.builder.tls {
            let (certificate, key) = (pair.certificate.display(), pair.key.display());
            let _ = write!(
                text,
                "listeners.ssl.1 = 127.0.0.1:{}\nssl_options.certfile = {certificate}\n\
                 ssl_options.keyfile = {key}\nssl_options.cacertfile = {}\n\
                 ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n",
                self.tls_port.number(),
                root.display()
            );
        }
        text.push_str(&self.builder.configuration);
        text
    }

    /// What was asked for, and who may do what: the bed itself everything.
    fn definitions(&self) -> String {
        let user = |name: &str, password: &str, tags: &str| {
            let fields = [("name", name), ("password", password), ("tags", tags)];
            serde_json::json!(fields.into_iter().collect::<BTreeMap<_, _>>())
        };
        let may = |name: &str, all: &str, write: &str| {
            serde_json::json!({
                "user": name, "vhost": "/", "configure": all, "write": write, "read": all
            })
        };
        let mut users = vec![user("guest", "guest", "administrator")];
        let mut rights = vec![may("guest", ".*", ".*")];
        for (name, write) in &self.builder.users {
            users.push(user(name, "s3cret", ""));
            rights.push(may(name, "^$", write));
        }
        let mut all = self.builder.definitions.clone();
        for (name, mut own) in [
            ("users", users),
            ("vhosts", ["/", "forbidden"].map(|name| serde_json::json!({ "name": name })).to_vec()),
            ("permissions", rights),
        ] {
            own.extend(all[name].as_array().cloned().unwrap_or_default());
            all[name] = own.into();
        }
        all.to_string()
    }

    async fn ready(&self) -> Result<(), BedError> {
        let ask = async || {
            // A client has threads of its own, which an attempt each 20 ms would start.
            let listens = TcpStream::connect(("127.0.0.1", self.port())).await;
            listens.map_err(|error| error.to_string())?;
            self.connect().await.map(drop).map_err(|error| error.to_string())
        };
        self.server.ready("RabbitMQ", ask).await
    }

    async fn connect(&self) -> lapin::Result<Connection> {
        Connection::connect(&self.url(), ConnectionProperties::default()).await
    }

    /// Runs `rabbitmqctl` with these words; returns what it prints.
    pub async fn control(&self, words: &[&str]) -> String {
        let mut command = Command::new(self.scripts.join("rabbitmqctl"));
        self.environment(&mut command);
        command.args(["--node", &self.node(), "--quiet"]).args(words).stdin(Stdio::null());
        let done = tokio::task::spawn_blocking(move || command.output()).await;
        let done = done.expect("it is run").expect("rabbitmqctl is there");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            done.status.success(),
            "{words:?}: {said}{}",
            String::from_utf8_lossy(&done.stderr)
        );
        said
    }

    /// Awaits that the names of quorum queues are on the disk. RabbitMQ 3.10 writes them up to a
    /// second later; if it is killed before that, it starts such a queue as a new one, without what
    /// it had confirmed.
    pub async fn sync_queue_names(&self) {
        let said = self.control(&["eval", "dets:sync(ra_directory_reverse)."]).await;
        assert_eq!(said.trim(), "ok");
    }

    /// A channel for declarations, with the connection that it needs.
    pub async fn channel(&self) -> (Connection, Channel) {
        let connection = self.connect().await.expect("RabbitMQ answers");
        let channel = connection.create_channel().await.expect("a channel");
        (connection, channel)
    }

    /// Declares a durable exchange of that type.
    pub async fn exchange(&self, name: &str, kind: &str) {
        let (_connection, channel) = self.channel().await;
        let kind = match kind {
            "direct" => ExchangeKind::Direct,
            "topic" => ExchangeKind::Topic,
            "fanout" => ExchangeKind::Fanout,
            other => ExchangeKind::Custom(other.to_owned()),
        };
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let declared = channel.exchange_declare(name.into(), kind, options, FieldTable::default());
        declared.await.expect("it is declared");
    }

    /// Declares a durable queue with these arguments: numbers, `true` and texts.
    pub async fn queue(&self, name: &str, arguments: &[(&str, &str)]) {
        let (_connection, channel) = self.channel().await;
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            let value = match (value.parse::<i64>(), *value) {
                (Ok(number), _) => AMQPValue::LongLongInt(number),
                (Err(_), "true") => AMQPValue::Boolean(true),
                (Err(_), text) => AMQPValue::LongString(text.into()),
            };
            table.insert((*name).into(), value);
        }
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.into(), options, table).await.expect("it is declared");
    }

    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        let (_connection, channel) = self.channel().await;
        let bound = channel.queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.expect("it is bound");
    }

    /// Publishes an event of that topic and id, whose value is `x`, as walpost does; returns once it is
    /// confirmed.
    pub async fn publish(&self, exchange: &str, topic: &str, id: &str) {
        let (_connection, channel) = self.channel().await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirmations");
        let mut headers = FieldTable::default();
        for (name, value) in [("walpost.topic", topic), ("id", id)] {
            headers.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_delivery_mode(2)
            .with_message_id(id.into());
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let published =
            channel.basic_publish(exchange.into(), "k".into(), options, b"x", properties).await;
        let confirmed = published.expect("it is sent").await.expect("an answer");
        assert!(matches!(confirmed, Confirmation::Ack(None)), "{confirmed:?}");
    }

    /// How many messages are ready in a queue.
    pub async fn length(&self, queue: &str) -> u32 {
        let (_connection, channel) = self.channel().await;
        count(&channel, queue).await
    }

    /// Binds an exchange behind another one.
    pub async fn bind_exchange(&self, behind: &str, exchange: &str) {
        let (_connection, channel) = self.channel().await;
        let bound = channel.exchange_bind(
            behind.into(),
            exchange.into(),
            "".into(),
            ExchangeBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.expect("it is bound");
    }

    /// Takes all messages out of a queue, as a consumer does: among others those that were confirmed
    /// to their publisher before.
    pub async fn take(&self, queue: &str) -> Vec<RabbitMessage> {
        let (connection, channel) = self.channel().await;
        let mut taken = Vec::new();
        loop {
            let there = u16::try_from(count(&channel, queue).await).unwrap_or(CHUNK).min(CHUNK);
            if there == 0 {
                // What was acknowledged before the question is not delivered again.
                let _ = connection.close(200, "OK".into()).await;
                return taken;
            }
            // It is handed these and no more, so that none has to be put back.
            channel.basic_qos(there, BasicQosOptions::default()).await.expect("basic.qos");
            let consumer = channel.basic_consume(
                queue.into(),
                "bed".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            );
            let mut consumer = consumer.await.expect("a consumer");
            let mut last = 0;
            for left in (0..there).rev() {
                let next = timeout(under_load(STALL), consumer.next()).await;
                let delivery = next.unwrap_or_else(|_| panic!("{left} of {there} do not come"));
                let delivery = delivery.expect("a message").expect("it is read");
                last = delivery.delivery_tag;
                taken.push(message(delivery));
            }
            let cancelled = channel.basic_cancel("bed".into(), BasicCancelOptions::default());
            cancelled.await.expect("it is cancelled");
            let acknowledged = channel.basic_ack(last, BasicAckOptions { multiple: true });
            acknowledged.await.expect("it is acknowledged");
        }
    }

    /// The messages of a queue, as they come, until RabbitMQ ends.
    pub async fn follow(&self, queue: &str) -> mpsc::UnboundedReceiver<RabbitMessage> {
        let (connection, channel) = self.channel().await;
        let consumer = channel.basic_consume(
            queue.into(),
            "bed".into(),
            BasicConsumeOptions { no_ack: true, ..Default::default() },
            FieldTable::default(),
        );
        let mut consumer = consumer.await.expect("a consumer");
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            // The consumer lives as long as its connection.
            let _connection = (connection, channel);
            while let Some(Ok(delivery)) = consumer.next().await {
                if sender.send(message(delivery)).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

async fn count(channel: &Channel, queue: &str) -> u32 {
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    let declared = channel.queue_declare(queue.into(), options, FieldTable::default()).await;
    declared.unwrap_or_else(|error| panic!("{queue}: {error}")).message_count()
}

fn message(delivery: lapin::message::Delivery) -> RabbitMessage {
    let properties = delivery.properties;
    let headers = properties.headers().clone().unwrap_or_default();
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => text.as_bytes().to_vec(),
        AMQPValue::LongLongInt(number) => number.to_string().into_bytes(),
        // A queue's own, such as `x-delivery-count` or `x-death`.
        other => format!("{other:?}").into_bytes(),
    };
    let headers = headers.inner().iter().map(|(name, value)| (name.to_string(), text(value)));
    RabbitMessage {
        routing_key: delivery.routing_key.to_string(),
        message_id: properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default(),
        content_type: properties.content_type().as_ref().map(ToString::to_string),
        delivery_mode: *properties.delivery_mode(),
        timestamp: *properties.timestamp(),
        headers: headers.filter(|(name, _)| !name.starts_with("x-")).collect(),
        body: delivery.data,
    }
}
