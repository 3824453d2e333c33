//! Reads every layer, lets the highest one win, and checks what it says.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use secrecy::SecretString;

use super::environment::{CONFIG_VARIABLE, property};
use super::given::{Given, Layer, Raw};
use super::setting::Shape;
use super::{
    Admin, Config, ConfigError, Delivery, Environment, Flags, Kafka, KafkaProperties, Log, Origin,
    Outbox, Process, Record, Setting, Source, file, units, values,
};
use crate::outbox::{ColumnNames, TableName};
use crate::record::debezium::Converters;
use crate::record::{KeyTemplate, RecordConfig, TimestampSource};
use crate::record::{Policies, Policy};

const DEFAULT_FILE: &str = "walpost.toml";
const DEFAULT_NAME: &str = "walpost";
const DEFAULT_TABLE: &str = "public.outbox";
const DEFAULT_TOPIC: &str = "outbox.event.{aggregate_type}";
const DEFAULT_SERVERS: &str = "localhost:9092";
const DEFAULT_IN_FLIGHT: &str = "32MiB";
const DEFAULT_THRESHOLD: &str = "64MiB";
const DEFAULT_DRAIN_TIMEOUT: &str = "20s";
const DEFAULT_LEVEL: &str = "info";

/// Less would hold hardly a row; more would be no limit.
const SIZES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 40;

impl Config {
    /// Reads and checks everything. The first thing wrong is the error.
    pub fn load(flags: &Flags, environment: &Environment) -> Result<Self, ConfigError> {
        let layers = [
            of_flags(flags)?,
            environment.own()?,
            of_file(flags, environment)?,
            environment.ambient()?,
        ];
        let mut picked = Picked { layers, origins: BTreeMap::new() };
        let (properties, property_origins) = picked.properties()?;
        let source = Source {
            url: picked.text(Setting::SourceUrl).map(SecretString::from),
            slot: picked.checked(Setting::SourceSlot, DEFAULT_NAME, values::slot)?,
            publication: picked.checked(
                Setting::SourcePublication,
                DEFAULT_NAME,
                values::identifier,
            )?,
            catch_up: picked.checked(Setting::SourceCatchUp, "auto", values::catch_up)?,
            catch_up_threshold: picked.checked(
                Setting::SourceCatchUpThreshold,
                DEFAULT_THRESHOLD,
                size,
            )?,
        };
        let message_prefix = picked.text(Setting::OutboxMessagePrefix);
        let plain_message_prefix = picked.text(Setting::OutboxPlainMessagePrefix);
        let outbox = Outbox {
            tables: picked.tables(message_prefix.is_some() || plain_message_prefix.is_some())?,
            columns: picked.columns()?,
            message_prefix,
            plain_message_prefix,
        };
        let record = picked.record(&outbox.columns)?;
        let debezium = picked.debezium(record.profile)?;
        let servers = Setting::KafkaBootstrapServers;
        let kafka = Kafka {
            bootstrap_servers: picked.checked(servers, DEFAULT_SERVERS, values::servers)?,
            properties,
        };
        let delivery = Delivery {
            in_flight_bytes: picked.checked(
                Setting::DeliveryInFlightBytes,
                DEFAULT_IN_FLIGHT,
                size,
            )?,
            drain_timeout: picked.checked(
                Setting::DeliveryDrainTimeout,
                DEFAULT_DRAIN_TIMEOUT,
                |text| units::parse_duration(text).map_err(|error| error.to_string()),
            )?,
        };
        let listen = Setting::AdminListen;
        let admin =
            Admin { listen: picked.checked(listen, values::ADMIN_LISTEN, values::admin_listen)? };
        let poison = picked.poison()?;
        let log = picked.log()?;
        let core_dumps = picked.checked(Setting::ProcessCoreDumps, "refuse", values::core_dumps)?;
        let origins = picked.origins;
        Ok(Self {
            source,
            outbox,
            record,
            debezium,
            kafka,
            delivery,
            poison,
            admin,
            log,
            process: Process { core_dumps },
            origins,
            property_origins,
            flags: flags.clone(),
        })
    }
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = units::parse_bytes(text).map_err(|error| error.to_string())?;
    if SIZES.contains(&bytes) {
        return Ok(bytes);
    }
    let [least, most] = [SIZES.start(), SIZES.end()].map(|n| units::show_bytes(*n));
    Err(format!("`{text}` is not between {least} and {most}"))
}

fn of_flags(flags: &Flags) -> Result<Layer, ConfigError> {
    let mut layer = Layer::new();
    for (setting, flag, texts) in flags.values() {
        let origin = Origin::Flag(flag);
        let raw = match setting.shape() {
            Shape::Tables | Shape::List => Raw::List(texts.to_vec()),
            Shape::Properties => {
                let pairs = texts.iter().map(|text| property(text, origin.clone()));
                Raw::Properties(pairs.collect::<Result<_, _>>()?)
            }
            Shape::Text | Shape::Size => match texts.last() {
                Some(text) => Raw::Text(text.clone()),
                None => continue,
            },
        };
        layer.insert(setting, Given { raw, origin });
    }
    Ok(layer)
}

fn of_file(flags: &Flags, environment: &Environment) -> Result<Layer, ConfigError> {
    let (path, named_by) = match (&flags.config, environment.text(CONFIG_VARIABLE)?) {
        (Some(path), _) => (path.clone(), Some("--config")),
        (None, Some(path)) => (PathBuf::from(path), Some(CONFIG_VARIABLE)),
        (None, None) => (PathBuf::from(DEFAULT_FILE), None),
    };
    match std::fs::read_to_string(environment.path(&path)) {
        Ok(text) => file::parse(&path, &text),
        Err(error) if named_by.is_none() && error.kind() == io::ErrorKind::NotFound => {
            Ok(Layer::new())
        }
        Err(source) => {
            let named_by = named_by.unwrap_or("its usual place").to_owned();
            Err(ConfigError::Unreadable { path: Path::new(&path).to_owned(), named_by, source })
        }
    }
}

/// The layers, highest first, and the origins of what was taken from them.
struct Picked {
    layers: [Layer; 4],
    origins: BTreeMap<Setting, Origin>,
}

impl Picked {
    fn take(&mut self, setting: Setting) -> Option<Given> {
        let given = self.layers.iter_mut().find_map(|layer| layer.remove(&setting))?;
        self.origins.insert(setting, given.origin.clone());
        Some(given)
    }

    fn text(&mut self, setting: Setting) -> Option<String> {
        match self.take(setting)?.raw {
            Raw::Text(text) => Some(text),
            Raw::List(_) | Raw::Properties(_) => None,
        }
    }

    fn list(&mut self, setting: Setting) -> Option<Vec<String>> {
        match self.take(setting)?.raw {
            Raw::List(list) => Some(list),
            Raw::Text(_) | Raw::Properties(_) => None,
        }
    }

    fn invalid(&self, setting: Setting, reason: impl AsRef<str>) -> ConfigError {
        let origin = self.origins.get(&setting).unwrap_or(&Origin::Default).clone();
        // A value that cannot be understood may have a login in it.
        let reason = super::without_logins(reason.as_ref());
        ConfigError::Invalid { origin, key: setting.key().to_owned(), reason }
    }

    fn checked<T>(
        &mut self,
        setting: Setting,
        default: &str,
        check: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        let text = self.text(setting);
        check(text.as_deref().unwrap_or(default)).map_err(|reason| self.invalid(setting, reason))
    }

    /// Messages alone can make an outbox; without a prefix for them it needs a table.
    fn tables(&mut self, has_messages: bool) -> Result<Vec<TableName>, ConfigError> {
        let setting = Setting::OutboxTable;
        let names = self.list(setting).unwrap_or_else(|| vec![DEFAULT_TABLE.to_owned()]);
        if names.is_empty() && !has_messages {
            let reason = "name at least one table, or set `outbox.message_prefix` or \
                          `outbox.plain_message_prefix` for an outbox of logical messages alone";
            return Err(self.invalid(setting, reason));
        }
        let mut tables: Vec<TableName> = Vec::new();
        for name in names {
            let table = name.parse().map_err(|error: <TableName as std::str::FromStr>::Err| {
                self.invalid(setting, error.to_string())
            })?;
            if tables.contains(&table) {
                return Err(self.invalid(setting, format!("`{table}` is named twice")));
            }
            tables.push(table);
        }
        Ok(tables)
    }

    fn columns(&mut self) -> Result<ColumnNames, ConfigError> {
        let mut column = |setting| {
            let name = self.text(setting);
            name.map(|name| {
                values::identifier(&name).map_err(|reason| self.invalid(setting, reason))
            })
            .transpose()
        };
        Ok(ColumnNames {
            id: column(Setting::ColumnId)?,
            aggregate_type: column(Setting::ColumnAggregateType)?,
            aggregate_id: column(Setting::ColumnAggregateId)?,
            event_type: column(Setting::ColumnEventType)?,
            payload: column(Setting::ColumnPayload)?,
            headers: column(Setting::ColumnHeaders)?,
            timestamp: column(Setting::ColumnTimestamp)?,
            schema_version: None,
        })
    }

    fn record(&mut self, columns: &ColumnNames) -> Result<Record, ConfigError> {
        let topic = self.checked(Setting::RecordTopic, DEFAULT_TOPIC, |text| match text {
            "" => Err("a topic has a name".to_owned()),
            topic => Ok(topic.to_owned()),
        })?;
        let headers = self.list(Setting::RecordHeaders);
        let timestamp = self.checked(Setting::RecordTimestamp, "commit", values::timestamp)?;
        if timestamp == TimestampSource::Column && columns.timestamp.is_none() {
            let reason = "`column` needs to know which: set `outbox.columns.timestamp`";
            return Err(self.invalid(Setting::RecordTimestamp, reason));
        }
        let profile = self.profile(timestamp)?;
        Ok(Record {
            profile,
            topic,
            topic_rewrite: self.topic_rewrite()?,
            topics_allowed: self.list(Setting::RecordTopicsAllowed).unwrap_or_default(),
            key: self.text(Setting::RecordKey).unwrap_or_else(|| KeyTemplate::DEFAULT.to_owned()),
            null_keys: self.checked(Setting::RecordNullKeys, "refuse", values::null_keys)?,
            value: self.checked(Setting::RecordValue, "payload", values::value_format)?,
            headers,
            place: self.list(Setting::RecordPlace).unwrap_or_default(),
            timestamp,
            cloudevents_source: self.checked(
                Setting::RecordCloudeventsSource,
                RecordConfig::CLOUDEVENTS_SOURCE,
                values::cloudevents_source,
            )?,
        })
    }

    /// With one of Debezium's profiles nothing else says what a record looks like.
    fn profile(&mut self, timestamp: TimestampSource) -> Result<Option<Converters>, ConfigError> {
        let profile = self.checked(Setting::RecordProfile, values::OWN_PROFILE, values::profile)?;
        if profile.is_none() {
            return Ok(None);
        }
        let is_own = |setting: &Setting| {
            let key = setting.key();
            let is_for_all = match setting {
                Setting::RecordProfile | Setting::RecordTopicsAllowed => true,
                Setting::RecordTimestamp => timestamp == TimestampSource::None,
                _ => false,
            };
            key.starts_with("outbox.columns.") || (key.starts_with("record.") && !is_for_all)
        };
        let given = |setting: &Setting| {
            self.origins.contains_key(setting)
                || self.layers.iter().any(|layer| layer.contains_key(setting))
        };
        match Setting::ALL.into_iter().filter(is_own).find(given) {
            Some(setting) => {
                self.take(setting);
                let reason = "does nothing with a Debezium profile: use the event router's options, \
                              in [debezium]";
                Err(self.invalid(setting, reason))
            }
            None => Ok(profile),
        }
    }

    /// The event router's options; whether they can be honoured is asked later.
    fn debezium(
        &mut self,
        profile: Option<Converters>,
    ) -> Result<BTreeMap<String, (String, Origin)>, ConfigError> {
        let Some(Given { raw: Raw::Properties(given), .. }) = self.take(Setting::Debezium) else {
            return Ok(BTreeMap::new());
        };
        if profile.is_none() {
            let reason = "does nothing with walpost's own profile: set record.profile to debezium, \
                          debezium-json, debezium-binary or debezium-binary-json";
            return Err(self.invalid(Setting::Debezium, reason));
        }
        Ok(given.into_iter().map(|(name, value, origin)| (name, (value, origin))).collect())
    }

    fn poison(&mut self) -> Result<Policies, ConfigError> {
        let mut policy = |setting| self.checked(setting, Policy::Halt.name(), values::policy);
        Ok(Policies {
            too_large: policy(Setting::PoisonTooLarge)?,
            missing_field: policy(Setting::PoisonMissingField)?,
            invalid_topic: policy(Setting::PoisonInvalidTopic)?,
            refused: policy(Setting::PoisonRefused)?,
            undecodable: policy(Setting::PoisonUndecodable)?,
            missing_topic: self.checked(
                Setting::PoisonMissingTopic,
                values::WAIT,
                values::policy_or_wait,
            )?,
            dead_letter_topic: self.checked(
                Setting::PoisonDeadLetterTopic,
                Policies::DEAD_LETTER_TOPIC,
                values::topic,
            )?,
            retries: self.checked(
                Setting::PoisonRetries,
                &Policies::RETRIES.to_string(),
                values::retries,
            )?,
        })
    }

    /// One of the two alone does nothing.
    fn topic_rewrite(&mut self) -> Result<Option<(String, String)>, ConfigError> {
        let (regex, replacement) = (Setting::RecordTopicRegex, Setting::RecordTopicReplacement);
        let lacks = |other: Setting| format!("it needs `{}` beside it", other.key());
        match (self.text(regex), self.text(replacement)) {
            (Some(regex), Some(replacement)) => Ok(Some((regex, replacement))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.invalid(regex, lacks(replacement))),
            (None, Some(_)) => Err(self.invalid(replacement, lacks(regex))),
        }
    }

    /// Properties of all layers together, each name from the highest one.
    fn properties(&mut self) -> Result<(KafkaProperties, BTreeMap<String, Origin>), ConfigError> {
        let mut properties = KafkaProperties::default();
        let mut origins = BTreeMap::new();
        for layer in self.layers.iter_mut().rev() {
            let Some(Given { raw: Raw::Properties(given), .. }) =
                layer.remove(&Setting::KafkaProperties)
            else {
                continue;
            };
            for (name, value, origin) in given {
                properties.set(&name, &value).map_err(|reason| ConfigError::RefusedProperty {
                    origin: origin.clone(),
                    name: name.clone(),
                    reason: reason.to_owned(),
                })?;
                origins.insert(name, origin);
            }
        }
        Ok((properties, origins))
    }

    fn log(&mut self) -> Result<Log, ConfigError> {
        let level = self.text(Setting::LogLevel);
        let origin = self.origins.get(&Setting::LogLevel);
        let check = match origin {
            Some(Origin::Variable(name)) if Some(name.as_str()) == Setting::LogLevel.ambient() => {
                values::log_filter
            }
            _ => values::log_level,
        };
        let level = check(level.as_deref().unwrap_or(DEFAULT_LEVEL))
            .map_err(|reason| self.invalid(Setting::LogLevel, reason))?;
        let format = match self.text(Setting::LogFormat) {
            Some(text) => Some(
                values::log_format(&text)
                    .map_err(|reason| self.invalid(Setting::LogFormat, reason))?,
            ),
            None => None,
        };
        Ok(Log { level, format })
    }
}
