//! From a configuration to the parts of a relay, and to the relay itself.
//!
//! The one place that knows both how things are configured and what they are
//! built of. What the configuration left as text (connection string, topic
//! template, headers) is read here, and what is wrong with it is said with the
//! place where it was given.

use secrecy::ExposeSecret;

use crate::config::{Config, ConfigError, Environment, Setting};
use crate::conninfo::ConnInfo;
use crate::outbox::{Outbox, OutboxConfig};
use crate::record::{HeaderSet, RecordConfig, Router, TopicTemplate};
use crate::relay::core::Core;
use crate::relay::{Relay, RelaySettings, StopHandle, Until, stop_channel};
use crate::sink::{KafkaConfig, KafkaSink};
use crate::source::{ConnInfoSource, SourceConfig};

/// Why a relay cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// A value of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A property of Kafka's client.
    #[error(transparent)]
    Sink(#[from] crate::sink::SinkError),
}

/// A relay from the configured outbox to the configured Kafka, and the handle
/// that stops it. Nothing is connected before [`Relay::run`].
///
/// Call it within a Tokio runtime, or run the relay in one; a runtime of one
/// thread is enough and the fastest.
pub fn relay(
    config: &Config,
    environment: &Environment,
    until: Option<Until>,
) -> Result<(Relay<SourceConfig, KafkaSink>, StopHandle), AssemblyError> {
    let source = source(config, environment)?;
    let core = core(config)?;
    let sink = KafkaSink::new(&kafka(config))?;
    let settings = RelaySettings { drain_timeout: config.delivery.drain_timeout, until };
    let (handle, stop) = stop_channel();
    Ok((Relay::new(core, sink, source, settings, stop), handle))
}

/// The configured source.
pub fn source(config: &Config, environment: &Environment) -> Result<SourceConfig, ConfigError> {
    // What is wrong from the beginning is said as an error of the configuration.
    conninfo(config, environment)?;
    let (config_then, environment) = (config.clone(), environment.clone());
    let resolve = move || conninfo(&config_then, &environment).map_err(|error| error.to_string());
    Ok(SourceConfig {
        conninfo: ConnInfoSource::new(resolve),
        slot: config.source.slot.clone(),
        publication: config.source.publication.clone(),
        tables: config.outbox.tables.clone(),
        temporary_slot: false,
    })
}

/// The configured connection string, resolved as libpq does; what stands in a
/// file is read now.
pub fn conninfo(config: &Config, environment: &Environment) -> Result<ConnInfo, ConfigError> {
    let url = config.source_url(environment)?;
    let text = url.as_ref().map(ExposeSecret::expose_secret);
    ConnInfo::resolve(text, &|name| environment.variable(name))
        .map_err(|error| config.invalid(Setting::SourceUrl, &error))
}

/// The configured outbox, records and budget.
pub fn core(config: &Config) -> Result<Core, ConfigError> {
    let topic = topic(config)?;
    let outbox = outbox(config, &topic);
    let headers = match &config.record.headers {
        None => HeaderSet::default(),
        Some(names) => HeaderSet::from_names(names)
            .map_err(|error| config.invalid(Setting::RecordHeaders, &error))?,
    };
    let router = Router::new(RecordConfig { topic, headers, timestamp: config.record.timestamp });
    Ok(Core::new(outbox, router, config.delivery.in_flight_bytes))
}

/// The configured topic template.
pub fn topic(config: &Config) -> Result<TopicTemplate, ConfigError> {
    config
        .record
        .topic
        .parse()
        .map_err(|error: crate::record::TemplateError| config.invalid(Setting::RecordTopic, &error))
}

/// The configured outbox, with the columns that `topic` names.
pub fn outbox(config: &Config, topic: &TopicTemplate) -> Outbox {
    Outbox::new(OutboxConfig {
        tables: config.outbox.tables.clone(),
        columns: config.outbox.columns.clone(),
        message_prefix: config.outbox.message_prefix.clone(),
        placed: topic.placed().to_vec(),
    })
}

/// The configured Kafka.
pub fn kafka(config: &Config) -> KafkaConfig {
    let properties = config.kafka.properties.iter();
    KafkaConfig {
        bootstrap_servers: config.kafka.bootstrap_servers.clone(),
        properties: properties.map(|(name, value)| (name.into(), value.into())).collect(),
        in_flight_bytes: config.delivery.in_flight_bytes,
    }
}
