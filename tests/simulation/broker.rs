//! The simulated Kafka: partitions, and a relay's producer.
//!
//! A producer appends a partition's records in the order in which they were produced, and none after
//! one that failed. It acknowledges late, in batches, and in any order across partitions. It may
//! consist of several members that share the partitions: some can fail or be stuck while others
//! continue. One record that is too large causes a rejection of its batch. When a producer is
//! replaced, its records in flight are lost, even if the broker has them; earlier reports count.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use walpost::Lsn;
use walpost::ledger::Seq;
use walpost::outlet::{Ground, Outlet, ProduceError, RECORD_OVERHEAD_BYTES};
use walpost::position::EventPosition;
use walpost::record::{Record, dead_letter};
use walpost::sink::{BoxFuture, Condition, Fault, Outcome, Report, Sink, SinkError};
use walpost::state::State;

use crate::process::DEAD_LETTERS;
use crate::trace::TraceEvent;
use crate::wal::{Event, PARTITIONS, Poison, refusal};
use crate::world::{Shared, World};

/// The partition of the dead letters, after those of the events.
const LETTERS: usize = PARTITIONS;

const LANES: usize = PARTITIONS + 1;

#[derive(Debug)]
pub(crate) struct Broker {
    /// Until when, in milliseconds, the brokers are unreachable, or slow.
    pub(crate) away_until: u64,
    pub(crate) slow_until: u64,
    /// Until when they refuse everything, with an answer that may be about each record.
    pub(crate) refuses_until: u64,
    /// The next batch is lost; with true, after it was appended.
    pub(crate) loses: Option<bool>,
    /// Until when the producers' queues are full.
    pub(crate) full_until: u64,
    /// The next replacement takes this long, or fails.
    pub(crate) replacement_ms: Option<u64>,
    pub(crate) replacement_fails: bool,
    pub(crate) producers: Vec<Producer>,
    /// The record in the state topic.
    pub(crate) state: State,
    /// Without exactly-once mode: the process whose producer may write it.
    pub(crate) state_writer: Option<usize>,
}

impl Broker {
    /// The position in the state topic is that of the slot.
    pub(crate) fn new(slot: Lsn) -> Self {
        Self {
            away_until: 0,
            slow_until: 0,
            refuses_until: 0,
            loses: None,
            full_until: 0,
            replacement_ms: None,
            replacement_fails: false,
            producers: Vec::new(),
            state: State::accepted(1, slot),
            state_writer: None,
        }
    }

    /// The transactional producer of that process, fenced or not, if it is not discarded.
    pub(crate) fn transactional(&self, process: usize) -> Option<usize> {
        self.producers.iter().rposition(|producer| producer.owner == Some(process))
    }
}

/// The state of the diagnosis of missing acknowledgements, in milliseconds.
#[derive(Debug, Default, PartialEq, Eq)]
enum Diagnosis {
    #[default]
    None,
    Asked {
        /// When the brokers answer.
        answers: u64,
    },
    Answered {
        /// When the brokers are queried again.
        again: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Producer {
    /// Whether its owner has not released it.
    pub(crate) open: bool,
    /// The process of a transactional producer.
    pub(crate) owner: Option<usize>,
    /// What it has appended in its open transaction.
    transaction: Vec<TraceEvent>,
    queues: Vec<VecDeque<(Seq, usize)>>,
    queued: usize,
    /// The number of members: member n has the partitions whose number modulo this is n.
    pub(crate) members: usize,
    /// Partitions in which a record failed: nothing after it is appended.
    stopped: [bool; LANES],
    /// Members that failed.
    failed: Vec<usize>,
    pub(crate) stuck_until: u64,
    /// The member that is stuck; `None` if all are.
    stuck: Option<usize>,
    /// The oldest record in flight, and since when it is the oldest.
    oldest: (Option<Seq>, u64),
    /// The state of the diagnosis of missing acknowledgements, and its result.
    diagnosis: Diagnosis,
    reported: Option<Fault>,
    /// Records that were appended or rejected, and when that is reported.
    acks: Vec<(u64, Vec<Report>)>,
    waiting: Vec<Report>,
    pub(crate) conditions: Vec<Condition>,
    in_flight: BTreeMap<Seq, (usize, u64)>,
    in_flight_bytes: u64,
    pub(crate) refused: bool,
    eager: bool,
    pub(crate) stirred: Arc<Notify>,
}

/// Runs the brokers until the schedule ends.
pub(crate) async fn serve(world: Shared) {
    loop {
        let nap = world.lock().work();
        sleep(Duration::from_millis(nap)).await;
    }
}

impl World {
    /// Lets every producer make progress; returns the pause in milliseconds.
    fn work(&mut self) -> u64 {
        let mut idle = true;
        for at in 0..self.broker.producers.len() {
            let producer = &self.broker.producers[at];
            let nothing_left = producer.in_flight.is_empty();
            if !producer.open || nothing_left {
                continue;
            }
            idle = false;
            self.acknowledge(at);
            self.answer(at);
            let now = self.now_ms();
            if now >= self.broker.away_until {
                self.append(at);
            }
        }
        let slow = self.now_ms() < self.broker.slow_until;
        if slow { self.rng.u64(50..400) } else { self.rng.u64(1..if idle { 30 } else { 12 }) }
    }

    /// Sends the delivery reports that are due.
    fn acknowledge(&mut self, at: usize) {
        let now = self.now_ms();
        let producer = &self.broker.producers[at];
        if now < producer.stuck_until && producer.stuck.is_none() {
            return;
        }
        let producer = &mut self.broker.producers[at];
        let (due, later): (Vec<_>, Vec<_>) =
            producer.acks.drain(..).partition(|(then, _)| *then <= now);
        producer.acks = later;
        for report in due.into_iter().flat_map(|(_, reports)| reports) {
            producer.report(report);
        }
    }

    /// Starts a diagnosis once the oldest record in flight has been the same for long, and reports
    /// the end of the stall.
    fn wonder(&mut self, at: usize) {
        let (now, answers) = (self.now_ms(), self.rng.u64(0..8000));
        let producer = &mut self.broker.producers[at];
        let oldest = producer.in_flight.keys().next().copied();
        if oldest != producer.oldest.0 {
            producer.oldest = (oldest, now);
            producer.diagnosis = Diagnosis::None;
            if producer.reported.take().is_some() {
                producer.condition(Condition::Flowing);
            }
            return;
        }
        let due = match producer.diagnosis {
            Diagnosis::None => oldest.is_some() && now - producer.oldest.1 >= 10_000,
            Diagnosis::Asked { .. } => false,
            Diagnosis::Answered { again } => now >= again,
        };
        if due {
            producer.diagnosis = Diagnosis::Asked { answers: now + answers };
        }
    }

    /// Reports the result of the diagnosis.
    fn answer(&mut self, at: usize) {
        let (now, away_until) = (self.now_ms(), self.broker.away_until);
        let producer = &mut self.broker.producers[at];
        if matches!(producer.diagnosis, Diagnosis::Asked { answers } if answers <= now) {
            producer.diagnosis = Diagnosis::Answered { again: now + 30_000 };
            let fault = if now < away_until { Fault::OutOfReach } else { Fault::Unknown };
            if producer.reported.replace(fault) != Some(fault) {
                producer.condition(Condition::Stalled { reason: "asked".into(), fault });
            }
        }
    }

    /// Processes a batch of each of some partitions.
    fn append(&mut self, at: usize) {
        let first = self.rng.usize(0..LANES);
        for partition in (0..LANES).map(|n| (n + first) % LANES) {
            let producer = &self.broker.producers[at];
            if producer.stopped[partition]
                || producer.queues[partition].is_empty()
                || producer.is_stuck(partition, self.now_ms())
            {
                continue;
            }
            if !self.one_in(3) {
                self.batch(at, partition);
            }
        }
    }

    fn batch(&mut self, at: usize, partition: usize) {
        let most = if self.broker.producers[at].refused { 1 } else { self.schedule.batch };
        let size = self.rng.usize(1..=most);
        let producer = &mut self.broker.producers[at];
        let size = size.min(producer.queues[partition].len());
        let batch: Vec<(Seq, usize)> = producer.queues[partition].drain(..size).collect();
        producer.queued -= size;
        let is_letter = partition == LETTERS;
        let log = &self.log;
        let is = |(_, event): &(Seq, usize), poison| !is_letter && log.events[*event].is(poison);
        let suspected = self.now_ms() < self.broker.refuses_until
            || batch.iter().any(|one| is(one, Poison::Forbidden));
        let refused = suspected || batch.iter().any(|one| is(one, Poison::TooLarge));
        let lost = if refused { None } else { self.broker.loses.take() };
        let outcome = match lost {
            Some(_) => Outcome::Lost("the connection was lost".into()),
            None if suspected => Outcome::Suspect(refusal(Ground::Other)),
            None if refused => Outcome::Refused(refusal(Ground::Size)),
            None => Outcome::Delivered,
        };
        if !refused && lost != Some(false) {
            for (_, event) in batch.iter().copied() {
                let appended = if is_letter {
                    TraceEvent::DeadLettered { event }
                } else {
                    TraceEvent::Appended { producer: at, event }
                };
                if self.broker.producers[at].owner.is_some() {
                    self.broker.producers[at].transaction.push(appended);
                } else {
                    self.note(appended);
                }
            }
        }
        let reports = batch.iter().map(|(seq, _)| Report::new(*seq, outcome.clone())).collect();
        let due = self.now_ms() + self.rng.u64(0..60);
        self.broker.producers[at].acks.push((due, reports));
        if outcome != Outcome::Delivered {
            self.broker.producers[at].refused |= refused;
            self.broker.producers[at].stopped[partition] = true;
            if self.one_in(2) {
                self.fail_member(at, partition % self.broker.producers[at].members);
            }
        }
    }

    /// One of its members fails.
    pub(crate) fn fail_producer(&mut self, at: usize) {
        let member = self.rng.usize(0..self.broker.producers[at].members);
        self.fail_member(at, member);
    }

    /// One of its members, or all, are stuck until then.
    pub(crate) fn hold_producer(&mut self, at: usize, until: u64) {
        let member = self.rng.usize(0..=self.broker.producers[at].members);
        let producer = &mut self.broker.producers[at];
        producer.stuck_until = until;
        producer.stuck = Some(member).filter(|member| *member < producer.members);
    }

    /// The member fails: its records are purged, and it reports some of them.
    fn fail_member(&mut self, at: usize, member: usize) {
        let producer = &mut self.broker.producers[at];
        producer.failed.push(member);
        let mut purged: Vec<Seq> = Vec::new();
        for partition in (0..LANES).filter(|partition| partition % producer.members == member) {
            producer.stopped[partition] = true;
            purged.extend(producer.queues[partition].drain(..).map(|(seq, _)| seq));
        }
        producer.queued -= purged.len();
        self.rng.shuffle(&mut purged);
        purged.truncate(self.rng.usize(0..=purged.len()));
        for seq in purged {
            let due = self.now_ms() + self.rng.u64(0..100);
            let report = Report::new(seq, Outcome::Purged);
            self.broker.producers[at].acks.push((due, vec![report]));
        }
        let producer = &mut self.broker.producers[at];
        producer.condition(Condition::Broken("fatal error".into()));
        self.note(TraceEvent::Failed { producer: at });
    }

    pub(crate) fn new_producer(&mut self, process: usize) -> usize {
        let members = if self.schedule.several { self.rng.usize(1..=3) } else { 1 };
        self.broker.producers.push(Producer {
            open: true,
            owner: None,
            transaction: Vec::new(),
            queues: vec![VecDeque::new(); LANES],
            queued: 0,
            members,
            stopped: [false; LANES],
            failed: Vec::new(),
            stuck_until: 0,
            stuck: None,
            oldest: (None, 0),
            diagnosis: Diagnosis::None,
            reported: None,
            acks: Vec::new(),
            waiting: Vec::new(),
            conditions: Vec::new(),
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            refused: false,
            eager: false,
            stirred: Arc::default(),
        });
        let producer = self.broker.producers.len() - 1;
        self.note(TraceEvent::Made { process, producer });
        producer
    }

    /// Ends the open transaction; what it has appended.
    pub(crate) fn take_transaction(&mut self, at: usize) -> Vec<TraceEvent> {
        if !self.broker.producers[at].in_flight.is_empty() {
            let text = "I9: a transaction is committed with records in flight".to_owned();
            self.note(TraceEvent::Strange(text));
        }
        std::mem::take(&mut self.broker.producers[at].transaction)
    }

    /// The event of the record; records a violation if the record differs from its row.
    fn event_of(&mut self, record: &Record<'_>) -> usize {
        let header = |name: &str| {
            let header = record.headers.iter().find(|header| header.name == name);
            let value = header.and_then(|header| header.value.as_deref()).unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        };
        if record.topic == DEAD_LETTERS {
            let fields: serde_json::Value =
                serde_json::from_str(&header(dead_letter::FIELDS)).expect("JSON");
            return fields["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
        }
        let found = header("id").parse::<usize>().ok();
        let expected = found.and_then(|number| self.log.events.get(number)).map(|event| {
            let position = format!("{:016X}/{:08X}", event.commit.as_u64(), event.ordinal);
            (format!("t.t{}", event.topic), event.key.to_string(), event.bytes, position)
        });
        let key = record.key.map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        let bytes =
            record.value.map_or(0, |value| String::from_utf8_lossy(value).matches('x').count());
        let shown = (record.topic.to_owned(), key, bytes, header("walpost.position"));
        if expected.as_ref() != Some(&shown) {
            let text = format!("I7: the record {shown:?} belongs to no event: {expected:?}");
            self.note(TraceEvent::Strange(text));
        }
        found.unwrap_or_default()
    }
}

impl Producer {
    fn has_failed(&self, partition: usize) -> bool {
        self.failed.contains(&(partition % self.members))
    }

    fn is_stuck(&self, partition: usize, now: u64) -> bool {
        now < self.stuck_until && self.stuck.is_none_or(|member| partition % self.members == member)
    }

    fn report(&mut self, report: Report) {
        let failed = report.outcome != Outcome::Delivered;
        self.waiting.push(report);
        if failed || self.eager {
            self.stirred.notify_one();
        }
    }

    /// No broker is reachable: recovery must be reported then.
    pub(crate) fn unreachable(&mut self, condition: Condition) {
        if let Some(reported) = &mut self.reported {
            *reported = Fault::OutOfReach;
        }
        self.condition(condition);
    }

    pub(crate) fn condition(&mut self, condition: Condition) {
        self.conditions.push(condition);
        self.stirred.notify_one();
    }
}

/// A relay's producer, and its replacements.
pub(crate) struct SimSink {
    world: Shared,
    process: usize,
    /// `None` during a replacement, or after one failed.
    producer: Option<usize>,
    /// The producer that is being replaced.
    ending: Option<usize>,
    /// The remaining reports of the previous producer.
    left: Vec<Report>,
    /// Whether another part opens its producer.
    is_transactional: bool,
}

impl SimSink {
    pub(crate) fn new(world: &Shared, process: usize) -> Self {
        let mut locked = world.lock();
        let is_transactional = locked.schedule.exactly_once;
        let producer = (!is_transactional).then(|| locked.new_producer(process));
        drop(locked);
        let (world, left) = (world.clone(), Vec::new());
        Self { world, process, producer, ending: None, left, is_transactional }
    }

    /// The number of the current producer.
    fn current(&self) -> Option<usize> {
        if self.is_transactional {
            return self.world.lock().broker.transactional(self.process);
        }
        self.producer
    }

    /// Discards the transactional producer, and its transaction.
    fn discard(&mut self) {
        let current = self.current();
        let mut world = self.world.lock();
        if let Some(at) = current {
            let producer = &mut world.broker.producers[at];
            (producer.open, producer.owner) = (false, None);
            let waiting = std::mem::take(&mut producer.waiting);
            self.left.append(&mut Self::observe(&mut world, at, waiting));
        }
        world.note(TraceEvent::Discarded { process: self.process });
    }

    /// Records the reports that the relay is about to read.
    fn observe(world: &mut World, at: usize, mut reports: Vec<Report>) -> Vec<Report> {
        if world.schedule.shuffles_reports {
            world.rng.shuffle(&mut reports);
        }
        for Report { seq, outcome, .. } in &reports {
            let producer = &mut world.broker.producers[at];
            if let Some((event, bytes)) = producer.in_flight.remove(seq) {
                producer.in_flight_bytes -= bytes;
                let (seq, outcome) = (*seq, outcome.clone());
                world.note(TraceEvent::Reported { producer: at, seq, event, outcome });
            }
        }
        reports
    }
}

impl Outlet for SimSink {
    fn produce(
        &mut self,
        seq: Seq,
        _: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        let Some(at) = self.current() else {
            return Err(ProduceError::Broken("there is no producer".into()));
        };
        let mut world = self.world.lock();
        let event = world.event_of(record);
        let (now, room) = (world.now_ms(), world.schedule.room);
        let event_of = world.log.events.get(event);
        let is_letter = record.topic == DEAD_LETTERS;
        let partition = if is_letter { LETTERS } else { event_of.map_or(0, Event::partition) };
        let producer = &world.broker.producers[at];
        let is_spent = world.schedule.spends && producer.stopped.contains(&true);
        if producer.has_failed(partition) || !producer.open {
            return Err(ProduceError::Broken("the producer has failed".into()));
        }
        if is_spent || producer.in_flight.len() >= room || now < world.broker.full_until {
            return Err(ProduceError::Full);
        }
        if !is_letter && event_of.is_some_and(|event| event.is(Poison::TooLargeHere)) {
            return Err(ProduceError::Refused(refusal(Ground::Size)));
        }
        let bytes = record.bytes() as u64 + RECORD_OVERHEAD_BYTES;
        let producer = &mut world.broker.producers[at];
        producer.queues[partition].push_back((seq, event));
        producer.queued += 1;
        producer.in_flight_bytes += bytes;
        let in_flight_bytes = producer.in_flight_bytes;
        if producer.in_flight.insert(seq, (event, bytes)).is_some() {
            world.note(TraceEvent::Strange(format!("I8: production {seq:?} is there twice")));
        }
        world.note(TraceEvent::Produced { producer: at, seq, event, in_flight_bytes });
        Ok(())
    }

    /// Its partition: the checker judges the order there.
    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        let mut world = self.world.lock();
        let event = world.event_of(record);
        Some(world.log.events[event].partition() as u64)
    }
}

impl Sink for SimSink {
    fn peer(&self) -> &'static walpost::sink::Peer {
        &walpost::sink::KAFKA
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        into.append(&mut self.left);
        let Some(at) = self.current().or(self.ending) else { return };
        let mut world = self.world.lock();
        let waiting = std::mem::take(&mut world.broker.producers[at].waiting);
        into.append(&mut Self::observe(&mut world, at, waiting));
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        let Some(at) = self.current() else { return Vec::new() };
        let mut world = self.world.lock();
        world.wonder(at);
        std::mem::take(&mut world.broker.producers[at].conditions)
    }

    fn is_connected(&self) -> Option<bool> {
        Some(true)
    }

    fn wait_for_events(&self, eager: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(at) = self.current() else { return std::future::pending().await };
            let (is_there, stirred) = {
                let mut world = self.world.lock();
                let producer = &mut world.broker.producers[at];
                producer.eager = eager;
                (eager && !producer.waiting.is_empty(), Arc::clone(&producer.stirred))
            };
            if !is_there {
                stirred.notified().await;
            }
        })
    }

    fn replace_producer(&mut self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(async move {
            if self.is_transactional {
                self.discard();
                return Ok(());
            }
            self.ending = self.producer.take().or(self.ending);
            let (usual, slow) = {
                let mut world = self.world.lock();
                (world.rng.u64(0..60), world.broker.replacement_ms.take())
            };
            sleep(Duration::from_millis(slow.unwrap_or(usual))).await;
            let mut world = self.world.lock();
            let old = self.ending.take();
            if let Some(old) = old {
                world.broker.producers[old].open = false;
                let mut left = std::mem::take(&mut world.broker.producers[old].waiting);
                // It may report its records in flight as purged, or not at all.
                let said: Vec<Seq> = left.iter().map(|report| report.seq).collect();
                let held = world.broker.producers[old].in_flight.keys().copied();
                let held: Vec<Seq> = held.filter(|seq| !said.contains(seq)).collect();
                let purged = held.into_iter().filter(|_| world.one_in(2));
                left.extend(purged.map(|seq| Report::new(seq, Outcome::Purged)));
                self.left.append(&mut Self::observe(&mut world, old, left));
            }
            if std::mem::take(&mut world.broker.replacement_fails) {
                return Err(SinkError::Thread("refused".into()));
            }
            let refused = old.is_some_and(|old| world.broker.producers[old].refused);
            let new = world.new_producer(self.process);
            world.broker.producers[new].refused = refused;
            self.producer = Some(new);
            Ok(())
        })
    }
}

impl Drop for SimSink {
    fn drop(&mut self) {
        if let Some(at) = self.current().or(self.ending) {
            self.world.lock().broker.producers[at].open = false;
        }
    }
}
