//! A real ElasticMQ, which has the API of Amazon SQS, and a consumer that reads its queues.
//!
//! A durable one writes each message to its database before it answers, so that what it has accepted
//! survives a kill. The consumer speaks the API's JSON over HTTP, and uses nothing of walpost's or of
//! Amazon's. Reading removes messages from a queue, so it keeps those that it has read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

use crate::consumer::Consumed;
use crate::error::{BedError, Doing};
use crate::jars::{self, Jvm};
use crate::port::Port;
use crate::server::Server;
use crate::{cache, http};

const POM: &str = include_str!("../elasticmq/pom.xml");

/// The account in the URLs of its queues.
const ACCOUNT: &str = "000000000000";

/// How long a message that was received is hidden, in seconds: it is deleted at once.
const HIDDEN: u32 = 2;

/// How often a consumer that follows a queue looks for messages.
const POLL: Duration = Duration::from_millis(20);

/// A running (or stopped) server. It is removed with its data on drop.
#[derive(Debug)]
pub struct ElasticMq {
    installed: PathBuf,
    pub(crate) server: Server,
    port: Port,
    is_durable: bool,
    /// Those that were created.
    queues: Mutex<Vec<String>>,
    reader: Reader,
}

/// A consumer, with the messages that it has read of each queue.
#[derive(Debug, Clone)]
struct Reader {
    port: u16,
    read: Arc<Mutex<HashMap<String, Vec<QueuedMessage>>>>,
}

/// A message of a queue, as a consumer reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedMessage {
    pub id: String,
    pub body: String,
    pub group: String,
    pub deduplication_id: String,
    /// By their names.
    pub attributes: Vec<(String, String)>,
    /// When it was sent, in milliseconds since 1970.
    pub sent_ms: i64,
    receipt: String,
}

impl QueuedMessage {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let (_, value) = self.attributes.iter().find(|(one, _)| one == name)?;
        Some(value)
    }
}

impl ElasticMq {
    /// One whose messages survive a kill.
    pub async fn durable() -> Self {
        Self::try_start(true).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// One that keeps messages in memory.
    pub async fn in_memory() -> Self {
        Self::try_start(false).await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(is_durable: bool) -> Result<Self, BedError> {
        let server = Server::new("elasticmq", Signal::KILL)?;
        let installed = cache::entry(&cache::name_for("elasticmq", &[POM]), |partial| {
            jars::fetch(partial, POM)
        })?;
        let port = Port::reserve()?;
        let reader = Reader { port: port.number(), read: Arc::default() };
        let queues = Mutex::default();
        let elasticmq = Self { installed, server, port, is_durable, queues, reader };
        elasticmq.launch()?;
        elasticmq.ready().await?;
        Ok(elasticmq)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The URL of a queue, at this port or at that of a proxy.
    pub fn queue_url_at(port: u16, queue: &str) -> String {
        format!("http://127.0.0.1:{port}/{ACCOUNT}/{queue}")
    }

    pub fn queue_url(&self, queue: &str) -> String {
        Self::queue_url_at(self.port(), queue)
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

    fn launch(&self) -> Result<(), BedError> {
        let (port, data) = (self.port(), self.server.directory().join("messages"));
        // `WRITE_DELAY`: H2 would write later than it answers.
        let text = format!(
            "include classpath(\"application.conf\")\n\
             node-address {{ host = \"127.0.0.1\", port = {port} }}\n\
             rest-sqs {{ bind-port = {port}, bind-hostname = \"127.0.0.1\", sqs-limits = strict }}\n\
             rest-stats {{ enabled = false }}\n\
             pekko.loglevel = \"WARNING\"\n\
             messages-storage {{\n  enabled = {}\n  \
             uri = \"jdbc:h2:file:{};WRITE_DELAY=0;DB_CLOSE_ON_EXIT=FALSE\"\n}}\n",
            self.is_durable,
            data.display()
        );
        let path = self.server.directory().join("elasticmq.conf");
        std::fs::write(&path, text).doing(|| format!("writing {}", path.display()))?;
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = self.server.cleanup().launcher("java".as_ref());
        command
            .arg(format!("-Dconfig.file={}", path.display()))
            .args(Jvm::Quick { heap_mebibytes: 384 }.arguments(&self.installed))
            .arg("org.elasticmq.server.Main");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())
    }

    async fn ready(&self) -> Result<(), BedError> {
        // It answers before its queues are there again.
        let queues = self.queues.lock().await.clone();
        let ask = async || {
            let answer = self.reader.call("ListQueues", &json!({})).await?;
            let listed = answer["QueueUrls"].to_string();
            let is_missing = |queue: &&String| !listed.contains(&format!("/{queue}\""));
            queues.iter().find(is_missing).map_or(Ok(()), |queue| Err(format!("no {queue}")))
        };
        self.server.ready("ElasticMQ", ask).await
    }

    /// A request to the API.
    pub async fn call(&self, action: &str, body: &Value) -> Value {
        let answer = self.reader.call(action, body).await;
        answer.unwrap_or_else(|error| panic!("ElasticMQ: {action}: {error}"))
    }

    /// Creates a FIFO queue, with these attributes besides.
    pub async fn add_queue(&self, name: &str, attributes: &Value) {
        let mut all = json!({ "FifoQueue": "true" });
        for (name, value) in attributes.as_object().into_iter().flatten() {
            all[name] = value.clone();
        }
        self.call("CreateQueue", &json!({ "QueueName": name, "Attributes": all })).await;
        self.queues.lock().await.push(name.to_owned());
    }

    pub async fn delete_queue(&self, name: &str) {
        self.call("DeleteQueue", &json!({ "QueueUrl": self.queue_url(name) })).await;
        self.queues.lock().await.retain(|queue| queue != name);
    }

    /// How many messages are in a queue.
    pub async fn count(&self, queue: &str) -> u64 {
        let body = json!({ "QueueUrl": self.queue_url(queue), "AttributeNames": ["All"] });
        let answer = self.call("GetQueueAttributes", &body).await;
        let number = |name: &str| {
            let text = answer["Attributes"][name].as_str();
            text.and_then(|text| text.parse::<u64>().ok()).unwrap_or_else(|| panic!("{answer}"))
        };
        number("ApproximateNumberOfMessages") + number("ApproximateNumberOfMessagesNotVisible")
    }

    /// Asks it to stop (SIGTERM); whether it had stopped within the deadline.
    pub async fn stop(&self, deadline: Duration) -> bool {
        self.server.stop(deadline).await
    }

    /// All messages of a queue, in the order in which a consumer got them: those that it has read
    /// before, and those that are there now.
    pub async fn messages(&self, queue: &str) -> Vec<QueuedMessage> {
        let read = self.reader.read_all(queue).await;
        read.unwrap_or_else(|error| panic!("ElasticMQ: {error}"))
    }

    /// The same, as records.
    pub async fn records(&self, queue: &str) -> Vec<Consumed> {
        self.messages(queue).await.iter().map(record).collect()
    }

    /// The records of a queue from its beginning, as they come.
    pub fn follow(&self, queue: &str) -> mpsc::UnboundedReceiver<Consumed> {
        let (reader, queue) = (self.reader.clone(), queue.to_owned());
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut count = 0;
            while !sender.is_closed() {
                // It is away for a while.
                if let Ok(read) = reader.read_all(&queue).await {
                    for one in &read[count..] {
                        let _ = sender.send(record(one));
                    }
                    count = read.len();
                }
                tokio::time::sleep(POLL).await;
            }
        });
        receiver
    }
}

impl Reader {
    async fn call(&self, action: &str, body: &Value) -> Result<Value, String> {
        let target = format!("AmazonSQS.{action}");
        let headers =
            [("Content-Type", "application/x-amz-json-1.0"), ("X-Amz-Target", target.as_str())];
        http::post(self.port, "/", &headers, &body.to_string()).await
    }

    /// Reads a queue to its end.
    async fn read_all(&self, queue: &str) -> Result<Vec<QueuedMessage>, String> {
        let mut read = self.read.lock().await;
        let read = read.entry(queue.to_owned()).or_default();
        while self.read_some(queue, read).await? {}
        Ok(read.clone())
    }

    /// Receives up to ten messages, and deletes them; whether there were any.
    async fn read_some(&self, queue: &str, read: &mut Vec<QueuedMessage>) -> Result<bool, String> {
        let url = ElasticMq::queue_url_at(self.port, queue);
        let order = json!({
            "QueueUrl": url,
            "MaxNumberOfMessages": 10,
            "VisibilityTimeout": HIDDEN,
            "WaitTimeSeconds": 0,
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        let answer = self.call("ReceiveMessage", &order).await?;
        let messages: Vec<_> =
            answer["Messages"].as_array().into_iter().flatten().map(message).collect();
        if messages.is_empty() {
            return Ok(false);
        }
        let entries: Vec<_> = messages
            .iter()
            .enumerate()
            .map(|(at, one)| json!({ "Id": at.to_string(), "ReceiptHandle": one.receipt }))
            .collect();
        for one in messages {
            // One that could not be deleted is received once more.
            if read.iter().rev().take(100).all(|other| other.id != one.id) {
                read.push(one);
            }
        }
        let order = json!({ "QueueUrl": url, "Entries": entries });
        let answer = self.call("DeleteMessageBatch", &order).await?;
        let failed = answer["Failed"].as_array();
        assert!(failed.is_none_or(Vec::is_empty), "{answer}");
        Ok(true)
    }
}

fn message(message: &Value) -> QueuedMessage {
    let text =
        |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text in {message}")).to_owned();
    let system = &message["Attributes"];
    let attributes = message["MessageAttributes"].as_object();
    QueuedMessage {
        id: text(&message["MessageId"]),
        body: text(&message["Body"]),
        group: text(&system["MessageGroupId"]),
        deduplication_id: text(&system["MessageDeduplicationId"]),
        attributes: attributes
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), text(&value["StringValue"])))
            .collect(),
        sent_ms: text(&system["SentTimestamp"]).parse().expect("milliseconds"),
        receipt: text(&message["ReceiptHandle"]),
    }
}

/// The record of a message.
fn record(message: &QueuedMessage) -> Consumed {
    let text = |name: &str| message.attribute(name).map(str::to_owned);
    let others: Vec<(String, String)> = text("walpost.headers")
        .map(|pairs| serde_json::from_str(&pairs).expect("pairs"))
        .unwrap_or_default();
    let of_walpost =
        ["walpost.key", "walpost.topic", "walpost.timestamp", "walpost.body", "walpost.headers"];
    let headers = message.attributes.iter().filter(|(name, _)| !of_walpost.contains(&&**name));
    Consumed {
        topic: text("walpost.topic").expect("a topic"),
        partition: 0,
        offset: 0,
        key: text("walpost.key").map(String::into_bytes),
        value: match message.attribute("walpost.body") {
            // What is not text is left in base64.
            None | Some("base64") => Some(message.body.clone().into_bytes()),
            Some("tombstone") => None,
            Some("empty") => Some(Vec::new()),
            Some(other) => panic!("a body that is {other}"),
        },
        headers: headers
            .chain(&others)
            .map(|(name, value)| (name.clone(), Some(value.clone().into_bytes())))
            .collect(),
        timestamp_ms: text("walpost.timestamp").and_then(|text| text.parse().ok()),
    }
}
