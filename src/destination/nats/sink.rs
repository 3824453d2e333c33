//! The sink itself: it makes batches of messages, and reports what became of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::{Batch, Sent};
use super::config::{NatsConfig, NatsSource};
use super::link::{NatsLink, Synced};
use super::message::{Target, not_allowed, too_large};
use super::state_key::Last;
use crate::destination::parts::Failure;
use crate::destination::parts::claims::Claims;
use crate::destination::parts::link::{Event, Producer};
use crate::destination::parts::linked::{Linked, Publisher};
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
    publisher: Publisher<NatsLink, Option<Last>, Chain>,
    /// The highest sequence number that was acknowledged in this process.
    acknowledged: u64,
    /// Subjects to which the server has not let the user publish, and since when.
    denied: Vec<(String, Instant)>,
    /// The message that only asks whether it would be accepted, while it is in flight.
    asking: Option<Seq>,
}

/// What is there, and what was sent, over the current connection.
pub(crate) struct Chain {
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
        let publisher = Publisher::new(claims, producer);
        Self { target, publisher, acknowledged: 0, denied, asking }
    }

    fn synced(&mut self, mut synced: Synced) {
        if synced.end < self.acknowledged {
            self.publisher.producer.conditions.push(Condition::Regressed(format!(
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
        self.publisher.begin(chain.synced.last, chain);
    }

    fn stored(&mut self, batch: &Sent, at: Instant) {
        if batch.only_asks {
            if let Some(seq) = self.asking.take() {
                self.publisher.producer.in_flight -= 1;
                self.publisher.is_there(seq, at);
            }
            return;
        }
        self.acknowledged = batch.last.seq;
        self.publisher.claims.set_last(Some(batch.last));
        self.publisher.producer.delivered(&batch.tally, at);
    }

    /// The connection is of no use any more.
    fn failed(&mut self, failure: &Failure) {
        let asking = self.asking.take();
        if let Failure::Denied(subject) = failure {
            self.denied.truncate(DENIED_MAX - 1);
            self.denied.insert(0, (subject.clone(), Instant::now()));
            if let Some(seq) = asking {
                let outcome = Outcome::Suspect(not_allowed(subject));
                self.publisher.producer.reports.push(Report::new(seq, outcome));
            }
        }
        self.publisher.failed(failure, &self.target.stream);
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
        self.publisher.connect();
        let Some(chain) = self.publisher.open() else { return Err(ProduceError::Full) };
        let at = Instant::now();
        if chain.synced.last.is_some_and(|last| position <= last.position) {
            self.publisher.is_there(seq, at);
            return Ok(());
        }
        if chain.position.is_some_and(|last| position <= last) {
            return Err(ProduceError::Broken(format!("{position} came after a later event")));
        }
        let id = chain.synced.writer.id(position);
        let last = Some((chain.tail, chain.previous.as_deref()));
        let built = self.target.message((seq, record), Some(&id), last, &chain.synced.limits);
        let producer = &self.publisher.producer;
        let message = built.map_err(|refusal| refusing(producer.refused(record.topic, refusal)))?;
        self.publisher.add(|chain, batch| {
            let batch = batch.get_or_insert_with(|| Batch::new(chain.tail, position, at));
            batch.push(message, position, record);
            chain.tail += 1;
            (chain.position, chain.previous) = (Some(position), Some(id));
            batch.is_full()
        })
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
        self.publisher.connect();
        let Some(chain) = self.publisher.open() else { return Err(ProduceError::Full) };
        // Without an id: a cluster may remember that of a message which it does not store.
        let last = Some((NO_END, None));
        let built = self.target.message((seq, record), None, last, &chain.synced.limits);
        let mut batch = Batch::new(chain.tail, position, Instant::now());
        let message = built.map_err(refusing)?;
        batch.push(message, position, record);
        batch.sent.only_asks = true;
        self.asking = Some(seq);
        let producer = &mut self.publisher.producer;
        producer.flush();
        producer.batch = Some(batch);
        producer.in_flight += 1;
        producer.flush();
        Ok(())
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        let limits = self.publisher.open().map(|chain| &chain.synced.limits);
        match limits.and_then(|limits| too_large(bytes, limits)) {
            None => Ok(()),
            Some(refusal) => Err(self.publisher.producer.refused(topic, refusal)),
        }
    }
}

impl Linked for NatsSink {
    type Link = NatsLink;
    type Last = Option<Last>;
    type Open = Chain;

    const PEER: &'static Peer = &NATS;

    const IS_FENCED_BY_STATE: bool = true;

    fn publisher(&self) -> &Publisher<NatsLink, Option<Last>, Chain> {
        &self.publisher
    }

    fn publisher_mut(&mut self) -> &mut Publisher<NatsLink, Option<Last>, Chain> {
        &mut self.publisher
    }

    fn happened(&mut self, event: Event<NatsLink>) {
        match event {
            Event::Synced(synced) => self.synced(synced),
            Event::Done(batch, at) => self.stored(&batch, at),
            Event::Failed(failure) => self.failed(&failure),
        }
    }

    fn forget_sent(&mut self) {
        self.asking = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::super::message::{Limits, Message};
    use super::*;
    use crate::destination::parts::link::Order;
    use crate::destination::parts::linked::tests::{Tried, at, cases, record};
    use crate::destination::parts::message_id::Writer;
    use crate::sink::Sink as _;

    impl Tried for NatsSink {
        const KEEPS_LAST: bool = true;

        fn made() -> (Self, UnboundedReceiver<Order<NatsLink>>) {
            let (producer, received) = Producer::without_thread(Arc::default());
            let target = Target {
                stream: "s".to_owned(),
                template: "{topic}".parse().expect("a template"),
                dead_letters: "dead".to_owned(),
            };
            (Self::over(target, Claims::default(), producer), received)
        }

        fn synced(last: Option<u64>) -> Synced {
            let end = 40 + last.unwrap_or_default();
            let last = last.map(|lsn| Last { seq: end, position: at(lsn) });
            let (subjects, denied) = (vec![">".to_owned()], Vec::new());
            let limits = Limits { bytes: 999, from: "max_payload", subjects, denied };
            Synced { writer: Writer::new("o", 1), end, last, limits }
        }

        fn seqs(batch: Batch) -> Vec<Seq> {
            batch.sent.tally.seqs
        }
    }

    cases! {
        NatsSink:
        nothing_is_sent_behind_lost_records_until_they_are_produced_again
        record_that_is_refused_for_an_unknown_reason_is_a_suspect
        records_that_were_acknowledged_and_are_gone_are_reported
        claim_that_was_set_since_outlives_a_fenced_connection
        connection_of_a_former_claim_is_left_when_nothing_is_in_flight
    }

    fn expected_last(message: &Message) -> Option<&str> {
        message.headers.get("Nats-Expected-Last-Sequence").map(async_nats::HeaderValue::as_str)
    }

    #[test]
    fn each_message_expects_the_one_before_it() {
        let (mut sink, mut received) = NatsSink::opened();
        let mut sent = |sink: &mut NatsSink| {
            assert_eq!((sink.produce_at(2), sink.produce_at(3)), (Ok(()), Ok(())));
            sink.reported();
            let mut orders = std::iter::from_fn(|| received.try_recv().ok());
            let batch = orders.find_map(|order| match order {
                Order::Send { batch, .. } => Some(batch),
                _ => None,
            });
            let batch = batch.expect("both");
            let expected = [0, 1].map(|at| expected_last(&batch.messages[at]).map(str::to_owned));
            (batch.sent.first, expected.map(Option::unwrap_or_default))
        };
        assert_eq!(sent(&mut sink), (41, ["40".to_owned(), "41".to_owned()]));
        sink.replaced();
        assert_eq!(sink.take_conditions(), []);
        sink.happens(Event::Synced(<NatsSink as Tried>::synced(Some(1))));
        assert_eq!(sent(&mut sink), (42, ["41".to_owned(), "42".to_owned()]));
    }

    #[test]
    fn subject_that_cannot_be_published_to_is_for_the_core_which_can_ask_about_others() {
        let (mut sink, mut received) = NatsSink::opened();
        sink.publisher.open.as_mut().expect("open").1.synced.limits.subjects = vec!["t".to_owned()];
        for topic in ["other", "dead"] {
            let refused = sink.produce(Seq::new(1), at(1), &record(topic));
            assert!(matches!(&refused, Err(ProduceError::Suspect(_))), "{refused:?}");
        }
        let asked = |sink: &mut NatsSink, topic| {
            let seq = Seq::new(2);
            (sink.probe(seq, at(2), &record(topic)), seq)
        };
        assert!(matches!(asked(&mut sink, "other").0, Err(ProduceError::Suspect(_))));
        let (Ok(()), seq) = asked(&mut sink, "t") else { panic!("it can be sent") };
        let Ok(Order::Send { batch, .. }) = received.try_recv() else { panic!("it is sent") };
        assert_eq!(expected_last(&batch.messages[0]), Some("9223372036854775807"));
        let now = Instant::now();
        sink.happens(Event::Done(batch.sent, now));
        assert_eq!(sink.reported(), [Report { seq, outcome: Outcome::Delivered, at: now }]);
        // Nothing is stored by that.
        assert_eq!((sink.produce_at(1), sink.produce_at(2)), (Ok(()), Ok(())));
        let (_, seq) = asked(&mut sink, "t");
        sink.happens(Event::Failed(Failure::Denied("t".to_owned())));
        let last = sink.reported().pop().map(|report| (report.seq, report.outcome));
        assert_eq!(last, Some((seq, Outcome::Suspect(not_allowed("t")))));
    }
}
