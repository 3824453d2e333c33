//! Where the configured walpost keeps its position.

#[cfg(feature = "nats")]
use super::nats;
#[cfg(feature = "redis")]
use super::redis;
use crate::config::{Config, SinkKind};
use crate::sink::{KafkaConfig, KafkaSource};
use crate::state::{StateStore, kafka_state};

/// What the place of the position is called; `None`: none is kept.
pub(crate) fn place_of_position(config: &Config) -> Option<String> {
    match config.sink {
        #[cfg(feature = "nats")]
        SinkKind::Nats => Some(nats::place(config)),
        #[cfg(feature = "redis")]
        SinkKind::Redis => Some(redis::place(config)),
        SinkKind::Kafka => config.delivery.state_topic.as_deref().map(state_topic),
        _ => None,
    }
}

/// Where the configured walpost keeps its position, to be read or written by an operator's command,
/// and what that is called; `None`: nowhere.
pub(crate) fn state_store(
    config: &Config,
    kafka: &KafkaConfig,
) -> Option<(Box<dyn StateStore>, String)> {
    match config.sink {
        #[cfg(feature = "nats")]
        SinkKind::Nats => Some(nats::state_store(config)),
        #[cfg(feature = "redis")]
        SinkKind::Redis => Some(redis::state_store(config)),
        SinkKind::Kafka => {
            let topic = config.delivery.state_topic.as_ref()?;
            let properties = kafka.clone();
            let source = KafkaSource::new(move || Ok(properties.clone()));
            Some((Box::new(kafka_state(source, topic)), state_topic(topic)))
        }
        _ => None,
    }
}

/// What a state topic is called in messages.
pub(crate) fn state_topic(topic: &str) -> String {
    format!("state topic {topic}")
}
