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

use std::collections::{HashMap, HashSet};
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
    /// The topics' partitions with kept records: no later record of the same partition may overtake
    /// them.
    waiting: HashMap<String, WaitingIn>,
}

/// Partitions of a topic in which records wait.
#[derive(Debug, Default)]
struct WaitingIn {
    partitions: HashSet<u32>,
    /// Whether one waits whose partition is not known.
    unknown: bool,
}

/// The partition and the producer of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProducerPlace {
    /// The number of the producer.
    pub(crate) producer: usize,
    /// `None`: its partitioner chooses.
    pub(crate) partition: Option<i32>,
}

impl Placement {
    /// The placement for this number of producers and brokers; the first producer writes what its
    /// partitioner sees into `counts`.
    pub(crate) fn new(counts: Arc<Counts>, producers: u32, brokers: u32) -> Self {
        let several = producers > 1;
        let gate = if several { FirstBatchGate::of_several } else { FirstBatchGate::new };
        Self {
            gate: gate(counts),
            spread: PartitionSpread::new(producers, brokers),
            producers,
            pinned: HashSet::new(),
            keyless: 0,
            waiting: HashMap::new(),
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

    /// What may be done with a record now. One that is to wait is given to [`Placement::keep`], and
    /// offered again after [`Placement::begin_again`].
    pub(crate) fn admission(&mut self, topic: &str, key: Option<PartitionKey>) -> Admission {
        if crash_points::is_armed("no_first_batch_gate") {
            return Admission::Free;
        }
        let Some(key) = key else { return Admission::Free };
        // In this order: the gate takes up changed numbers of partitions.
        let admission = self.gate.admission(topic, Some(key));
        if self.is_behind(topic, key) { Admission::Wait } else { admission }
    }

    /// All records that wait are offered again now, in their order, and kept again if they still wait.
    pub(crate) fn begin_again(&mut self) {
        self.waiting.clear();
    }

    /// A record is kept. Returns its key from now on: its partition, if that is known, so that it
    /// stays there, before records that come later, when partitions are added meanwhile.
    pub(crate) fn keep(&mut self, topic: &str, key: PartitionKey) -> PartitionKey {
        let partition = self.partition(topic, key);
        if !self.waiting.contains_key(topic) {
            self.waiting.insert(topic.to_owned(), WaitingIn::default());
        }
        if let Some(waiting) = self.waiting.get_mut(topic) {
            match partition {
                Some(partition) => drop(waiting.partitions.insert(partition)),
                None => waiting.unknown = true,
            }
        }
        partition.map_or(key, PartitionKey::Partition)
    }

    /// Whether a record waits that may be of the same partition.
    fn is_behind(&self, topic: &str, key: PartitionKey) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let Some(waiting) = self.waiting.get(topic) else { return false };
        let partition = self.partition(topic, key);
        waiting.unknown || partition.is_none_or(|it| waiting.partitions.contains(&it))
    }

    /// The partition of a key, if it is known.
    fn partition(&self, topic: &str, key: PartitionKey) -> Option<u32> {
        key.partition(self.gate.count(topic).map(NonZeroU32::get))
    }

    /// The brokers say that the topic has so many partitions.
    pub(crate) fn learn(&mut self, topic: &str, count: u32) {
        if self.is_of_several() {
            self.gate.learn(topic, count);
        }
    }

    /// The destination of an admitted record; `named` is the partition that the record names
    /// itself.
    pub(crate) fn place(
        &mut self,
        topic: &str,
        key: Option<PartitionKey>,
        named: Option<i32>,
    ) -> ProducerPlace {
        let first = ProducerPlace { producer: 0, partition: named };
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
        ProducerPlace {
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

    /// Production `seq` is acknowledged. Returns whether records that wait are to be offered again.
    pub(crate) fn delivered(&mut self, seq: Seq) -> bool {
        self.gate.delivered(seq) && !self.waiting.is_empty()
    }

    /// Begins anew in partitions that are idle: see [`FirstBatchGate::forget`].
    pub(crate) fn forget(&mut self) {
        self.gate.forget();
    }
}

#[cfg(test)]
mod properties;
