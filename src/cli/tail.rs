//! `walpost tail`: prints what `run` would publish, as JSON lines on standard output.
//!
//! With its own temporary slot it prints what is committed from now on, and advances nothing. With
//! `--from-slot` it peeks at the events in the real slot, without consuming them, and ends after
//! them. It needs no Kafka, so it does not know what only a broker rejects. It reports other
//! undeliverable events, and ends where `run` would halt.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use postgres_protocol::escape::escape_identifier;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::args::TailArguments;
use super::{Exit, block_on, complain, logged};
use crate::assembly;
use crate::config::{Config, ConfigError};
use crate::excerpt::is_harmless;
use crate::ledger::{Seq, StreamError};
use crate::outlet::{Outlet, ProduceError};
use crate::pgoutput::{self, Message};
use crate::position::EventPosition;
use crate::record::Record;
use crate::registry::{self, LearnError};
use crate::source::{
    self, CatalogState, Feed, Limit, MessageText, Received, Resume, Silent, Source, SourceConfig,
    SourceError, log_if_slow,
};
use walpost_core::relay::{Core, Diverted, Taken};

pub(super) fn command(arguments: TailArguments) -> Exit {
    let TailArguments { from_slot, limit, options } = arguments;
    let config = match logged(&options.into()) {
        Ok((config, _)) => config,
        Err(exit) => return exit,
    };
    match block_on(tail(&config, from_slot, limit.unwrap_or(u64::MAX))) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            complain(&error.to_string());
            error.exit()
        }
    }
}

/// Why tail fails.
#[derive(Debug, thiserror::Error)]
enum TailError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Silent(#[from] Silent),
    #[error(transparent)]
    Learn(#[from] LearnError),
    #[error("{0}")]
    Event(String),
    #[error("{0}")]
    Query(String),
}

impl TailError {
    fn exit(&self) -> Exit {
        match self {
            Self::Config(_) => Exit::Config,
            Self::Source(error) => error.into(),
            Self::Event(_) => Exit::Poison,
            Self::Silent(_) | Self::Learn(_) | Self::Query(_) => Exit::Failure,
        }
    }
}

async fn tail(config: &Config, from_slot: bool, limit: u64) -> Result<(), TailError> {
    let mut core = assembly::core(config)?;
    let source = assembly::source(config)?;
    let mut printer = Printer { left: limit, failed: None };
    if limit == 0 {
        return Ok(());
    }
    if from_slot {
        peek(config, &source, &mut core, &mut printer).await
    } else {
        // In any order: an interrupt during the last event may end with its result.
        tokio::select! {
            done = follow(config, source, &mut core, &mut printer) => done,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    }
}

/// Prints records until the limit, or without end.
async fn follow(
    config: &Config,
    mut source: SourceConfig,
    core: &mut Core,
    printer: &mut Printer,
) -> Result<(), TailError> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.subsec_nanos());
    source.slot = format!("walpost_tail_{}_{nanos}", std::process::id());
    source.temporary_slot = true;
    // It shows what PostgreSQL sends, and may read from a standby.
    source.wait_until_visible = false;
    let mut session =
        source.open(&Resume::AtSlot { waited: None }).await.map_err(|opened| opened.error)?;
    core.connected(session.start(), session.tables());
    tracing::info!(from = %session.flushed(), "showing events committed from now on");
    loop {
        match session.next(true).await? {
            Received::Keepalive(wal_end) => core.keepalive(wal_end),
            Received::Message(message) => {
                if take(config, core, &message, printer).await? {
                    return Ok(());
                }
            }
        }
        session.confirm(core.flush_lsn());
    }
}

const PEEK: &str = "SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes($1, NULL, NULL, \
     'proto_version', '1', 'publication_names', $2, 'messages', $3)";

/// Prints the events that are in the slot.
async fn peek(
    config: &Config,
    source: &SourceConfig,
    core: &mut Core,
    printer: &mut Printer,
) -> Result<(), TailError> {
    let conninfo = source.conninfo.resolve()?;
    let control = source::control(&conninfo, "walpost tail").await.map_err(SourceError::from)?;
    let client = &control.client;
    let mut limit = Limit::new(&conninfo, &control);
    let lifted = limit.first(source::lift_limits(client)).await?;
    lifted.map_err(|error| SourceError::query("preparing the session", &error))?;
    let facts = limit.on(CatalogState::read(client, &source.slot)).await??;
    let confirmed = facts.require_slot(&source.slot)?;
    let SourceConfig { publication, tables, typed, .. } = source;
    let published = source::published_tables(client, publication, tables, *typed);
    let tables = limit.on(published).await??;
    core.connected(confirmed, &tables);
    let failed = |error: tokio_postgres::Error| {
        let cause = source::said(&error);
        TailError::Query(format!("cannot peek at slot \"{}\": {cause}", source.slot))
    };
    let publication = escape_identifier(&source.publication);
    let settings = "SET datestyle = ISO; SET timezone = UTC; SET intervalstyle = postgres; \
                    SET bytea_output = hex; SET extra_float_digits = 1";
    limit.on(client.batch_execute(settings)).await?.map_err(failed)?;
    let statement = limit.on(client.prepare(PEEK)).await?.map_err(failed)?;
    let messages = source.messages.to_string();
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&source.slot, &publication, &messages];
    // On a session of its own: this one sends the rows.
    let prefix = source.text_prefix.as_deref();
    let texts = if limit.on(MessageText::of(client, prefix)).await??.is_some() {
        let further = source::control(&conninfo, "walpost tail").await;
        let client = further.map_err(SourceError::from)?.client;
        limit.on(MessageText::of(&client, prefix)).await??
    } else {
        None
    };
    let _large = client.large_rows();
    let first = async {
        let mut rows = Box::pin(client.query_raw(&statement, parameters).await?);
        let first = rows.try_next().await?;
        Ok((rows, first))
    };
    let say = || {
        tracing::info!(
            slot = source.slot,
            "PostgreSQL decodes all pending changes before it returns any: the more \
             waits, the longer that takes"
        );
    };
    let (mut rows, mut next) = log_if_slow(say, first).await.map_err(failed)?;
    while let Some(row) = next {
        let data = Bytes::from(row.try_get::<_, Vec<u8>>(0).map_err(failed)?);
        let mut message =
            pgoutput::decode(&data).map_err(|error| TailError::Query(error.to_string()))?;
        if let (Some(texts), Message::Logical(logical)) = (&texts, &message)
            && texts.concerns(&message)
        {
            message = texts.converted(logical).await?;
        }
        if take(config, core, &message, printer).await? {
            return Ok(());
        }
        next = rows.try_next().await.map_err(failed)?;
    }
    Ok(())
}

/// Passes a message to the core; returns true once nothing more is to be printed.
async fn take(
    config: &Config,
    core: &mut Core,
    message: &pgoutput::Message,
    printer: &mut Printer,
) -> Result<bool, TailError> {
    let next = core.next_seq();
    let failed = |error: StreamError| TailError::Query(error.to_string());
    let mut taken = core.receive(message, printer).map_err(failed)?;
    while let Some(schema) = core.wanted_schema().cloned() {
        let known = registry::learn(config, &schema).await?;
        core.learn(schema, Some(known));
        taken = core.receive(message, printer).map_err(failed)?;
    }
    for Diverted { origin, poison, topic } in core.take_diverted() {
        let cause = poison.cause.key();
        if let Some(topic) = topic {
            tracing::warn!(cause, topic, "{origin}, {poison}: would be dead-lettered");
        } else {
            tracing::warn!(cause, "{origin}, {poison}: skipped");
        }
    }
    if let Some(halt) = core.halted() {
        return Err(TailError::Event(halt.to_string()));
    }
    if core.next_seq() > next {
        core.delivered(next);
    }
    if let Some(error) = printer.failed.take() {
        // A closed pipe is not an error: the reader has read what it needed.
        let gone = error.kind() == io::ErrorKind::BrokenPipe;
        return if gone { Ok(true) } else { Err(TailError::Query(error.to_string())) };
    }
    Ok(taken == Taken::NotYet || printer.left == 0)
}

/// Standard output as an outlet.
struct Printer {
    left: u64,
    failed: Option<io::Error>,
}

/// A record as printed.
#[derive(Serialize)]
struct Line<'a> {
    topic: &'a str,
    key: Option<Text<'a>>,
    value: Option<Text<'a>>,
    timestamp: Option<i64>,
    headers: BTreeMap<&'a str, Option<Text<'a>>>,
}

/// Bytes as text, or as `{"hex": "…"}` if they are not text.
#[derive(Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Utf8(&'a str),
    Bytes { hex: String },
}

impl<'a> From<&'a [u8]> for Text<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Utf8(text),
            Err(_) => Self::Bytes { hex: hexadecimal(bytes) },
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Outlet for Printer {
    fn produce(
        &mut self,
        _: Seq,
        _: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        if self.left == 0 {
            return Err(ProduceError::Full);
        }
        let headers = record.headers.iter();
        let line = Line {
            topic: record.topic,
            key: record.key.map(Text::from),
            value: record.value.map(Text::from),
            timestamp: record.timestamp_ms,
            headers: headers
                .map(|header| (&*header.name, header.value.as_deref().map(Text::from)))
                .collect(),
        };
        self.failed = print(&mut io::stdout().lock(), &line).err();
        self.left -= 1;
        Ok(())
    }
}

fn print(output: &mut impl io::Write, line: &Line<'_>) -> io::Result<()> {
    line.serialize(&mut Serializer::with_formatter(&mut *output, ForTerminals))?;
    writeln!(output)
}

/// Escapes characters in strings that a terminal would interpret or not display: JSON itself
/// requires that only up to U+001F.
struct ForTerminals;

impl Formatter for ForTerminals {
    fn write_string_fragment<W>(&mut self, output: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        let mut rest = fragment;
        while let Some((at, sign)) = rest.char_indices().find(|(_, sign)| !is_harmless(*sign)) {
            output.write_all(&rest.as_bytes()[..at])?;
            for unit in sign.encode_utf16(&mut [0; 2]) {
                write!(output, "\\u{unit:04x}")?;
            }
            rest = &rest[at + sign.len_utf8()..];
        }
        output.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::property;

    #[test]
    fn a_line_has_no_control_sequences_and_the_same_content() {
        let texts = prop_oneof![
            any::<String>(),
            "[a\\\\\"\u{0}\u{1b}\u{7f}\u{9b}\u{200e}\u{202e}\u{feff}\u{e0041}\u{10ffff}ö]{0,9}",
        ];
        let name = "a_line_has_no_control_sequences_and_the_same_content";
        property::holds(name, 1000, &(texts.clone(), texts), |(one, other)| {
            let line = Line {
                topic: &one,
                key: Some(Text::Utf8(&other)),
                value: Some(Text::Utf8(&one)),
                timestamp: Some(1),
                headers: BTreeMap::from([(&*other, Some(Text::Utf8(&one)))]),
            };
            let mut printed = Vec::new();
            print(&mut printed, &line).expect("a Vec takes it");
            let printed = String::from_utf8(printed).expect("text");
            let json = printed.strip_suffix('\n').expect("a line");
            assert!(json.chars().all(is_harmless), "{json:?}");
            let read: serde_json::Value = serde_json::from_str(json).expect("JSON");
            let expected = serde_json::json!({
                "topic": one, "key": other, "value": one, "timestamp": 1, "headers": {other: one},
            });
            assert_eq!(read, expected);
        });
    }
}
