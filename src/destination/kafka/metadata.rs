//! The client that asks brokers for metadata and settings: for `check`, before a replay, and to
//! find out why no record is acknowledged. It publishes nothing.
//!
//! Kafka reports only on a write whether a user may write to a topic. Known before that are: a
//! topic that the user may not even describe, and whether the brokers assign a producer ID to an
//! idempotent producer, which needs the right to write to some topic (before Kafka 2.8:
//! `IDEMPOTENT_WRITE` on the cluster).

mod connection_failure;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier};
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::DeliveryResult;
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataPartition, MetadataTopic};
use rdkafka::producer::{Producer as _, ProducerContext, ThreadedProducer};

pub(crate) use self::connection_failure::CORRECT_ADVERTISED;
pub use self::connection_failure::{ConnectionFailure, TlsFailure, accepts_connections};
use super::config::client_config;
use super::error::event_code;
use super::features::{self, ClientError};
use super::oauth_token;
use crate::destination::kafka::KafkaConfig;
use crate::destination::parts::url::address;
use crate::excerpt::excerpt;
use crate::sink::SinkError;

/// How long each request may take.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one of several attempts to reach a broker may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long brokers that refuse connections are tried: enough for all addresses of a host name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How often is checked whether the brokers have assigned a producer ID.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Connection errors that are kept to explain why no broker answers.
const ERRORS_MAX: usize = 100;

/// A client for metadata and settings.
pub struct MetadataClient {
    /// A producer, because an `AdminClient` ignores librdkafka's requests for an OAuth token.
    client: ThreadedProducer<Callbacks>,
    config: ClientConfig,
    /// Created with the first request for settings.
    admin: OnceLock<Option<AdminClient<Callbacks>>>,
    observed: Arc<Mutex<Observed>>,
}

/// The cluster's brokers, as their metadata describes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brokers {
    /// The ids of the brokers.
    pub ids: Vec<i32>,
    /// The addresses that they advertise.
    pub addresses: Vec<String>,
    /// The topics that walpost's user may describe.
    pub topics: BTreeSet<String>,
}

/// A topic's partitions, by id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicState {
    /// The partitions.
    pub partitions: Vec<PartitionState>,
}

/// A partition, as the metadata describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionState {
    /// The partition's id.
    pub id: i32,
    /// Whether a broker leads it.
    pub has_leader: bool,
    /// The number of replicas in sync.
    pub in_sync: usize,
    /// All its replicas.
    pub replicas: usize,
}

/// Why a topic's state is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicError {
    /// The brokers answered with this error.
    Broker(Code),
    /// A request that the brokers did not answer.
    NoAnswer(KafkaError),
}

/// Why a topic was not created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotCreated {
    /// A text for the log.
    pub reason: String,
    /// Whether the brokers refuse the topic. Otherwise another attempt may succeed.
    pub is_decided: bool,
}

/// What librdkafka reported through its callbacks.
#[derive(Default)]
struct Observed {
    errors: Vec<(Code, String)>,
    /// Whether librdkafka reported all brokers as down at some time.
    all_down: bool,
    has_producer_id: bool,
}

/// librdkafka's callbacks.
#[derive(Clone, Default)]
struct Callbacks(Arc<Mutex<Observed>>);

impl MetadataClient {
    /// Creates a client that never makes the brokers create a topic. It connects in the background.
    pub fn open(config: &KafkaConfig) -> Result<Self, SinkError> {
        let config = client_config(config);
        features::require(&config)?;
        Ok(Self::new(without_topic_creation(without_idempotence(config)))?)
    }

    /// The same, which also requests a producer ID: see [`MetadataClient::producer_id`].
    pub(crate) fn open_idempotent(config: &KafkaConfig) -> Result<Self, ClientError> {
        let mut config = client_config(config);
        features::require(&config)?;
        // librdkafka reports an assigned producer ID in its debug log only.
        config.set("debug", "eos").set_log_level(RDKafkaLogLevel::Debug);
        Ok(Self::new(without_topic_creation(config))?)
    }

    /// Creates a client in addition to a running producer, with the producer's properties: a request
    /// for a missing topic creates it if `allow.auto.create.topics` is set.
    pub(super) fn beside_producer(config: &ClientConfig) -> KafkaResult<Self> {
        Self::new(without_idempotence(config.clone()))
    }

    /// Creates a client beside a running producer that never makes the brokers create a topic.
    pub(super) fn to_measure(config: &ClientConfig) -> KafkaResult<Self> {
        Self::new(without_topic_creation(without_idempotence(config.clone())))
    }

    fn new(config: ClientConfig) -> KafkaResult<Self> {
        let callbacks = Callbacks::default();
        let observed = Arc::clone(&callbacks.0);
        let client = ThreadedProducer::from_config_and_context(&config, callbacks)?;
        Ok(Self { client, config, admin: OnceLock::new(), observed })
    }

    /// Waits until a broker answers a request for metadata. Blocks for at most `timeout`.
    pub fn reach(&self, timeout: Duration) -> Result<(), ConnectionFailure> {
        let answer = self.client.client().fetch_metadata(None, timeout);
        answer.map(drop).map_err(|error| self.connection_failure(&error))
    }

    /// Requests the cluster's brokers, and returns early if waiting does not help. Blocks for
    /// at most `timeout`, and for some seconds more to find out why no broker answers.
    pub fn brokers(&self, timeout: Duration) -> Result<Brokers, ConnectionFailure> {
        let started = Instant::now();
        loop {
            let attempt_timeout = ATTEMPT_TIMEOUT.min(timeout);
            let error = match self.client.client().fetch_metadata(None, attempt_timeout) {
                Ok(metadata) => return Ok(Brokers::from(&metadata)),
                Err(error) => error,
            };
            let failure = self.connection_failure(&error);
            let all_down = self.observed().all_down;
            let is_final = failure.is_refused_login()
                || all_down && started.elapsed() >= CONNECT_TIMEOUT
                || started.elapsed() >= timeout;
            if is_final {
                let servers = self.config.get("bootstrap.servers").unwrap_or_default();
                return Err(if all_down { failure.probed(servers) } else { failure });
            }
        }
    }

    /// Requests a topic's state. Blocks.
    pub fn topic(&self, name: &str) -> Result<TopicState, TopicError> {
        let metadata = self.client.client().fetch_metadata(Some(name), REQUEST_TIMEOUT);
        let metadata = metadata.map_err(TopicError::NoAnswer)?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        // Brokers answer with each topic that the request names.
        let missing = || TopicError::NoAnswer(KafkaError::MetadataFetch(Code::BadMessage));
        let topic = topic.ok_or_else(missing)?;
        match topic.error() {
            Some(error) => Err(TopicError::Broker(Code::from(error))),
            None => Ok(TopicState::from(topic)),
        }
    }

    /// The topic's settings; `None` if walpost's user may not describe them, or authenticates with a
    /// token. Blocks.
    pub fn topic_settings(&self, name: &str) -> Option<BTreeMap<String, String>> {
        self.settings(&ResourceSpecifier::Topic(name))
    }

    /// A broker's settings, as [`MetadataClient::topic_settings`].
    pub fn broker_settings(&self, id: i32) -> Option<BTreeMap<String, String>> {
        self.settings(&ResourceSpecifier::Broker(id))
    }

    fn settings(&self, of: &ResourceSpecifier<'_>) -> Option<BTreeMap<String, String>> {
        let options = AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT));
        let described = runtime()?.block_on(self.admin()?.describe_configs([of], &options)).ok()?;
        let entries = described.into_iter().next()?.ok()?.entries;
        Some(entries.into_iter().filter_map(|one| Some((one.name, one.value?))).collect())
    }

    /// The client for requests of administration; `None` if there is none: it cannot present a token.
    fn admin(&self) -> Option<&AdminClient<Callbacks>> {
        if oauth_token::is_from_file(&self.config) {
            return None;
        }
        let new = || {
            let config = without_idempotence(self.config.clone());
            AdminClient::from_config_and_context(&config, Callbacks::default()).ok()
        };
        self.admin.get_or_init(new).as_ref()
    }

    /// Creates a topic; returns whether there was none. Blocks.
    pub fn create_topic(&self, new: &NewTopic<'_>) -> Result<bool, NotCreated> {
        let options = AdminOptions::new().operation_timeout(Some(REQUEST_TIMEOUT));
        self.request_topic(new, options)
    }

    /// Asks whether the brokers would create a topic for walpost's user. Blocks.
    pub fn may_create_topic(&self, new: &NewTopic<'_>) -> Result<(), NotCreated> {
        self.request_topic(new, AdminOptions::new().validate_only(true)).map(drop)
    }

    fn request_topic(&self, new: &NewTopic<'_>, options: AdminOptions) -> Result<bool, NotCreated> {
        let open = |reason| NotCreated { reason, is_decided: false };
        let (Some(admin), Some(runtime)) = (self.admin(), runtime()) else {
            return Err(open("a client with a token from a file creates no topics".to_owned()));
        };
        let options = options.request_timeout(Some(REQUEST_TIMEOUT));
        let created = runtime.block_on(admin.create_topics([new], &options));
        match created.map_err(|error| open(error.to_string()))?.into_iter().next() {
            Some(Ok(_)) => Ok(true),
            Some(Err((_, Code::TopicAlreadyExists))) => Ok(false),
            Some(Err((_, code))) => {
                Err(NotCreated { reason: code.to_string(), is_decided: is_decision(code) })
            }
            None => Err(open("the brokers did not answer".to_owned())),
        }
    }

    /// Whether the brokers assign a producer ID to the client of
    /// [`MetadataClient::open_idempotent`]; else why not. `None`: they have not answered within a
    /// few seconds. Blocks.
    pub fn producer_id(&self) -> Option<Result<(), String>> {
        let started = Instant::now();
        while started.elapsed() < REQUEST_TIMEOUT {
            if let Some((_, reason)) = self.client.client().fatal_error() {
                return Some(Err(reason));
            }
            if self.observed().has_producer_id {
                return Some(Ok(()));
            }
            thread::sleep(POLL_INTERVAL);
        }
        None
    }

    /// Why no broker has answered so far; `error` is what the request failed with.
    fn connection_failure(&self, error: &KafkaError) -> ConnectionFailure {
        let failure = ConnectionFailure::most_specific(&self.observed().errors);
        failure.unwrap_or_else(|| ConnectionFailure::Unreachable(error.to_string()))
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The runtime of one request of an `AdminClient`, which blocks the thread.
fn runtime() -> Option<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().ok()
}

/// Whether this answer to the request for a topic is about the topic and its user. Fewer brokers than
/// replicas (`InvalidReplicationFactor`) may be an outage, and a `PolicyViolation` a quota.
fn is_decision(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed | Code::InvalidTopic
    )
}

/// The settings of a client that never publishes, and so needs no producer ID.
fn without_idempotence(mut config: ClientConfig) -> ClientConfig {
    config.remove("enable.gapless.guarantee");
    config.remove("enable.idempotence");
    config
}

fn without_topic_creation(mut config: ClientConfig) -> ClientConfig {
    config.set("allow.auto.create.topics", "false");
    config
}

impl From<&Metadata> for Brokers {
    fn from(metadata: &Metadata) -> Self {
        Self {
            ids: metadata.brokers().iter().map(MetadataBroker::id).collect(),
            addresses: metadata
                .brokers()
                .iter()
                .map(|one| address(one.host(), one.port()))
                .collect(),
            topics: metadata.topics().iter().map(|one| one.name().into()).collect(),
        }
    }
}

impl From<&MetadataTopic> for TopicState {
    fn from(topic: &MetadataTopic) -> Self {
        let mut partitions: Vec<_> = topic.partitions().iter().map(PartitionState::from).collect();
        partitions.sort_unstable_by_key(|partition| partition.id);
        Self { partitions }
    }
}

impl From<&MetadataPartition> for PartitionState {
    fn from(partition: &MetadataPartition) -> Self {
        Self {
            id: partition.id(),
            has_leader: partition.leader() >= 0,
            in_sync: partition.isr().len(),
            replicas: partition.replicas().len(),
        }
    }
}

impl TopicState {
    /// The fewest replicas of one of its partitions.
    pub fn replicas(&self) -> usize {
        self.partitions.iter().map(|one| one.replicas).min().unwrap_or(0)
    }

    /// The fewest replicas in sync of one of its partitions.
    pub fn in_sync(&self) -> usize {
        self.partitions.iter().map(|one| one.in_sync).min().unwrap_or(0)
    }

    /// The partitions that no broker leads.
    pub fn leaderless(&self) -> Vec<i32> {
        self.partitions.iter().filter(|one| !one.has_leader).map(|one| one.id).collect()
    }
}

impl TopicError {
    /// Whether the topic does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Broker(Code::UnknownTopicOrPartition | Code::UnknownTopic))
    }

    /// Whether walpost's user may not describe the topic.
    pub fn is_unauthorized(&self) -> bool {
        *self == Self::Broker(Code::TopicAuthorizationFailed)
    }
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker(code) => code.fmt(f),
            Self::NoAnswer(error) => error.fmt(f),
        }
    }
}

impl ClientContext for Callbacks {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        oauth_token::token(config)
    }

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "IDEMPSTATE" && message.ends_with("-> Assigned") {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).has_producer_id = true;
        }
        tracing::trace!(target: "librdkafka", facility, "{}", excerpt(message));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = excerpt(reason);
        tracing::trace!(target: "librdkafka", %error, "{reason}");
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event_code(&error, &reason) {
            Some(Code::AllBrokersDown) => observed.all_down = true,
            Some(code) if observed.errors.len() < ERRORS_MAX => {
                observed.errors.push((code, reason));
            }
            // Further errors explain nothing that the first ones do not.
            Some(_) | None => {}
        }
    }
}

impl ProducerContext for Callbacks {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
