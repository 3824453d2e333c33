//! Reads all layers, takes each setting from the highest one that sets it, and validates it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use secrecy::SecretString;

use super::display::display;
use super::environment::CONFIG_VARIABLE;
use super::error::DEFAULT;
use super::layer::{Layer, LayerValue, Raw, defaults, merge};
use super::{
    Admin, Config, ConfigError, Delivery, DeliveryMode, Environment, Flags, Kafka, KafkaProperties,
    Log, Origin, Outbox, Process, Record, Schema, Setting, Source, file, units, values,
};
use crate::outbox::{ColumnNames, TableName};
use crate::record::Policies;
use crate::record::TimestampSource;
use crate::record::debezium::Converters;

/// The configuration files that are tried if none is named: the first that exists is read.
const DEFAULT_FILES: [&str; 2] = ["walpost.toml", "/etc/walpost/walpost.toml"];

/// A smaller size is less than a row; a larger one has no effect as a limit.
const SIZES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 40;

impl Config {
    /// Reads and validates everything, with the destinations of `schema`. Returns the first error.
    pub(crate) fn load_with(
        schema: &'static Schema,
        flags: &Flags,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let mut given = Values(merge([
            flags.layer()?,
            environment.own(schema)?,
            of_file(schema, flags, environment)?,
            environment.ambient(schema)?,
            defaults(schema)?,
        ]));
        given.take_servers();
        let sink = given.parsed(Setting::SINK_KIND, |text| schema.kind(text))?;
        given.check_destination(schema, sink)?;
        let properties = given.kafka_properties()?;
        let source = given.source()?;
        let outbox = given.outbox()?;
        let record = given.record(&outbox.columns)?;
        Ok(Self {
            source,
            debezium: given.debezium(record.profile)?,
            outbox,
            record,
            sink,
            kafka: Kafka {
                bootstrap_servers: given
                    .parsed(Setting::KAFKA_BOOTSTRAP_SERVERS, values::servers)?,
                create_topics: given.optional(Setting::KAFKA_CREATE_TOPICS, values::new_topics)?,
                max_producers: given.parsed(Setting::KAFKA_MAX_PRODUCERS, values::max_producers)?,
                properties,
            },
            delivery: Delivery {
                in_flight_bytes: given.parsed(Setting::DELIVERY_IN_FLIGHT_BYTES, size)?,
                drain_timeout: given.parsed(Setting::DELIVERY_DRAIN_TIMEOUT, values::duration)?,
                id: given.parsed(Setting::DELIVERY_ID, values::delivery_id)?,
                state_topic: given.parsed(Setting::DELIVERY_STATE_TOPIC, values::state_topic)?,
                mode: given.delivery_mode()?,
                commit_interval: given
                    .parsed(Setting::DELIVERY_COMMIT_INTERVAL, values::duration)?,
                transaction_bytes: given.parsed(Setting::DELIVERY_TRANSACTION_BYTES, size)?,
                wait_until_visible: given
                    .parsed(Setting::DELIVERY_WAIT_UNTIL_VISIBLE, values::boolean)?,
            },
            admin: Admin {
                listen: given.parsed(Setting::ADMIN_LISTEN, values::admin_listen)?,
                page: given.parsed(Setting::ADMIN_PAGE, values::on_or_off)?,
            },
            poison: given.poison()?,
            log: given.log()?,
            process: Process {
                core_dumps: given.parsed(Setting::PROCESS_CORE_DUMPS, values::core_dumps)?,
            },
            displayed: display(schema, &given.0),
            values: given,
            schema,
            flags: flags.clone(),
            environment: environment.clone(),
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

fn of_file(
    schema: &Schema,
    flags: &Flags,
    environment: &Environment,
) -> Result<Layer, ConfigError> {
    let (paths, named_by) = match (&flags.config, environment.text(CONFIG_VARIABLE)?) {
        (Some(path), _) => (vec![path.clone()], Some("--config")),
        (None, Some(path)) => (vec![PathBuf::from(path)], Some(CONFIG_VARIABLE)),
        (None, None) => (DEFAULT_FILES.map(PathBuf::from).to_vec(), None),
    };
    for path in paths {
        match std::fs::read_to_string(environment.path(&path)) {
            Ok(text) => return file::parse(schema, &path, &text),
            Err(error) if named_by.is_none() && error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                let named_by = named_by.unwrap_or(DEFAULT).to_owned();
                return Err(ConfigError::Unreadable { path, named_by, source });
            }
        }
    }
    Ok(Layer::new())
}

/// The configured or default value of each setting, as it was written.
#[derive(Clone)]
pub(crate) struct Values(Layer);

/// Values may be secrets.
impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Values {
    /// The text of a setting.
    pub(crate) fn text(&self, setting: Setting) -> Option<&str> {
        match &self.0.get(&setting)?.raw {
            Raw::Text(text) => Some(text),
            Raw::List(_) | Raw::Properties(_) => None,
        }
    }

    /// Takes the brokers out of the Kafka properties, in which downloaded files name them, if no other
    /// setting does; otherwise they remain there, which is an error.
    fn take_servers(&mut self) {
        let is_set = *self.origin(Setting::KAFKA_BOOTSTRAP_SERVERS) != Origin::Default;
        let Some(LayerValue { raw: Raw::Properties(pairs), .. }) =
            self.0.get_mut(&Setting::KAFKA_PROPERTIES).filter(|_| !is_set)
        else {
            return;
        };
        let servers = pairs.extract_if(.., |(name, ..)| name == "bootstrap.servers").last();
        if let Some((_, text, origin)) = servers {
            let value = LayerValue { raw: Raw::Text(text), origin };
            self.0.insert(Setting::KAFKA_BOOTSTRAP_SERVERS, value);
        }
    }

    fn list(&self, setting: Setting) -> Option<Vec<String>> {
        match &self.0.get(&setting)?.raw {
            Raw::List(list) => Some(list.clone()),
            Raw::Text(_) | Raw::Properties(_) => None,
        }
    }

    fn properties(&self, setting: Setting) -> &[(String, String, Origin)] {
        match self.0.get(&setting) {
            Some(LayerValue { raw: Raw::Properties(pairs), .. }) => pairs,
            _ => &[],
        }
    }

    pub(super) fn origin(&self, setting: Setting) -> &Origin {
        self.0.get(&setting).map_or(&Origin::Default, |given| &given.origin)
    }

    pub(super) fn invalid(&self, setting: Setting, reason: impl AsRef<str>) -> ConfigError {
        // An invalid value may contain a login.
        let reason = super::without_logins(reason.as_ref());
        let origin = self.origin(setting).clone();
        ConfigError::Invalid { origin, key: setting.key().to_owned(), reason }
    }

    /// A setting with a default.
    pub(crate) fn parsed<T>(
        &self,
        setting: Setting,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        let text = self.text(setting).unwrap_or_default();
        parse(text).map_err(|reason| self.invalid(setting, reason))
    }

    /// A setting without a default.
    pub(crate) fn optional<T>(
        &self,
        setting: Setting,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        self.text(setting).map(|_| self.parsed(setting, parse)).transpose()
    }

    /// Checks the values of the destination, and that none is given for another one.
    fn check_destination(&self, schema: &Schema, kind: &str) -> Result<(), ConfigError> {
        let is_given = |setting: &Setting| match self.origin(*setting) {
            Origin::Default => false,
            // Other programs read it too.
            Origin::Variable(name) => setting.ambient() != Some(name.as_str()),
            _ => true,
        };
        let mut others = schema.settings().filter(|setting| schema.is_others(*setting, kind));
        if let Some(setting) = others.find(is_given) {
            let reason = format!("has no effect with sink.kind = \"{kind}\": remove it");
            return Err(self.invalid(setting, reason));
        }
        for setting in schema.own(kind) {
            self.optional(setting, |text| setting.check(text))?;
        }
        Ok(())
    }

    fn source(&self) -> Result<Source, ConfigError> {
        Ok(Source {
            url: self.text(Setting::SOURCE_URL).map(SecretString::from),
            slot: self.parsed(Setting::SOURCE_SLOT, values::slot)?,
            publication: self.parsed(Setting::SOURCE_PUBLICATION, values::identifier)?,
            catch_up: self.parsed(Setting::SOURCE_CATCH_UP, values::catch_up)?,
            catch_up_threshold: self.parsed(Setting::SOURCE_CATCH_UP_THRESHOLD, size)?,
        })
    }

    fn outbox(&self) -> Result<Outbox, ConfigError> {
        let message_prefix = self.text(Setting::OUTBOX_MESSAGE_PREFIX).map(str::to_owned);
        let plain_message_prefix =
            self.text(Setting::OUTBOX_PLAIN_MESSAGE_PREFIX).map(str::to_owned);
        Ok(Outbox {
            tables: self.tables(message_prefix.is_some() || plain_message_prefix.is_some())?,
            columns: self.columns()?,
            message_prefix,
            plain_message_prefix,
        })
    }

    /// An outbox without a prefix for logical messages needs a table.
    fn tables(&self, has_messages: bool) -> Result<Vec<TableName>, ConfigError> {
        let setting = Setting::OUTBOX_TABLE;
        let names = self.list(setting).unwrap_or_default();
        if names.is_empty() && !has_messages {
            let reason = "name at least one table, or set `outbox.message_prefix` or \
                          `outbox.plain_message_prefix` for an outbox of logical messages only";
            return Err(self.invalid(setting, reason));
        }
        let mut tables: Vec<TableName> = Vec::new();
        for name in names {
            let table = name.parse().map_err(|error: <TableName as std::str::FromStr>::Err| {
                self.invalid(setting, error.to_string())
            })?;
            if tables.contains(&table) {
                return Err(self.invalid(setting, format!("`{table}` is listed twice")));
            }
            tables.push(table);
        }
        Ok(tables)
    }

    fn columns(&self) -> Result<ColumnNames, ConfigError> {
        let column = |setting| self.optional(setting, values::identifier);
        Ok(ColumnNames {
            id: column(Setting::COLUMN_ID)?,
            aggregate_type: column(Setting::COLUMN_AGGREGATE_TYPE)?,
            aggregate_id: column(Setting::COLUMN_AGGREGATE_ID)?,
            event_type: column(Setting::COLUMN_EVENT_TYPE)?,
            payload: column(Setting::COLUMN_PAYLOAD)?,
            headers: column(Setting::COLUMN_HEADERS)?,
            timestamp: column(Setting::COLUMN_TIMESTAMP)?,
            schema_version: None,
        })
    }

    fn record(&self, columns: &ColumnNames) -> Result<Record, ConfigError> {
        let topic = self.parsed(Setting::RECORD_TOPIC, |text| match text {
            "" => Err("the topic is empty".to_owned()),
            topic => Ok(topic.to_owned()),
        })?;
        let timestamp = self.parsed(Setting::RECORD_TIMESTAMP, values::timestamp)?;
        if timestamp == TimestampSource::Column && columns.timestamp.is_none() {
            let reason = "`column` requires a column: set `outbox.columns.timestamp`";
            return Err(self.invalid(Setting::RECORD_TIMESTAMP, reason));
        }
        Ok(Record {
            profile: self.profile(timestamp)?,
            topic,
            topic_rewrite: self.topic_rewrite()?,
            topics_allowed: self.list(Setting::RECORD_TOPICS_ALLOWED).unwrap_or_default(),
            key: self.parsed(Setting::RECORD_KEY, |text| Ok(text.to_owned()))?,
            null_keys: self.parsed(Setting::RECORD_NULL_KEYS, values::null_keys)?,
            value: self.parsed(Setting::RECORD_VALUE, values::value_format)?,
            headers: self.list(Setting::RECORD_HEADERS),
            place: self.list(Setting::RECORD_PLACE).unwrap_or_default(),
            timestamp,
            cloudevents_source: self
                .parsed(Setting::RECORD_CLOUDEVENTS_SOURCE, values::cloudevents_source)?,
        })
    }

    /// A Debezium profile alone determines the record: walpost's own settings have no effect.
    fn profile(&self, timestamp: TimestampSource) -> Result<Option<Converters>, ConfigError> {
        let profile = self.parsed(Setting::RECORD_PROFILE, values::profile)?;
        if profile.is_none() {
            return Ok(None);
        }
        let is_own = |setting: &Setting| {
            let key = setting.key();
            let is_for_all = [Setting::RECORD_PROFILE, Setting::RECORD_TOPICS_ALLOWED]
                .contains(setting)
                || *setting == Setting::RECORD_TIMESTAMP && timestamp == TimestampSource::None;
            key.starts_with("outbox.columns.") || (key.starts_with("record.") && !is_for_all)
        };
        let is_given = |setting: &Setting| *self.origin(*setting) != Origin::Default;
        match Setting::FIRST.iter().copied().filter(is_own).find(is_given) {
            Some(setting) => {
                let reason = "has no effect with a Debezium profile: set the event router's options, \
                              in [debezium]";
                Err(self.invalid(setting, reason))
            }
            None => Ok(profile),
        }
    }

    /// The event router's options. Whether they are supported is checked later.
    fn debezium(
        &self,
        profile: Option<Converters>,
    ) -> Result<BTreeMap<String, (String, Origin)>, ConfigError> {
        let given = self.0.contains_key(&Setting::DEBEZIUM);
        if given && profile.is_none() {
            let reason = "has no effect with the profile `walpost`: set record.profile to debezium, \
                          debezium-json, debezium-string-json, debezium-binary or debezium-binary-json";
            return Err(self.invalid(Setting::DEBEZIUM, reason));
        }
        let options = self.properties(Setting::DEBEZIUM).iter().cloned();
        Ok(options.map(|(name, value, origin)| (name, (value, origin))).collect())
    }

    /// Exactly-once delivery needs a state topic.
    fn delivery_mode(&self) -> Result<DeliveryMode, ConfigError> {
        let mode = self.parsed(Setting::DELIVERY_MODE, values::delivery_mode)?;
        let topic = self.parsed(Setting::DELIVERY_STATE_TOPIC, values::state_topic)?;
        if mode == DeliveryMode::ExactlyOnce && topic.is_none() {
            let reason = "`exactly-once` needs a state topic: set `delivery.state_topic`";
            return Err(self.invalid(Setting::DELIVERY_MODE, reason));
        }
        Ok(mode)
    }

    fn poison(&self) -> Result<Policies, ConfigError> {
        let policy = |setting| self.parsed(setting, values::policy);
        Ok(Policies {
            too_large: policy(Setting::POISON_TOO_LARGE)?,
            missing_field: policy(Setting::POISON_MISSING_FIELD)?,
            invalid_topic: policy(Setting::POISON_INVALID_TOPIC)?,
            refused: policy(Setting::POISON_REFUSED)?,
            undecodable: policy(Setting::POISON_UNDECODABLE)?,
            missing_topic: self.parsed(Setting::POISON_MISSING_TOPIC, values::policy_or_wait)?,
            missing_schema: self.parsed(Setting::POISON_MISSING_SCHEMA, values::policy_or_wait)?,
            schema_mismatch: policy(Setting::POISON_SCHEMA_MISMATCH)?,
            dead_letter_topic: self.parsed(Setting::POISON_DEAD_LETTER_TOPIC, values::topic)?,
            retries: self.parsed(Setting::POISON_RETRIES, values::retries)?,
        })
    }

    /// One of the two alone has no effect.
    fn topic_rewrite(&self) -> Result<Option<(String, String)>, ConfigError> {
        let (regex, replacement) = (Setting::RECORD_TOPIC_REGEX, Setting::RECORD_TOPIC_REPLACEMENT);
        let lacks = |other: Setting| format!("set `{}` too", other.key());
        match (self.text(regex), self.text(replacement)) {
            (Some(regex), Some(replacement)) => {
                Ok(Some((regex.to_owned(), replacement.to_owned())))
            }
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.invalid(regex, lacks(replacement))),
            (None, Some(_)) => Err(self.invalid(replacement, lacks(regex))),
        }
    }

    /// Rejects a property even if a higher layer overrides it.
    fn kafka_properties(&self) -> Result<KafkaProperties, ConfigError> {
        let mut properties = KafkaProperties::default();
        for (name, value, origin) in self.properties(Setting::KAFKA_PROPERTIES) {
            properties.set(name, value).map_err(|reason| ConfigError::RefusedProperty {
                origin: origin.clone(),
                name: name.clone(),
                reason: reason.to_owned(),
            })?;
        }
        Ok(properties)
    }

    fn log(&self) -> Result<Log, ConfigError> {
        let check = match self.origin(Setting::LOG_LEVEL) {
            Origin::Variable(name) if Some(name.as_str()) == Setting::LOG_LEVEL.ambient() => {
                values::log_filter
            }
            _ => values::log_level,
        };
        Ok(Log {
            level: self.parsed(Setting::LOG_LEVEL, check)?,
            format: self.optional(Setting::LOG_FORMAT, values::log_format)?,
        })
    }
}
