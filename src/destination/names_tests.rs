//! The names and values of random rows, as a client of each protocol reads them.
//!
//! Each destination reads a record's message back, by code that shares nothing with the one that
//! made it. Whatever a row has, topic, key, id and headers are given back, and no header of the row
//! has a name that walpost writes or that means something to the destination.

#![allow(dead_code, reason = "a build without all destinations needs less")]

use std::borrow::Cow;
use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::Value;

use super::{Destination, SAMPLES};
use crate::config::{of_toml, profile};
use crate::lsn::Lsn;
use crate::outbox::Event;
use crate::outlet::Refusal;
use crate::pgoutput::PgTimestamp;
use crate::position::EventPosition;
use crate::property;
use crate::record::{HeaderSet, Record, RecordConfig, Router, ValueFormat};

/// A message as a client reads it.
#[derive(Debug)]
pub(super) struct ReadBack {
    pub(super) topic: String,
    pub(super) key: Option<Vec<u8>>,
    /// The id that the protocol has a place for; `None`: it has none.
    pub(super) id: Option<Vec<u8>>,
    /// Each header, as often as it is there.
    pub(super) headers: Vec<(String, Vec<u8>)>,
}

pub(super) const AT: EventPosition =
    EventPosition { commit_lsn: Lsn::new(0x16_00B3_74D8), ordinal: 3 };

/// Decodes percent-encoding, as any client does.
pub(super) fn percent_decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| std::str::from_utf8(after.get(..2)?).ok()).flatten();
        if let Some(byte) = code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    bytes
}

/// How a destination shows the names and values of a record: `id` is that of the row, or the position if
/// the row's is not sent.
pub(super) struct Sample {
    /// A record as a client reads it.
    pub(super) read_back: fn(&Record<'_>) -> Result<ReadBack, Refusal>,
    /// How a header of a record is called there.
    pub(super) called: fn(&str) -> String,
    /// Names that mean something there, in lower case.
    pub(super) forbidden: &'static [&'static str],
    /// Values of `record.place` that are refused, each with one that is not.
    pub(super) places: &'static [[&'static str; 2]],
}

pub(super) fn as_it_is(name: &str) -> String {
    name.to_owned()
}

/// What a row's values begin with, and no other value does.
const OF_ROW: &str = "row:";

#[derive(Debug, Clone)]
struct Row {
    id: String,
    key: Option<String>,
    event_type: String,
    headers: Vec<(String, String)>,
    payload: Option<&'static str>,
    value: ValueFormat,
    listed: bool,
}

/// A name in one of the ways in which it can be written.
fn name() -> impl Strategy<Value = String> {
    let known = SAMPLES.iter().flat_map(|(_, sample)| sample.forbidden.iter().copied());
    let known: Vec<_> = known
        .chain(["event_type", "traceparent", "tenant", "ce_time", "ce_subject", "walpost.position"])
        .collect();
    let known =
        (prop::sample::select(known), any::<u32>(), prop::sample::select(vec!['-', '_', '.']));
    let known = known.prop_map(|(name, upper, separator)| {
        let written = name.chars().enumerate().map(|(at, sign)| match sign {
            '-' | '_' | '.' if upper >> (at % 31) & 2 == 0 => separator,
            sign if upper >> (at % 32) & 1 == 0 => sign.to_ascii_uppercase(),
            sign => sign,
        });
        written.collect()
    });
    let odd = [
        "",
        " ",
        "a b",
        "h\u{e9}",
        "x:y",
        "a\nb",
        "\0",
        "q\"",
        &"long".repeat(100),
        &"x".repeat(70_000),
    ];
    let odd = prop::sample::select(odd.map(str::to_owned).to_vec());
    prop_oneof![4 => known, 4 => "h[a-c]{1,2}[-_.]?[A-C]{0,2}z", 1 => odd]
}

/// Text that is no white space at its ends, which clients of NATS remove.
const TEXT: &str = "[a-zA-Z0-9%.,\"é€ /+=]{0,12}";

fn row() -> impl Strategy<Value = Row> {
    let text = || TEXT.prop_map(|text| format!("i{text};"));
    let value = prop_oneof![9 => TEXT, 1 => "[a-z]{0,2}[\r\n][a-z]{0,2}"];
    let header = (name(), value.prop_map(|text| format!("{OF_ROW}{text};")));
    let formats: Vec<_> = ValueFormat::NAMES.iter().map(|(_, format)| *format).collect();
    (
        (text(), prop::option::of(text()), text()),
        prop::collection::vec(header, 0..12),
        (prop::sample::select(vec![Some("{\"a\":1}"), None]), prop::sample::select(formats)),
        any::<bool>(),
    )
        .prop_map(|((id, key, event_type), headers, (payload, value), listed)| Row {
            id,
            key,
            event_type,
            headers,
            payload,
            value,
            listed,
        })
}

impl Row {
    fn event(&self) -> Event<'_> {
        let text = |text: &'static str| Some(Cow::Borrowed(text.as_bytes()));
        let own = |text: &str| Some(Cow::Owned(text.as_bytes().to_vec()));
        let members = self.headers.iter().map(|(name, value)| {
            format!("{}:{}", Value::from(name.as_str()), Value::from(value.as_str()))
        });
        let headers = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
        Event {
            position: AT,
            commit_time: PgTimestamp::from_micros(1_999),
            id: own(&self.id),
            aggregate_type: text("order.line"),
            aggregate_id: self.key.as_deref().and_then(own),
            event_type: own(&self.event_type),
            payload: self.payload.and_then(text),
            headers: own(&headers),
            traceparent: text("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            tracestate: None,
            timestamp: None,
            schema_version: None,
            placed: vec![text("own:tenant")],
            types: None,
        }
    }

    fn config(&self) -> RecordConfig {
        let topic = "outbox.event.{aggregate_type}".parse().expect("a template");
        let config = RecordConfig::to(topic);
        let headers = if self.listed {
            HeaderSet::default()
        } else {
            HeaderSet::from_names(&["headers", "walpost.position"]).expect("a list")
        };
        RecordConfig {
            key: config.key.clone().or_null(true),
            value: self.value,
            headers,
            place: vec!["tenant:header".parse().expect("a placement")],
            ..config
        }
    }
}

fn check(row: &Row, (destination, sample): &(&dyn Destination, Sample)) {
    let event = row.event();
    let mut router = Router::new(row.config()).naming(destination.names());
    let arrived = {
        let record = router.route(&event).expect("a record");
        check_record(row, &record, (destination.kind(), sample))
    };
    // The others were counted.
    let dropped = router.dropped_headers().map_or(0, |dropped| dropped.count);
    assert_eq!(arrived as u64 + dropped, row.headers.len() as u64, "{}", destination.kind());
}

/// Returns the number of the row's headers.
fn check_record(row: &Row, record: &Record<'_>, (at, sample): (&str, &Sample)) -> usize {
    let read = (sample.read_back)(record);
    let read = read.unwrap_or_else(|refusal| panic!("{at}: {refusal:?}"));
    assert_eq!(read.topic, record.topic, "{at}");
    assert_eq!(read.key.as_deref(), row.key.as_deref().map(str::as_bytes), "{at}");
    let position = AT.to_string();
    if let Some(id) = &read.id {
        let is_position =
            *id == position.as_bytes() || *id == position.replace('/', "-").as_bytes();
        let is_id = if row.listed { id == row.id.as_bytes() } else { is_position };
        assert!(is_id, "{at}: {id:?}");
    }
    // Each name is there once, for clients that ignore case too.
    let mut by_name = HashMap::new();
    for (name, value) in &read.headers {
        let name = (sample.called)(name).to_ascii_lowercase();
        assert!(
            by_name.insert(name.clone(), value.as_slice()).is_none(),
            "{at}: {name} twice in {read:?}"
        );
    }
    let (of_row, own): (Vec<_>, Vec<_>) = record.headers.iter().partition(|header| {
        header.value.as_deref().is_some_and(|value| value.starts_with(OF_ROW.as_bytes()))
    });
    // What walpost says of the event is there as it says it, and so are the row's headers.
    for header in &record.headers {
        let name = (sample.called)(&header.name);
        // Headers of HTTP itself are not decoded, and by their specifications printable ASCII.
        let is_printable = |byte: &u8| matches!(byte, b' '..=b'~');
        let is_text = header.value.as_deref().is_none_or(|text| text.iter().all(is_printable));
        if at == "http" && name.eq_ignore_ascii_case("traceparent") && !is_text {
            continue;
        }
        let found = by_name.get(&name.to_ascii_lowercase()).copied();
        assert_eq!(found, header.value.as_deref(), "{at}: {name} in {read:?}");
    }
    let is_of_row = |value: &[u8]| value.starts_with(OF_ROW.as_bytes());
    let is_cloud_event = row.value == ValueFormat::CloudEventsBinary;
    for (name, value) in by_name {
        let is_forged = sample.forbidden.contains(&name.as_str())
            || is_cloud_event
                && ["ce_time", "ce_subject", "content-type"]
                    .iter()
                    .any(|own| (sample.called)(own) == name)
            || own.iter().any(|own| (sample.called)(&own.name).eq_ignore_ascii_case(&name));
        assert!(!is_of_row(value) || !is_forged, "{at}: {name} is the row's in {read:?}");
    }
    of_row.len()
}

#[test]
fn headers_that_the_destination_cannot_have_are_errors() {
    for (destination, sample) in SAMPLES {
        let kind = destination.kind();
        for [refused, accepted] in sample.places {
            let conflict = |place: &str| {
                let toml = format!("sink.kind = '{kind}'\nrecord.place = ['{place}']\n");
                let profile = profile(&of_toml(&toml).expect("it is read")).expect("a profile");
                profile.check_names(&destination.names(), kind)
            };
            let error = conflict(refused).expect_err(kind).to_string();
            assert!(error.contains(kind), "{error}");
            assert!(conflict(accepted).is_ok(), "{kind}: {accepted}");
        }
    }
}

#[test]
fn rows_say_what_they_are_about_and_nothing_else() {
    let name = "rows_say_what_they_are_about_and_nothing_else";
    property::holds(name, 400, &row(), |row| {
        for sample in SAMPLES {
            check(&row, sample);
        }
    });
}
