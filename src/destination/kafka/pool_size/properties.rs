//! However a steady load varies from second to second, the number of producers settles.

use proptest::prelude::*;

use super::tests::Driven;
use super::*;
use crate::property;

/// Seconds of a case: two of the periods after which there are fewer.
const SECONDS: usize = 1_500;

#[test]
fn a_steady_load_settles_at_few_changes_and_enough_producers() {
    let load = (1_000..20_000_u64, 50..10_000_u64, 1..300_u32, 1..16_u32);
    let noise = prop::collection::vec(0..10_u64, 1..50);
    let name = "a_steady_load_settles_at_few_changes_and_enough_producers";
    property::holds(name, 200, &(load, noise), |((micros, rate, partitions, max), noise)| {
        let round_trip = Duration::from_micros(micros);
        let mut driven = Driven::new(None, max).partitions(partitions);
        driven.sizing.note_round_trip(round_trip);
        assert_eq!(driven.look().map(|size| size.in_flight), Some(FAR));
        let mut changes = 0;
        for percent in noise.iter().cycle().take(SECONDS) {
            let rate = rate * (95 + percent) / 100;
            changes += u32::from(driven.second_of(rate, round_trip).is_some());
        }
        assert!(changes <= 3, "{changes} changes");
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let needed = rate as f64 * (round_trip / FAR).max(BROKER_TIME).as_secs_f64();
        let producers = driven.sizing.size().producers;
        let useful = (partitions * REQUESTS_PER_PARTITION).div_ceil(FAR).min(partitions);
        assert!(producers <= max.min(useful).max(1), "{producers} producers");
        assert!(f64::from(producers) >= needed.min(f64::from(max.min(useful))), "{producers}");
    });
}
