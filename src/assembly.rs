//! Builds the parts of a relay, and the relay itself, from a configuration.
//!
//! Each destination makes its own parts. Values that the configuration keeps as text (connection string,
//! topic template, headers) are parsed here, and errors name the place where the value was set.

mod other_sinks;

use std::sync::Arc;

use secrecy::ExposeSecret;

use crate::config::{CatchUpMode, Config, ConfigError, Setting, is_typed, outbox, profile};
use crate::conninfo::ConnInfo;
use crate::destination::kafka::no_creation;
use crate::destination::{self, Context, Opened};
use crate::metrics::Metrics;
use crate::record::{Profile, Router, TopicsAllowed};
use crate::registry;
use crate::relay::{Relay, RelaySettings, StateSettings, StopHandle, Until, stop_channel};
use crate::source::{CatchUp, ConnInfoSource, OpenState, RowSource, Source, SourceConfig};
use crate::state::UnfinishedRows;
use walpost_core::relay::Core;

pub use crate::destination::AssemblyError;

/// Builds a relay from the configured outbox to the configured destination, and the handle that stops it.
/// Nothing connects before [`Relay::run`].
pub(crate) fn relay(config: &Config) -> Result<(Relay<SourceConfig>, StopHandle), AssemblyError> {
    let source = source(config)?;
    relay_from(source, None, config)
}

/// The same for rows that the slot does not send, until all are published.
pub(crate) fn row_relay(
    source: RowSource,
    rows: UnfinishedRows,
    config: &Config,
) -> Result<(Relay<RowSource>, StopHandle), AssemblyError> {
    let until = Until::Lsn(rows.next);
    let (relay, stop) = relay_from(source, Some(rows), config)?;
    Ok((relay.until(until), stop))
}

fn relay_from<P: Source>(
    source: P,
    rows: Option<UnfinishedRows>,
    config: &Config,
) -> Result<(Relay<P>, StopHandle), AssemblyError> {
    let core = core(config)?;
    let metrics = Arc::new(Metrics::default());
    let context = Context { config, metrics: Arc::clone(&metrics) };
    let Opened { sink, state, is_exactly_once } = destination::of(config).open(&context)?;
    let core = if is_exactly_once { core.exactly_once() } else { core };
    let schemas = registry::start(config, &metrics)?;
    let (handle, stop) = stop_channel();
    let drain_timeout = config.delivery.drain_timeout;
    let settings = RelaySettings { drain_timeout, until: None, owns_thread: false };
    let relay = Relay::new(core, sink, source, settings, stop);
    let mut relay = relay.with_metrics(metrics);
    if let Some(schemas) = schemas {
        relay = relay.with_schemas(schemas);
    }
    if let Some((store, settings)) = state {
        relay = relay.with_state(store, StateSettings { rows, ..settings });
    }
    Ok((relay, handle))
}

/// The configured source.
pub(crate) fn source(config: &Config) -> Result<SourceConfig, ConfigError> {
    // A connection string that is invalid from the start is reported as a configuration error.
    conninfo(config)?;
    let config_then = config.clone();
    let resolve = move || conninfo(&config_then).map_err(|error| error.to_string());
    Ok(SourceConfig {
        conninfo: ConnInfoSource::new(resolve),
        slot: config.source.slot.clone(),
        publication: config.source.publication.clone(),
        tables: config.outbox.tables.clone(),
        typed: is_typed(&profile(config)?),
        temporary_slot: false,
        catch_up: match config.source.catch_up {
            CatchUpMode::Auto => CatchUp::above(config.source.catch_up_threshold),
            CatchUpMode::Stream => CatchUp::default(),
        },
        open_state: OpenState::default(),
        wait_until_visible: config.delivery.wait_until_visible,
        messages: config.outbox.message_prefix.is_some()
            || config.outbox.plain_message_prefix.is_some(),
        text_prefix: config.outbox.message_prefix.clone(),
    })
}

/// The configured connection string, resolved as libpq does; files are read now.
#[doc(hidden)]
pub fn conninfo(config: &Config) -> Result<ConnInfo, ConfigError> {
    let url = config.source_url()?;
    let text = url.as_ref().map(ExposeSecret::expose_secret);
    ConnInfo::resolve(text, &|name| config.environment().variable(name))
        .map_err(|error| config.invalid(Setting::SOURCE_URL, &error))
}

/// The configured outbox, records and in-flight limit.
#[doc(hidden)]
pub fn core(config: &Config) -> Result<Core, ConfigError> {
    let profile = profile(config)?;
    let outbox = outbox(config, &profile);
    let core = Core::new(outbox, router(config, profile)?, config.delivery.in_flight_bytes);
    Ok(core.with_policies(config.poison.clone()))
}

/// Builds records of that format, for the allowed topics.
pub(crate) fn router(config: &Config, profile: Profile) -> Result<Router, ConfigError> {
    let invalid = |reason: String| config.invalid(Setting::RECORD_TOPICS_ALLOWED, &reason);
    let allowed = TopicsAllowed::new(&config.record.topics_allowed).map_err(invalid)?;
    if let Some(topic) = profile.topic_of_all().filter(|topic| !allowed.allows(topic)) {
        return Err(invalid(format!("all events go to `{topic}`, which it does not have: add it")));
    }
    if !config.is_kafka() {
        return other_sinks::router(config, profile, allowed);
    }
    if config.kafka.create_topics.is_some()
        && let Some(reason) = no_creation(config, &profile)
    {
        return Err(config.invalid(Setting::KAFKA_CREATE_TOPICS, &reason));
    }
    let reserved = config.delivery.state_topic.clone();
    let is_reserved = |topic: &str| reserved.as_deref() == Some(topic);
    if profile.topic_of_all().is_some_and(|topic| is_reserved(&topic))
        || is_reserved(&config.poison.dead_letter_topic)
    {
        let reason = "records or dead letters go to this topic: name another one";
        return Err(config.invalid(Setting::DELIVERY_STATE_TOPIC, &reason));
    }
    Ok(Router::new(profile).allowing(allowed.without(reserved)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::of_toml;

    fn profile_of(toml: &str) -> Result<Profile, String> {
        let config = of_toml(toml).expect("it is read");
        profile(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn invalid_record_settings_are_named_with_their_place() {
        for (toml, part) in [
            (
                "record.profile = 'debezium'\n[debezium]\nroute.by.feild = 'x'",
                ":3: unknown key `debezium.route.by.feild`; did you mean `route.by.field`",
            ),
            (
                "record.profile = 'debezium'\n[debezium]\nroute.topic.regex = '(?!a)'",
                "walpost.toml:3: `debezium.route.topic.regex`",
            ),
            ("record.topic = 'a b'", "walpost.toml:1: `record.topic`"),
            (
                "record.profile = 'debezium'\nrecord.timestamp = 'none'\n[debezium]\n\
                 table.field.event.timestamp = 'at'",
                "walpost.toml:4: `debezium.table.field.event.timestamp`",
            ),
            ("record.topic = '__consumer_offsets'", "keeps for itself"),
            ("record.key = 'all'", "`record.key`"),
            ("record.key = '{a'", "not closed"),
            ("record.headers = ['x']", "`record.headers`"),
            ("record.place = ['a']", "`record.place`: `a` does not say where the column goes"),
            ("record.place = ['a:envelope']", "record.value = \"payload\" there is no envelope"),
            ("record.place = ['a:header', 'b:header:a']", "the same name there as `a:header`"),
            ("record.place = ['a:partition', 'b:partition']", "to one partition only"),
            ("record.topic_regex = '('\nrecord.topic_replacement = ''", "`record.topic_regex`"),
            ("record.topic_regex = 'a'\nrecord.topic_replacement = '$1'", "topic_replacement`"),
        ] {
            let error = profile_of(toml).expect_err(toml);
            assert!(error.contains(part), "{toml}: {error}");
        }
    }

    #[test]
    fn allowed_topics_are_validated_with_the_record_settings() {
        let core_of = |toml: &str| {
            let config = of_toml(toml).expect("it is read");
            core(&config).map(drop).map_err(|error| error.to_string())
        };
        let error = core_of("record.topics_allowed = ['a|b']").expect_err("no pattern");
        assert!(error.contains("walpost.toml:1: `record.topics_allowed`"), "{error}");
        let error = core_of("[record]\ntopic = 'orders'\ntopics_allowed = ['outbox.*']");
        assert!(error.expect_err("not allowed").contains("all events go to `orders`"));
        let error = core_of("kafka.create_topics = '6:3'").expect_err("rows name any");
        assert!(error.contains("walpost.toml:1: `kafka.create_topics`"), "{error}");
        assert_eq!(core_of("record.topic = 'orders'\nkafka.create_topics = '6:3'"), Ok(()));
        let toml = "[record]\nprofile = 'debezium'\ntopics_allowed = ['outbox.event.*']\n";
        assert_eq!(core_of(toml), Ok(()));
    }

    #[test]
    fn placed_columns_are_those_of_topic_key_and_placements_without_duplicates() {
        let toml = "[record]\ntopic = '{tenant}.{aggregate_type}'\nkey = '{tenant}/{region}'\n\
                    value = 'envelope'\nplace = ['region:header', 'shop:envelope']\n";
        assert_eq!(profile_of(toml).expect("records").placed(), ["tenant", "region", "shop"]);
    }
}
