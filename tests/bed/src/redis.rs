//! A real Redis server, Debian's, and a consumer that reads a stream of it.
//!
//! It syncs each write to its log unless the test says otherwise, so that what it has acknowledged
//! survives a kill.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use rustix::process::Signal;
use tokio::sync::mpsc;

use crate::ca::{CertificateAuthority, KeyPair};
use crate::consumer::Consumed;
use crate::error::{BedError, Doing};
use crate::port::Port;
use crate::server::Server;

/// How many entries are read at once.
const CHUNK: usize = 1000;

/// The prefix of a header's field.
const HEADER: &str = "header:";

/// What a server is to be like; [`RedisBuilder::start`] makes it.
#[derive(Debug, Default)]
pub struct RedisBuilder {
    settings: Vec<(String, String)>,
    tls: Option<(KeyPair, std::path::PathBuf)>,
}

impl RedisBuilder {
    /// A setting of `redis.conf`; a later one of the same name wins.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes connections with TLS only.
    #[must_use]
    pub fn tls(mut self, authority: &CertificateAuthority) -> Self {
        self.tls = Some((authority.server("redis"), authority.root()));
        self
    }

    /// Starts it and awaits that it answers.
    pub async fn start(self) -> Redis {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(self) -> Result<Redis, BedError> {
        let server = Server::new("redis", Signal::KILL)?;
        let redis =
            Redis { server, port: Port::reserve()?, plain: Port::reserve()?, builder: self };
        redis.launch()?;
        redis.ready().await?;
        Ok(redis)
    }
}

/// A running (or stopped) server. It is removed with its data on drop.
#[derive(Debug)]
pub struct Redis {
    pub(crate) server: Server,
    /// The port for walpost.
    port: Port,
    /// Of a server with TLS: the port without it, for the bed itself. Of another: for a cluster's nodes.
    plain: Port,
    builder: RedisBuilder,
}

/// An entry of a stream, as a consumer reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    pub fields: Vec<(String, Vec<u8>)>,
}

impl Entry {
    /// The first value of a field, where it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(one, _)| one == name)?;
        std::str::from_utf8(value).ok()
    }
}

impl Redis {
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    pub async fn start() -> Self {
        Self::builder().start().await
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address for walpost, without a login.
    pub fn url(&self) -> String {
        let scheme = if self.builder.tls.is_some() { "rediss" } else { "redis" };
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

    /// Starts a stopped server on its port with its data, and awaits that it answers.
    pub async fn start_again(&self) {
        self.launch().unwrap_or_else(|error| panic!("{error}"));
        self.ready().await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// The file to which it appends its writes.
    pub fn log_file(&self) -> PathBuf {
        let directory = self.server.directory().join("data/appendonlydir");
        let files = std::fs::read_dir(directory).expect("it appends to a log");
        let mut paths = files.map(|file| file.expect("a file").path());
        let is_appended = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
        paths.find(is_appended).expect("a file that is appended to")
    }

    /// Removes its data; it must not run.
    pub fn forget_data(&self) {
        assert!(self.pid().is_none(), "it runs");
        let data = self.server.directory().join("data");
        std::fs::remove_dir_all(&data).expect("it can be removed");
    }

    fn launch(&self) -> Result<(), BedError> {
        let data = self.server.directory().join("data");
        std::fs::create_dir_all(&data).doing(|| format!("making {}", data.display()))?;
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = self.server.cleanup().launcher(Path::new("redis-server"));
        let port = if self.builder.tls.is_some() { &self.plain } else { &self.port };
        let mut settings: Vec<(String, String)> = vec![
            ("bind".into(), "127.0.0.1".into()),
            ("port".into(), port.number().to_string()),
            ("dir".into(), data.display().to_string()),
            ("daemonize".into(), "no".into()),
            ("save".into(), String::new()),
            ("appendonly".into(), "yes".into()),
            ("appendfsync".into(), "always".into()),
        ];
        if let Some((pair, root)) = &self.builder.tls {
            settings.extend([
                ("tls-port".into(), self.port.number().to_string()),
                ("tls-cert-file".into(), pair.certificate.display().to_string()),
                ("tls-key-file".into(), pair.key.display().to_string()),
                ("tls-ca-cert-file".into(), root.display().to_string()),
                ("tls-auth-clients".into(), "no".into()),
            ]);
        }
        if self.builder.tls.is_none() {
            // Otherwise 10,000 more than the port, which an outgoing connection may have.
            settings.push(("cluster-port".into(), self.plain.number().to_string()));
        }
        settings.extend(self.builder.settings.iter().cloned());
        for (name, value) in settings {
            command.arg(format!("--{name}"));
            // A user's rules are several words.
            if name == "user" {
                command.args(value.split(' '));
            } else {
                command.arg(value);
            }
        }
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())
    }

    async fn ready(&self) -> Result<(), BedError> {
        let ask = async || {
            let mut client = self.try_client().await?;
            redis::cmd("PING").query_async::<String>(&mut client).await.map(drop)
        };
        self.server.ready("Redis", ask).await
    }

    async fn try_client(&self) -> redis::RedisResult<MultiplexedConnection> {
        self.client_with(Some(Duration::from_secs(30))).await
    }

    /// A client that waits so long for an answer.
    async fn client_with(
        &self,
        patience: Option<Duration>,
    ) -> redis::RedisResult<MultiplexedConnection> {
        let port = if self.builder.tls.is_some() { &self.plain } else { &self.port };
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", port.number()))?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(patience);
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Executes a command, whose words are separated by spaces.
    pub async fn command<T: FromRedisValue>(&self, words: &str) -> T {
        self.try_command(words).await.unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    pub async fn try_command<T: FromRedisValue>(&self, words: &str) -> redis::RedisResult<T> {
        let mut client = self.try_client().await?;
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().expect("a command"));
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut client).await
    }

    /// How many entries a stream has.
    pub async fn length(&self, stream: &str) -> usize {
        self.command(&format!("XLEN {stream}")).await
    }

    /// All entries of a stream, as a consumer reads them.
    pub async fn entries(&self, stream: &str) -> Vec<Entry> {
        self.entries_after(stream, "0-0").await
    }

    /// The same behind this id.
    pub async fn entries_after(&self, stream: &str, id: &str) -> Vec<Entry> {
        let mut client = self.try_client().await.expect("Redis answers");
        let (mut entries, mut after) = (Vec::new(), id.to_owned());
        loop {
            let mut read = redis::cmd("XREAD");
            read.arg("COUNT").arg(CHUNK).arg("STREAMS").arg(stream).arg(&after);
            let answer: Value = read.query_async(&mut client).await.expect("XREAD");
            let found = entries_of(answer);
            let Some(last) = found.last() else { return entries };
            after.clone_from(&last.id);
            entries.extend(found);
        }
    }

    /// The same, as records.
    pub async fn records(&self, stream: &str) -> Vec<Consumed> {
        self.records_after(stream, "0-0").await
    }

    /// Those behind this id.
    pub async fn records_after(&self, stream: &str, id: &str) -> Vec<Consumed> {
        let entries = self.entries_after(stream, id).await;
        (0..).zip(entries).map(|(offset, entry)| record(offset, entry)).collect()
    }

    /// The id of the last entry of a stream.
    pub async fn last_id(&self, stream: &str) -> Option<String> {
        let last: Vec<(String, Value)> =
            self.command(&format!("XREVRANGE {stream} + - COUNT 1")).await;
        last.into_iter().next().map(|(id, _)| id)
    }

    /// The records of a stream from its beginning, as they come, until Redis ends.
    pub async fn follow(&self, stream: &str) -> mpsc::UnboundedReceiver<Consumed> {
        let mut client = self.client_with(None).await.expect("Redis answers");
        let (sender, receiver) = mpsc::unbounded_channel();
        let stream = stream.to_owned();
        tokio::spawn(async move {
            let mut after = "0-0".to_owned();
            for offset in 0.. {
                let mut read = redis::cmd("XREAD");
                // One at a time, so that each is counted.
                read.arg("COUNT").arg(1).arg("BLOCK").arg(0).arg("STREAMS").arg(&stream);
                let Ok(answer) = read.arg(&after).query_async::<Value>(&mut client).await else {
                    return;
                };
                let Some(entry) = entries_of(answer).pop() else { return };
                after.clone_from(&entry.id);
                if sender.send(record(offset, entry)).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

/// The record that an entry stands for.
fn record(offset: i64, entry: Entry) -> Consumed {
    let mut record = Consumed {
        topic: String::new(),
        partition: 0,
        offset,
        key: None,
        value: None,
        headers: Vec::new(),
        timestamp_ms: None,
    };
    let text = |value: Vec<u8>| String::from_utf8(value).expect("UTF-8");
    for (name, value) in entry.fields {
        match name.as_str() {
            "topic" => record.topic = text(value),
            "key" => record.key = Some(value),
            "value" => record.value = Some(value),
            "timestamp" => record.timestamp_ms = text(value).parse().ok(),
            // It was a dead letter.
            "replayed" => {}
            other => {
                let name = other.strip_prefix(HEADER).unwrap_or_else(|| panic!("field {other}"));
                record.headers.push((name.to_owned(), Some(value)));
            }
        }
    }
    record
}

/// The entries in the answer to `XREAD` of one stream.
fn entries_of(answer: Value) -> Vec<Entry> {
    let Value::Array(mut streams) = answer else { return Vec::new() };
    let stream: (String, Vec<(String, Vec<Value>)>) =
        redis::from_redis_value(streams.remove(0)).expect("name and entries");
    let bytes = |value| redis::from_redis_value::<Vec<u8>>(value).expect("bytes");
    let entries = stream.1.into_iter().map(|(id, fields)| {
        let mut fields = fields.into_iter().map(bytes);
        let mut pairs = Vec::new();
        while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
            pairs.push((String::from_utf8(name).expect("UTF-8"), value));
        }
        Entry { id, fields: pairs }
    });
    entries.collect()
}
