//! The environment of the core's properties: a history and a broker.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;

use super::super::tests::{TABLE, ambiguous, insert_into, relation_of, too_large};
use super::super::*;
use crate::outlet::Ground;
use crate::pgoutput::{LogicalMessage, Oid, Relation, TypeName};
use crate::position::EventPosition;
use crate::record::Record;

/// The second outbox table, and a table that is not an outbox.
pub(super) const OTHER_TABLE: Oid = TABLE + 1;
pub(super) const FOREIGN: Oid = 99;

/// The dead-letter topic.
pub(super) const DEAD: &str = "dead";

/// A committed transaction. Event number n of the history has id n and key n % 5.
#[derive(Debug, Clone)]
pub(super) struct Past {
    pub(super) commit: u64,
    pub(super) end: u64,
    pub(super) events: std::ops::Range<usize>,
    /// Whether a non-transactional message precedes it.
    pub(super) loose: bool,
}

/// Why the guilty event is undeliverable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guilt {
    /// The broker rejects it.
    Refused,
    /// The producer rejects it.
    RefusedHere,
    /// An event without a key.
    Keyless,
    /// The broker answers what it answers if it refuses everything.
    Suspect,
}

pub(super) fn history(sizes: &[u16]) -> Vec<Past> {
    let (mut wal, mut next) = (100, 0);
    let transactions = sizes.iter().map(|size| {
        let events = next..next + usize::from(*size);
        next = events.end;
        // Some commit records begin where the previous one ends.
        let commit = wal + 10 * u64::from(size % 3);
        wal = commit + 5;
        Past { commit, end: wal, loose: events.start % 7 == 3, events }
    });
    transactions.collect()
}

/// Sizes of transactions: many are empty or small, a few have thousands of events.
pub(super) fn sizes() -> impl Strategy<Value = Vec<u16>> {
    let size = prop_oneof![
        20 => Just(0),
        40 => 1_u16..4,
        40 => 4_u16..12,
        3 => 12_u16..100,
        1 => 500_u16..2500,
    ];
    prop::collection::vec(size, 1..20)
}

pub(super) fn relations() -> [Relation; 2] {
    [relation_of(TABLE, "outbox"), relation_of(OTHER_TABLE, "orders")]
}

/// The place of dead letters, instead of a partition.
pub(super) const LETTERS: usize = usize::MAX;

/// One partition per key; what is queued and what is appended.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub(super) struct Broker {
    pub(super) queued: HashMap<usize, VecDeque<(Seq, usize)>>,
    /// Records queued for the dead-letter topic.
    pub(super) letters: VecDeque<(Seq, usize)>,
    /// The appended records of each partition: the producer, counted from 0, and the event.
    pub(super) log: HashMap<usize, Vec<(usize, usize)>>,
    pub(super) producers: usize,
    pub(super) appended: BTreeSet<usize>,
    /// Appended but not yet reported, with the partition.
    pub(super) unreported: Vec<(Seq, usize)>,
    /// Produced by the current producer and not yet reported, by weight.
    pub(super) in_flight: BTreeMap<Seq, u64>,
    /// Productions of replaced producers.
    pub(super) old: Vec<Seq>,
    pub(super) guilty: Option<(usize, Guilt)>,
    /// Whether each partition has one record under way at a time.
    pub(super) is_serial: bool,
    /// Whether probes are not appended.
    pub(super) asks: bool,
    /// Probes that are not reported.
    pub(super) asked: BTreeSet<Seq>,
    /// Partitions that accept nothing more from this producer.
    pub(super) stopped: BTreeSet<usize>,
    pub(super) full: bool,
    /// Nothing is appended, for a reason that may be each record's.
    pub(super) refuses_all: bool,
    /// The last event produced since the core was created.
    pub(super) furthest: Option<usize>,
    /// The events that this producer was given.
    pub(super) given: BTreeSet<usize>,
}

impl Outlet for Broker {
    fn produce(
        &mut self,
        seq: Seq,
        _: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        if self.full {
            return Err(ProduceError::Full);
        }
        let is_letter = record.topic == DEAD;
        let event = if is_letter { id_of_letter(record) } else { text(record, "id") };
        let event: usize = event.parse().expect("I7: the id of a committed event");
        let weight = record.bytes() as u64 + RECORD_OVERHEAD_BYTES;
        if is_letter {
            assert_eq!(self.guilty.map(|(guilty, _)| guilty), Some(event), "a healthy one is dead");
            assert!(self.in_flight.insert(seq, weight).is_none(), "I8: {seq:?} is produced twice");
            self.letters.push_back((seq, event));
            self.furthest = self.furthest.max(Some(event));
            return Ok(());
        }
        if self.guilty == Some((event, Guilt::RefusedHere)) {
            return Err(ProduceError::Refused(too_large()));
        }
        // A halt that recurs takes its whole transaction again.
        let is_first = self.given.insert(event);
        assert!(is_first || self.guilty.is_some(), "a producer is given event {event} twice");
        self.queued.entry(event % 5).or_default().push_back((seq, event));
        assert!(self.in_flight.insert(seq, weight).is_none(), "I8: {seq:?} is produced twice");
        assert!(!self.old.contains(&seq), "I8: {seq:?} was another record's");
        self.furthest = self.furthest.max(Some(event));
        Ok(())
    }

    fn outlives_refusals(&self) -> bool {
        self.is_serial
    }

    fn asks(&self) -> bool {
        self.asks
    }

    fn probe(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.asked.insert(seq);
        self.produce(seq, position, record)
    }
}

impl Broker {
    /// The oldest record of the `pick`-th non-empty partition.
    pub(super) fn next(&mut self, pick: usize) -> Option<(Seq, usize)> {
        let awaits =
            |key| self.is_serial && self.unreported.iter().any(|(_, partition)| *partition == key);
        let busy = |(key, queue): &(&usize, &VecDeque<_>)| {
            !queue.is_empty() && !self.stopped.contains(*key) && !awaits(**key)
        };
        let mut busy: Vec<usize> = self.queued.iter().filter(busy).map(|(key, _)| *key).collect();
        busy.sort_unstable();
        let key = *busy.get(pick % busy.len().max(1))?;
        self.queued.get_mut(&key)?.pop_front()
    }

    pub(super) fn append(&mut self, event: usize) {
        self.log.entry(event % 5).or_default().push((self.producers, event));
        self.appended.insert(event);
    }

    /// Why a record is refused that may not be at fault.
    pub(super) fn ambiguous(&self) -> Refusal {
        let ground = if self.asks { Ground::MissingTopic } else { Ground::Other };
        Refusal { ground, ..ambiguous() }
    }

    pub(super) fn new_producer(&mut self) {
        self.producers += 1;
        self.given.clear();
        self.asked.clear();
        self.queued.clear();
        self.letters.clear();
        self.unreported.clear();
        self.stopped.clear();
        self.old.extend(std::mem::take(&mut self.in_flight).into_keys());
        // A bounded number is enough.
        let surplus = self.old.len().saturating_sub(50);
        self.old.drain(..surplus);
    }
}

fn text(record: &Record<'_>, header: &str) -> String {
    let header = record.headers.iter().find(|it| it.name == header).expect("a header");
    String::from_utf8_lossy(header.value.as_ref().expect("a value")).into_owned()
}

fn id_of_letter(record: &Record<'_>) -> String {
    let fields = text(record, crate::record::dead_letter::FIELDS);
    let fields: serde_json::Value = serde_json::from_str(&fields).expect("JSON");
    fields["id"].as_str().expect("an id").to_owned()
}

pub(super) fn logical(transactional: bool, prefix: &str, content: String) -> Message {
    let (lsn, content) = (Lsn::new(5), content.into());
    Message::Logical(LogicalMessage { transactional, lsn, prefix: prefix.into(), content })
}

/// A message without an event, to precede this event.
pub(super) fn noise(event: usize) -> Option<Message> {
    match event % 9 {
        1 => Some(Message::Update(TABLE)),
        2 => Some(Message::Delete(FOREIGN)),
        3 => Some(Message::Truncate(vec![TABLE, FOREIGN])),
        4 => Some(insert_into(FOREIGN, 1_000_000)),
        5 => Some(logical(true, "theirs", "{}".into())),
        6 => Some(Message::Type(TypeName {
            oid: 16_384,
            base_schema: "public".into(),
            base_name: "mood".into(),
        })),
        _ => None,
    }
}
