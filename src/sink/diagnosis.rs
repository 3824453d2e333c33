//! Asks the brokers, by a client of its own, what may keep acknowledgements back.

use std::collections::HashSet;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::metadata::{MetadataPartition, MetadataTopic};
use rdkafka::producer::{BaseProducer, DefaultProducerContext, Producer as _};

use super::Condition;

/// How long the brokers may take to answer.
const WITHIN: Duration = Duration::from_secs(8);

/// Partitions that are named at most.
const NAMED: usize = 3;

/// Blocks for some seconds at most.
pub(super) fn ask(config: &ClientConfig, topics: &HashSet<String>) -> Condition {
    let metadata = config
        .create::<BaseProducer<DefaultProducerContext>>()
        .and_then(|client| client.client().fetch_metadata(None, WITHIN));
    match metadata {
        Ok(metadata) => judge(metadata.topics().iter().filter(|one| topics.contains(one.name()))),
        Err(KafkaError::MetadataFetch(code)) => Condition::Unreachable(code.to_string()),
        Err(error) => Condition::Unreachable(error.to_string()),
    }
}

fn judge<'a>(topics: impl Iterator<Item = &'a MetadataTopic>) -> Condition {
    let mut excuses = Vec::new();
    for topic in topics {
        let partitions = topic.partitions().iter();
        excuses.extend(partitions.filter_map(|partition| excuse(topic.name(), partition)));
    }
    if excuses.is_empty() {
        return Condition::Well;
    }
    let more = excuses.len().saturating_sub(NAMED);
    excuses.truncate(NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Condition::Excused(format!("{}{more}", excuses.join(", ")))
}

fn excuse(topic: &str, partition: &MetadataPartition) -> Option<String> {
    let id = partition.id();
    if partition.leader() < 0 {
        return Some(format!("partition {id} of topic {topic} has no leader"));
    }
    let (in_sync, all) = (partition.isr().len(), partition.replicas().len());
    (in_sync < all).then(|| {
        format!("of partition {id} of topic {topic} {in_sync} of {all} replicas are in sync")
    })
}
