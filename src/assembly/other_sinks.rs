//! What the destinations other than Kafka have in common.

#[cfg(any(feature = "nats", feature = "redis"))]
use std::time::Duration;

#[cfg(any(feature = "nats", feature = "redis"))]
use super::layout;
use crate::config::{Config, ConfigError, Setting};
#[cfg(any(feature = "http", feature = "rabbitmq", feature = "sqs"))]
use crate::config::{Environment, SinkKind};
#[cfg(any(feature = "nats", feature = "redis"))]
use crate::record::Policy;
use crate::record::{Profile, Router, TopicsAllowed};
#[cfg(any(feature = "nats", feature = "redis"))]
use crate::relay::{CommitLimits, StateSettings};

/// The address of the configured HTTP endpoint or of RabbitMQ, or the queue's URL, for the log; `None`:
/// events go elsewhere.
pub(crate) fn endpoint(config: &Config) -> Option<String> {
    #[cfg(feature = "http")]
    if config.sink == SinkKind::Http {
        let http = super::http::http_config(config, &Environment::of_process()).ok()?;
        return Some(http.url.address());
    }
    #[cfg(feature = "rabbitmq")]
    if config.sink == SinkKind::RabbitMq {
        let rabbit = super::rabbitmq::rabbit_config(config, &Environment::of_process()).ok()?;
        return Some(rabbit.url.address());
    }
    #[cfg(feature = "sqs")]
    if config.sink == SinkKind::Sqs {
        let sqs = super::sqs::sqs_config(config, &Environment::of_process()).ok()?;
        return Some(sqs.queue.to_string());
    }
    let _ = config;
    None
}

/// Builds records for the allowed topics. Dead letters are told from events by their topic: no event
/// may name it.
pub(super) fn router(
    config: &Config,
    profile: Profile,
    allowed: TopicsAllowed,
) -> Result<Router, ConfigError> {
    let reserved = config.poison.dead_letter_topic.clone();
    if profile.topic_of_all().is_some_and(|topic| topic == reserved) {
        let reason = "events go to this topic: name another one";
        return Err(config.invalid(Setting::PoisonDeadLetterTopic, &reason));
    }
    Ok(Router::new(profile).allowing(allowed.without(Some(reserved))))
}

/// Of a store that is at the destination beside the stream: the state key that `topic` names.
#[cfg(any(feature = "nats", feature = "redis"))]
pub(super) fn stored_beside(
    config: &Config,
    (topic, place): (String, String),
    (store, timeout): (&'static str, Duration),
) -> StateSettings {
    StateSettings {
        delivery_id: config.delivery.id.clone(),
        topic,
        place,
        layout: layout(config),
        skips: config.poison.include(Policy::Skip),
        required: true,
        lossy_store: Some(store),
        rows: None,
        commits: CommitLimits {
            interval: config.delivery.commit_interval,
            bytes: config.delivery.transaction_bytes,
            timeout,
        },
    }
}
