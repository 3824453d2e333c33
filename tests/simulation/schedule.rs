//! What a seed determines: how much is written, which faults can occur, how processes end. Half of
//! the schedules leave out each kind of fault, so that one does not hide another.

use fastrand::Rng;
use walpost::record::Policy;

use crate::trace::InjectedFault;
use crate::wal::Poison;

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(crate) struct Schedule {
    /// How long transactions are written and faults are injected.
    pub(crate) faults_ms: u64,
    /// The possible faults, and about how long they are apart.
    pub(crate) faults: Vec<InjectedFault>,
    pub(crate) apart_ms: u64,
    /// The number of transactions, and the events in the largest.
    pub(crate) transactions: usize,
    pub(crate) events_most: usize,
    /// One in this many transactions has an undeliverable event.
    pub(crate) poison: Option<(Poison, u64)>,
    /// The policy for undeliverable events.
    pub(crate) policy: Policy,
    /// The number of instances on the slot.
    pub(crate) walposts: usize,
    /// Whether they are killed, asked to stop, and run with `--until`.
    pub(crate) kills: bool,
    pub(crate) stops: bool,
    pub(crate) untils: bool,
    pub(crate) drain_timeout_ms: u64,
    pub(crate) budget_bytes: u64,
    /// Maximum messages received at once.
    pub(crate) burst: usize,
    /// Records that fit the producer's queue.
    pub(crate) room: usize,
    /// Whether it publishes in Kafka transactions, and when those are committed.
    pub(crate) exactly_once: bool,
    /// Whether the position is in a state topic; always with the former.
    pub(crate) state_topic: bool,
    pub(crate) commit_interval_ms: u64,
    pub(crate) transaction_bytes: u64,
    /// Whether several producers share the partitions.
    pub(crate) several: bool,
    /// Whether a producer takes nothing more once a record has failed, as Kafka's.
    pub(crate) spends: bool,
    /// Maximum records in a batch.
    pub(crate) batch: usize,
    /// Minimum time between two confirmations of a session.
    pub(crate) looks_ms: u64,
    /// Whether delivery reports arrive in any order.
    pub(crate) shuffles_reports: bool,
    /// The size of the WAL as a multiple of the smallest.
    pub(crate) scale: u64,
    /// The catch-up threshold in bytes of WAL, if catch-up is enabled.
    pub(crate) threshold: Option<u64>,
    /// Approximate messages of a batch.
    pub(crate) limit: usize,
    /// How often a streaming session reads the slot's metrics.
    pub(crate) observes_ms: u64,
    /// How long a schema registry may take for an answer, and about after which time it forgets that; if values
    /// have schemas.
    pub(crate) registry_ms: Option<u64>,
}

impl Schedule {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let grave = rng.u8(0..4) == 0;
        let often = rng.u8(0..8);
        let faults = InjectedFault::ALL
            .into_iter()
            .filter(|fault| (grave || !fault.is_grave()) && often > 0 && rng.bool())
            .collect();
        let poisons = [Poison::Keyless, Poison::TooLarge, Poison::TooLargeHere];
        // Two in five, because walpost takes the most steps there.
        let poison = (rng.u8(0..3) == 0).then(|| {
            let poison = poisons.get(rng.usize(0..5)).copied().unwrap_or(Poison::Forbidden);
            (poison, rng.u64(3..20))
        });
        let policies = [Policy::Halt, Policy::Halt, Policy::DeadLetter, Policy::Skip];
        let policy = policies[rng.usize(0..4)];
        let large = rng.u8(0..40) == 0;
        // With the smallest factor no backlog is large; with the greatest a batch is too small for one.
        let scale = [1, 2000, 20_000, 10 << 20][rng.usize(0..4)];
        let threshold = [0, 20, 200, 1000][rng.usize(0..4)] * scale;
        let longest = if rng.u8(0..4) == 0 { 40_000 } else { 15_000 };
        // A large transaction would take minutes with one record at a time.
        let least: u8 = if large { 20 } else { 1 };
        let exactly_once = rng.u8(0..3) == 0;
        Self {
            faults_ms: rng.u64(0..longest),
            faults,
            apart_ms: [50, 300, 1500][rng.usize(0..3)],
            transactions: rng.usize(0..60),
            events_most: if large { 2000 } else { [1, 3, 12, 40][rng.usize(0..4)] },
            poison,
            policy,
            walposts: if rng.u8(0..4) == 0 { 2 } else { 1 },
            kills: rng.bool(),
            stops: rng.u8(0..3) == 0,
            untils: rng.u8(0..8) == 0,
            drain_timeout_ms: rng.u64(100..if large { 30_000 } else { 10_000 }),
            budget_bytes: rng.u64(least.into()..60) * 700,
            burst: rng.usize(least.into()..80),
            room: rng.usize(least.into()..100),
            exactly_once,
            state_topic: exactly_once || rng.bool(),
            commit_interval_ms: rng.u64(0..600),
            transaction_bytes: [700, 10_000, 1 << 20][rng.usize(0..3)],
            several: rng.bool(),
            spends: rng.bool(),
            batch: rng.usize(1..20),
            looks_ms: if rng.bool() { 0 } else { rng.u64(0..600) },
            shuffles_reports: rng.bool(),
            scale,
            threshold: (rng.u8(0..4) > 0).then_some(threshold),
            limit: [1, 10, 100, 5000][rng.usize(0..4)],
            observes_ms: [20, 100, 1000, 5000][rng.usize(0..4)],
            registry_ms: (rng.u8(0..4) == 0).then(|| [5, 300, 5000][rng.usize(0..3)]),
        }
    }
}
