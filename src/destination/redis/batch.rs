//! A batch of entries: one call of the script that adds them.

use std::time::Instant;

use redis::Cmd;

use super::entry_id::EntryId;
use super::script::{FIELDS_MAX, add_hash};
use crate::destination::parts::link::Tally;
use crate::ledger::Seq;
use crate::outlet::{Ground, Refusal};
use crate::record::{Names, Record};

/// A batch of this many entries, or bytes, is sent at once.
const ENTRIES_MAX: usize = 256;
const BYTES_MAX: usize = 64 << 10;

/// The size of a value that Redis accepts by default, in bytes: `proto-max-bulk-len`.
pub(super) const VALUE_MAX: u64 = 512 << 20;

/// The size of an entry that Redis stores, in bytes: `STREAM_LISTPACK_MAX_SIZE`, less what names and
/// lengths take.
const ENTRY_MAX: u64 = (1 << 30) - (1 << 20);

/// The prefix of a header's field.
pub(super) const HEADER: &str = "header:";

/// All headers have a prefix of their own, so that rows can set any. Most clients return the fields
/// of an entry by name: each is there once.
pub(crate) const NAMES: Names = Names { may_repeat: false, ..Names::KAFKA };

/// The keys of a batch.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) stream: String,
    pub(super) state: String,
    pub(super) dead_letters: String,
    pub(super) maxlen: String,
}

/// Entries in their order.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(super) command: Cmd,
    pub(super) tally: Tally,
    /// The id of its last entry.
    pub(super) last: EntryId,
    /// The size of the largest value of an entry, in bytes.
    pub(super) largest: u64,
    bytes: usize,
}

impl Batch {
    /// An empty batch of this writer, behind the event with id `after`.
    pub(super) fn new(keys: &Keys, writer: &str, after: EntryId, now: Instant) -> Self {
        let mut command = Cmd::new();
        command
            .arg("EVALSHA")
            .arg(add_hash())
            .arg(3)
            .arg(&keys.stream)
            .arg(&keys.state)
            .arg(&keys.dead_letters)
            .arg(writer)
            .arg(after.to_string())
            .arg(&keys.maxlen);
        Self { command, tally: Tally::new(now), last: after, largest: 0, bytes: 0 }
    }

    /// Adds the entry of a record.
    pub(super) fn push(
        &mut self,
        seq: Seq,
        id: EntryId,
        record: &Record<'_>,
        is_dead_letter: bool,
    ) {
        let command = &mut self.command;
        command.arg(id.to_string()).arg(u8::from(is_dead_letter)).arg(fields(record));
        add_fields(record, command);
        let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        self.tally.add(seq, record.topic, bytes);
        self.bytes += record.bytes();
        self.largest = self.largest.max(largest(record));
        self.last = id;
    }

    /// Whether it is sent without waiting for more.
    pub(super) fn is_full(&self) -> bool {
        self.tally.seqs.len() >= ENTRIES_MAX || self.bytes >= BYTES_MAX
    }
}

/// Adds the names and values of a record's entry.
pub(super) fn add_fields(record: &Record<'_>, command: &mut Cmd) {
    command.arg("topic").arg(record.topic);
    if let Some(key) = record.key {
        command.arg("key").arg(key);
    }
    if let Some(value) = record.value {
        command.arg("value").arg(value);
    }
    if let Some(timestamp) = record.timestamp_ms {
        command.arg("timestamp").arg(timestamp);
    }
    for header in &record.headers {
        if let Some(value) = &header.value {
            command.arg(format!("{HEADER}{}", header.name)).arg(&**value);
        }
    }
}

/// Why a record cannot be an entry, if a server accepts values of `value_max` bytes.
pub(super) fn refusal(record: &Record<'_>, value_max: u64) -> Option<Refusal> {
    let (bytes, total, fields) = (largest(record), record.bytes() as u64, fields(record));
    let reason = if total > ENTRY_MAX {
        format!(
            "an entry of {total} bytes is larger than Redis stores (at most {ENTRY_MAX}): publish \
             smaller events"
        )
    } else if bytes > value_max {
        format!(
            "a value of {bytes} bytes is larger than Redis accepts (at most {value_max}): raise \
             proto-max-bulk-len, up to 512 MB, or publish smaller events"
        )
    } else if fields > FIELDS_MAX {
        format!(
            "it has {fields} names and values, and {FIELDS_MAX} are possible: use fewer headers"
        )
    } else {
        return None;
    };
    let is_large = bytes > value_max || total > ENTRY_MAX;
    let ground = if is_large { Ground::Size } else { Ground::Other };
    Some(Refusal { ground, may_pass: false, reason })
}

/// The size of the largest value of a record's entry, in bytes.
fn largest(record: &Record<'_>) -> u64 {
    let headers = record.headers.iter().filter_map(|header| header.value.as_ref());
    let headers = headers.map(|value| value.len());
    let own = [record.key, record.value].into_iter().flatten().map(<[u8]>::len);
    own.chain(headers).max().unwrap_or_default() as u64
}

/// The number of names and values of a record's entry.
fn fields(record: &Record<'_>) -> usize {
    let optional = [record.key.is_some(), record.value.is_some(), record.timestamp_ms.is_some()];
    let headers = record.headers.iter().filter(|header| header.value.is_some()).count();
    2 * (1 + optional.into_iter().filter(|is_there| *is_there).count() + headers)
}

#[cfg(test)]
pub(super) mod tests {
    use redis::Arg;

    use super::*;
    use crate::destination::names_tests::{self, ReadBack, Sample};
    use crate::outlet::Refusal;

    pub(crate) const SAMPLE: Sample = Sample {
        read_back,
        called: names_tests::as_it_is,
        forbidden: &["walpost.position", "walpost.anything"],
        places: &[["a:header:Event_Type", "a:header:event-type"]],
    };

    /// A record's entry as a client reads it.
    #[allow(clippy::unnecessary_wraps, reason = "other destinations refuse records")]
    fn read_back(record: &Record<'_>) -> Result<ReadBack, Refusal> {
        let text = String::new;
        let keys = Keys { stream: text(), state: text(), dead_letters: text(), maxlen: text() };
        let id = EntryId::of(1, names_tests::AT).expect("a generation");
        let mut batch = Batch::new(&keys, "w", id, Instant::now());
        let before = batch.command.args_iter().count();
        batch.push(Seq::new(1), id, record, false);
        let arguments = batch.command.args_iter().skip(before);
        let mut arguments = arguments.map(|argument| match argument {
            Arg::Simple(bytes) => bytes.to_vec(),
            other => panic!("{other:?}"),
        });
        // Its id, whether it is a dead letter, and the number of what follows.
        let count = arguments.by_ref().nth(2).expect("a number");
        let fields: Vec<_> = arguments.collect();
        assert_eq!(count, fields.len().to_string().into_bytes());
        let (mut topic, mut key, mut headers) = (None, None, Vec::new());
        for pair in fields.chunks(2) {
            let name = String::from_utf8(pair[0].clone()).expect("text");
            let value = pair[1].clone();
            match name.strip_prefix("header:") {
                Some(name) => headers.push((name.to_owned(), value)),
                None if name == "topic" => topic = String::from_utf8(value).ok(),
                None if name == "key" => key = Some(value),
                None => {}
            }
        }
        Ok(ReadBack { topic: topic.expect("a topic"), key, id: None, headers })
    }
}
