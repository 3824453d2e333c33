//! What the sinks have in common that send batches over one connection, which is that of a claim.

use std::future::ready;
use std::time::Instant;

use super::Failure;
use super::claims::Claims;
use super::link::{Event, Link, Producer};
use crate::ledger::Seq;
use crate::outlet::{Outlet, ProduceError};
use crate::sink::{BoxFuture, Condition, Outcome, Peer, Report, Sink, SinkError};

/// The producer with the claims under which it connects: `T` is the last event that is there, `O` what is known
/// of an open connection and was sent over it.
pub(crate) struct Publisher<L: Link, T, O> {
    pub(crate) claims: Claims<T>,
    pub(crate) producer: Producer<L>,
    /// With the version of the claim.
    pub(crate) open: Option<(u64, O)>,
}

impl<L: Link, T: Copy, O> Publisher<L, T, O> {
    pub(crate) fn new(claims: Claims<T>, producer: Producer<L>) -> Self {
        Self { claims, producer, open: None }
    }

    /// What is known of the connection, if records can be sent.
    pub(crate) fn open(&self) -> Option<&O> {
        self.open.as_ref().map(|(_, open)| open)
    }

    /// Asks for a connection if there is none. That of a former claim is left, and what is in flight over it is
    /// to be produced again.
    pub(crate) fn connect(&mut self) {
        let version = self.claims.version();
        let former = self.open.take_if(|(of, _)| *of != version);
        if former.is_some() && self.producer.in_flight > 0 {
            self.break_off("the state key was opened again".to_owned());
        }
        if self.open.is_none() {
            self.ask();
        }
    }

    /// Asks for a connection under the current claim, once.
    fn ask(&mut self) {
        let version = self.claims.version();
        if self.producer.may_ask(version)
            && let Some(claim) = self.claims.current()
        {
            self.producer.ask(version, claim);
        }
    }

    /// A connection that was asked for has come, and `last` is there.
    pub(crate) fn begin(&mut self, last: T, open: O) {
        if let Some(version) = self.producer.asked() {
            self.claims.set_last(last);
            self.open = Some((version, open));
        }
    }

    /// Adds a record to the batch by `push`, which returns whether that is full then.
    pub(crate) fn add(
        &mut self,
        push: impl FnOnce(&mut O, &mut Option<L::Batch>) -> bool,
    ) -> Result<(), ProduceError> {
        let Some((_, open)) = &mut self.open else { return Err(ProduceError::Full) };
        let is_full = push(open, &mut self.producer.batch);
        self.producer.in_flight += 1;
        if is_full {
            self.producer.flush();
        }
        crate::crash_points::point!("produced");
        Ok(())
    }

    /// The record is there already.
    pub(crate) fn is_there(&mut self, seq: Seq, at: Instant) {
        self.producer.reports.push(Report { seq, outcome: Outcome::Delivered, at });
    }

    /// The connection is of no use any more; `stream` is where the failure is counted.
    pub(crate) fn failed(&mut self, failure: &Failure, stream: &str) {
        let is_idle = self.producer.in_flight == 0;
        let version = self.open.take().map(|(version, _)| version);
        let version = self.producer.asked().or(version);
        self.producer.reports.extend(failure.report());
        match failure {
            Failure::Fenced | Failure::Superseded => {
                if let Some(version) = version {
                    self.claims.clear(version);
                }
                // The store opens the state key again, or has done so.
                if is_idle && *failure == Failure::Superseded {
                    return;
                }
            }
            // A new session says what an operator has to do.
            Failure::Stream(_) => {}
            _ if is_idle => return self.ask(),
            _ => {}
        }
        self.producer.metrics.publish_error(stream, failure.code());
        self.break_off(failure.to_string());
    }

    /// What is in flight is to be produced again.
    fn break_off(&mut self, reason: String) {
        self.open = None;
        self.producer.break_off(reason);
    }
}

/// What differs between these sinks; [`Sink`] is implemented below for all of them.
pub(crate) trait Linked: Outlet + Send + Sync {
    type Link: Link;
    type Last: Copy;
    type Open;

    /// What the destination is called.
    const PEER: &'static Peer;

    /// The value of [`Sink::is_fenced_by_state`].
    const IS_FENCED_BY_STATE: bool;

    fn publisher(&self) -> &Publisher<Self::Link, Self::Last, Self::Open>;

    fn publisher_mut(&mut self) -> &mut Publisher<Self::Link, Self::Last, Self::Open>;

    /// Something has happened to the connection, or to what was sent.
    fn happened(&mut self, event: Event<Self::Link>);

    /// Takes all that has happened.
    fn take_events(&mut self) {
        while let Some(event) = self.publisher_mut().producer.next_event() {
            self.happened(event);
        }
    }

    /// The producer is replaced: forgets what it has sent.
    fn forget_sent(&mut self) {}
}

impl<T: Linked> Sink for T {
    fn peer(&self) -> &'static Peer {
        T::PEER
    }

    fn is_fenced_by_state(&self) -> bool {
        T::IS_FENCED_BY_STATE
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        self.publisher_mut().producer.flush();
        self.take_events();
        into.append(&mut self.publisher_mut().producer.reports);
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        self.take_events();
        let publisher = self.publisher_mut();
        // Connected before the first record, so that it is known whether the destination can be used. What is
        // in flight may end over the connection of a former claim.
        if publisher.open.is_none() || publisher.producer.in_flight == 0 {
            publisher.connect();
        }
        std::mem::take(&mut publisher.producer.conditions)
    }

    fn is_connected(&self) -> Option<bool> {
        self.publisher().producer.is_connected()
    }

    fn wait_for_events(&self, eager: bool) -> BoxFuture<'_, ()> {
        Box::pin(self.publisher().producer.wait_for_events(eager))
    }

    fn replace_producer(&mut self) -> BoxFuture<'_, Result<(), SinkError>> {
        self.forget_sent();
        let publisher = self.publisher_mut();
        publisher.open = None;
        publisher.producer.replace();
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;
    use crate::destination::parts::link::Order;
    use crate::lsn::Lsn;
    use crate::position::EventPosition;
    use crate::record::{Headers, Record};

    pub(crate) fn record(topic: &str) -> Record<'_> {
        let (partition, key, timestamp_ms) = (None, None, None);
        Record { topic, partition, key, value: Some(b"v"), timestamp_ms, headers: Headers::new() }
    }

    pub(crate) fn at(lsn: u64) -> EventPosition {
        EventPosition { commit_lsn: Lsn::new(lsn), ordinal: 0 }
    }

    /// A sink whose worker is the test.
    pub(crate) trait Tried: Linked + Sink + Sized {
        /// Whether the sink reads, when it connects, which event is the last.
        const KEEPS_LAST: bool;

        fn made() -> (Self, UnboundedReceiver<Order<Self::Link>>);

        /// What is there when the connection begins: the event that commits at `last` is the last one.
        fn synced(last: Option<u64>) -> <Self::Link as Link>::Synced;

        fn seqs(batch: <Self::Link as Link>::Batch) -> Vec<Seq>;

        fn produce_at(&mut self, lsn: u64) -> Result<(), ProduceError> {
            self.produce(Seq::new(lsn), at(lsn), &record("t"))
        }

        fn happens(&mut self, event: Event<Self::Link>) {
            self.publisher().producer.happened(event);
            self.take_events();
        }

        /// One that is connected.
        fn opened() -> (Self, UnboundedReceiver<Order<Self::Link>>) {
            let (mut sink, mut received) = Self::made();
            if Self::KEEPS_LAST {
                assert_eq!(
                    sink.produce_at(1),
                    Err(ProduceError::Full),
                    "the state key is not open"
                );
                assert!(received.try_recv().is_err());
            }
            sink.publisher().claims.set("c".to_owned());
            assert_eq!(sink.produce_at(1), Err(ProduceError::Full), "it is not connected");
            assert!(matches!(received.try_recv(), Ok(Order::Connect { .. })));
            sink.happens(Event::Synced(Self::synced(None)));
            (sink, received)
        }

        fn replaced(&mut self) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(self.replace_producer()).expect("replaced");
        }

        fn reported(&mut self) -> Vec<Report> {
            let mut reports = Vec::new();
            self.take_reports(&mut reports);
            reports
        }
    }

    pub(crate) fn nothing_is_sent_behind_lost_records_until_they_are_produced_again<S: Tried>() {
        let (mut sink, mut received) = S::opened();
        assert_eq!((sink.produce_at(1), sink.produce_at(2)), (Ok(()), Ok(())));
        assert!(sink.reported().is_empty());
        assert!(matches!(received.try_recv(), Ok(Order::Send { .. })));
        sink.happens(Event::Failed(Failure::Unreachable("gone".to_owned())));
        assert_eq!(sink.take_conditions(), [Condition::Broken("gone".to_owned())]);
        assert_eq!(sink.produce_at(3), Err(ProduceError::Full));
        assert!(received.try_recv().is_err(), "it would be sent behind 1 and 2");
        sink.replaced();
        assert!(matches!(received.try_recv(), Ok(Order::Close)));
        assert_eq!(sink.produce_at(1), Err(ProduceError::Full));
        assert!(matches!(received.try_recv(), Ok(Order::Connect { .. })));
        // The first had arrived, and its acknowledgement was lost.
        sink.happens(Event::Synced(S::synced(Some(1))));
        assert_eq!((sink.produce_at(1), sink.produce_at(2)), (Ok(()), Ok(())));
        let reports = sink.reported();
        let there: Vec<_> = reports.iter().map(|report| report.seq).collect();
        let Ok(Order::Send { batch, .. }) = received.try_recv() else { panic!("the second") };
        let sent = [there, S::seqs(batch)];
        let [first, second] = [1, 2].map(Seq::new);
        let expected =
            if S::KEEPS_LAST { [vec![first], vec![second]] } else { [vec![], vec![first, second]] };
        assert_eq!(sent, expected);
    }

    pub(crate) fn record_that_is_refused_for_an_unknown_reason_is_a_suspect<S: Tried>() {
        for is_known in [true, false] {
            let (mut sink, _received) = S::opened();
            assert_eq!(sink.produce_at(1), Ok(()));
            let (seq, reason) = (Some(Seq::new(1)), "because".to_owned());
            sink.happens(Event::Failed(Failure::Record { number: 0, seq, is_known, reason }));
            let reports = sink.reported();
            match reports.as_slice() {
                [Report { outcome: Outcome::Refused(refusal), .. }] if is_known => {
                    assert_eq!(refusal.reason, "because");
                }
                [Report { outcome: Outcome::Suspect(refusal), .. }] if !is_known => {
                    assert_eq!(refusal.reason, "because");
                }
                _ => panic!("{reports:?}"),
            }
        }
    }

    pub(crate) fn records_that_were_acknowledged_and_are_gone_are_reported<S: Tried>() {
        let (mut sink, _received) = S::opened();
        for (last, is_gone) in [(7, false), (6, true)] {
            sink.publisher_mut().open = None;
            sink.take_conditions();
            sink.happens(Event::Synced(S::synced(Some(last))));
            let conditions = sink.take_conditions();
            let is_said = matches!(conditions.as_slice(), [Condition::Regressed(_)]);
            assert!(is_said == is_gone && (is_gone || conditions.is_empty()), "{conditions:?}");
        }
    }

    pub(crate) fn claim_that_was_set_since_outlives_a_fenced_connection<S: Tried>() {
        for is_newer in [true, false] {
            let (mut sink, _received) = S::opened();
            if is_newer {
                sink.publisher().claims.set("newer".to_owned());
            }
            sink.happens(Event::Failed(Failure::Fenced));
            assert_eq!(sink.publisher().claims.current().is_some(), is_newer);
        }
    }

    pub(crate) fn connection_of_a_former_claim_is_left_when_nothing_is_in_flight<S: Tried>() {
        let (mut sink, mut received) = S::opened();
        sink.publisher().claims.set("newer".to_owned());
        assert_eq!(sink.take_conditions(), []);
        let order = received.try_recv();
        assert!(matches!(order, Ok(Order::Connect { claim, .. }) if claim == "newer"));
        let (mut sink, mut received) = S::opened();
        assert_eq!(sink.produce_at(1), Ok(()));
        sink.reported();
        assert!(matches!(received.try_recv(), Ok(Order::Send { .. })));
        sink.publisher().claims.set("newer".to_owned());
        assert_eq!(sink.take_conditions(), []);
        assert!(received.try_recv().is_err(), "it may end");
        assert_eq!(sink.produce_at(2), Err(ProduceError::Full));
        let conditions = sink.take_conditions();
        assert!(matches!(conditions.as_slice(), [Condition::Broken(_)]), "{conditions:?}");
    }

    /// A test of each of these cases with a sink.
    macro_rules! cases {
        ($sink:ident: $($case:ident)*) => {
            $(#[test]
            fn $case() {
                $crate::destination::parts::linked::tests::$case::<$sink>();
            })*
        };
    }
    pub(crate) use cases;
}
