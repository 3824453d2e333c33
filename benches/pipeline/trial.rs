//! The resources of one measurement: slots, a topic, a consumer, and a contender for each slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::message::BorrowedMessage;
use walpost_bed::{Process, Tail, Topics};

use crate::contender::{Contender, Running};
use crate::fixture::Fixture;
use crate::report::mebibytes;

pub(crate) struct Trial<'a> {
    pub(crate) fixture: &'a Fixture,
    name: String,
    topic: String,
    consumer: Tail,
    slots: Vec<Slot>,
    running: Vec<Running>,
}

struct Slot {
    name: String,
    publication: String,
}

impl<'a> Trial<'a> {
    /// A topic and its consumer, which calls back for each record that is readable.
    pub(crate) async fn new(
        fixture: &'a Fixture,
        name: &str,
        each: impl FnMut(&BorrowedMessage<'_>) + Send + 'static,
    ) -> Self {
        // A bench that was killed leaves its topics where they are.
        let topic = format!("walpost-bench-{}-{name}", std::process::id()).replace('_', "-");
        fixture.servers.create_topic(&topic).await;
        let topics = Topics::named([topic.clone()]);
        let consumer = Tail::start(&fixture.servers.bootstrap, topics, each);
        let (slots, running) = (Vec::new(), Vec::new());
        Self { fixture, name: name.to_owned(), topic, consumer, slots, running }
    }

    /// One whose records are counted.
    pub(crate) async fn counting(fixture: &'a Fixture, name: &str) -> (Self, Arc<AtomicU64>) {
        let read = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&read);
        let count = move |_: &BorrowedMessage<'_>| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        (Self::new(fixture, name, count).await, read)
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

    /// Starts a contender for each slot, all into the one topic.
    pub(crate) async fn start(&mut self, contender: Contender) {
        for Slot { name, publication } in &self.slots {
            let running = contender.start(self.fixture, (name, publication), &self.topic).await;
            self.running.push(running);
        }
    }

    /// Awaits that all of them stream.
    pub(crate) async fn streams(&self) {
        for (running, slot) in self.running.iter().zip(&self.slots) {
            running.streams(self.fixture, &slot.name).await;
        }
    }

    pub(crate) fn topic(&self) -> &str {
        &self.topic
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

    /// Ends the consumer and the contenders in order; slots and topic are gone then.
    pub(crate) async fn end(self) {
        drop(self.consumer);
        for (running, slot) in self.running.into_iter().zip(&self.slots) {
            running.stop(self.fixture, &slot.name).await;
            self.fixture.drop_slot(&slot.name).await;
        }
        self.fixture.servers.delete_topic(&self.topic).await;
    }
}
