//! Finds out why no record is acknowledged, and whether a topic exists. librdkafka retries without a
//! report if too few replicas are in sync, a partition has no leader, or a broker is slow.
//!
//! Each diagnosis runs on a thread with a client of its own, and never touches the producer. The
//! text is for the log; the fault decides how long the producer is kept (`StalledProducer`).

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;

use super::config::NewTopics;
use super::error::{self, TopicAt};
use super::metadata::{MetadataClient, NotCreated, REQUEST_TIMEOUT, TopicError, TopicState};
use super::topic_lookup::Found;
use crate::sink::Fault;

/// How long until all brokers know a new topic: milliseconds if they are healthy.
const TOPIC_PROPAGATION: Duration = Duration::from_millis(250);

/// Why no record is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    /// A text for the log, with the remedy.
    pub(crate) reason: String,
    pub(crate) fault: Fault,
}

impl Diagnosis {
    fn out_of_reach(reason: String) -> Self {
        Self { reason, fault: Fault::OutOfReach }
    }
}

/// Starts to find out why no record for these topics is acknowledged; `done` receives the result.
pub(crate) fn diagnose_stall(
    config: &ClientConfig,
    topics: Vec<String>,
    done: impl FnOnce(Diagnosis) + Send + 'static,
) {
    let config = config.clone();
    // Closing the client may take as long as its longest wait: the result does not wait for that.
    on_a_thread(move || match MetadataClient::beside_producer(&config) {
        Ok(client) => done(diagnosis(&client, &config, &topics)),
        Err(error) => done(Diagnosis::out_of_reach(error.to_string())),
    });
}

/// Starts to find out whether a topic exists and how many partitions it has; `done` receives the
/// result, if brokers answer. A missing topic is asked for twice: one that was created just now is
/// not known to all brokers yet. With `creates`, it is created then, and never by the brokers alone.
pub(crate) fn find_topic(
    config: &ClientConfig,
    creates: Option<NewTopics>,
    topic: String,
    done: impl FnOnce(Found) + Send + 'static,
) {
    let config = config.clone();
    on_a_thread(move || {
        let client = match creates {
            Some(_) => MetadataClient::to_measure(&config),
            None => MetadataClient::beside_producer(&config),
        };
        let Ok(client) = client else { return };
        let found = match found(&client, &topic) {
            Some(Found::Missing(_)) => {
                thread::sleep(TOPIC_PROPAGATION);
                found(&client, &topic)
            }
            other => other,
        };
        let found = match (found, creates) {
            (Some(Found::Missing(_)), Some(new)) => created(&client, &topic, new),
            (found, _) => found,
        };
        found.map(done);
    });
}

/// Creates the topic, and waits until the brokers know of it.
fn created(client: &MetadataClient, topic: &str, new: NewTopics) -> Option<Found> {
    match client.create_topic(&new.topic(topic)) {
        Ok(true) => tracing::info!(topic, "created the topic"),
        Ok(false) => {}
        Err(NotCreated { reason, is_decided: true }) => return Some(Found::Missing(Some(reason))),
        Err(NotCreated { reason, is_decided: false }) => return Some(Found::NotCreated(reason)),
    }
    let started = Instant::now();
    while started.elapsed() < REQUEST_TIMEOUT {
        if let there @ Some(Found::Partitions(_)) = found(client, topic) {
            return there;
        }
        thread::sleep(TOPIC_PROPAGATION);
    }
    let seconds = REQUEST_TIMEOUT.as_secs();
    Some(Found::NotCreated(format!("the brokers do not show it {seconds} s after its creation")))
}

fn found(client: &MetadataClient, topic: &str) -> Option<Found> {
    match client.topic(topic) {
        Ok(state) => {
            let count = u32::try_from(state.partitions.len()).ok()?;
            (count > 0).then_some(Found::Partitions(count))
        }
        Err(error) if error.is_missing() => Some(Found::Missing(None)),
        // Only a topic that brokers call missing may make a record undeliverable: whatever else
        // they answer is reported by the producer.
        Err(TopicError::Broker(_) | TopicError::NoAnswer(_)) => None,
    }
}

fn on_a_thread(diagnose: impl FnOnce() + Send + 'static) {
    // Without a thread there is no diagnosis; the producer continues.
    let _ = thread::Builder::new().name("diagnostics".to_owned()).spawn(diagnose);
}

fn diagnosis(client: &MetadataClient, config: &ClientConfig, topics: &[String]) -> Diagnosis {
    for name in topics {
        let reason = match client.topic(name) {
            Ok(state) => unavailability(name, &state, || min_in_sync(client, name)),
            Err(TopicError::Broker(code)) => Some(error::reason(code, TopicAt::new(name, config))),
            Err(TopicError::NoAnswer(error)) => return Diagnosis::out_of_reach(no_answer(&error)),
        };
        if let Some(reason) = reason {
            return Diagnosis { reason, fault: Fault::Brokers };
        }
    }
    let reason = "the brokers answer and lead every partition, but have not acknowledged a record \
                  for 10 s: see their load and their logs";
    Diagnosis { reason: reason.to_owned(), fault: Fault::Unknown }
}

fn no_answer(error: &KafkaError) -> String {
    let why = match error.rdkafka_error_code() {
        Some(code) if error::is_connection_error(code) => {
            format!("no response within {} s", REQUEST_TIMEOUT.as_secs())
        }
        Some(code) => code.to_string(),
        None => error.to_string(),
    };
    format!("the brokers do not answer: {why}; check that they run and can be reached from here")
}

/// The topic's `min.insync.replicas`, if walpost's user may describe it.
fn min_in_sync(client: &MetadataClient, topic: &str) -> Option<usize> {
    client.topic_settings(topic)?.get("min.insync.replicas")?.parse().ok()
}

/// Why a topic's partitions do not acknowledge, with the remedy; `min_in_sync` is called only
/// if replicas are out of sync.
fn unavailability(
    topic: &str,
    state: &TopicState,
    min_in_sync: impl FnOnce() -> Option<usize>,
) -> Option<String> {
    let leaderless = state.leaderless();
    if !leaderless.is_empty() {
        return Some(format!(
            "no broker leads partition {} of topic {topic}: bring back the brokers that have it",
            list(&leaderless)
        ));
    }
    let short: Vec<_> = state
        .partitions
        .iter()
        .filter(|partition| partition.in_sync < partition.replicas)
        .collect();
    let (in_sync, all) =
        short.iter().map(|partition| (partition.in_sync, partition.replicas)).min()?;
    let min = min_in_sync();
    if min.is_some_and(|min| in_sync >= min) {
        return None;
    }
    let partitions: Vec<i32> = short.iter().map(|partition| partition.id).collect();
    let required = min.map_or_else(|| "more".to_owned(), |min| min.to_string());
    Some(format!(
        "only {in_sync} of {all} replicas are in sync in partition {} of topic {topic}, and its \
         min.insync.replicas asks for {required}: bring back the brokers that have the others",
        list(&partitions)
    ))
}

/// The first few of the numbers.
fn list(numbers: &[i32]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(i32::to_string).collect();
    let more = numbers.len().saturating_sub(SHOWN);
    let shown = shown.join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::kafka::metadata::PartitionState;

    #[test]
    fn topic_with_enough_replicas_in_sync_is_available() {
        let partition = PartitionState { id: 0, has_leader: true, in_sync: 2, replicas: 3 };
        let state = TopicState { partitions: vec![partition] };
        assert_eq!(unavailability("orders", &state, || Some(2)), None);
        let text = unavailability("orders", &state, || Some(3)).expect("too few");
        for word in ["2 of 3", "partition 0", "orders", "min.insync.replicas asks for 3"] {
            assert!(text.contains(word), "{text}");
        }
        // Without the right to see the topic's settings, the replicas are reported all the same.
        assert!(unavailability("orders", &state, || None).is_some());
    }

    #[test]
    fn first_partitions_without_a_leader_are_listed() {
        let partition = |id| PartitionState { id, has_leader: false, in_sync: 0, replicas: 1 };
        let state = TopicState { partitions: (0..12).map(partition).collect() };
        let text = unavailability("orders", &state, || None).expect("no leader");
        assert!(text.contains("partition 0, 1, 2, 3, 4 and 7 more of topic orders"), "{text}");
    }
}
