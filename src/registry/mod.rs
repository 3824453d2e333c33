//! A schema registry with Confluent's REST interface: walpost asks it for schemas, and registers none.
//!
//! [`client`] asks, [`answer`] reads what it says, and [`task`] repeats that for the relay.

mod answer;
mod check;
mod client;
mod settings;
mod task;

use std::sync::Arc;

pub(crate) use self::check::check;
use self::settings::registry_config;
use crate::config::{Config, ConfigError, profile};
use crate::destination::parts::Reread;
use crate::metrics::Metrics;
use crate::record::{Known, Profile, SchemaRef, ValueEncoding};
use crate::relay::Schemas;

/// The configuration of the registry, which can be read again.
type RegistrySource = Reread<settings::RegistryConfig>;

fn source(config: &Config) -> RegistrySource {
    let config = config.clone();
    let read = move || registry_config(&config).map_err(|error| error.to_string());
    Reread::new(read)
}

/// How values get the prefix of their schema, if they do.
fn encoding(config: &Config) -> Result<Option<ValueEncoding>, ConfigError> {
    Ok(match profile(config)? {
        Profile::Walpost(config) => config.encoding,
        Profile::Debezium(_) => None,
    })
}

/// What the relay learns schemas from, if records need them. A task asks for them from then on.
pub(crate) fn start(
    config: &Config,
    metrics: &Arc<Metrics>,
) -> Result<Option<Schemas>, ConfigError> {
    if encoding(config)?.is_none() {
        return Ok(None);
    }
    let registry = registry_config(config)?;
    let (schemas, asking) = Schemas::new(Arc::clone(metrics));
    let waits = config.poison.missing_schema.is_none();
    let task = task::Task::new(source(config), (waits, registry.refresh), Arc::clone(metrics));
    Ok(Some(schemas.asking_by(task.run(asking))))
}

/// Why a command cannot learn a schema.
#[derive(Debug, thiserror::Error)]
#[error("{schema} cannot be learned: {reason}")]
pub(crate) struct LearnError {
    schema: SchemaRef,
    reason: String,
}

/// What the registry has of a schema, for a command.
pub(crate) async fn learn(config: &Config, schema: &SchemaRef) -> Result<Known, LearnError> {
    let found = match source(config).read() {
        Ok(registry) => client::ask(&registry, schema).await.map_err(|failure| failure.to_string()),
        Err(reason) => Err(reason),
    };
    match found {
        Ok(known) => Ok(known),
        Err(reason) => Err(LearnError { schema: schema.clone(), reason }),
    }
}
