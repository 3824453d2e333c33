//! The partition of a key: a number that depends on the key and the number of partitions alone, the same
//! that producers of Kafka choose for a record with this key.

use std::num::NonZeroU32;

/// The hash of a key, of which the partition is the remainder: one for each kind of producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyHash {
    /// The hash of Java's producer, `BuiltInPartitioner.partitionForKey`: the low 31 bits of `MurmurHash2`.
    #[default]
    Murmur2,
    /// The hash of librdkafka's default, `consistent_random`: the CRC-32 of zlib.
    Crc32,
    /// The hash of Sarama and of librdkafka's `fnv1a_random`: the magnitude of the 32-bit FNV-1a.
    Fnv1a,
}

impl KeyHash {
    /// The hash behind this value of librdkafka's property `partitioner`.
    pub(crate) fn of_partitioner(name: &str) -> Option<Self> {
        match name {
            "murmur2" | "murmur2_random" => Some(Self::Murmur2),
            "consistent" | "consistent_random" => Some(Self::Crc32),
            "fnv1a" | "fnv1a_random" => Some(Self::Fnv1a),
            _ => None,
        }
    }

    /// The hash of a key.
    pub(crate) fn of(self, key: &[u8]) -> u32 {
        match self {
            Self::Murmur2 => murmur2(key) & 0x7fff_ffff,
            Self::Crc32 => crc32fast::hash(key),
            Self::Fnv1a => fnv1a(key),
        }
    }

    /// The partition, from 0 up to `count`, without it.
    pub fn partition(self, key: &[u8], count: NonZeroU32) -> u32 {
        self.of(key) % count
    }
}

/// FNV-1a, 32 bits, without its sign as Sarama's `NewHashPartitioner` has it.
fn fnv1a(key: &[u8]) -> u32 {
    let hash = key
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash.cast_signed().unsigned_abs()
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
    fn keys_are_hashed_as_kafkas_own_clients_do() {
        // From the tests of Kafka's clients.
        for (key, expected) in [
            ("kafka", 0xd067_cf64_u32),
            ("giberish123456789", 0x8f55_2b0c),
            ("1234", 0x9fc9_7b14),
            ("234", 0xe7c0_09ca),
            ("34", 0x8739_30da),
            ("4", 0x5a4b_5ca1),
        ] {
            assert_eq!(KeyHash::Murmur2.of(key.as_bytes()), expected & 0x7fff_ffff, "{key}");
        }
    }

    #[test]
    fn partitions_are_those_that_there_are() {
        let of = |key: &str, count: u32| {
            KeyHash::Murmur2.partition(key.as_bytes(), NonZeroU32::new(count).expect("some"))
        };
        assert_eq!((of("21", 1), of("", u32::MAX) < u32::MAX), (0, true));
        // -973932308 & 0x7fffffff = 1173551340
        assert_eq!((of("21", 8), of("21", 100)), (4, 40));
        let all: std::collections::BTreeSet<_> =
            (0..1000).map(|key| of(&key.to_string(), 8)).collect();
        assert_eq!(all, (0..8).collect());
    }

    /// The values in the test of librdkafka's function, `unittest_fnv1a`, and the check value of CRC-32.
    #[test]
    fn other_hashes_are_those_of_their_producers() {
        for (key, hash) in
            [("kafka", 0x0d33_c4e1), ("giberish123456789", 0x77a5_8295), ("", 0x7ee3_623b)]
        {
            assert_eq!(KeyHash::Fnv1a.of(key.as_bytes()), hash, "{key}");
        }
        assert_eq!(KeyHash::Crc32.of(b"123456789"), 0xcbf4_3926);
    }
}
