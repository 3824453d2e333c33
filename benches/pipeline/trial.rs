//! The resources of one measurement: slots, topics, a consumer, and a contender for each slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::message::BorrowedMessage;
use walpost_bed::{Process, RoundTripProbe, Tail, Topics};

use crate::conditions::Conditions;
use crate::contender::{Contender, Running, seconds_until};
use crate::fixture::Fixture;
use crate::report::{Report, mebibytes};
use crate::topics::TopicNames;

pub(crate) struct Trial<'a> {
    pub(crate) fixture: &'a Fixture,
    name: String,
    topics: TopicNames,
    /// The brokers' address for the contenders.
    bootstrap: String,
    /// Where the contenders are behind a delay proxy.
    probe: Option<RoundTripProbe>,
    consumer: Tail,
    slots: Vec<Slot>,
    running: Vec<Running>,
}

struct Slot {
    name: String,
    publication: String,
}

/// Round trips through a delay proxy, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrips {
    p50: f64,
    p99: f64,
}

impl RoundTrips {
    pub(crate) fn add_to(self, report: &mut Report, part: &str, who: &str) {
        for (label, millis) in [("p50", self.p50), ("p99", self.p99)] {
            report.add(part, who, &format!("round trip as measured, {label}"), "ms", millis);
        }
    }
}

impl<'a> Trial<'a> {
    /// Topics and their consumer, which calls back for each record that is readable.
    pub(crate) async fn new(
        fixture: &'a Fixture,
        conditions: &Conditions,
        name: &str,
        each: impl FnMut(&BorrowedMessage<'_>) + Send + 'static,
    ) -> Self {
        static TRIALS: AtomicU32 = AtomicU32::new(0);
        // A bench that was killed leaves its topics where they are. Clients may know a topic that
        // was deleted for a while.
        let trial = TRIALS.fetch_add(1, Ordering::Relaxed);
        let base = format!("walpost-bench-{}-{trial}-{name}", std::process::id()).replace('_', "-");
        let topics = TopicNames::new(base, conditions);
        for topic in topics.all() {
            fixture.servers.create_topic(topic, conditions.partitions).await;
        }
        let named = Topics::named(topics.all());
        let consumer = Tail::start(&fixture.servers.bootstrap, named, each);
        let bootstrap = fixture.servers.bootstrap_after(conditions.round_trip);
        let distant = !conditions.round_trip.is_zero();
        let probe = distant.then(|| RoundTripProbe::start(conditions.round_trip));
        let (name, slots, running) = (name.to_owned(), Vec::new(), Vec::new());
        Self { fixture, name, topics, bootstrap, probe, consumer, slots, running }
    }

    /// One whose records are counted.
    pub(crate) async fn counting(
        fixture: &'a Fixture,
        conditions: &Conditions,
        name: &str,
    ) -> (Self, Arc<AtomicU64>) {
        let read = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&read);
        let count = move |_: &BorrowedMessage<'_>| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        (Self::new(fixture, conditions, name, count).await, read)
    }

    /// A slot at the end of the log.
    pub(crate) async fn create_slot(&mut self) {
        let slot = self.add_slot("walpost");
        self.fixture.create_slot(&slot).await;
    }

    /// A slot that is where `base` stands, for that publication.
    pub(crate) async fn copy_slot(&mut self, base: &str, publication: &str) {
        let slot = self.add_slot(publication);
        self.fixture.copy_slot(base, &slot).await;
    }

    fn add_slot(&mut self, publication: &str) -> String {
        let name = format!("{}_{}", self.name, self.slots.len());
        self.slots.push(Slot { name: name.clone(), publication: publication.to_owned() });
        name
    }

    /// Does what an operator does before the first start of a contender.
    pub(crate) async fn prepare(&self, contender: Contender) {
        for slot in &self.slots {
            contender.prepare(self.fixture, &slot.name, &self.topics).await;
        }
    }

    /// Starts a contender for each slot, all into the same topics.
    pub(crate) async fn start(&mut self, contender: Contender) {
        for Slot { name, publication } in &self.slots {
            let to = (&self.topics, self.bootstrap.as_str());
            self.running.push(contender.start(self.fixture, (name, publication), to).await);
        }
    }

    /// Awaits that all of them stream.
    pub(crate) async fn streams(&self) {
        for (running, slot) in self.running.iter().zip(&self.slots) {
            running.streams(self.fixture, &slot.name).await;
        }
    }

    /// Seconds since `begun` until `done`, while the contenders run.
    pub(crate) async fn seconds_until(
        &self,
        begun: Instant,
        what: &str,
        done: impl Fn() -> bool,
    ) -> f64 {
        let done = || {
            self.running.iter().for_each(Running::assert_runs);
            done()
        };
        seconds_until(begun, what, done).await
    }

    pub(crate) fn topics(&self) -> &TopicNames {
        &self.topics
    }

    /// The brokers' address for what is measured.
    pub(crate) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// The round trip through a delay proxy since the beginning, where there is one.
    pub(crate) fn take_round_trips(&mut self) -> Option<RoundTrips> {
        let measured = self.probe.take()?.finish();
        let quantile = |of: f64| {
            #[expect(clippy::cast_precision_loss, reason = "some thousand pings")]
            let index = of * (measured.len() - 1) as f64;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
            let index = index.round() as usize;
            measured[index].as_secs_f64() * 1000.0
        };
        Some(RoundTrips { p50: quantile(0.5), p99: quantile(0.99) })
    }

    /// The name of its first slot.
    pub(crate) fn slot(&self) -> &str {
        &self.slots[0].name
    }

    /// What its contenders have used so far, all together.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.processes().map(|process| process.cpu_time().expect("it runs")).sum()
    }

    pub(crate) fn mebibytes(&self) -> f64 {
        self.processes().map(|process| mebibytes(process.rss_bytes())).sum()
    }

    pub(crate) fn peak_mebibytes(&self) -> f64 {
        self.processes().map(|process| mebibytes(process.peak_rss_bytes())).sum()
    }

    fn processes(&self) -> impl Iterator<Item = Process> {
        self.running.iter().map(Running::process)
    }

    /// Ends the consumer and the contenders in order; slots and topics are gone then.
    pub(crate) async fn end(self) {
        drop(self.consumer);
        for (running, slot) in self.running.into_iter().zip(&self.slots) {
            running.stop(self.fixture, &slot.name).await;
            self.fixture.drop_slot(&slot.name).await;
        }
        for topic in self.topics.all() {
            self.fixture.servers.delete_topic(topic).await;
        }
    }
}
