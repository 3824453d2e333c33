//! Keys are assigned to the partitions that Java's producer assigns.

use std::num::NonZeroU32;

use walpost::destination::kafka::KeyHash;
use walpost_bed::Kafka;

const COUNTS: [u32; 6] = [1, 3, 6, 12, 100, 1000];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_of_ten_thousand_keys_equal_javas() {
    let keys = keys();
    assert_eq!(keys.len(), 10_000);
    let java = Kafka::shared().await.partitions_of(&keys, &COUNTS).await;
    for (key, java) in keys.iter().zip(java) {
        let ours =
            COUNTS.map(|count| KeyHash::Murmur2.partition(key, NonZeroU32::new(count).unwrap()));
        assert_eq!(ours, *java, "of {key:02x?}");
    }
}

/// Bytes of every length up to 300 and of every value, text in several scripts, UUIDs and
/// decimal numbers.
fn keys() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(9);
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    for length in 0..=300 {
        for _ in 0..10 {
            keys.push((0..length).map(|_| random.u8(..)).collect());
        }
    }
    // The sign of a byte matters to those who forget it.
    keys.extend((0..=300).map(|length| vec![0xFF; length]));
    let signs: Vec<char> = "aZ09-_ .äßñжяΩ漢字かな한글😀🚚\u{0}".chars().collect();
    for number in 0..2_100_u64 {
        let length = random.usize(1..60);
        keys.push((0..length).map(|_| random.choice(&signs).unwrap()).collect::<String>().into());
        let uuid = random.u128(..);
        keys.push(uuid_text(uuid).into());
        keys.push((number * number).to_string().into());
    }
    while keys.len() < 10_000 {
        keys.push((random.i64(..)).to_string().into());
    }
    keys
}

fn uuid_text(uuid: u128) -> String {
    let digits = format!("{uuid:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}
