//! Where a record goes and when: to which of several producers, to which partition, and whether it
//! has to wait for the first one there.
//!
//! A single producer has librdkafka choose the partition, which knows of added ones as soon as its
//! metadata has them. Where there are several, walpost chooses: by a number of partitions that all
//! of them know, since each has metadata of its own. The first record of a topic goes to the first
//! producer, alone, and that number is known once it is acknowledged.
//!
//! So the records of a partition go to one producer, which keeps their order: before the number of
//! partitions is known, everything of a topic goes to the first producer; after that
//! [`PartitionSpread`] alone decides. A topic of which records named partitions before stays with
//! the first producer.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::first_batch_gate::{Admission, Counts, FirstBatchGate, PartitionKey};
use super::partition_spread::PartitionSpread;
use crate::crash_points;
use crate::ledger::Seq;

/// Decides for the records of one set of producers.
#[derive(Debug)]
pub(crate) struct Placement {
    gate: FirstBatchGate,
    spread: PartitionSpread,
    producers: u32,
    /// Topics whose records all go to the first producer.
    pinned: HashSet<String>,
    /// Records without a key so far.
    keyless: u32,
}

/// Where a record goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The number of the producer.
    pub(crate) producer: usize,
    /// `None`: its partitioner chooses.
    pub(crate) partition: Option<i32>,
}

impl Placement {
    /// For so many producers to so many brokers, the first of which writes what its partitioner sees
    /// into `counts`.
    pub(crate) fn new(counts: Arc<Counts>, producers: u32, brokers: u32) -> Self {
        let several = producers > 1;
        let gate = if several { FirstBatchGate::of_several } else { FirstBatchGate::new };
        Self {
            gate: gate(counts),
            spread: PartitionSpread::new(producers, brokers),
            producers,
            pinned: HashSet::new(),
            keyless: 0,
        }
    }

    /// Whether there are several producers.
    pub(crate) fn is_of_several(&self) -> bool {
        self.producers > 1
    }

    /// How many partitions there are, of all topics that records went to.
    pub(crate) fn partitions(&self) -> u32 {
        self.gate.partitions()
    }

    /// What may be done with a record now.
    pub(crate) fn admission(&mut self, topic: &str, key: Option<PartitionKey>) -> Admission {
        if crash_points::is_armed("no_first_batch_gate") {
            return Admission::Free;
        }
        self.gate.admission(topic, key)
    }

    /// The brokers say that the topic has so many partitions.
    pub(crate) fn learn(&mut self, topic: &str, count: u32) {
        if self.is_of_several() {
            self.gate.learn(topic, count);
        }
    }

    /// Where a record goes that is admitted; `named` is the partition that it names itself.
    pub(crate) fn place(
        &mut self,
        topic: &str,
        key: Option<PartitionKey>,
        named: Option<i32>,
    ) -> Destination {
        let first = Destination { producer: 0, partition: named };
        if !self.is_of_several() {
            return first;
        }
        let Some(count) = self.gate.count(topic) else {
            if named.is_some() && !self.pinned.contains(topic) {
                self.pinned.insert(topic.to_owned());
            }
            return first;
        };
        let partition = match key.and_then(|key| key.partition(Some(count.get()))) {
            Some(partition) => partition,
            None => self.next_keyless(count),
        };
        let is_pinned = !self.pinned.is_empty() && self.pinned.contains(topic);
        let producer = if is_pinned { 0 } else { self.spread.producer_of(topic, partition) };
        Destination {
            producer: usize::try_from(producer).unwrap_or_default(),
            partition: i32::try_from(partition).ok(),
        }
    }

    fn next_keyless(&mut self, count: NonZeroU32) -> u32 {
        self.keyless = self.keyless.wrapping_add(1);
        self.keyless % count
    }

    /// A record that was admitted so is queued as production `seq`.
    pub(crate) fn queued(
        &mut self,
        seq: Seq,
        topic: &str,
        key: Option<PartitionKey>,
        admission: Admission,
    ) {
        if let Some(key) = key
            && admission == Admission::Lead
        {
            self.gate.queued(seq, topic, key);
        }
    }

    /// Production `seq` is acknowledged.
    pub(crate) fn delivered(&mut self, seq: Seq) {
        self.gate.delivered(seq);
    }

    /// Begins anew in partitions that are idle: see [`FirstBatchGate::forget`].
    pub(crate) fn forget(&mut self) {
        self.gate.forget();
    }
}

#[cfg(test)]
mod properties;
