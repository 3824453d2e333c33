//! The configuration as it is shown: every effective value with its origin, and
//! no secret.

use secrecy::ExposeSecret;

use super::values::{ADMIN_OFF, OWN_PROFILE, WAIT};
use super::{Config, CoreDumps, Origin, Setting, redact, units};
use crate::record::TimestampSource;
use crate::record::debezium::Converters;

/// One effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown<'a> {
    /// Key in the file, dotted.
    pub key: String,
    /// The value; `None` where nothing is set and nothing stands in.
    pub value: Option<ShownValue>,
    /// Where it was given.
    pub origin: &'a Origin,
}

/// A value to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShownValue {
    /// One text.
    Text(String),
    /// Several.
    List(Vec<String>),
}

impl Config {
    /// Every effective value, in the order of [`Setting::ALL`].
    pub fn shown(&self) -> Vec<Shown<'_>> {
        let mut rows = Vec::new();
        for setting in Setting::ALL {
            if setting == Setting::KafkaProperties {
                rows.extend(self.shown_properties());
            } else if setting == Setting::Debezium {
                rows.extend(self.shown_debezium());
            } else {
                let key = setting.key().to_owned();
                let value = self.shown_value(setting);
                rows.push(Shown {
                    key,
                    value: value.map(without_logins),
                    origin: self.origin(setting),
                });
            }
        }
        rows
    }

    fn shown_properties(&self) -> impl Iterator<Item = Shown<'_>> {
        self.kafka.properties.iter().map(|(name, value)| Shown {
            key: format!("{}.{name:?}", Setting::KafkaProperties.key()),
            value: Some(ShownValue::Text(redact::property(name, value))),
            origin: self.property_origins.get(name).unwrap_or(&Origin::Default),
        })
    }

    fn shown_debezium(&self) -> impl Iterator<Item = Shown<'_>> {
        self.debezium.iter().map(|(name, (value, origin))| Shown {
            key: format!("{}.{name:?}", Setting::Debezium.key()),
            value: Some(ShownValue::Text(redact::logins(value))),
            origin,
        })
    }

    fn shown_value(&self, setting: Setting) -> Option<ShownValue> {
        let (columns, record, poison) = (&self.outbox.columns, &self.record, &self.poison);
        let text = match setting {
            Setting::SourceUrl => {
                return self
                    .source
                    .url
                    .as_ref()
                    .map(|url| redact::conninfo(url.expose_secret()))
                    .map(ShownValue::Text);
            }
            Setting::SourceSlot => Some(self.source.slot.clone()),
            Setting::SourcePublication => Some(self.source.publication.clone()),
            Setting::SourceCatchUp => Some(self.source.catch_up.name().to_owned()),
            Setting::SourceCatchUpThreshold => {
                Some(units::show_bytes(self.source.catch_up_threshold))
            }
            Setting::OutboxTable => {
                let names = self.outbox.tables.iter().map(ToString::to_string);
                return Some(ShownValue::List(names.collect()));
            }
            Setting::ColumnId => columns.id.clone(),
            Setting::ColumnAggregateType => columns.aggregate_type.clone(),
            Setting::ColumnAggregateId => columns.aggregate_id.clone(),
            Setting::ColumnEventType => columns.event_type.clone(),
            Setting::ColumnPayload => columns.payload.clone(),
            Setting::ColumnHeaders => columns.headers.clone(),
            Setting::ColumnTimestamp => columns.timestamp.clone(),
            Setting::OutboxMessagePrefix => self.outbox.message_prefix.clone(),
            Setting::RecordProfile => {
                Some(record.profile.map_or(OWN_PROFILE, Converters::name).to_owned())
            }
            Setting::OutboxPlainMessagePrefix => self.outbox.plain_message_prefix.clone(),
            Setting::RecordTopic => Some(self.record.topic.clone()),
            Setting::RecordTopicRegex => record.topic_rewrite.as_ref().map(|it| it.0.clone()),
            Setting::RecordTopicReplacement => record.topic_rewrite.as_ref().map(|it| it.1.clone()),
            Setting::RecordTopicsAllowed => {
                return Some(ShownValue::List(record.topics_allowed.clone()));
            }
            Setting::RecordKey => Some(record.key.clone()),
            Setting::RecordNullKeys => {
                Some(if record.null_keys { "allow" } else { "refuse" }.to_owned())
            }
            Setting::RecordValue => Some(record.value.name().to_owned()),
            Setting::RecordPlace => return Some(ShownValue::List(record.place.clone())),
            Setting::RecordCloudeventsSource => Some(record.cloudevents_source.clone()),
            Setting::RecordHeaders => return self.record.headers.clone().map(ShownValue::List),
            Setting::RecordTimestamp => Some(timestamp(self.record.timestamp).to_owned()),
            Setting::KafkaBootstrapServers => Some(self.kafka.bootstrap_servers.clone()),
            Setting::KafkaProperties | Setting::Debezium => None,
            Setting::DeliveryInFlightBytes => {
                Some(units::show_bytes(self.delivery.in_flight_bytes))
            }
            Setting::DeliveryDrainTimeout => {
                Some(units::show_duration(self.delivery.drain_timeout))
            }
            Setting::PoisonTooLarge => Some(poison.too_large.to_string()),
            Setting::PoisonMissingField => Some(poison.missing_field.to_string()),
            Setting::PoisonInvalidTopic => Some(poison.invalid_topic.to_string()),
            Setting::PoisonMissingTopic => {
                let policy = poison.missing_topic.map(|policy| policy.to_string());
                Some(policy.unwrap_or_else(|| WAIT.to_owned()))
            }
            Setting::PoisonRefused => Some(poison.refused.to_string()),
            Setting::PoisonUndecodable => Some(poison.undecodable.to_string()),
            Setting::PoisonDeadLetterTopic => Some(poison.dead_letter_topic.clone()),
            Setting::PoisonRetries => Some(poison.retries.to_string()),
            Setting::AdminListen => {
                Some(self.admin.listen.clone().unwrap_or_else(|| ADMIN_OFF.to_owned()))
            }
            Setting::ProcessCoreDumps => Some(
                match self.process.core_dumps {
                    CoreDumps::Refuse => "refuse",
                    CoreDumps::Allow => "allow",
                }
                .to_owned(),
            ),
            Setting::LogLevel => Some(self.log.level.clone()),
            Setting::LogFormat => self.log.format.map(|format| format.to_string()),
        };
        text.map(ShownValue::Text)
    }
}

fn without_logins(value: ShownValue) -> ShownValue {
    match value {
        ShownValue::Text(text) => ShownValue::Text(redact::logins(&text)),
        ShownValue::List(items) => {
            ShownValue::List(items.iter().map(|item| redact::logins(item)).collect())
        }
    }
}

fn timestamp(source: TimestampSource) -> &'static str {
    match source {
        TimestampSource::Commit => "commit",
        TimestampSource::Column => "column",
        TimestampSource::None => "none",
    }
}
