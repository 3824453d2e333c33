//! The sink itself: it makes batches of messages, and reports what became of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::{Batch, Sent};
use super::claims::Claims;
use super::config::{NatsConfig, NatsSource};
use super::failure::Failure;
use super::link::{NatsLink, Synced};
use super::message::{Target, too_large};
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Ground, Outlet, ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::link::{Event, Producer};
use crate::sink::{Condition, Outcome, Peer, Report, Sink, SinkError};

/// NATS.
const NATS: Peer = Peer {
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

/// A stream of JetStream.
pub struct NatsSink {
    target: Target,
    claims: Claims,
    producer: Producer<NatsLink>,
    chain: Option<Chain>,
    /// The highest sequence number that was acknowledged in this process.
    acknowledged: u64,
    /// Subjects to which the server has not let the user publish, and since when.
    denied: Vec<(String, Instant)>,
}

/// What is there, and what was sent, over the current connection.
struct Chain {
    synced: Synced,
    version: u64,
    /// The sequence number of the last message that was sent.
    tail: u64,
    /// The position of its event.
    position: Option<EventPosition>,
    /// Its id, if it was sent over this connection: a server that was restarted may not know the ids
    /// of older ones.
    previous: Option<String>,
}

impl NatsSink {
    /// A sink that connects once the state key is open. A server that cannot be reached is no error
    /// here.
    pub(crate) fn new(
        config: &NatsConfig,
        source: NatsSource,
        claims: Claims,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SinkError> {
        let target = Target {
            stream: config.stream.clone(),
            template: config.subject.clone(),
            dead_letters: config.dead_letters.clone(),
            waits: config.waits,
        };
        Ok(Self::over(target, claims, Producer::new(source, metrics)?))
    }

    fn over(target: Target, claims: Claims, producer: Producer<NatsLink>) -> Self {
        Self { target, claims, producer, chain: None, acknowledged: 0, denied: Vec::new() }
    }

    /// Asks for a connection under the current claim, once.
    fn ask_for_connection(&mut self) {
        let version = self.claims.version();
        if self.producer.may_ask(version)
            && let Some(claim) = self.claims.current()
        {
            self.producer.ask(version, claim);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.producer.next_event() {
            match event {
                Event::Synced(synced) => self.synced(synced),
                Event::Done(batch, at) => self.stored(&batch, at),
                Event::Failed(failure) => self.failed(&failure),
            }
        }
    }

    fn synced(&mut self, mut synced: Synced) {
        if synced.end < self.acknowledged {
            self.producer.conditions.push(Condition::Regressed(format!(
                "stream {} ends at message {}, and NATS has acknowledged {}",
                self.target.stream, synced.end, self.acknowledged
            )));
            return;
        }
        let Some(version) = self.producer.asked() else { return };
        self.acknowledged = synced.end;
        self.claims.set_last(synced.last);
        let position = synced.last.map(|last| last.position);
        self.denied.retain(|(_, since)| since.elapsed() < RETRY_SUBJECT);
        synced.limits.denied = self.denied.iter().map(|(subject, _)| subject.clone()).collect();
        self.chain = Some(Chain { tail: synced.end, position, previous: None, version, synced });
    }

    fn stored(&mut self, batch: &Sent, at: Instant) {
        self.acknowledged = batch.last.seq;
        self.claims.set_last(Some(batch.last));
        self.producer.delivered(&batch.tally, at);
    }

    /// The connection is of no use any more.
    fn failed(&mut self, failure: &Failure) {
        let is_idle = self.producer.in_flight == 0;
        self.chain = None;
        self.producer.asked();
        match failure {
            Failure::Denied(subject) => {
                self.denied.truncate(DENIED_MAX - 1);
                self.denied.insert(0, (subject.clone(), Instant::now()));
            }
            Failure::Message { seq, is_known, reason } => {
                let refusal = |ground| Refusal { ground, may_pass: false, reason: reason.clone() };
                let outcome = if *is_known {
                    Outcome::Refused(refusal(Ground::Size))
                } else {
                    Outcome::Suspect(refusal(Ground::Other))
                };
                self.producer.reports.push(Report::new(*seq, outcome));
            }
            _ => {}
        }
        if *failure == Failure::Fenced {
            self.claims.set(None);
        } else if is_idle {
            return self.ask_for_connection();
        }
        self.producer.metrics.publish_error(&self.target.stream, failure.code());
        self.break_off(failure.to_string());
    }

    /// What is in flight is to be produced again.
    fn break_off(&mut self, reason: String) {
        self.chain = None;
        self.producer.break_off(reason);
    }

    fn refused(&self, topic: &str, refusal: Refusal) -> Refusal {
        self.producer.metrics.publish_error(topic, REFUSED);
        refusal
    }
}

impl Outlet for NatsSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        let is_current = |chain: &&Chain| chain.version == self.claims.version();
        let Some(chain) = self.chain.as_ref().filter(is_current) else {
            if self.chain.take().is_some() && self.producer.in_flight > 0 {
                self.break_off("the state key was opened again".to_owned());
            }
            self.ask_for_connection();
            return Err(ProduceError::Full);
        };
        let at = Instant::now();
        if chain.synced.last.is_some_and(|last| position <= last.position) {
            self.producer.reports.push(Report { seq, outcome: Outcome::Delivered, at });
            return Ok(());
        }
        if chain.position.is_some_and(|last| position <= last) {
            return Err(ProduceError::Broken(format!("{position} came after a later event")));
        }
        let id = chain.synced.writer.id(position);
        let last = (chain.tail, chain.previous.as_deref());
        let built = self.target.message((seq, record), &id, last, &chain.synced.limits);
        let message = match built {
            Ok(message) => message,
            Err(refusal) => {
                let refusal = self.refused(record.topic, refusal);
                // Its policy is to wait: the core names the event, and tries again.
                let is_suspect = refusal.ground == Ground::MissingTopic
                    && (self.target.waits || record.topic == self.target.dead_letters);
                let refused =
                    if is_suspect { ProduceError::Suspect } else { ProduceError::Refused };
                return Err(refused(refusal));
            }
        };
        let Some(chain) = &mut self.chain else { return Err(ProduceError::Full) };
        let batch = self.producer.batch.get_or_insert_with(|| Batch::new(chain.tail, position, at));
        batch.push(message, position, record);
        chain.tail += 1;
        (chain.position, chain.previous) = (Some(position), Some(id));
        let is_full = batch.is_full();
        self.producer.in_flight += 1;
        if is_full {
            self.producer.flush();
        }
        crate::crash_points::point!("produced");
        Ok(())
    }

    /// One order for all: a message that is stored before an earlier one makes that one count as stored.
    fn lane(&self, _record: &Record<'_>) -> Option<u64> {
        None
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        let limits = self.chain.as_ref().map(|chain| &chain.synced.limits);
        match limits.and_then(|limits| too_large(bytes, limits)) {
            None => Ok(()),
            Some(refusal) => Err(self.refused(topic, refusal)),
        }
    }
}

impl Sink for NatsSink {
    fn peer(&self) -> &'static Peer {
        &NATS
    }

    fn is_fenced_by_state(&self) -> bool {
        true
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        self.producer.flush();
        self.take_events();
        into.append(&mut self.producer.reports);
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        self.take_events();
        // Connected before the first record, so that it is known whether NATS can be used.
        if self.chain.is_none() {
            self.ask_for_connection();
        }
        std::mem::take(&mut self.producer.conditions)
    }

    fn is_connected(&self) -> Option<bool> {
        self.producer.is_connected()
    }

    async fn wait_for_events(&self, eager: bool) {
        self.producer.wait_for_events(eager).await;
    }

    async fn replace_producer(&mut self) -> Result<(), SinkError> {
        self.chain = None;
        self.producer.replace();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::super::message::Limits;
    use super::super::state_key::Last;
    use super::*;
    use crate::lsn::Lsn;
    use crate::record::Headers;
    use crate::sink::link::Order;
    use crate::sink::message_id::Writer;

    /// A sink whose worker is the test.
    fn sink() -> (NatsSink, UnboundedReceiver<Order<NatsLink>>) {
        let (producer, received) = Producer::without_thread(Arc::default());
        let target = Target {
            stream: "s".to_owned(),
            template: "{topic}".parse().expect("a template"),
            dead_letters: "dead".to_owned(),
            waits: false,
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
        let record = Record {
            topic,
            partition: None,
            key: None,
            value: Some(b"v"),
            timestamp_ms: None,
            headers: Headers::new(),
        };
        sink.produce(Seq::new(lsn), at(lsn), &record)
    }

    fn synced(sink: &mut NatsSink, end: u64, last: Option<u64>) {
        let last = last.map(|lsn| Last { seq: end, position: at(lsn) });
        let (subjects, denied) = (vec![">".to_owned()], Vec::new());
        let limits = Limits { bytes: 999, from: "max_payload", subjects, denied };
        let writer = Writer::new("o", 1);
        let synced = Synced { writer, end, last, limits };
        sink.producer.happened(Event::Synced(synced));
        sink.take_reports(&mut Vec::new());
    }

    fn is_sync(received: &mut UnboundedReceiver<Order<NatsLink>>) -> bool {
        matches!(received.try_recv(), Ok(Order::Connect { .. }))
    }

    #[test]
    fn nothing_is_published_behind_lost_messages_until_they_are_produced_again() {
        let (mut sink, mut received) = sink();
        assert_eq!(produce(&mut sink, 1), Err(ProduceError::Full), "the state key is not open");
        sink.claims.set(Some("c".to_owned()));
        assert_eq!(produce(&mut sink, 1), Err(ProduceError::Full));
        assert!(is_sync(&mut received));
        synced(&mut sink, 40, None);
        assert_eq!((produce(&mut sink, 1), produce(&mut sink, 2)), (Ok(()), Ok(())));
        let mut reports = Vec::new();
        sink.take_reports(&mut reports);
        assert!(matches!(received.try_recv(), Ok(Order::Send { .. })) && reports.is_empty());
        let failure = Failure::Unreachable("gone".to_owned());
        sink.producer.happened(Event::Failed(failure));
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
        sink.claims.set(Some("c".to_owned()));
        sink.take_conditions();
        synced(&mut sink, 40, None);
        sink
    }

    /// Nothing may be published before a refused event, so there are no lanes.
    #[test]
    fn message_that_is_refused_for_an_unknown_reason_is_a_suspect() {
        for is_known in [true, false] {
            let mut sink = opened();
            assert_eq!(produce(&mut sink, 1), Ok(()));
            let (seq, reason) = (Seq::new(1), "because".to_owned());
            sink.producer.happened(Event::Failed(Failure::Message { seq, is_known, reason }));
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
    fn subject_that_cannot_be_published_to_is_for_the_core_if_its_policy_is_to_wait() {
        for waits in [true, false] {
            let mut sink = opened();
            sink.target.waits = waits;
            sink.chain.as_mut().expect("open").synced.limits.subjects = vec!["t".to_owned()];
            let refused = produce_to(&mut sink, 1, "other");
            let is_suspect = matches!(&refused, Err(ProduceError::Suspect(_)));
            assert_eq!(is_suspect, waits, "{refused:?}");
            // A halt would not help a dead letter.
            let letter = produce_to(&mut sink, 1, "dead");
            assert!(matches!(&letter, Err(ProduceError::Suspect(_))), "{letter:?}");
            assert_eq!(produce(&mut sink, 1), Ok(()), "nothing was sent before it");
        }
    }

    #[test]
    fn messages_that_were_acknowledged_and_are_gone_are_reported() {
        let (mut sink, _received) = sink();
        sink.claims.set(Some("c".to_owned()));
        sink.take_conditions();
        synced(&mut sink, 7, Some(7));
        assert_eq!(sink.take_conditions(), []);
        sink.chain = None;
        sink.take_conditions();
        synced(&mut sink, 6, Some(6));
        let conditions = sink.take_conditions();
        assert!(matches!(conditions.as_slice(), [Condition::Regressed(_)]), "{conditions:?}");
    }
}
