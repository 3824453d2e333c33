//! Why nothing is acknowledged: librdkafka retries in silence where too few
//! replicas are in sync, a partition has no leader or a broker is slow, so
//! somebody has to ask.
//!
//! It asks on a thread and by a client of its own, once, and never touches the
//! producer. What it finds is for people: nothing is decided by it.

use std::collections::BTreeMap;
use std::error::Error;
use std::thread;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{Producer as _, ProducerContext, ThreadedProducer};

use super::partitioner::Found;
use super::{error, oauth_token};
use crate::excerpt::excerpt;
use crate::sink::Fault;

/// How long each answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// How long it takes until all brokers know of a new topic: milliseconds, where they are well.
const KNOWN_TO_ALL: Duration = Duration::from_millis(250);

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// In words, with what to do.
    pub(crate) reason: String,
    pub(crate) fault: Fault,
}

impl Finding {
    fn silence(reason: String) -> Self {
        Self { reason, fault: Fault::OutOfReach }
    }
}

/// Asks about these topics, and gives what it found to `tell`.
pub(crate) fn begin(
    config: &ClientConfig,
    topics: Vec<String>,
    tell: impl FnOnce(Finding) + Send + 'static,
) {
    let config = of_its_own(config);
    on_a_thread(move || tell(ask(&config, &topics)));
}

/// Asks for the topic, and gives what was found to `tell`, if brokers answer. That it is missing
/// is asked twice: a topic that was made just now is not known to all brokers yet.
pub(crate) fn partitions(
    config: &ClientConfig,
    topic: String,
    tell: impl FnOnce(Found) + Send + 'static,
) {
    let config = of_its_own(config);
    on_a_thread(move || {
        let Ok(client) = asker(&config) else { return };
        let found = match found(&client, &topic) {
            Some(Found::Missing) => {
                thread::sleep(KNOWN_TO_ALL);
                found(&client, &topic)
            }
            found => found,
        };
        found.map(tell);
    });
}

fn found(client: &ThreadedProducer<Quiet>, topic: &str) -> Option<Found> {
    let metadata = client.client().fetch_metadata(Some(topic), ANSWER).ok()?;
    let found = metadata.topics().iter().find(|found| found.name() == topic)?;
    let count = u32::try_from(found.partitions().len()).ok()?;
    match found.error().map(RDKafkaErrorCode::from) {
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
            Some(Found::Missing)
        }
        Some(_) => None,
        None => (count > 0).then_some(Found::Partitions(count)),
    }
}

/// Its connections are few and short-lived; nothing is produced by it.
fn of_its_own(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.remove("enable.gapless.guarantee");
    config
}

/// Asks for metadata. Not an administrator's client, which looks at no request for a token.
fn asker(config: &ClientConfig) -> KafkaResult<ThreadedProducer<Quiet>> {
    ThreadedProducer::from_config_and_context(config, Quiet)
}

fn on_a_thread(ask: impl FnOnce() + Send + 'static) {
    // Where no thread can be had there are other worries than this.
    let _ = thread::Builder::new().name("inquiry".to_owned()).spawn(ask);
}

fn ask(config: &ClientConfig, topics: &[String]) -> Finding {
    let client = match asker(config) {
        Ok(client) => client,
        Err(error) => return Finding::silence(error.to_string()),
    };
    for name in topics {
        let metadata = match client.client().fetch_metadata(Some(name), ANSWER) {
            Ok(metadata) => metadata,
            Err(error) => return Finding::silence(silence(&error)),
        };
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let matter = topic.and_then(|topic| {
            let state = State::of(topic);
            state.matter(name, || min_in_sync(config, name))
        });
        if let Some(reason) = matter {
            return Finding { reason, fault: Fault::Brokers };
        }
    }
    let reason = "the brokers answer and lead every partition, but have not acknowledged a record \
                  for 10 s: see their load and their logs";
    Finding { reason: reason.to_owned(), fault: Fault::Unknown }
}

fn silence(error: &KafkaError) -> String {
    let why = match error.rdkafka_error_code() {
        Some(code) if error::is_of_a_connection(code) => {
            format!("nothing came within {} s", ANSWER.as_secs())
        }
        Some(code) => code.to_string(),
        None => error.to_string(),
    };
    format!("the brokers do not answer: {why}; see whether they run and can be reached from here")
}

/// The topic's `min.insync.replicas`, where walpost's user may see it.
fn min_in_sync(config: &ClientConfig, topic: &str) -> Option<usize> {
    setting(config, topic, "min.insync.replicas")?.parse().ok()
}

/// `None` too where a client would have to show a token: see [`asker`].
fn setting(config: &ClientConfig, topic: &str, name: &str) -> Option<String> {
    if config.get(oauth_token::PROPERTY).is_some_and(|config| oauth_token::file(config).is_some()) {
        return None;
    }
    let client = AdminClient::from_config_and_context(config, Quiet).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let options = AdminOptions::new().request_timeout(Some(ANSWER));
    let specifier = [ResourceSpecifier::Topic(topic)];
    let described = runtime.block_on(client.describe_configs(&specifier, &options)).ok()?;
    let config = described.into_iter().next()?.ok()?;
    config.get(name)?.value.clone()
}

/// What metadata says of a topic.
#[derive(Debug, Default)]
struct State {
    error: Option<RDKafkaErrorCode>,
    leaderless: Vec<i32>,
    /// Replicas in sync and replicas, of partitions that lack some.
    short: BTreeMap<i32, (usize, usize)>,
}

impl State {
    fn of(topic: &MetadataTopic) -> Self {
        let error = topic.error().map(RDKafkaErrorCode::from);
        let mut state = Self { error, ..Self::default() };
        for partition in topic.partitions() {
            let (in_sync, all) = (partition.isr().len(), partition.replicas().len());
            if partition.leader() < 0 {
                state.leaderless.push(partition.id());
            } else if in_sync < all {
                state.short.insert(partition.id(), (in_sync, all));
            }
        }
        state
    }

    /// What is the matter, in words, and what to do; `min_in_sync` is asked only
    /// where replicas are missing.
    fn matter(&self, topic: &str, min_in_sync: impl FnOnce() -> Option<usize>) -> Option<String> {
        if let Some(code) = self.error {
            return Some(error::reason(code, topic));
        }
        if !self.leaderless.is_empty() {
            return Some(format!(
                "no broker leads partition {} of topic {topic}: bring back the brokers that have it",
                list(&self.leaderless)
            ));
        }
        let (in_sync, all) = *self.short.values().min()?;
        let min = min_in_sync();
        if min.is_some_and(|min| in_sync >= min) {
            return None;
        }
        let partitions: Vec<i32> = self.short.keys().copied().collect();
        let asked = min.map_or_else(|| "more".to_owned(), |min| min.to_string());
        Some(format!(
            "only {in_sync} of {all} replicas are in sync in partition {} of topic {topic}, and its \
             min.insync.replicas asks for {asked}: bring back the brokers that have the others",
            list(&partitions)
        ))
    }
}

/// Some of the numbers, however many there are.
fn list(numbers: &[i32]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(i32::to_string).collect();
    let more = numbers.len().saturating_sub(SHOWN);
    let shown = shown.join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// The client's own lines are of no interest: what it finds is.
pub(crate) struct Quiet;

impl ClientContext for Quiet {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        oauth_token::token(config)
    }

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::trace!(target: "librdkafka", facility, "{}", excerpt(message));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::trace!(target: "librdkafka", %error, "{}", excerpt(reason));
    }
}

impl ProducerContext for Quiet {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_lacks_replicas_but_has_enough_is_not_the_matter() {
        let state = State { short: [(0, (2, 3))].into(), ..State::default() };
        assert_eq!(state.matter("orders", || Some(2)), None);
        let text = state.matter("orders", || Some(3)).expect("too few");
        for word in ["2 of 3", "partition 0", "orders", "min.insync.replicas asks for 3"] {
            assert!(text.contains(word), "{text}");
        }
        // Who may not look at the topic's settings still hears of the replicas.
        assert!(state.matter("orders", || None).is_some());
    }

    #[test]
    fn partitions_without_a_leader_are_named_a_few_of_them() {
        let state = State { leaderless: (0..12).collect(), ..State::default() };
        let text = state.matter("orders", || None).expect("no leader");
        assert!(text.contains("partition 0, 1, 2, 3, 4 and 7 more of topic orders"), "{text}");
    }
}
