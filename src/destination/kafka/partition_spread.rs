//! Which of several producers a partition belongs to.
//!
//! A partition belongs to one producer for as long as there are these producers, so that its
//! records are sent in the order in which they were produced. There are others only once nothing
//! is in flight.
//!
//! The leaders of a topic's partitions usually follow each other (partition 0 on one broker,
//! partition 1 on the next), so as many neighbours as there are brokers belong to one producer:
//! each connection of each producer then gets an equal share.

use std::num::NonZeroU32;

use crate::destination::kafka::partition::KeyHash;

/// The partitions of each producer, for a number of producers and brokers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartitionSpread {
    producers: NonZeroU32,
    brokers: NonZeroU32,
}

impl PartitionSpread {
    pub(crate) fn new(producers: u32, brokers: u32) -> Self {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        Self { producers: at_least_one(producers), brokers: at_least_one(brokers) }
    }

    /// The number of the producer.
    pub(crate) fn producer_of(self, topic: &str, partition: u32) -> u32 {
        // Topics of few partitions do not all begin with the same producer.
        (KeyHash::Murmur2.of(topic.as_bytes()) % self.producers
            + partition / self.brokers % self.producers)
            % self.producers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_connection_of_each_producer_has_an_equal_share() {
        for (producers, brokers, partitions) in [(2, 1, 12), (8, 1, 48), (4, 3, 12), (2, 3, 48)] {
            let spread = PartitionSpread::new(producers, brokers);
            for topic in ["a", "orders", "outbox.event.customer"] {
                let mut shares = BTreeMap::<_, u32>::new();
                for partition in 0..partitions {
                    let leader = partition % brokers;
                    let producer = spread.producer_of(topic, partition);
                    *shares.entry((producer, leader)).or_default() += 1;
                }
                let share = partitions / producers / brokers;
                assert_eq!(shares.len(), usize::try_from(producers * brokers).expect("few"));
                assert!(shares.values().all(|one| *one == share), "{shares:?}");
            }
        }
    }

    #[test]
    fn topics_of_one_partition_are_shared_too() {
        let spread = PartitionSpread::new(4, 3);
        let producers = (0..100).map(|number| spread.producer_of(&format!("topic-{number}"), 0));
        let mut shares = BTreeMap::<_, u32>::new();
        producers.for_each(|producer| *shares.entry(producer).or_default() += 1);
        assert_eq!(shares.len(), 4);
        assert!(shares.values().all(|share| *share > 10), "{shares:?}");
        assert_eq!(PartitionSpread::new(0, 0).producer_of("t", 7), 0);
    }
}
