//! The partition of a key: a number that depends on the key and the number of partitions alone, the same
//! that Kafka's own producers choose for a record with this key.

use std::num::NonZeroU32;

/// From 0 up to `count`, without it. The low 31 bits of the key's hash, modulo `count`, as
/// `BuiltInPartitioner.partitionForKey` of Kafka's Java client has it.
pub(super) fn partition(key: &[u8], count: NonZeroU32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % count
}

/// `MurmurHash2`, 32 bits, with Kafka's seed (`org.apache.kafka.common.utils.Utils.murmur2`).
fn murmur2(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const FACTOR: u32 = 0x5bd1_e995;
    // Keys in memory are far shorter than 4 GiB; the hash takes the length's low bits.
    #[expect(clippy::cast_possible_truncation, reason = "as Kafka does it")]
    let mut hash = SEED ^ key.len() as u32;
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ (word ^ word >> 24).wrapping_mul(FACTOR);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let rest = rest.iter().rev().fold(0, |rest, byte| rest << 8 | u32::from(*byte));
        hash = (hash ^ rest).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values in the test of Kafka's own function, `UtilsTest.testMurmur2`.
    #[test]
    fn hash_is_that_of_kafka() {
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
    }

    #[test]
    fn partitions_are_those_that_there_are() {
        let of = |key: &str, count: u32| {
            partition(key.as_bytes(), NonZeroU32::new(count).expect("some"))
        };
        assert_eq!((of("21", 1), of("", u32::MAX) < u32::MAX), (0, true));
        // -973932308 & 0x7fffffff = 1173551340
        assert_eq!((of("21", 8), of("21", 100)), (4, 40));
        let all: std::collections::BTreeSet<_> =
            (0..1000).map(|key| of(&key.to_string(), 8)).collect();
        assert_eq!(all, (0..8).collect());
    }
}
