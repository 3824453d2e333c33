//! Delays the records that follow a producer's first record in a partition until that record is
//! acknowledged.
//!
//! A broker checks a producer's sequence numbers against the last batch that it accepted from this
//! producer. If it has accepted none in a partition, it accepts any number: the batches in flight
//! after a rejected first batch then overtake it, in spite of `enable.gapless.guarantee` (measured
//! on Kafka 4.1). So the first record of a new producer in a partition is sent alone. Once it is
//! acknowledged, the broker enforces the order. This costs each partition one round trip per
//! producer. The records of all other partitions go on meanwhile.
//!
//! This module also chooses the partition, since the gate must know it: by the hash of the key, as
//! Java's default partitioner does, unless the record names one. Records with neither have no order.
//!
//! Pure, except for the lock on the numbers of partitions.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::producer::{PARTITION_UA, Partitioner};

use crate::destination::kafka::partition::KeyHash;
use crate::ledger::Seq;
use crate::record::Record;

/// The number of partitions of each topic. Outlives producers.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// How keys are hashed, for all producers.
    hash: KeyHash,
    known: Mutex<Known>,
    /// Counts the changes.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    counts: HashMap<String, Count>,
    /// Changes that are not reported yet.
    unreported: Vec<Change>,
}

/// Partitions beyond are asked for a first record again each hour.
const USED_MAX: usize = 1 << 16;

/// A topic's number of partitions.
#[derive(Debug, Clone, Copy)]
struct Count {
    /// The number of partitions by which records are assigned. It grows between two records only,
    /// so that the gate has seen the partition of each record before that record is queued.
    applied: u32,
    /// The number of partitions that the client last saw.
    seen: u32,
}

/// A topic whose number of partitions has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) topic: String,
    pub(crate) before: u32,
    pub(crate) now: u32,
}

/// Chooses partitions, and records how many there are.
#[derive(Debug)]
pub(crate) struct KeyPartitioner {
    counts: Arc<Counts>,
    keyless: AtomicU32,
}

/// How to handle a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Queue it.
    Free,
    /// Queue it, and call [`FirstBatchGate::queued`]: it is the first of its partition.
    Lead,
    /// Keep it, and ask again after an acknowledgement.
    Wait,
}

/// The first records of one producer, or of several that share the partitions.
#[derive(Debug)]
pub(crate) struct FirstBatchGate {
    counts: Arc<Counts>,
    /// The changes of counts that were processed.
    changes: u64,
    topics: HashMap<String, Topic>,
    /// Whether there is only one producer. With several, each needs a first record in its own
    /// partitions, and a record with an unknown partition may have used another producer.
    is_single: bool,
    /// The first records in flight.
    in_flight: HashMap<Seq, First>,
}

/// What determines the partition of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartitionKey {
    /// The hash of its key.
    Hash(u32),
    /// The record itself.
    Partition(u32),
}

impl PartitionKey {
    /// The partition key of this record, whose key is hashed so; `None` if it may use any partition and
    /// has no order.
    pub(crate) fn of(record: &Record<'_>, hash: KeyHash) -> Option<Self> {
        match record.partition.map(u32::try_from) {
            Some(Ok(partition)) => Some(Self::Partition(partition)),
            _ => record.key.map(|key| Self::Hash(hash.of(key))),
        }
    }

    /// The partition key of a record's key.
    #[cfg(test)]
    pub(crate) fn hash_of(key: &[u8]) -> Self {
        Self::Hash(KeyHash::default().of(key))
    }

    /// The partition, if it is known.
    pub(crate) fn partition(self, count: Option<u32>) -> Option<u32> {
        match (self, count) {
            (Self::Partition(partition), _) => Some(partition),
            (Self::Hash(hash), Some(count)) => Some(hash % count),
            (Self::Hash(_), None) => None,
        }
    }
}

/// A first record in flight.
#[derive(Debug)]
struct First {
    topic: String,
    /// The partition, if it is known.
    key: PartitionKey,
    /// The changes of counts that were processed when it was queued.
    changes: u64,
}

#[derive(Debug, Default)]
struct Topic {
    /// The number of partitions, once a record was assigned to one.
    count: Option<u32>,
    /// Partitions in which a record was acknowledged.
    proven: HashSet<u32>,
    /// The partitions below [`USED_MAX`]: whether a record was offered to each since
    /// [`FirstBatchGate::forget`].
    used: Vec<bool>,
    /// The known partitions of the first records in flight.
    leading: Vec<PartitionKey>,
}

impl FirstBatchGate {
    /// The gate of a producer whose partitioner writes `counts`.
    pub(crate) fn new(counts: Arc<Counts>) -> Self {
        let changes = counts.changes();
        let (topics, in_flight) = (HashMap::new(), HashMap::new());
        Self { counts, changes, topics, is_single: true, in_flight }
    }

    /// The gate of several producers; the partitioner of the first one writes `counts`.
    pub(crate) fn of_several(counts: Arc<Counts>) -> Self {
        Self { is_single: false, ..Self::new(counts) }
    }

    /// Applies changed numbers of partitions, before a record is admitted. Each partition then needs
    /// a first record again. First records in flight still delay others, but their acknowledgements
    /// do not count. A topic stays unknown until its first record is acknowledged.
    fn apply_changes(&mut self) {
        let changes = self.counts.changes();
        if changes == self.changes {
            return;
        }
        self.changes = changes;
        self.counts.apply();
        for (name, topic) in &mut self.topics {
            if topic.count.is_some() {
                topic.count = self.counts.of(name);
                topic.proven.clear();
            }
        }
    }

    /// The topic's number of partitions, if records are assigned by it.
    pub(crate) fn count(&self, topic: &str) -> Option<NonZeroU32> {
        self.topics.get(topic)?.count.and_then(NonZeroU32::new)
    }

    /// Records the number of partitions that the brokers report, before the first record.
    pub(crate) fn learn(&mut self, topic: &str, count: u32) {
        if !self.topics.contains_key(topic) {
            self.counts.note(topic, count);
            let topic = self.topics.entry(topic.to_owned()).or_default();
            topic.count = Some(count);
        }
    }

    /// The number of partitions of all topics.
    pub(crate) fn partitions(&self) -> u32 {
        self.topics.values().map(|topic| topic.count.unwrap_or(1)).sum()
    }

    /// How to handle a record with this key.
    pub(crate) fn admission(&mut self, topic: &str, key: Option<PartitionKey>) -> Admission {
        self.apply_changes();
        let Some(key) = key else {
            return Admission::Free;
        };
        let Some(topic) = self.topics.get_mut(topic) else {
            return Admission::Lead;
        };
        let partition = key.partition(topic.count);
        topic.note_use(partition.map(index));
        // A record may name a partition that was added since.
        let is_known =
            |count| !matches!(key, PartitionKey::Partition(partition) if partition >= count);
        if topic.count.is_some_and(|count| is_known(count) && topic.proven.len() >= index(count)) {
            return Admission::Free;
        }
        if partition.is_some_and(|partition| topic.proven.contains(&partition)) {
            return Admission::Free;
        }
        // Where either may be any, they may be the same.
        let is_mine = |leading: &PartitionKey| match (leading.partition(topic.count), partition) {
            (Some(leading), Some(partition)) => leading == partition,
            _ => true,
        };
        if topic.leading.iter().any(is_mine) { Admission::Wait } else { Admission::Lead }
    }

    /// Records that the record with [`Admission::Lead`] is queued as production `seq`.
    pub(crate) fn queued(&mut self, seq: Seq, topic: &str, key: PartitionKey) {
        let known = self.topics.entry(topic.to_owned()).or_default();
        let key = key.partition(known.count).map_or(key, PartitionKey::Partition);
        known.leading.push(key);
        let first = First { topic: topic.to_owned(), key, changes: self.changes };
        self.in_flight.insert(seq, first);
    }

    /// Requires a first record again in each partition that was not used since the last call. A broker
    /// forgets a producer that was idle in a partition for long (`producer.id.expiration.ms`, a day by
    /// default). A partition in use is not asked for one: if its broker does not answer, the second
    /// record would wait for the first, and all others behind it.
    pub(crate) fn forget(&mut self) {
        for topic in self.topics.values_mut() {
            let used = std::mem::take(&mut topic.used);
            topic.proven.retain(|partition| used.get(index(*partition)) == Some(&true));
        }
    }

    /// Records that production `seq` is acknowledged. Returns whether it was a first one.
    pub(crate) fn delivered(&mut self, seq: Seq) -> bool {
        let Some(First { topic: name, key, changes }) = self.in_flight.remove(&seq) else {
            return false;
        };
        let Some(topic) = self.topics.get_mut(&name) else {
            return true;
        };
        if let Some(at) = topic.leading.iter().position(|leading| *leading == key) {
            topic.leading.swap_remove(at);
        }
        if topic.count.is_none() {
            topic.count = self.counts.of(&name);
        }
        let is_of_its_producer = self.is_single || matches!(key, PartitionKey::Partition(_));
        if changes == self.changes && is_of_its_producer {
            topic.proven.extend(key.partition(topic.count));
        }
        true
    }
}

impl Topic {
    /// A record with this partition, if it is known, may be admitted.
    fn note_use(&mut self, partition: Option<usize>) {
        let Some(partition) = partition.filter(|partition| *partition < USED_MAX) else { return };
        if self.used.len() <= partition {
            self.used.resize(partition + 1, false);
        }
        self.used[partition] = true;
    }
}

impl Counts {
    /// The counts of producers that hash keys so.
    pub(crate) fn of_keys(hash: KeyHash) -> Self {
        Self { hash, ..Self::default() }
    }

    /// The hash of keys.
    pub(crate) fn hash(&self) -> KeyHash {
        self.hash
    }

    /// The topics in which a record was assigned to a partition.
    pub(crate) fn topics(&self) -> Vec<String> {
        self.lock().counts.keys().cloned().collect()
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        std::mem::take(&mut self.lock().unreported)
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, topic: &str) -> Option<u32> {
        self.lock().counts.get(topic).map(|count| count.applied)
    }

    /// Assigns records by the numbers that were last seen, from now on: between two records.
    pub(crate) fn apply(&self) {
        for count in self.lock().counts.values_mut() {
            count.applied = count.seen;
        }
    }

    /// Records a topic's number of partitions, if a record was assigned to one of them.
    pub(crate) fn note_known(&self, topic: &str, now: u32) {
        if self.of(topic).is_some() {
            self.note(topic, now);
        }
    }

    /// Records a topic's number of partitions. Returns the number to assign a record by: one that
    /// has grown applies from the next admission on; a topic that has fewer was created again.
    fn note(&self, topic: &str, now: u32) -> u32 {
        let mut known = self.lock();
        let Some(count) = known.counts.get_mut(topic) else {
            known.counts.insert(topic.to_owned(), Count { applied: now, seen: now });
            return now;
        };
        let before = std::mem::replace(&mut count.seen, now);
        count.applied = count.applied.min(now);
        let applied = count.applied;
        if before != now {
            known.unreported.push(Change { topic: topic.to_owned(), before, now });
            self.changes.fetch_add(1, Ordering::Release);
        }
        applied
    }
}

impl KeyPartitioner {
    /// A partitioner that writes the numbers of partitions to `counts`.
    pub(crate) fn new(counts: Arc<Counts>) -> Self {
        Self { counts, keyless: AtomicU32::new(0) }
    }
}

impl Partitioner for KeyPartitioner {
    fn partition(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        count: i32,
        _is_available: impl Fn(i32) -> bool,
    ) -> i32 {
        let count = u32::try_from(count).ok().filter(|count| *count > 0);
        let applied = count.map(|count| self.counts.note(topic, count));
        let Some(count) = applied.and_then(NonZeroU32::new) else {
            return PARTITION_UA;
        };
        let partition = match key {
            Some(key) => self.counts.hash.partition(key, count),
            None => self.keyless.fetch_add(1, Ordering::Relaxed) % count,
        };
        i32::try_from(partition).unwrap_or(PARTITION_UA)
    }
}

/// A number of partitions as a length.
fn index(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::unnecessary_wraps, reason = "as a record has it")]
    fn keyed(key: &[u8]) -> Option<PartitionKey> {
        Some(PartitionKey::hash_of(key))
    }

    /// A gate with ten keys, in a topic of that many partitions.
    fn gate(partitions: i32) -> (FirstBatchGate, KeyPartitioner) {
        let counts = Arc::new(Counts::default());
        let partitioner = KeyPartitioner::new(Arc::clone(&counts));
        assert!(partitioner.partition("t", Some(b"0"), partitions, |_| true) < partitions);
        (FirstBatchGate::new(counts), partitioner)
    }

    #[test]
    fn first_record_of_a_partition_is_sent_alone_until_acknowledged() {
        let (mut gate, _) = gate(1);
        assert_eq!(gate.admission("t", keyed(b"a")), Admission::Lead);
        gate.queued(Seq::new(7), "t", PartitionKey::hash_of(b"a"));
        assert_eq!(gate.admission("t", keyed(b"b")), Admission::Wait);
        assert_eq!(gate.admission("t", None), Admission::Free);
        assert_eq!(gate.admission("another", keyed(b"b")), Admission::Lead);
        gate.delivered(Seq::new(6));
        assert_eq!(gate.admission("t", keyed(b"b")), Admission::Wait);
        gate.delivered(Seq::new(7));
        assert_eq!(gate.admission("t", keyed(b"b")), Admission::Free);
    }

    #[test]
    fn first_record_is_sent_alone_again_in_partitions_that_were_idle_for_long() {
        let (mut gate, _) = gate(2);
        let partitions = [0, 1].map(PartitionKey::Partition);
        for (seq, partition) in (1..).zip(partitions) {
            gate.queued(Seq::new(seq), "t", partition);
            gate.delivered(Seq::new(seq));
        }
        let admitted = |gate: &mut FirstBatchGate, number: usize| {
            gate.admission("t", Some(partitions[number]))
        };
        assert_eq!([0, 1].map(|number| admitted(&mut gate, number)), [Admission::Free; 2]);
        gate.forget();
        assert_eq!(admitted(&mut gate, 1), Admission::Free, "it was in use");
        gate.forget();
        assert_eq!(admitted(&mut gate, 0), Admission::Lead);
        assert_eq!(admitted(&mut gate, 1), Admission::Free);
        gate.forget();
        gate.forget();
        assert_eq!([0, 1].map(|number| admitted(&mut gate, number)), [Admission::Lead; 2]);
    }

    #[test]
    fn added_partitions_are_reported_once_and_need_first_records_again() {
        let (mut gate, partitioner) = gate(1);
        gate.queued(Seq::new(7), "t", PartitionKey::hash_of(b"a"));
        gate.delivered(Seq::new(7));
        assert_eq!(gate.admission("t", keyed(b"b")), Admission::Free);
        let assigned = || {
            let partitions =
                (0..20_u8).map(|key| partitioner.partition("t", Some(&[key]), 4, |_| true));
            partitions.max().expect("some")
        };
        assert_eq!(assigned(), 0, "by the number that the gate knows");
        assert_eq!(gate.admission("t", keyed(b"b")), Admission::Lead);
        assert_eq!(assigned(), 3, "by the new one");
        let change = Change { topic: "t".to_owned(), before: 1, now: 4 };
        assert_eq!(gate.counts.take_changes(), [change]);
        assert_eq!(gate.counts.take_changes(), []);
    }

    #[test]
    fn topic_created_again_with_fewer_partitions_has_no_record_beyond_them() {
        let (mut gate, partitioner) = gate(4);
        let assigned = || {
            let partitions =
                (0..20_u8).map(|key| partitioner.partition("t", Some(&[key]), 2, |_| true));
            partitions.max().expect("some")
        };
        gate.queued(Seq::new(7), "t", PartitionKey::hash_of(b"a"));
        gate.delivered(Seq::new(7));
        assert_eq!(assigned(), 1);
        assert_eq!(gate.admission("t", keyed(b"b")), Admission::Lead);
        assert_eq!((assigned(), gate.partitions()), (1, 2));
    }

    #[test]
    fn each_partition_has_a_first_record_of_its_own() {
        let (mut gate, partitioner) = gate(3);
        gate.queued(Seq::new(0), "t", PartitionKey::hash_of(b"0"));
        gate.delivered(Seq::new(0));
        let partition = |key: &str| partitioner.partition("t", Some(key.as_bytes()), 3, |_| true);
        let mut started = HashSet::from([partition("0")]);
        for number in 1..50_u64 {
            let key = number.to_string();
            let expected = match partition(&key) {
                proven if proven == partition("0") => Admission::Free,
                other if started.insert(other) => Admission::Lead,
                _ => Admission::Wait,
            };
            assert_eq!(gate.admission("t", keyed(key.as_bytes())), expected, "{key}");
            if expected == Admission::Lead {
                gate.queued(Seq::new(number), "t", PartitionKey::hash_of(key.as_bytes()));
            }
        }
        assert_eq!(started.len(), 3);
        for seq in 0..50 {
            gate.delivered(Seq::new(seq));
        }
        assert!((0..50_u8).all(|key| gate.admission("t", keyed(&[key])) == Admission::Free));
    }

    #[test]
    fn record_that_names_its_partition_uses_that_partition() {
        let (mut gate, partitioner) = gate(3);
        let of_key = partitioner.partition("t", Some(b"0"), 3, |_| true);
        let of_key = u32::try_from(of_key).expect("a partition");
        let [mine, other] =
            [of_key, (of_key + 1) % 3].map(|number| Some(PartitionKey::Partition(number)));
        // A topic's number of partitions is not known before a key was put into one.
        assert_eq!(gate.admission("t", mine), Admission::Lead);
        gate.queued(Seq::new(1), "t", PartitionKey::Partition(of_key));
        assert_eq!(gate.admission("t", mine), Admission::Wait);
        assert_eq!(gate.admission("t", other), Admission::Lead);
        assert_eq!(gate.admission("t", keyed(b"0")), Admission::Wait);
        gate.delivered(Seq::new(1));
        assert_eq!(gate.admission("t", mine), Admission::Free);
        assert_eq!(gate.admission("t", keyed(b"0")), Admission::Free);
        gate.queued(Seq::new(2), "t", PartitionKey::Partition((of_key + 1) % 3));
        assert_eq!(
            (gate.admission("t", other), gate.admission("t", mine)),
            (Admission::Wait, Admission::Free)
        );
    }

    #[test]
    fn named_partition_needs_a_first_record_in_an_unknown_topic() {
        let mut gate = FirstBatchGate::new(Arc::new(Counts::default()));
        gate.queued(Seq::new(1), "t", PartitionKey::Partition(1));
        assert_eq!(gate.admission("t", Some(PartitionKey::Partition(1))), Admission::Wait);
        assert_eq!(gate.admission("t", Some(PartitionKey::Partition(0))), Admission::Lead);
        assert_eq!(gate.admission("t", keyed(b"a")), Admission::Wait, "it may be the same");
        gate.delivered(Seq::new(1));
        assert_eq!(gate.admission("t", Some(PartitionKey::Partition(1))), Admission::Free);
        assert_eq!(gate.admission("t", keyed(b"a")), Admission::Lead, "it may be another");
        gate.queued(Seq::new(2), "t", PartitionKey::Hash(7));
        assert_eq!(gate.admission("t", Some(PartitionKey::Partition(0))), Admission::Wait);
        gate.delivered(Seq::new(2));
        assert_eq!(gate.admission("t", Some(PartitionKey::Partition(0))), Admission::Lead);
    }
}
