//! The sink itself: it makes batches of records, and reports what became of them.

use std::sync::Arc;
use std::time::Instant;

use super::batch::{Batch, Keys, fields, largest};
use super::config::{RedisConfig, RedisSource, owner_key};
use super::entry_id::EntryId;
use super::link::{RedisLink, Synced};
use super::script::FIELDS_MAX;
use crate::destination::parts::Failure;
use crate::destination::parts::chained::Chained;
use crate::destination::parts::claims::Claims;
use crate::destination::parts::link::{Event, Linked, Producer};
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Ground, Outlet, ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{Condition, Outcome, Peer, Report, SinkError};

/// Redis.
pub(super) const REDIS: Peer = Peer {
    name: "Redis",
    label: "redis",
    unreachable: "see whether Redis runs and can be reached from here",
    credentials: "user and password in redis.url",
    has_lanes: false,
};

/// The size of a value that Redis accepts by default, in bytes: `proto-max-bulk-len`.
const VALUE_MAX: u64 = 512 << 20;

/// The size of an entry that Redis stores, in bytes: `STREAM_LISTPACK_MAX_SIZE`, less what names and
/// lengths take.
const ENTRY_MAX: u64 = (1 << 30) - (1 << 20);

/// The code of the publish-error metric for records that are refused before they are sent.
const REFUSED: &str = "refused";

/// A stream on a Redis server.
pub(crate) struct RedisSink {
    keys: Keys,
    chained: Chained<RedisLink, EntryId, Chain>,
    /// The size of a value that the server accepts, as far as known, in bytes.
    value_max: u64,
}

/// What is there, and what was sent, over the current connection.
struct Chain {
    synced: Synced,
    /// The id of the last event that was sent.
    tail: EntryId,
}

impl RedisSink {
    /// A sink that connects once the state key is open. A server that cannot be reached is no error
    /// here.
    pub(crate) fn new(
        config: &RedisConfig,
        source: RedisSource,
        claims: Claims<EntryId>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SinkError> {
        let keys = Keys {
            stream: config.stream.clone(),
            state: owner_key(&config.stream),
            dead_letters: config.dead_letters.clone(),
            maxlen: config.maxlen.map_or_else(String::new, |maxlen| maxlen.to_string()),
        };
        Ok(Self::over(keys, claims, Producer::new(source, metrics)?))
    }

    fn over(keys: Keys, claims: Claims<EntryId>, producer: Producer<RedisLink>) -> Self {
        Self { keys, chained: Chained::new(claims, producer), value_max: VALUE_MAX }
    }

    fn synced(&mut self, synced: Synced) {
        let acknowledged = self.chained.claims.last();
        if synced.last < acknowledged {
            self.chained.producer.conditions.push(Condition::Regressed(format!(
                "the last event in stream {} has id {}, and Redis has acknowledged {acknowledged}",
                self.keys.stream, synced.last
            )));
            return;
        }
        if let Some(value_max) = synced.value_max {
            self.value_max = value_max.min(VALUE_MAX);
        }
        self.chained.begin(synced.last, Chain { tail: synced.last, synced });
    }

    fn added(&mut self, batch: &Batch, at: Instant) {
        self.chained.claims.set_last(batch.last);
        self.chained.producer.delivered(&batch.tally, at);
    }

    /// The connection is of no use any more.
    fn failed(&mut self, failure: &Failure) {
        if let Failure::TooLarge { max, .. } = failure {
            self.value_max = self.value_max.min(*max);
        }
        self.chained.failed(failure, &self.keys.stream);
    }

    /// Why a record cannot be an entry.
    fn refusal(&self, (bytes, total): (u64, u64), fields: usize) -> Option<Refusal> {
        let is_large = bytes > self.value_max || total > ENTRY_MAX;
        let reason = if total > ENTRY_MAX {
            format!(
                "an entry of {total} bytes is larger than Redis stores (at most {ENTRY_MAX}): publish \
                 smaller events"
            )
        } else if bytes > self.value_max {
            format!(
                "a value of {bytes} bytes is larger than Redis accepts (at most {}): raise \
                 proto-max-bulk-len, up to 512 MB, or publish smaller events",
                self.value_max
            )
        } else if fields > FIELDS_MAX {
            format!(
                "it has {fields} names and values, and {FIELDS_MAX} are possible: use fewer headers"
            )
        } else {
            return None;
        };
        let ground = if is_large { Ground::Size } else { Ground::Other };
        Some(Refusal { ground, may_pass: false, reason })
    }
}

impl Outlet for RedisSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.chained.connect();
        let Some(chain) = self.chained.chain() else { return Err(ProduceError::Full) };
        let Some(id) = EntryId::of(chain.synced.generation, position) else {
            return Err(ProduceError::Broken(format!("{position} is too high for an entry's id")));
        };
        let at = Instant::now();
        if id <= chain.synced.last {
            self.chained.producer.reports.push(Report { seq, outcome: Outcome::Delivered, at });
            return Ok(());
        }
        if id <= chain.tail {
            return Err(ProduceError::Broken(format!("{position} came after a later event")));
        }
        let bytes = (largest(record), record.bytes() as u64);
        if let Some(refusal) = self.refusal(bytes, fields(record)) {
            self.chained.producer.metrics.publish_error(record.topic, REFUSED);
            return Err(ProduceError::Refused(refusal));
        }
        let Chained { producer, chain: Some((_, chain)), .. } = &mut self.chained else {
            return Err(ProduceError::Full);
        };
        let batch = producer
            .batch
            .get_or_insert_with(|| Batch::new(&self.keys, &chain.synced.writer, chain.tail, at));
        batch.push(seq, id, record, record.topic == self.keys.dead_letters);
        chain.tail = id;
        let is_full = batch.is_full();
        producer.in_flight += 1;
        if is_full {
            producer.flush();
        }
        crate::crash_points::point!("produced");
        Ok(())
    }

    /// One order for all: an entry that is added before an earlier one makes that one count as added.
    fn lane(&self, _record: &Record<'_>) -> Option<u64> {
        None
    }
}

impl Linked for RedisSink {
    type Link = RedisLink;

    const PEER: &'static Peer = &REDIS;

    const IS_FENCED_BY_STATE: bool = true;

    fn producer(&self) -> &Producer<RedisLink> {
        &self.chained.producer
    }

    fn producer_mut(&mut self) -> &mut Producer<RedisLink> {
        &mut self.chained.producer
    }

    fn happened(&mut self, event: Event<RedisLink>) {
        match event {
            Event::Synced(synced) => self.synced(synced),
            Event::Done(batch, at) => self.added(&batch, at),
            Event::Failed(failure) => self.failed(&failure),
        }
    }

    fn connect(&mut self) {
        self.chained.connect();
    }

    fn forget_sent(&mut self) {
        self.chained.chain = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;
    use crate::destination::parts::claims::Claims;
    use crate::destination::parts::link::Order;
    use crate::lsn::Lsn;
    use crate::record::Headers;
    use crate::sink::Sink as _;

    /// A sink whose worker is the test.
    fn sink() -> (RedisSink, UnboundedReceiver<Order<RedisLink>>) {
        let (producer, received) = Producer::without_thread(Arc::default());
        let text = |text: &str| text.to_owned();
        let keys = Keys {
            stream: text("s"),
            state: text("walpost:{s}"),
            dead_letters: text("dead"),
            maxlen: String::new(),
        };
        (RedisSink::over(keys, Claims::default(), producer), received)
    }

    fn at(lsn: u64) -> EventPosition {
        EventPosition { commit_lsn: Lsn::new(lsn), ordinal: 0 }
    }

    fn produce(sink: &mut RedisSink, lsn: u64) -> Result<(), ProduceError> {
        let record = Record {
            topic: "t",
            partition: None,
            key: None,
            value: Some(b"v"),
            timestamp_ms: None,
            headers: Headers::new(),
        };
        sink.produce(Seq::new(lsn), at(lsn), &record)
    }

    fn synced(sink: &mut RedisSink, last: EntryId) {
        let synced = Synced { writer: "w".into(), generation: 1, last, value_max: None };
        sink.chained.producer.happened(Event::Synced(synced));
        sink.take_reports(&mut Vec::new());
    }

    fn is_sync(received: &mut UnboundedReceiver<Order<RedisLink>>) -> bool {
        matches!(received.try_recv(), Ok(Order::Connect { .. }))
    }

    #[test]
    fn nothing_is_added_behind_lost_entries_until_they_are_produced_again() {
        let (mut sink, mut received) = sink();
        assert_eq!(produce(&mut sink, 1), Err(ProduceError::Full), "the state key is not open");
        sink.chained.claims.set("c".to_owned());
        assert_eq!(produce(&mut sink, 1), Err(ProduceError::Full));
        assert!(is_sync(&mut received));
        synced(&mut sink, EntryId::default());
        assert_eq!((produce(&mut sink, 1), produce(&mut sink, 2)), (Ok(()), Ok(())));
        let mut reports = Vec::new();
        sink.take_reports(&mut reports);
        assert!(matches!(received.try_recv(), Ok(Order::Send { .. })) && reports.is_empty());
        let failure = Failure::Unreachable("gone".to_owned());
        sink.chained.producer.happened(Event::Failed(failure));
        assert_eq!(sink.take_conditions(), [Condition::Broken("gone".to_owned())]);
        assert_eq!(produce(&mut sink, 3), Err(ProduceError::Full));
        assert!(!is_sync(&mut received), "it would be added behind 1 and 2");
        let replaced = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        replaced.block_on(sink.replace_producer()).expect("replaced");
        assert!(matches!(received.try_recv(), Ok(Order::Close)));
        assert_eq!(produce(&mut sink, 1), Err(ProduceError::Full));
        assert!(is_sync(&mut received));
        // The first was added, and its answer was lost.
        synced(&mut sink, EntryId::of(1, at(1)).expect("an id"));
        assert_eq!((produce(&mut sink, 1), produce(&mut sink, 2)), (Ok(()), Ok(())));
        sink.take_reports(&mut reports);
        let seqs: Vec<_> = reports.iter().map(|report| report.seq).collect();
        assert_eq!(seqs, [Seq::new(1)]);
        let Ok(Order::Send { batch, .. }) = received.try_recv() else { panic!("the second") };
        assert_eq!(batch.tally.seqs, [Seq::new(2)]);
    }

    /// Nothing may be added before a refused event, so there are no lanes.
    #[test]
    fn entry_that_is_refused_for_an_unknown_reason_is_a_suspect() {
        for is_known in [true, false] {
            let (mut sink, _received) = sink();
            sink.chained.claims.set("c".to_owned());
            sink.take_conditions();
            synced(&mut sink, EntryId::default());
            assert_eq!(produce(&mut sink, 1), Ok(()));
            let (seq, reason) = (Some(Seq::new(1)), "because".to_owned());
            let failure = Failure::Record { number: 0, seq, is_known, reason };
            sink.chained.producer.happened(Event::Failed(failure));
            let mut reports = Vec::new();
            sink.take_reports(&mut reports);
            let outcomes: Vec<_> = reports.into_iter().map(|report| report.outcome).collect();
            match outcomes.as_slice() {
                [Outcome::Refused(refusal)] if is_known => assert_eq!(refusal.reason, "because"),
                [Outcome::Suspect(refusal)] if !is_known => assert_eq!(refusal.reason, "because"),
                _ => panic!("{outcomes:?}"),
            }
        }
    }

    #[test]
    fn entries_that_were_acknowledged_and_are_gone_are_reported() {
        let (mut sink, _received) = sink();
        sink.chained.claims.set("c".to_owned());
        sink.take_conditions();
        synced(&mut sink, EntryId::of(1, at(7)).expect("an id"));
        assert_eq!(sink.take_conditions(), []);
        sink.chained.chain = None;
        sink.take_conditions();
        synced(&mut sink, EntryId::of(1, at(6)).expect("an id"));
        let conditions = sink.take_conditions();
        assert!(matches!(conditions.as_slice(), [Condition::Regressed(_)]), "{conditions:?}");
    }
}
