//! What the brokers say of themselves, of topics and of walpost's rights, to whoever asks
//! before anything is produced. It makes no topic and publishes nothing.
//!
//! That a user may write to a topic is told by Kafka only when it writes. What can be
//! known before: a topic that it may not even describe, and whether the brokers give an
//! idempotent producer its id, which takes the right to write to some topic
//! (`IDEMPOTENT_WRITE` on the cluster before 2.8).

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::{MetadataBroker, MetadataPartition};
use rdkafka::producer::{Producer as _, ProducerContext, ThreadedProducer};

use super::config::client_config;
use super::diagnostics::Quiet;
use super::{features, oauth_token};
use crate::excerpt::excerpt;
use crate::sink::{KafkaConfig, SinkError};

/// How long one question may take.
const ANSWER: Duration = Duration::from_secs(5);

/// For how long brokers that cannot be connected to are tried: by all addresses of a name.
const ATTEMPTS: Duration = Duration::from_secs(3);

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);

/// A client that only asks.
pub struct ClusterMetadata {
    producer: ThreadedProducer<Ears>,
    admin: AdminClient<Quiet>,
    heard: Arc<Mutex<Heard>>,
    servers: Vec<String>,
    /// Whether it shows a token, which an administrator's client cannot.
    by_token: bool,
}

/// What the brokers told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brokers {
    /// Their ids.
    pub ids: Vec<i32>,
    /// Where they say that they are.
    pub addresses: Vec<String>,
    /// The topics that walpost's user may see.
    pub topics: BTreeSet<String>,
}

/// A topic as the brokers have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The fewest replicas of one of its partitions.
    pub replicas: usize,
    /// The fewest replicas in sync.
    pub in_sync: usize,
    /// Partitions that no broker leads.
    pub leaderless: Vec<i32>,
}

/// Why nothing is known of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoTopic {
    /// There is none.
    Missing,
    /// Walpost's user may not see it.
    Forbidden,
    /// The brokers say something else.
    Unknown(String),
}

/// Why the brokers cannot be asked; in librdkafka's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silence {
    /// They refuse the credentials.
    Credentials(String),
    /// They do not offer the mechanism.
    Mechanism(String),
    /// TLS fails.
    Tls(BrokerTls, String),
    /// They answer, and send clients to addresses where nobody answers.
    Advertised(String),
    /// They speak another protocol than walpost: with TLS, or without.
    Protocol(String),
    /// Nothing answers.
    Unreachable(String),
}

/// What TLS with a broker fails by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerTls {
    /// The broker's certificate is not to be trusted: librdkafka does not say whether it
    /// is too old, for other names, or signed by nobody who is known.
    Certificate,
    /// Anything else.
    Other,
}

#[derive(Default)]
struct Heard {
    errors: Vec<(Code, String)>,
    /// Whether all brokers were given up at some time.
    all_down: bool,
    has_id: bool,
}

/// librdkafka's callbacks.
#[derive(Clone)]
struct Ears(Arc<Mutex<Heard>>);

impl ClusterMetadata {
    /// Makes the client, which connects in the background.
    pub fn open(config: &KafkaConfig) -> Result<Self, SinkError> {
        let servers = config.bootstrap_servers.split(',').map(|one| one.trim().to_owned());
        let servers = servers.collect();
        let mut config: ClientConfig = client_config(config);
        features::require(&config)?;
        // To look for a topic is not to make it.
        config.set("allow.auto.create.topics", "false");
        let admin = AdminClient::from_config_and_context(&plain(&config), Quiet)?;
        // Where the producer's id comes is told to the log alone.
        config.set("debug", "eos").set_log_level(RDKafkaLogLevel::Debug);
        let by_token =
            config.get(oauth_token::PROPERTY).is_some_and(|it| oauth_token::file(it).is_some());
        let heard = Arc::new(Mutex::new(Heard::default()));
        let ears = Ears(Arc::clone(&heard));
        let producer = ThreadedProducer::from_config_and_context(&config, ears)?;
        Ok(Self { producer, admin, heard, servers, by_token })
    }

    /// Asks the brokers who they are. Blocks for at most `within`.
    pub fn brokers(&self, within: Duration) -> Result<Brokers, Silence> {
        let began = Instant::now();
        loop {
            let once = Duration::from_secs(1).min(within);
            let error = match self.producer.client().fetch_metadata(None, once) {
                Ok(metadata) => {
                    return Ok(Brokers {
                        ids: metadata.brokers().iter().map(MetadataBroker::id).collect(),
                        addresses: metadata.brokers().iter().map(address).collect(),
                        topics: metadata.topics().iter().map(|one| one.name().into()).collect(),
                    });
                }
                Err(error) => error,
            };
            let (silence, all_down) = self.silence();
            let is_final = matches!(silence, Some(Silence::Credentials(_) | Silence::Mechanism(_)))
                || all_down && began.elapsed() >= ATTEMPTS;
            if !is_final && began.elapsed() < within {
                continue;
            }
            let silence = silence.unwrap_or_else(|| Silence::Unreachable(error.to_string()));
            return Err(match silence {
                // Who takes connections and ends them at the first word speaks another protocol.
                Silence::Unreachable(reason)
                    if all_down && self.servers.iter().any(|one| is_in_reach(one)) =>
                {
                    Silence::Protocol(reason)
                }
                silence => silence,
            });
        }
    }

    /// Asks for one topic. Blocks.
    pub fn topic(&self, name: &str) -> Result<Topic, NoTopic> {
        let metadata = self.producer.client().fetch_metadata(Some(name), ANSWER);
        let metadata = metadata.map_err(|error| NoTopic::Unknown(error.to_string()))?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let Some(topic) = topic else { return Err(NoTopic::Missing) };
        if let Some(error) = topic.error() {
            return Err(match Code::from(error) {
                Code::UnknownTopicOrPartition | Code::UnknownTopic => NoTopic::Missing,
                Code::TopicAuthorizationFailed => NoTopic::Forbidden,
                other => NoTopic::Unknown(other.to_string()),
            });
        }
        let partitions = topic.partitions();
        let leaderless =
            partitions.iter().filter(|one| one.leader() < 0).map(MetadataPartition::id);
        Ok(Topic {
            replicas: partitions.iter().map(|one| one.replicas().len()).min().unwrap_or(0),
            in_sync: partitions.iter().map(|one| one.isr().len()).min().unwrap_or(0),
            leaderless: leaderless.collect(),
        })
    }

    /// The topic's settings; `None` where walpost's user may not see them. Blocks.
    pub fn topic_settings(&self, name: &str) -> Option<BTreeMap<String, String>> {
        self.settings(&ResourceSpecifier::Topic(name))
    }

    /// The same of a broker.
    pub fn broker_settings(&self, id: i32) -> Option<BTreeMap<String, String>> {
        self.settings(&ResourceSpecifier::Broker(id))
    }

    fn settings(&self, of: &ResourceSpecifier<'_>) -> Option<BTreeMap<String, String>> {
        if self.by_token {
            return None;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let options = AdminOptions::new().request_timeout(Some(ANSWER));
        let described = runtime.block_on(self.admin.describe_configs([of], &options)).ok()?;
        let entries = described.into_iter().next()?.ok()?.entries;
        Some(entries.into_iter().filter_map(|one| Some((one.name, one.value?))).collect())
    }

    /// Whether the brokers give a producer its id; else why not. `None`: they have not
    /// said within a few seconds. Blocks.
    pub fn producer_id(&self) -> Option<Result<(), String>> {
        let began = Instant::now();
        while began.elapsed() < ANSWER {
            if let Some((_, reason)) = self.producer.client().fatal_error() {
                return Some(Err(reason));
            }
            if self.heard().has_id {
                return Some(Ok(()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// What the brokers' silence means so far, and whether all were given up.
    fn silence(&self) -> (Option<Silence>, bool) {
        let heard = self.heard();
        (heard.silence(), heard.all_down)
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a broker says that it is.
fn address(broker: &MetadataBroker) -> String {
    let host = broker.host();
    if host.contains(':') {
        format!("[{host}]:{}", broker.port())
    } else {
        format!("{host}:{}", broker.port())
    }
}

/// Whether somebody takes connections at this `host:port`. Blocks for a few seconds at most.
pub fn is_in_reach(address: &str) -> bool {
    let bare = address.rsplit_once("://").map_or(address, |(_, bare)| bare);
    let Ok(mut found) = bare.to_socket_addrs() else {
        return false;
    };
    found.any(|one| TcpStream::connect_timeout(&one, CONNECT).is_ok())
}

/// Of a client that never produces, and so needs no id.
fn plain(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.remove("enable.gapless.guarantee");
    config.remove("enable.idempotence");
    config
}

impl Heard {
    /// The weightiest reason of all that was heard.
    fn silence(&self) -> Option<Silence> {
        self.errors.iter().map(|(code, said)| judge(*code, said)).min_by_key(weight)
    }
}

/// The lower, the more it says.
fn weight(silence: &Silence) -> u8 {
    match silence {
        Silence::Mechanism(_) => 0,
        Silence::Credentials(_) => 1,
        Silence::Tls(BrokerTls::Other, _) => 5,
        Silence::Advertised(_) => 4,
        Silence::Tls(..) => 2,
        Silence::Protocol(_) => 3,
        Silence::Unreachable(_) => 6,
    }
}

/// What an error of a connection means, by its code and where that says too little by
/// its words, which are librdkafka's and OpenSSL's.
fn judge(code: Code, said: &str) -> Silence {
    let words = said.to_ascii_lowercase();
    let has = |part: &str| words.contains(part);
    let text = said.to_owned();
    match code {
        Code::Authentication
            if has("mechanism") && (has("unsupported") || has("not supported")) =>
        {
            Silence::Mechanism(text)
        }
        Code::Authentication => Silence::Credentials(text),
        _ if has("wrong version number") || has("incorrect security.protocol") => {
            Silence::Protocol(text)
        }
        Code::SSL if has("certificate") && has("verif") => {
            Silence::Tls(BrokerTls::Certificate, text)
        }
        Code::SSL => Silence::Tls(BrokerTls::Other, text),
        // An alert comes when the handshake is over on this side.
        _ if has("ssl routines") => Silence::Tls(BrokerTls::Other, text),
        // Such as `host:9092/7: Connect to …`: one that another broker told of.
        _ if is_of_a_known_broker(said) => Silence::Advertised(text),
        _ => Silence::Unreachable(text),
    }
}

/// Whether an error is of a connection to a broker that has a number.
fn is_of_a_known_broker(said: &str) -> bool {
    let peer = said.split_once(": ").map_or("", |(peer, _)| peer);
    peer.rsplit_once('/').is_some_and(|(_, id)| id.parse::<i32>().is_ok())
}

impl ClientContext for Ears {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        oauth_token::token(config)
    }

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "IDEMPSTATE" && message.ends_with("-> Assigned") {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).has_id = true;
        }
        tracing::trace!(target: "librdkafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match error.rdkafka_error_code() {
            Some(Code::AllBrokersDown) => heard.all_down = true,
            Some(code) if heard.errors.len() < 100 => heard.errors.push((code, excerpt(reason))),
            _ => {}
        }
    }
}

impl ProducerContext for Ears {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &rdkafka::message::DeliveryResult<'_>, (): ()) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_first_does_not_hide_what_says_more() {
        let mut heard = Heard::default();
        assert_eq!(heard.silence(), None);
        let refused = "Connect to ipv6#[::1]:9092 failed: Connection refused";
        heard.errors.push((Code::BrokerTransportFailure, refused.to_owned()));
        assert_eq!(heard.silence(), Some(Silence::Unreachable(refused.to_owned())));
        let password = "Authentication failed: Invalid username or password";
        heard.errors.push((Code::Authentication, password.to_owned()));
        assert_eq!(heard.silence(), Some(Silence::Credentials(password.to_owned())));
    }
}
