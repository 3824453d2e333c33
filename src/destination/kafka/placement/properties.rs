//! Order per partition over several producers, which send what they have in no order among each
//! other, with metadata of their own, to brokers that refuse records and forget idle producers, and
//! that are replaced by another number of producers.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rdkafka::producer::Partitioner as _;

use super::*;
use crate::destination::kafka::first_batch_gate::KeyPartitioner;
use crate::property;

const TOPICS: [&str; 2] = ["orders", "customers"];

/// Requests in flight: as many as a broker may see of a partition before it has refused one.
const IN_FLIGHT: usize = 5;

/// A record: its topic, and its key or the number of its partition.
#[derive(Debug, Clone, Copy)]
struct Given {
    topic: usize,
    text: u8,
    by_number: bool,
    /// The partition of one that was kept.
    placed: Option<u32>,
}

impl Given {
    fn partition(self) -> Option<i32> {
        let placed = self.placed.map(|number| i32::try_from(number).expect("few"));
        placed.or_else(|| self.by_number.then(|| i32::from(self.text) % 2))
    }

    fn place(&mut self, key: PartitionKey) {
        if let PartitionKey::Partition(number) = key {
            self.placed = Some(number);
        }
    }

    fn key(self) -> PartitionKey {
        match self.partition() {
            Some(number) => PartitionKey::Partition(number.unsigned_abs()),
            None => PartitionKey::hash_of(&[self.text]),
        }
    }
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The next record.
    Produce(Given),
    /// A producer sends a record of a partition, of those that it has. Its broker may refuse it.
    Send { choice: usize, refused: bool },
    /// An acknowledgement arrives.
    Acknowledge { choice: usize },
    /// A topic gets another partition.
    Grow { topic: usize },
    /// A producer takes up new metadata.
    Refresh { producer: usize },
    /// Statistics arrive.
    Statistics,
    /// Another number of producers takes the place of these, once nothing is in flight.
    Swap { producers: u32, brokers: u32 },
    /// So much time passes that the gate forgets partitions that were not used.
    Hour,
}

/// After so many [`Step::Hour`] without a record a broker forgets a producer in a partition.
const EXPIRATION_HOURS: u32 = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..TOPICS.len(), 0..12_u8, prop::bool::weighted(0.2))
            .prop_map(|(topic, text, by_number)| Step::Produce(Given { topic, text, by_number, placed: None })),
        6 => (any::<usize>(), prop::bool::weighted(0.03))
            .prop_map(|(choice, refused)| Step::Send { choice, refused }),
        6 => any::<usize>().prop_map(|choice| Step::Acknowledge { choice }),
        1 => (0..TOPICS.len()).prop_map(|topic| Step::Grow { topic }),
        1 => (0..8_usize).prop_map(|producer| Step::Refresh { producer }),
        1 => Just(Step::Statistics),
        1 => (1..8_u32, 1..4_u32)
            .prop_map(|(producers, brokers)| Step::Swap { producers, brokers }),
        1 => Just(Step::Hour),
    ];
    prop::collection::vec(step, 1..200)
}

/// A partition of a topic.
type Slot = (usize, u32);

#[derive(Default)]
struct Producer {
    /// What it was given, by partition, and not sent.
    queues: BTreeMap<Slot, Vec<u64>>,
    /// What it sent and was not answered.
    unanswered: BTreeMap<Slot, Vec<u64>>,
    /// How many partitions it knows of each topic; `None`: it has not asked for the topic yet.
    metadata: [Option<u32>; TOPICS.len()],
    /// Partitions in which a broker has taken a batch of it, with the hour of the last; and those
    /// where one was refused.
    known: BTreeMap<Slot, u32>,
    refused: Vec<Slot>,
}

struct World {
    counts: Arc<Counts>,
    partitioner: KeyPartitioner,
    placement: Placement,
    producers: Vec<Producer>,
    partitions: [u32; TOPICS.len()],
    /// What each partition has, and what was refused in it.
    logs: BTreeMap<Slot, Vec<u64>>,
    first_refused: BTreeMap<Slot, u64>,
    produced: u64,
    hour: u32,
    /// Records that wait for a first one.
    held: Vec<(u64, Given)>,
    /// Whether the relay knows of a refused one.
    has_failed: bool,
}

impl World {
    fn new(producers: u32, brokers: u32, looked_up: bool) -> Self {
        let counts = Arc::new(Counts::default());
        let partitions = [3, 2];
        let mut placement = Placement::new(Arc::clone(&counts), producers, brokers);
        if looked_up {
            placement.learn(TOPICS[0], partitions[0]);
        }
        Self {
            partitioner: KeyPartitioner::new(Arc::clone(&counts)),
            counts,
            placement,
            producers: (0..producers).map(|_| Producer::default()).collect(),
            partitions,
            logs: BTreeMap::new(),
            first_refused: BTreeMap::new(),
            produced: 0,
            hour: 0,
            held: Vec::new(),
            has_failed: false,
        }
    }

    /// Sends a record, or keeps it, as the sink does.
    fn produce(&mut self, given: Given) {
        if self.has_failed {
            return;
        }
        let seq = self.produced;
        self.produced += 1;
        let admission = self.placement.admission(TOPICS[given.topic], Some(given.key()));
        if admission == Admission::Wait {
            self.keep(seq, given);
        } else {
            self.queue(seq, given, admission);
        }
    }

    fn keep(&mut self, seq: u64, mut given: Given) {
        given.place(self.placement.keep(TOPICS[given.topic], given.key()));
        self.held.push((seq, given));
    }

    fn release(&mut self) {
        if self.has_failed {
            return;
        }
        self.placement.begin_again();
        for (seq, given) in std::mem::take(&mut self.held) {
            let admission = self.placement.admission(TOPICS[given.topic], Some(given.key()));
            if admission == Admission::Wait {
                self.keep(seq, given);
            } else {
                self.queue(seq, given, admission);
            }
        }
    }

    fn queue(&mut self, seq: u64, given: Given, admission: Admission) {
        let topic = given.topic;
        let place = self.placement.place(TOPICS[topic], Some(given.key()), given.partition());
        let producer = &mut self.producers[place.producer];
        let known = *producer.metadata[topic].get_or_insert(self.partitions[topic]);
        let partition = place.partition.unwrap_or_else(|| {
            let count = i32::try_from(known).expect("few");
            self.partitioner.partition(TOPICS[topic], Some(&[given.text]), count, |_| true)
        });
        let partition = u32::try_from(partition).expect("a partition");
        assert!(partition < known, "it does not know of that partition");
        producer.queues.entry((topic, partition)).or_default().push(seq);
        self.placement.queued(Seq::new(seq), TOPICS[topic], Some(given.key()), admission);
    }

    /// Lets everything on its way arrive; false where nothing was.
    fn is_flowing(&mut self) -> bool {
        let mut any = false;
        while self.send(0, false) || self.acknowledge(0) {
            any = true;
        }
        any
    }

    fn send(&mut self, choice: usize, refused: bool) -> bool {
        let waiting: Vec<(usize, Slot)> = (self.producers.iter().enumerate())
            .flat_map(|(number, producer)| {
                let has_room = |slot: &Slot| {
                    producer.unanswered.get(slot).is_none_or(|sent| sent.len() < IN_FLIGHT)
                };
                let stopped = &producer.refused;
                let slots = producer.queues.iter().filter(|(_, queue)| !queue.is_empty());
                slots
                    .map(|(slot, _)| *slot)
                    .filter(move |slot| has_room(slot) && !stopped.contains(slot))
                    .map(move |slot| (number, slot))
            })
            .collect();
        let Some((number, slot)) = waiting.get(choice % waiting.len().max(1)).copied() else {
            return false;
        };
        let producer = &mut self.producers[number];
        let seq = producer.queues.get_mut(&slot).expect("it has some").remove(0);
        let is_first = !producer.known.contains_key(&slot);
        producer.unanswered.entry(slot).or_default().push(seq);
        // A broker that knows the producer takes nothing behind what it has refused.
        let is_gap = self.first_refused.contains_key(&slot);
        if is_gap && !is_first {
            return true;
        }
        if refused && !is_gap {
            self.first_refused.insert(slot, seq);
            return true;
        }
        producer.known.insert(slot, self.hour);
        self.logs.entry(slot).or_default().push(seq);
        true
    }

    fn acknowledge(&mut self, choice: usize) -> bool {
        let waiting: Vec<(usize, Slot)> = (self.producers.iter().enumerate())
            .flat_map(|(number, producer)| {
                let slots = producer.unanswered.iter().filter(|(_, sent)| !sent.is_empty());
                slots.map(move |(slot, _)| (number, *slot))
            })
            .collect();
        let Some((number, slot)) = waiting.get(choice % waiting.len().max(1)).copied() else {
            return false;
        };
        let producer = &mut self.producers[number];
        let seq = producer.unanswered.get_mut(&slot).expect("it has some").remove(0);
        if self.logs.get(&slot).is_some_and(|log| log.contains(&seq)) {
            if self.placement.delivered(Seq::new(seq)) {
                self.release();
            }
        } else {
            producer.refused.push(slot);
            // They are reported too, as all that the producers still have.
            self.has_failed = true;
            self.held.clear();
        }
        true
    }

    fn statistics(&mut self) {
        for (topic, name) in TOPICS.iter().enumerate() {
            let known = self.producers.iter().filter_map(|producer| producer.metadata[topic]);
            if let Some(least) = known.min() {
                self.counts.note_known(name, least);
            }
        }
    }

    /// A swap as the sink does it: after a refusal there is a replay instead, which is not seen
    /// here.
    fn swap(&mut self, producers: u32, brokers: u32) {
        self.is_flowing();
        let is_idle = |producer: &Producer| {
            producer.queues.values().chain(producer.unanswered.values()).all(Vec::is_empty)
        };
        let is_idle = self.held.is_empty() && self.producers.iter().all(is_idle);
        if self.first_refused.is_empty() && is_idle {
            self.placement = Placement::new(Arc::clone(&self.counts), producers, brokers);
            self.producers = (0..producers).map(|_| Producer::default()).collect();
        }
    }

    /// No record is on its way for as long as a broker remembers its producer.
    fn pass_an_hour(&mut self) {
        self.is_flowing();
        self.hour += 1;
        self.placement.forget();
        for producer in &mut self.producers {
            producer.known.retain(|_, last| self.hour - *last < EXPIRATION_HOURS);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Produce(given) => self.produce(given),
            Step::Send { choice, refused } => drop(self.send(choice, refused)),
            Step::Acknowledge { choice } => drop(self.acknowledge(choice)),
            Step::Grow { topic } => self.partitions[topic] += 1,
            Step::Refresh { producer } => {
                let number = producer % self.producers.len();
                let metadata = self.producers[number].metadata.iter_mut();
                for (known, count) in metadata.zip(self.partitions) {
                    *known = known.map(|_| count);
                }
            }
            Step::Statistics => self.statistics(),
            Step::Swap { producers, brokers } => self.swap(producers, brokers),
            Step::Hour => self.pass_an_hour(),
        }
    }
}

#[test]
fn order_per_partition_is_kept_over_several_producers_and_nothing_overtakes_a_refused_record() {
    let cases = (1..8_u32, 1..4_u32, any::<bool>(), steps());
    let name = "order_per_partition_is_kept_over_several_producers";
    property::holds(name, 5000, &cases, |(producers, brokers, looked_up, steps)| {
        let mut world = World::new(producers, brokers, looked_up);
        for step in steps {
            world.step(step);
        }
        world.is_flowing();
        assert!(world.held.is_empty(), "{:?}", world.held);
        for (slot, log) in &world.logs {
            assert!(log.is_sorted(), "{slot:?}: {log:?}");
            if let Some(refused) = world.first_refused.get(slot) {
                assert!(log.iter().all(|seq| seq < refused), "{slot:?}: {refused} and {log:?}");
            }
        }
    });
}
