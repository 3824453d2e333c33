//! Records as Debezium's outbox event router builds them, byte for byte.
//!
//! Topic, key, value and headers of Debezium 3.7 on Kafka Connect, configured by its own options.
//! `tests/corpus/debezium` has recordings of what it really writes, and describes the rules. A row
//! that makes Debezium's task fail is poison here. Pure.

mod array;
mod connect_value;
mod convert;
mod expand;
mod json;
mod kind;
mod modes;
mod number;
mod options;
mod route;
mod time;
mod topics;

use super::placement::Placement;
use super::regex_router::{Rewrite, RewriteError};
use crate::outbox::{ColumnNames, Needs, Role};

use options::Options;

pub use options::{NAMES as OPTIONS, OptionError};
pub(super) use route::DebeziumRouter;

/// The converters that Kafka Connect would use for key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Converters {
    /// `StringConverter` for both.
    String,
    /// `JsonConverter` without schemas for both.
    Json,
    /// `StringConverter` for the key, `JsonConverter` without schemas for the value.
    StringJson,
    /// `StringConverter` for the key, `ByteArrayConverter` for the value.
    Binary,
    /// `StringConverter` for the key; for the value Debezium's `BinaryDataConverter`, which passes
    /// anything but bytes to a `JsonConverter` without schemas.
    BinaryJson,
}

impl Converters {
    /// All of them, by the profile's name in the configuration.
    pub const NAMES: [(&str, Self); 5] = [
        ("debezium", Self::String),
        ("debezium-json", Self::Json),
        ("debezium-string-json", Self::StringJson),
        ("debezium-binary", Self::Binary),
        ("debezium-binary-json", Self::BinaryJson),
    ];

    /// The profile's name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, it)| *it == self).map_or("", |(name, _)| name)
    }
}

/// The configuration of a connector with an outbox event router.
#[derive(Debug, Clone)]
pub struct Debezium {
    converters: Converters,
    /// Whether a record's timestamp is the time of production.
    untimed: bool,
    options: Options,
    rewrite: Rewrite,
}

impl Debezium {
    /// A configuration with these options; all others have their defaults.
    pub fn new<'a>(
        converters: Converters,
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, OptionError> {
        let mut options = Options::default();
        for (name, value) in given {
            options.set(name, value)?;
        }
        if options.has_envelope() && converters == Converters::Binary {
            return Err(OptionError {
                name: "table.fields.additional.placement".to_owned(),
                why: "places a column in the envelope, which a ByteArrayConverter cannot write"
                    .to_owned(),
            });
        }
        let rewrite = Rewrite::new(&options.regex, &options.replacement).map_err(|error| {
            let name = match error {
                RewriteError::Regex { .. } => "route.topic.regex",
                RewriteError::Replacement { .. } => "route.topic.replacement",
            };
            OptionError { name: name.to_owned(), why: error.to_string() }
        })?;
        Ok(Self { converters, untimed: false, options, rewrite })
    }

    /// The outbox's columns that have a role.
    pub fn columns(&self) -> ColumnNames {
        let options = &self.options;
        ColumnNames {
            id: Some(options.id.clone()),
            aggregate_type: Some(options.route_by.clone()),
            aggregate_id: Some(options.key.clone()),
            payload: Some(options.payload.clone()),
            timestamp: options.timestamp.clone(),
            // Debezium uses it only with an envelope.
            schema_version: options.schema_version.clone().filter(|_| self.options.has_envelope()),
            ..ColumnNames::default()
        }
    }

    /// Makes the timestamp of records the time of production, which is closer to Debezium's than
    /// the commit time. Fails if an option names a timestamp column.
    pub fn untimed(mut self) -> Result<Self, OptionError> {
        if self.options.timestamp.is_some() {
            return Err(OptionError {
                name: "table.field.event.timestamp".to_owned(),
                why: "names a column, and record.timestamp = \"none\" says that there is no \
                      timestamp: leave one of them out"
                    .to_owned(),
            });
        }
        self.untimed = true;
        Ok(self)
    }

    /// Whether a record's timestamp is the time of production.
    pub fn is_untimed(&self) -> bool {
        self.untimed
    }

    /// The roles that records contain: all that the options name.
    pub fn needs(&self) -> Needs {
        let options = &self.options;
        let timestamp = options.timestamp.as_ref().map(|_| Role::Timestamp);
        let version = options.schema_version.as_ref().filter(|_| options.has_envelope());
        Needs::NONE
            .requiring([Role::Id, Role::AggregateType, Role::AggregateId, Role::Payload])
            .requiring(timestamp.into_iter().chain(version.map(|_| Role::SchemaVersion)))
    }

    /// The additional columns, without duplicates: an event's `placed` fields must be these, in
    /// this order.
    pub fn placed(&self) -> Vec<String> {
        let mut placed: Vec<String> = Vec::new();
        for placement in &self.options.placements {
            if !placed.contains(&placement.column) {
                placed.push(placement.column.clone());
            }
        }
        placed
    }

    /// Whether a payload that is not `bytea` is poison.
    pub fn takes_bytes_only(&self) -> bool {
        self.converters == Converters::Binary
    }

    pub(super) fn placements(&self) -> &[Placement] {
        &self.options.placements
    }

    /// Whether a table may lack [`Debezium::placed`] columns.
    pub fn placed_optional(&self) -> bool {
        self.options.missing_ignored
    }
}
