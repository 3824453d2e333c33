//! The event router's and the connector's options, under their own names.
//!
//! <https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html>

use crate::record::placement::{Placement, Target};

use super::expand::Keep;
use super::modes::{Binary, Decimals, Intervals, Modes, Times};

/// An option whose value is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct OptionError {
    /// The option.
    pub name: String,
    /// Why the value is not supported.
    pub why: String,
}

/// The options, with their defaults.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(super) struct Options {
    pub(super) id: String,
    pub(super) key: String,
    pub(super) payload: String,
    pub(super) timestamp: Option<String>,
    pub(super) schema_version: Option<String>,
    pub(super) route_by: String,
    pub(super) regex: String,
    pub(super) replacement: String,
    pub(super) placements: Vec<Placement>,
    pub(super) missing_ignored: bool,
    pub(super) tombstones: bool,
    pub(super) expand: bool,
    pub(super) keep: Keep,
    pub(super) modes: Modes,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            id: "id".to_owned(),
            key: "aggregateid".to_owned(),
            payload: "payload".to_owned(),
            timestamp: None,
            schema_version: None,
            route_by: "aggregatetype".to_owned(),
            regex: "(?<routedByValue>.*)".to_owned(),
            replacement: "outbox.event.${routedByValue}".to_owned(),
            placements: Vec::new(),
            missing_ignored: false,
            tombstones: false,
            expand: false,
            keep: Keep::default(),
            modes: Modes::default(),
        }
    }
}

/// The names of all options.
pub const NAMES: [&str; 20] = [
    "table.field.event.id",
    "table.field.event.key",
    "table.field.event.payload",
    "table.field.event.timestamp",
    "table.field.event.schema.version",
    "table.fields.additional.placement",
    "table.field.additional.missing",
    "table.op.invalid.behavior",
    "table.expand.json.payload",
    "table.json.payload.null.behavior",
    "table.json.payload.empty.array.behavior",
    "route.by.field",
    "route.topic.regex",
    "route.topic.replacement",
    "route.tombstone.on.empty.payload",
    "decimal.handling.mode",
    "time.precision.mode",
    "binary.handling.mode",
    "interval.handling.mode",
    "hstore.handling.mode",
];

impl Options {
    pub(super) fn has_envelope(&self) -> bool {
        self.placements.iter().any(|it| it.target == Target::Envelope)
    }

    /// Sets one option.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let value = value.trim();
        self.try_set(name, value).map_err(|why| OptionError { name: name.to_owned(), why })
    }

    fn try_set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "table.field.event.id" => self.id = column(value)?,
            "table.field.event.key" => self.key = column(value)?,
            "table.field.event.payload" => self.payload = column(value)?,
            "table.field.event.timestamp" => self.timestamp = Some(column(value)?),
            "table.field.event.schema.version" => self.schema_version = Some(column(value)?),
            "table.fields.additional.placement" => self.placements = placements(value)?,
            "table.field.additional.missing" => {
                self.missing_ignored = one_of(value, &[("error", false), ("ignore", true)])?;
            }
            // Updates and deletes are counted and ignored, whatever the value.
            "table.op.invalid.behavior" => operations(value)?,
            "table.expand.json.payload" => self.expand = truth(value)?,
            "table.json.payload.null.behavior" => {
                self.keep.nulls = one_of(value, &[("ignore", false), ("optional_bytes", true)])?;
            }
            "table.json.payload.empty.array.behavior" => {
                let known = [("ignore", false), ("optional_string", true)];
                self.keep.empty_arrays = one_of(value, &known)?;
            }
            "route.by.field" => self.route_by = column(value)?,
            "route.topic.regex" => value.clone_into(&mut self.regex),
            "route.topic.replacement" => value.clone_into(&mut self.replacement),
            "route.tombstone.on.empty.payload" => self.tombstones = truth(value)?,
            _ => return self.set_mode(name, value),
        }
        Ok(())
    }

    fn set_mode(&mut self, name: &str, value: &str) -> Result<(), String> {
        let modes = &mut self.modes;
        match name {
            "decimal.handling.mode" => {
                use Decimals::{Double, Precise, String};
                let known = [("precise", Precise), ("string", String), ("double", Double)];
                modes.decimals = one_of(value, &known)?;
            }
            "time.precision.mode" if value == "connect" => {
                return Err("`connect` writes dates as Java prints them, which walpost does not; there \
                            are adaptive, adaptive_time_microseconds, microseconds, nanoseconds and isostring"
                    .to_owned());
            }
            "time.precision.mode" => {
                let known = [
                    ("adaptive", Times::Adaptive),
                    ("adaptive_time_microseconds", Times::AdaptiveTimeMicroseconds),
                    ("microseconds", Times::Microseconds),
                    ("nanoseconds", Times::Nanoseconds),
                    ("isostring", Times::IsoString),
                ];
                modes.times = one_of(value, &known)?;
            }
            "binary.handling.mode" => {
                let known = [
                    ("bytes", Binary::Bytes),
                    ("base64", Binary::Base64),
                    ("base64-url-safe", Binary::Base64UrlSafe),
                    ("hex", Binary::Hex),
                ];
                modes.binary = one_of(value, &known)?;
            }
            "interval.handling.mode" => {
                let known = [("numeric", Intervals::Numeric), ("string", Intervals::String)];
                modes.intervals = one_of(value, &known)?;
            }
            "hstore.handling.mode" => one_of(value, &[("json", ())]).map_err(|why| {
                format!("{why}: a map's members have no order that could be kept")
            })?,
            _ => return Err("is not a known option of the event router".to_owned()),
        }
        Ok(())
    }
}

fn operations(value: &str) -> Result<(), String> {
    match value {
        "warn" | "error" => Ok(()),
        "fatal" => {
            Err("`fatal` stops at an UPDATE or DELETE of the outbox: walpost counts it and goes \
                        on, as with `warn`"
                .to_owned())
        }
        _ => Err(format!("`{value}` is none of warn, error, fatal")),
    }
}

fn column(name: &str) -> Result<String, String> {
    if name.is_empty() { Err("names no column".to_owned()) } else { Ok(name.to_owned()) }
}

fn truth(value: &str) -> Result<bool, String> {
    one_of(&value.to_ascii_lowercase(), &[("true", true), ("false", false)])
}

fn one_of<T: Copy>(value: &str, known: &[(&str, T)]) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| *name == value).map(|(_, it)| *it);
    found.ok_or_else(|| {
        let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        format!("`{value}` is none of {}", known.join(", "))
    })
}

/// `type:header:eventType, tenant:envelope`: whitespace, the case of the target, and a trailing
/// comma are ignored.
fn placements(list: &str) -> Result<Vec<Placement>, String> {
    let list = list.strip_suffix(',').unwrap_or(list);
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let placements: Vec<Placement> = list.split(',').map(placement).collect::<Result<_, _>>()?;
    let mut names = vec!["payload"];
    for placement in placements.iter().filter(|it| it.target == Target::Envelope) {
        let name = placement.name();
        if names.contains(&name) {
            return Err(format!("the envelope would have `{name}` twice"));
        }
        names.push(name);
    }
    let partitions = placements.iter().filter(|it| it.target == Target::Partition).count();
    if partitions > 1 {
        return Err("places more than one column as the partition".to_owned());
    }
    Ok(placements)
}

fn placement(text: &str) -> Result<Placement, String> {
    let parts: Vec<_> = text.split(':').map(str::trim).collect();
    let (column, target, alias) = match parts.as_slice() {
        [column, target] => (*column, *target, None),
        [column, target, alias] if !alias.is_empty() => (*column, *target, Some(*alias)),
        _ => return Err(format!("`{text}` is not column:place or column:place:alias")),
    };
    let target = match target.to_ascii_lowercase().as_str() {
        "header" => Target::Header,
        "envelope" => Target::Envelope,
        "partition" => Target::Partition,
        _ => {
            return Err(format!(
                "`{target}` is not a target; the targets are header, envelope, partition"
            ));
        }
    };
    // Kafka's client passes names as C strings.
    if column.is_empty() || text.contains('\0') {
        return Err(format!("`{text}` names no column"));
    }
    Ok(Placement { column: column.to_owned(), target, alias: alias.map(str::to_owned) })
}
