//! The sink itself: it makes batches of messages, and reports what became of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::{Batch, Sent};
use super::config::{NatsConfig, NatsSource};
use super::link::{NatsLink, Synced};
use super::message::{Target, not_allowed, too_large};
use super::state_key::Last;
use crate::destination::parts::Failure;
use crate::destination::parts::chained::Chained;
use crate::destination::parts::claims::Claims;
use crate::destination::parts::link::{Event, Linked, Producer};
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Ground, Outlet, ProduceError, Refusal, hash};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{Condition, Outcome, Peer, Report, SinkError};

/// NATS.
pub(super) const NATS: Peer = Peer {
    name: "NATS",
    label: "nats",
    unreachable: "see whether the NATS servers run and can be reached from here",
    credentials: "the login in nats.url, and nats.credentials_file",
    has_lanes: false,
};

/// The code of the publish-error metric for records that are refused before they are sent.
const REFUSED: &str = "refused";

/// How long a subject that could not be published to is not tried again: each attempt costs the
/// connection, and a replay.
const RETRY_SUBJECT: Duration = Duration::from_secs(10);

/// How many such subjects are remembered.
const DENIED_MAX: usize = 64;

/// A last sequence number that no stream has: a message that expects it is checked, and not stored.
const NO_END: u64 = i64::MAX as u64;

/// A stream of JetStream.
pub(crate) struct NatsSink {
    target: Target,
    chained: Chained<NatsLink, Option<Last>, Chain>,
    /// The highest sequence number that was acknowledged in this process.
    acknowledged: u64,
    /// Subjects to which the server has not let the user publish, and since when.
    denied: Vec<(String, Instant)>,
    /// The message that only asks whether it would be accepted, while it is in flight.
    asking: Option<Seq>,
}

/// What is there, and what was sent, over the current connection.
struct Chain {
    synced: Synced,
    /// The sequence number of the last message that was sent.
    tail: u64,
    /// The position of its event.
    position: Option<EventPosition>,
    /// The id of the previous message, if it was sent over this connection: a restarted server may
    /// not know older ids.
    previous: Option<String>,
}

impl NatsSink {
    /// A sink that connects once the state key is open. A server that cannot be reached is no error
    /// here.
    pub(crate) fn new(
        config: &NatsConfig,
        source: NatsSource,
        claims: Claims<Option<Last>>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SinkError> {
        let target = Target {
            stream: config.stream.clone(),
            template: config.subject.clone(),
            dead_letters: config.dead_letters.clone(),
        };
        Ok(Self::over(target, claims, Producer::new(source, metrics)?))
    }

    fn over(target: Target, claims: Claims<Option<Last>>, producer: Producer<NatsLink>) -> Self {
        let (denied, asking) = (Vec::new(), None);
        Self { target, chained: Chained::new(claims, producer), acknowledged: 0, denied, asking }
    }

    fn synced(&mut self, mut synced: Synced) {
        if synced.end < self.acknowledged {
            self.chained.producer.conditions.push(Condition::Regressed(format!(
                "stream {} ends at message {}, and NATS has acknowledged {}",
                self.target.stream, synced.end, self.acknowledged
            )));
            return;
        }
        self.acknowledged = synced.end;
        let position = synced.last.map(|last| last.position);
        self.denied.retain(|(_, since)| since.elapsed() < RETRY_SUBJECT);
        synced.limits.denied = self.denied.iter().map(|(subject, _)| subject.clone()).collect();
        let chain = Chain { tail: synced.end, position, previous: None, synced };
        self.chained.begin(chain.synced.last, chain);
    }

    fn stored(&mut self, batch: &Sent, at: Instant) {
        if batch.only_asks {
            if let Some(seq) = self.asking.take() {
                let producer = &mut self.chained.producer;
                producer.in_flight -= 1;
                producer.reports.push(Report { seq, outcome: Outcome::Delivered, at });
            }
            return;
        }
        self.acknowledged = batch.last.seq;
        self.chained.claims.set_last(Some(batch.last));
        self.chained.producer.delivered(&batch.tally, at);
    }

    /// The connection is of no use any more.
    fn failed(&mut self, failure: &Failure) {
        let asking = self.asking.take();
        if let Failure::Denied(subject) = failure {
            self.denied.truncate(DENIED_MAX - 1);
            self.denied.insert(0, (subject.clone(), Instant::now()));
            if let Some(seq) = asking {
                let outcome = Outcome::Suspect(not_allowed(subject));
                self.chained.producer.reports.push(Report::new(seq, outcome));
            }
        }
        self.chained.failed(failure, &self.target.stream);
    }

    fn refused(&self, topic: &str, refusal: Refusal) -> Refusal {
        self.chained.producer.metrics.publish_error(topic, REFUSED);
        refusal
    }
}

/// The error for a message that is refused before it is sent. Every subject may be a wrong one.
fn refusing(refusal: Refusal) -> ProduceError {
    match refusal.ground {
        Ground::MissingTopic => ProduceError::Suspect(refusal),
        Ground::Size | Ground::Other => ProduceError::Refused(refusal),
    }
}

impl Outlet for NatsSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.chained.connect();
        let Some(chain) = self.chained.chain() else { return Err(ProduceError::Full) };
        let at = Instant::now();
        if chain.synced.last.is_some_and(|last| position <= last.position) {
            self.chained.producer.reports.push(Report { seq, outcome: Outcome::Delivered, at });
            return Ok(());
        }
        if chain.position.is_some_and(|last| position <= last) {
            return Err(ProduceError::Broken(format!("{position} came after a later event")));
        }
        let id = chain.synced.writer.id(position);
        let last = (chain.tail, chain.previous.as_deref());
        let built = self.target.message((seq, record), Some(&id), last, &chain.synced.limits);
        let message = built.map_err(|refusal| refusing(self.refused(record.topic, refusal)))?;
        let Chained { producer, chain: Some((_, chain)), .. } = &mut self.chained else {
            return Err(ProduceError::Full);
        };
        let batch = producer.batch.get_or_insert_with(|| Batch::new(chain.tail, position, at));
        batch.push(message, position, record);
        chain.tail += 1;
        (chain.position, chain.previous) = (Some(position), Some(id));
        let is_full = batch.is_full();
        producer.in_flight += 1;
        if is_full {
            producer.flush();
        }
        crate::crash_points::point!("produced");
        Ok(())
    }

    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        Some(hash(&self.target.subject(record)))
    }

    /// One order for all: a message that is stored before an earlier one makes that one count as stored.
    fn asks(&self) -> bool {
        true
    }

    fn probe(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.chained.connect();
        let Some(chain) = self.chained.chain() else { return Err(ProduceError::Full) };
        // Without an id: a cluster may remember that of a message which it does not store.
        let built = self.target.message((seq, record), None, (NO_END, None), &chain.synced.limits);
        let mut batch = Batch::new(chain.tail, position, Instant::now());
        let message = built.map_err(refusing)?;
        batch.push(message, position, record);
        batch.sent.only_asks = true;
        self.asking = Some(seq);
        let producer = &mut self.chained.producer;
        producer.flush();
        producer.batch = Some(batch);
        producer.in_flight += 1;
        producer.flush();
        Ok(())
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        let limits = self.chained.chain().map(|chain| &chain.synced.limits);
        match limits.and_then(|limits| too_large(bytes, limits)) {
            None => Ok(()),
            Some(refusal) => Err(self.refused(topic, refusal)),
        }
    }
}

impl Linked for NatsSink {
    type Link = NatsLink;

    const PEER: &'static Peer = &NATS;

    const IS_FENCED_BY_STATE: bool = true;

    fn producer(&self) -> &Producer<NatsLink> {
        &self.chained.producer
    }

    fn producer_mut(&mut self) -> &mut Producer<NatsLink> {
        &mut self.chained.producer
    }

    fn happened(&mut self, event: Event<NatsLink>) {
        match event {
            Event::Synced(synced) => self.synced(synced),
            Event::Done(batch, at) => self.stored(&batch, at),
            Event::Failed(failure) => self.failed(&failure),
        }
    }

    fn connect(&mut self) {
        // What is in flight may end over the connection of a former claim.
        if self.chained.chain.is_none() {
            self.chained.connect();
        }
    }

    fn forget_sent(&mut self) {
        (self.chained.chain, self.asking) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::super::message::Limits;
    use super::*;
    use crate::destination::parts::link::Order;
    use crate::destination::parts::message_id::Writer;
    use crate::lsn::Lsn;
    use crate::record::Headers;
    use crate::sink::Sink as _;

    /// A sink whose worker is the test.
    fn sink() -> (NatsSink, UnboundedReceiver<Order<NatsLink>>) {
        let (producer, received) = Producer::without_thread(Arc::default());
        let target = Target {
            stream: "s".to_owned(),
            template: "{topic}".parse().expect("a template"),
            dead_letters: "dead".to_owned(),
        };
        (NatsSink::over(target, Claims::default(), producer), received)
    }

    fn at(lsn: u64) -> EventPosition {
        EventPosition { commit_lsn: Lsn::new(lsn), ordinal: 0 }
    }

    fn produce(sink: &mut NatsSink, lsn: u64) -> Result<(), ProduceError> {
        produce_to(sink, lsn, "t")
    }

    fn produce_to(sink: &mut NatsSink, lsn: u64, topic: &str) -> Result<(), ProduceError> {
        sink.produce(Seq::new(lsn), at(lsn), &record(topic))
    }

    fn record(topic: &str) -> Record<'_> {
        let (partition, key, timestamp_ms) = (None, None, None);
        Record { topic, partition, key, value: Some(b"v"), timestamp_ms, headers: Headers::new() }
    }

    fn synced(sink: &mut NatsSink, end: u64, last: Option<u64>) {
        let last = last.map(|lsn| Last { seq: end, position: at(lsn) });
        let (subjects, denied) = (vec![">".to_owned()], Vec::new());
        let limits = Limits { bytes: 999, from: "max_payload", subjects, denied };
        let writer = Writer::new("o", 1);
        let synced = Synced { writer, end, last, limits };
        sink.chained.producer.happened(Event::Synced(synced));
        sink.take_reports(&mut Vec::new());
    }

    fn is_sync(received: &mut UnboundedReceiver<Order<NatsLink>>) -> bool {
        matches!(received.try_recv(), Ok(Order::Connect { .. }))
    }

    #[test]
    fn nothing_is_published_behind_lost_messages_until_they_are_produced_again() {
        let (mut sink, mut received) = sink();
        assert_eq!(produce(&mut sink, 1), Err(ProduceError::Full), "the state key is not open");
        sink.chained.claims.set("c".to_owned());
        assert_eq!(produce(&mut sink, 1), Err(ProduceError::Full));
        assert!(is_sync(&mut received));
        synced(&mut sink, 40, None);
        assert_eq!((produce(&mut sink, 1), produce(&mut sink, 2)), (Ok(()), Ok(())));
        let mut reports = Vec::new();
        sink.take_reports(&mut reports);
        assert!(matches!(received.try_recv(), Ok(Order::Send { .. })) && reports.is_empty());
        let failure = Failure::Unreachable("gone".to_owned());
        sink.chained.producer.happened(Event::Failed(failure));
        assert_eq!(sink.take_conditions(), [Condition::Broken("gone".to_owned())]);
        assert_eq!(produce(&mut sink, 3), Err(ProduceError::Full));
        assert!(!is_sync(&mut received), "it would be published behind 1 and 2");
        let replaced = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        replaced.block_on(sink.replace_producer()).expect("replaced");
        assert!(matches!(received.try_recv(), Ok(Order::Close)));
        assert_eq!(produce(&mut sink, 1), Err(ProduceError::Full));
        assert!(is_sync(&mut received));
        // The first was stored, and its acknowledgement was lost.
        synced(&mut sink, 41, Some(1));
        assert_eq!((produce(&mut sink, 1), produce(&mut sink, 2)), (Ok(()), Ok(())));
        sink.take_reports(&mut reports);
        let seqs: Vec<_> = reports.iter().map(|report| report.seq).collect();
        assert_eq!(seqs, [Seq::new(1)]);
        let Ok(Order::Send { batch, .. }) = received.try_recv() else { panic!("the second") };
        assert_eq!((batch.sent.tally.seqs, batch.sent.first), (vec![Seq::new(2)], 42));
        let expected = batch.messages[0].headers.get("Nats-Expected-Last-Sequence");
        assert_eq!(expected.map(async_nats::HeaderValue::as_str), Some("41"));
    }

    fn opened() -> NatsSink {
        let (mut sink, _) = sink();
        sink.chained.claims.set("c".to_owned());
        sink.take_conditions();
        synced(&mut sink, 40, None);
        sink
    }

    #[test]
    fn claim_that_was_set_since_outlives_a_fenced_connection() {
        for is_newer in [true, false] {
            let mut sink = opened();
            if is_newer {
                sink.chained.claims.set("newer".to_owned());
            }
            sink.chained.producer.happened(Event::Failed(Failure::Fenced));
            sink.take_events();
            assert_eq!(sink.chained.claims.current().is_some(), is_newer);
        }
    }

    #[test]
    fn message_that_is_refused_for_an_unknown_reason_is_a_suspect() {
        for is_known in [true, false] {
            let mut sink = opened();
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
    fn subject_that_cannot_be_published_to_is_for_the_core_which_can_ask_about_others() {
        let (mut sink, mut received) = sink();
        sink.chained.claims.set("c".to_owned());
        sink.take_conditions();
        synced(&mut sink, 40, None);
        sink.chained.chain.as_mut().expect("open").1.synced.limits.subjects = vec!["t".to_owned()];
        for topic in ["other", "dead"] {
            let refused = produce_to(&mut sink, 1, topic);
            assert!(matches!(&refused, Err(ProduceError::Suspect(_))), "{refused:?}");
        }
        assert!(is_sync(&mut received));
        let asked = |sink: &mut NatsSink, topic| {
            let seq = Seq::new(2);
            (sink.probe(seq, at(2), &record(topic)), seq)
        };
        assert!(matches!(asked(&mut sink, "other").0, Err(ProduceError::Suspect(_))));
        let (Ok(()), seq) = asked(&mut sink, "t") else { panic!("it can be sent") };
        let Ok(Order::Send { batch, .. }) = received.try_recv() else { panic!("it is sent") };
        let expected = batch.messages[0].headers.get("Nats-Expected-Last-Sequence");
        assert_eq!(expected.map(async_nats::HeaderValue::as_str), Some("9223372036854775807"));
        let now = Instant::now();
        sink.chained.producer.happened(Event::Done(batch.sent, now));
        let mut reports = Vec::new();
        sink.take_reports(&mut reports);
        assert_eq!(reports, [Report { seq, outcome: Outcome::Delivered, at: now }]);
        // Nothing is stored by that.
        assert_eq!((produce(&mut sink, 1), produce(&mut sink, 2)), (Ok(()), Ok(())));
        let (_, seq) = asked(&mut sink, "t");
        sink.chained.producer.happened(Event::Failed(Failure::Denied("t".to_owned())));
        sink.take_reports(&mut reports);
        let last = reports.pop().map(|report| (report.seq, report.outcome));
        assert_eq!(last, Some((seq, Outcome::Suspect(not_allowed("t")))));
    }

    #[test]
    fn messages_that_were_acknowledged_and_are_gone_are_reported() {
        let (mut sink, _received) = sink();
        sink.chained.claims.set("c".to_owned());
        sink.take_conditions();
        synced(&mut sink, 7, Some(7));
        assert_eq!(sink.take_conditions(), []);
        sink.chained.chain = None;
        sink.take_conditions();
        synced(&mut sink, 6, Some(6));
        let conditions = sink.take_conditions();
        assert!(matches!(conditions.as_slice(), [Condition::Regressed(_)]), "{conditions:?}");
    }
}
