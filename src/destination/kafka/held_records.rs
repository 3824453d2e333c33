//! Records that wait for the first one of their partition, while those of other partitions go on: see
//! [`first_batch_gate`](super::first_batch_gate).

use std::borrow::Cow;
use std::collections::VecDeque;

use super::first_batch_gate::PartitionKey;
use crate::ledger::Seq;
use crate::record::{Header, Record};
use crate::sink::{Outcome, Report};

/// How many there are at most: with more, all others wait too. They are offered again at each first
/// acknowledgement of a partition, and are in memory beside those that the producers have.
const LIMIT: usize = 8192;

/// Records that are held, in the order in which they were produced.
#[derive(Debug, Default)]
pub(super) struct HeldRecords {
    pub(super) records: VecDeque<HeldRecord>,
    /// Whether the producer's queue was full when they were offered again.
    pub(super) is_unfinished: bool,
    /// Whether a record has failed, one of these or another: nothing is sent until there are new producers.
    pub(super) has_failed: bool,
}

/// One of them.
#[derive(Debug)]
pub(super) struct HeldRecord {
    pub(super) seq: Seq,
    pub(super) partition_key: PartitionKey,
    topic: String,
    partition: Option<i32>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    timestamp_ms: Option<i64>,
    headers: Vec<Header<'static>>,
}

impl HeldRecords {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= LIMIT
    }

    /// A record has failed: these are not sent either, as those in the producer's queue.
    pub(super) fn purge(&mut self, into: &mut Vec<Report>) {
        let purged = self.records.drain(..).map(|one| Report::new(one.seq, Outcome::Purged));
        into.extend(purged);
    }
}

impl HeldRecord {
    pub(super) fn new(seq: Seq, partition_key: PartitionKey, record: &Record<'_>) -> Self {
        let owned = |header: &Header<'_>| Header {
            name: Cow::Owned(header.name.clone().into_owned()),
            value: header.value.clone().map(|value| Cow::Owned(value.into_owned())),
        };
        Self {
            seq,
            partition_key,
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            timestamp_ms: record.timestamp_ms,
            headers: record.headers.iter().map(owned).collect(),
        }
    }

    /// Sets the partition key, and the partition if the key is one.
    pub(super) fn place(&mut self, key: PartitionKey) {
        self.partition_key = key;
        if let PartitionKey::Partition(partition) = key {
            self.partition = i32::try_from(partition).ok();
        }
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    pub(super) fn record(&self) -> Record<'_> {
        Record {
            topic: &self.topic,
            partition: self.partition,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            timestamp_ms: self.timestamp_ms,
            headers: self.headers.iter().map(borrowed).collect(),
        }
    }
}

fn borrowed<'a>(header: &'a Header<'static>) -> Header<'a> {
    Header { name: Cow::Borrowed(&*header.name), value: header.value.as_deref().map(Cow::Borrowed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_record_is_the_one_that_was_produced() {
        let header = |name: &'static str, value: Option<&'static [u8]>| Header {
            name: Cow::Borrowed(name),
            value: value.map(Cow::Borrowed),
        };
        let record = Record {
            topic: "orders",
            partition: Some(3),
            key: Some(b"7"),
            value: Some(b"{}"),
            timestamp_ms: Some(5),
            headers: [header("id", Some(b"1")), header("none", None)].into_iter().collect(),
        };
        let tombstone = Record { key: None, value: None, partition: None, ..record.clone() };
        for record in [&record, &tombstone] {
            let held = HeldRecord::new(Seq::new(1), PartitionKey::Partition(3), record);
            assert_eq!(format!("{:?}", held.record()), format!("{record:?}"));
        }
    }
}
