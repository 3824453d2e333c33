//! The outbox and the records that a configuration describes: templates, headers and placements are
//! parsed here, and errors name the place where the value was set.

use super::encoding::encoding;
use super::{Config, ConfigError, Origin, Setting, nearest};
use crate::outbox::{ColumnNames, Needs, Outbox, OutboxConfig, Role};
use crate::record::debezium::{self, Debezium};
use crate::record::{
    HeaderSet, KeyTemplate, Placement, Profile, RecordConfig, Rewrite, RewriteError, Target,
    TemplateError, TimestampSource, TopicTemplate, ValueEncoding,
};

/// The format of the records.
#[doc(hidden)]
pub fn profile(config: &Config) -> Result<Profile, ConfigError> {
    // A Debezium profile has none, which this says.
    let encoding = encoding(config)?;
    let Some(converters) = config.record.profile else {
        return records(config, encoding).map(Profile::from);
    };
    let options = config.debezium.iter();
    let options = options.map(|(name, (value, _))| (name.as_str(), value.as_str()));
    let debezium = Debezium::new(converters, options);
    let debezium = debezium.and_then(|debezium| match config.record.timestamp {
        TimestampSource::None => debezium.untimed(),
        TimestampSource::Commit | TimestampSource::Column => Ok(debezium),
    });
    debezium.map(Profile::from).map_err(|error| option_error(config, &error.name, error.why))
}

/// An error of one of Debezium's options.
pub(crate) fn option_error(config: &Config, name: &str, reason: String) -> ConfigError {
    let given = config.debezium.get(name);
    let origin = given.map_or(Origin::Default, |(_, origin)| origin.clone());
    let key = format!("{}.{name}", Setting::DEBEZIUM.key());
    if debezium::OPTIONS.contains(&name) {
        return ConfigError::Invalid { origin, key, reason };
    }
    let nearest = nearest(name, debezium::OPTIONS.into_iter()).map(str::to_owned);
    ConfigError::UnknownKey { origin, key, nearest }
}

/// The format of records in walpost's own profile.
fn records(config: &Config, encoding: Option<ValueEncoding>) -> Result<RecordConfig, ConfigError> {
    let record = &config.record;
    let topic: TopicTemplate = record
        .topic
        .parse()
        .map_err(|error: TemplateError| config.invalid(Setting::RECORD_TOPIC, &error))?;
    let topic = match &record.topic_rewrite {
        None => topic,
        Some((regex, replacement)) => {
            let rewrite = Rewrite::new(regex, replacement).map_err(|error| {
                let setting = match error {
                    RewriteError::Regex { .. } => Setting::RECORD_TOPIC_REGEX,
                    RewriteError::Replacement { .. } => Setting::RECORD_TOPIC_REPLACEMENT,
                };
                config.invalid(setting, &error)
            })?;
            topic.rewritten(rewrite)
        }
    };
    let key: KeyTemplate = record
        .key
        .parse()
        .map_err(|error: TemplateError| config.invalid(Setting::RECORD_KEY, &error))?;
    let headers = match &record.headers {
        None => HeaderSet::default(),
        Some(names) => HeaderSet::from_names(names)
            .map_err(|error| config.invalid(Setting::RECORD_HEADERS, &error))?,
    };
    Ok(RecordConfig {
        topic,
        key: key.or_null(record.null_keys),
        value: record.value,
        headers,
        place: placements(config)?,
        timestamp: record.timestamp,
        cloudevents_source: record.cloudevents_source.clone(),
        encoding,
    })
}

/// The configured placements. A placement in the envelope is an error if the value has no envelope.
fn placements(config: &Config) -> Result<Vec<Placement>, ConfigError> {
    let invalid = |error: &dyn ToString| config.invalid(Setting::RECORD_PLACE, &error.to_string());
    let mut placements: Vec<Placement> = Vec::new();
    for text in &config.record.place {
        let placement: Placement = text.parse().map_err(|error| invalid(&error))?;
        let is_in_value = placement.target == Target::Envelope;
        if is_in_value && !config.record.value.is_object() {
            let value = config.record.value.name();
            return Err(invalid(&format!(
                "`{text}`: with record.value = \"{value}\" there is no envelope to place it in"
            )));
        }
        let is_partition = placement.target == Target::Partition;
        if is_partition && !config.is_kafka() {
            return Err(invalid(&format!("`{text}`: only topics of Kafka have partitions")));
        }
        if is_partition && placements.iter().any(|other| other.target == Target::Partition) {
            return Err(invalid(&format!("`{text}`: a record goes to one partition only")));
        }
        let same = |other: &&Placement| {
            other.target == placement.target && other.name() == placement.name()
        };
        if let Some(other) = placements.iter().find(same) {
            return Err(invalid(&format!("`{text}` has the same name there as `{other}`")));
        }
        placements.push(placement);
    }
    Ok(placements)
}

/// The outbox's columns, from the configuration or from a Debezium profile's options.
pub(crate) fn columns(config: &Config, profile: &Profile) -> ColumnNames {
    match profile {
        Profile::Walpost(_) => config.outbox.columns.clone(),
        Profile::Debezium(debezium) => debezium.columns(),
    }
}

/// Whether records depend on the columns' data types.
pub(crate) fn is_typed(profile: &Profile) -> bool {
    matches!(profile, Profile::Debezium(_))
}

/// The configured outbox, with the columns that `profile` names.
pub(crate) fn outbox(config: &Config, profile: &Profile) -> Outbox {
    outbox_needing(profile.needs(), config, profile)
}

/// The same, which reads the events' ids too.
pub(crate) fn outbox_with_ids(config: &Config, profile: &Profile) -> Outbox {
    outbox_needing(profile.needs().using([Role::Id]), config, profile)
}

fn outbox_needing(needs: Needs, config: &Config, profile: &Profile) -> Outbox {
    let placed_optional = match profile {
        Profile::Walpost(_) => false,
        Profile::Debezium(debezium) => debezium.placed_optional(),
    };
    Outbox::new(OutboxConfig {
        tables: config.outbox.tables.clone(),
        columns: columns(config, profile),
        message_prefix: config.outbox.message_prefix.clone(),
        plain_message_prefix: config.outbox.plain_message_prefix.clone(),
        placed: profile.placed(),
        placed_optional,
        typed: is_typed(profile),
        needs,
    })
}
