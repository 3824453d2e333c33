//! Judges a schedule by its trace alone: the delivery guarantees (I1 to I14), and that a process
//! exits only as its schedule allows.

mod exits;
mod feeds;

use std::collections::{BTreeMap, HashMap, HashSet};

use walpost::Lsn;
use walpost::position::EventPosition;
use walpost::record::Policy;
use walpost::sink::Outcome;
use walpost::source::SourceError;

use self::feeds::{Feeds, Opened};
use crate::feed::ENDED_WHILE_OPENED;
use crate::schedule::Schedule;
use crate::trace::{InjectedFault, Left, Trace, TraceEvent};
use crate::wal::{Event, Item, Log, PARTITIONS, Poison};

/// An upper bound for the largest row of a WAL, with its overhead.
const ROW_BYTES: u64 = 1500;

/// A third of the default `wal_sender_timeout`.
const UNATTENDED_MS: u64 = 20_000;

/// How far walpost may exceed its own limits.
const SLACK_MS: u64 = 50;

/// A violation, and the guarantee that it violates.
type Verdict = Result<(), String>;

struct Checker<'a> {
    log: &'a Log,
    schedule: &'a Schedule,
    given_up: HashSet<usize>,
    appended: HashSet<usize>,
    /// All transactions before that index were checked to be delivered.
    covered: usize,
    /// Events of each partition in commit order, and the index of each.
    order: Vec<Vec<usize>>,
    place: HashMap<usize, usize>,
    /// The highest index of each partition that has been appended.
    front: [Option<usize>; PARTITIONS],
    producers: Vec<Producer>,
    processes: BTreeMap<usize, Process>,
    /// The process of each session.
    sessions: Vec<usize>,
    slot: Lsn,
    /// The position in the state topic.
    state: Lsn,
    faults: Vec<InjectedFault>,
    arrived: bool,
    /// Whether a restored server lacks events that the position covers.
    has_lost: bool,
    /// What was there when an operator accepted the slot's position: it may be published again.
    accepted: HashSet<usize>,
    /// What was published before the last position that an operator adopted, of which the state does not
    /// know.
    unrecorded: HashSet<usize>,
}

#[derive(Default)]
struct Producer {
    process: usize,
    last: [Option<usize>; PARTITIONS],
    /// The last index that was produced in each partition, and in which session of the process,
    /// counted from one.
    produced: [Option<(usize, usize)>; PARTITIONS],
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
struct Process {
    until: bool,
    /// The last session in which it resumed from its own position.
    unpassed: usize,
    /// The one before that.
    unpassed_before: usize,
    /// The end of WAL at its first session.
    reaches: Option<Lsn>,
    /// The highest position that the slot had since its first session was opened.
    reached: Lsn,
    stop_ms: Option<u64>,
    second_stop_ms: Option<u64>,
    confirmed: Lsn,
    /// The highest WAL position that it has received.
    known: Lsn,
    /// The end of the last transaction that it passed to its producer completely.
    whole: Lsn,
    opened: usize,
    session: Option<usize>,
    let_go_ms: Option<u64>,
    /// Whether its session did not work to the end after it was asked to stop, or there was none.
    cut_off: bool,
    /// Whether it received anything in this session.
    took: bool,
    /// Whether one of its records or producers failed.
    failed: bool,
    /// The last transaction whose rows were produced in this session.
    produced: Lsn,
    feeds: Feeds,
}

/// Checks a whole schedule.
pub(crate) fn judge(logs: &[&Log], schedule: &Schedule, trace: &Trace) -> Verdict {
    let mut logs = logs.iter().copied();
    let Some(mut log) = logs.next() else { return Ok(()) };
    let mut checker = Checker::new(log, schedule);
    for (at, (now_ms, event)) in trace.iter().enumerate() {
        if let TraceEvent::Restored { items, confirmed } = event
            && let Some(next) = logs.next()
        {
            checker = checker.restored(next, *items, *confirmed);
            log = next;
        }
        let judged = checker.see(*now_ms, event);
        judged.map_err(|violation| format!("{violation} (at {now_ms} ms, entry {at})"))?;
    }
    if !checker.arrived {
        return Err("I4: all faults are over, but the slot does not reach the end of WAL".into());
    }
    let missing = |event: &usize| {
        let is_given_up = checker.given_up.contains(&log.events[*event].item);
        !is_given_up && !checker.is_there(*event)
    };
    match (0..log.events.len()).find(missing) {
        Some(event) => Err(format!("I5: event {event} arrived nowhere")),
        None => Ok(()),
    }
}

impl<'a> Checker<'a> {
    fn new(log: &'a Log, schedule: &'a Schedule) -> Self {
        let mut order = vec![Vec::new(); PARTITIONS];
        let mut place = HashMap::new();
        for (number, event) in log.events.iter().enumerate() {
            let partition = &mut order[event.partition()];
            place.insert(number, partition.len());
            partition.push(number);
        }
        Self {
            log,
            schedule,
            given_up: HashSet::new(),
            appended: HashSet::new(),
            covered: 0,
            order,
            place,
            front: [None; PARTITIONS],
            producers: Vec::new(),
            processes: BTreeMap::new(),
            sessions: Vec::new(),
            slot: Lsn::new(1000),
            state: Lsn::new(1000),
            faults: Vec::new(),
            arrived: false,
            has_lost: false,
            accepted: HashSet::new(),
            unrecorded: HashSet::new(),
        }
    }

    /// The same for a server that was restored to its first `items`, while no process was running.
    fn restored(self, log: &'a Log, items: usize, confirmed: Lsn) -> Self {
        let kept = log.events.iter().take_while(|event| event.item < items).count();
        let is_lost = |event: &&usize| {
            let is_covered =
                self.schedule.exactly_once || self.log.events[**event].commit < self.state;
            **event >= kept && is_covered && !self.unrecorded.contains(*event)
        };
        let has_lost = self.has_lost || self.appended.iter().any(|event| is_lost(&event));
        let kept_of = |events: HashSet<usize>| events.into_iter().filter(|it| *it < kept).collect();
        let mut next = Self::new(log, self.schedule);
        next.appended = kept_of(self.appended);
        next.accepted = kept_of(self.accepted);
        next.unrecorded = kept_of(self.unrecorded);
        next.given_up = self.given_up.into_iter().filter(|item| *item < items).collect();
        next.covered = self.covered.min(items);
        for event in &next.appended {
            let (partition, place) = (log.events[*event].partition(), next.place[event]);
            next.front[partition] = next.front[partition].max(Some(place));
        }
        let producer = |one: &Producer| Producer { process: one.process, ..Producer::default() };
        next.producers = self.producers.iter().map(producer).collect();
        (next.sessions, next.faults) = (self.sessions, self.faults);
        (next.slot, next.state, next.has_lost) = (confirmed, self.state, has_lost);
        next
    }

    fn see(&mut self, now_ms: u64, event: &TraceEvent) -> Verdict {
        match event {
            TraceEvent::Started { process, until } => {
                self.process(*process).until = *until;
            }
            TraceEvent::Told { process, twice } => {
                let process = self.process(*process);
                process.cut_off = process.session.is_none();
                let stop = if *twice { &mut process.second_stop_ms } else { &mut process.stop_ms };
                *stop = Some(now_ms);
            }
            TraceEvent::Exited { process, exit } => return self.exited(now_ms, *process, exit),
            TraceEvent::Opened { .. } => return self.opened(now_ms, event),
            TraceEvent::Took { session, up_to, what } => {
                let process = self.owner(*session);
                process.took = true;
                if *what != "begin" {
                    process.known = process.known.max(*up_to);
                }
                if *what == "commit" {
                    process.whole = *up_to;
                }
            }
            TraceEvent::Confirmed { session, lsn } => return self.confirmed(*session, *lsn),
            TraceEvent::Broke { session } => self.cut_off(*session),
            TraceEvent::Moved { to } => self.moved(*to),
            TraceEvent::Advanced { session } => {
                let owner = self.owner(*session);
                if owner.session == Some(*session) {
                    return owner.feeds.advanced(owner.confirmed);
                }
            }
            TraceEvent::Released { session, unattended_ms, left } => {
                let owner = self.owner(*session);
                owner.feeds.was_left(now_ms, *left, owner.stop_ms.is_some());
                owner.session = None;
                owner.let_go_ms = Some(now_ms);
                // Also without a loss: of a history that is not compared yet nothing is confirmed.
                owner.cut_off |= owner.stop_ms.is_some() && *left == Left::Midway;
                if *unattended_ms > UNATTENDED_MS {
                    return Err(format!(
                        "I14: the relay did not poll the session for {unattended_ms} ms"
                    ));
                }
            }
            TraceEvent::Slot { confirmed } => {
                return self.slot_at(*confirmed);
            }
            TraceEvent::Fell { confirmed } => self.slot = *confirmed,
            TraceEvent::Adopted { upto } => {
                (self.state, self.has_lost) = (*upto, false);
                self.accepted.clone_from(&self.appended);
                self.unrecorded.clone_from(&self.appended);
            }
            TraceEvent::Made { process, .. } => {
                self.producers.push(Producer { process: *process, ..Producer::default() });
                self.process(*process).discarded();
            }
            TraceEvent::Discarded { process } => self.process(*process).discarded(),
            TraceEvent::StateRead { process, upto, partial } => {
                self.state_read(*process, *upto, *partial);
            }
            TraceEvent::StateWritten { upto } => return self.state_written(*upto),
            TraceEvent::StateFailed { process } => self.process(*process).failed = true,
            TraceEvent::Produced { producer, event, in_flight_bytes, .. } => {
                if *in_flight_bytes > self.schedule.budget_bytes + ROW_BYTES {
                    return Err(format!("I13: {in_flight_bytes} bytes in flight"));
                }
                return self.produce(*producer, *event);
            }
            TraceEvent::DeadLettered { event } => {
                if self.log.events[*event].poison == Poison::None {
                    return Err(format!("event {event} is a dead letter without a reason"));
                }
                self.is_new(*event)?;
                self.appended.insert(*event);
            }
            TraceEvent::Appended { producer, event } => return self.append(*producer, *event),
            TraceEvent::Reported { producer, outcome, .. } if *outcome != Outcome::Delivered => {
                let process = self.producers[*producer].process;
                self.process(process).failed = true;
            }
            TraceEvent::Failed { producer } => {
                let process = self.producers[*producer].process;
                self.process(process).failed = true;
            }
            TraceEvent::GivenUp { item } => {
                self.given_up.insert(*item);
            }
            TraceEvent::InjectedFault(fault) => self.faults.push(*fault),
            TraceEvent::Arrived => self.arrived = true,
            TraceEvent::Strange(text) => return Err(text.clone()),
            TraceEvent::NoSession { process, error } => self.no_session(*process, error),
            TraceEvent::Committed { .. }
            | TraceEvent::Reported { .. }
            | TraceEvent::Restored { .. }
            | TraceEvent::Calm => {}
        }
        Ok(())
    }

    fn state_written(&mut self, upto: Lsn) -> Verdict {
        if upto < self.state {
            return Err(format!("the state fell from {} to {upto}", self.state));
        }
        self.state = upto;
        Ok(())
    }

    /// What is committed with the position in the state topic is delivered, perhaps by another process.
    fn state_read(&mut self, number: usize, upto: Lsn, partial: Option<EventPosition>) {
        let is_before = |item: &&Item| match item.commit() {
            Some(commit) => commit < upto,
            None => item.end() <= upto,
        };
        let before = self.log.items.iter().take_while(is_before).count();
        let events = &self.log.events;
        let is_part = |number: &usize| {
            let (commit, ordinal) = (events[*number].commit, events[*number].ordinal);
            partial.is_some_and(|it| it.commit_lsn == commit && ordinal < it.ordinal)
        };
        let part: Vec<usize> = (0..events.len()).filter(is_part).collect();
        let process = self.process(number);
        process.known = process.known.max(upto);
        process.feeds.committed_before(before);
        for event in part {
            process.feeds.produced(event);
        }
    }

    /// I5: a session resumes where the process was.
    fn opened(&mut self, now_ms: u64, event: &TraceEvent) -> Verdict {
        let TraceEvent::Opened {
            process: number,
            session,
            start,
            from,
            passed,
            end,
            resumes,
            in_batches,
        } = event
        else {
            return Ok(());
        };
        let (number, is_exactly_once) = (*number, self.schedule.exactly_once);
        let all = self.sessions.len();
        let since = self.process(number).unpassed;
        // With a state topic the operator may have adopted the position between two sessions.
        let is_adopted = self.schedule.state_topic && self.was(InjectedFault::SlotMoved);
        let is_alone = self.sessions[since..].iter().all(|owner| *owner == number);
        if *passed && is_alone && !is_adopted {
            return Err(format!("I12: only a foreign client has advanced the slot to {start}"));
        }
        self.sessions.push(number);
        let slot = self.slot;
        let process = self.process(number);
        process.reached = process.reached.max(slot);
        if !passed {
            process.unpassed_before = process.unpassed;
            process.unpassed = all;
        }
        process.reaches.get_or_insert(*end);
        process.opened += 1;
        process.session = Some(*session);
        process.produced = Lsn::ZERO;
        process.took = false;
        process.known = process.known.max(*start);
        // In exactly-once mode a session reads from the position in the state topic: see I9.
        let whole = if *passed || is_exactly_once { Lsn::ZERO } else { process.whole };
        if *from < *start || *from < whole {
            return Err(format!("I5: read from {from} again: A {start}, taken {whole}"));
        }
        let anew = *passed || !*resumes;
        let opened = Opened { start: *start, from: *from, anew, in_batches: *in_batches };
        self.feed_opened(now_ms, number, &opened)
    }

    /// A session that ended while it was opened has told the relay nothing.
    fn no_session(&mut self, process: usize, error: &SourceError) {
        if matches!(error, SourceError::Lost(why) if why == ENDED_WHILE_OPENED) {
            let process = self.process(process);
            process.unpassed = process.unpassed_before;
        }
    }

    fn process(&mut self, process: usize) -> &mut Process {
        self.processes.entry(process).or_default()
    }

    fn owner(&mut self, session: usize) -> &mut Process {
        let process = self.sessions[session];
        self.process(process)
    }

    fn cut_off(&mut self, session: usize) {
        let owner = self.owner(session);
        owner.feeds.broke();
        if owner.session == Some(session) {
            owner.session = None;
            owner.cut_off = true;
        }
    }

    /// Whoever has moved the slot accepts what is there, and adopts what is beyond the state.
    fn moved(&mut self, to: Lsn) {
        self.has_lost = false;
        if to > self.state {
            self.unrecorded.clone_from(&self.appended);
        }
        self.processes.values_mut().for_each(|process| process.feeds.moved_by_somebody(to));
    }

    /// I1 and I2, and that the state topic has it, at the moment of a confirmation.
    fn confirmed(&mut self, session: usize, lsn: Lsn) -> Verdict {
        let owner = self.owner(session);
        let (before, known) = (owner.confirmed, owner.known);
        owner.confirmed = lsn;
        if lsn < before {
            return Err(format!("I2: the flush LSN fell from {before} to {lsn}"));
        }
        if lsn > known {
            return Err(format!(
                "I2: the flush LSN is {lsn}, but WAL was received up to {known} only"
            ));
        }
        if self.schedule.state_topic && self.has_lost {
            return Err("I12: the server has lost what is published, and it goes on".into());
        }
        if self.schedule.state_topic && lsn > self.state {
            return Err(format!("{lsn} is confirmed, but {} is in the state topic", self.state));
        }
        self.own_cover(self.sessions[session], lsn)?;
        self.cover(lsn)
    }

    /// The slot has this position.
    fn slot_at(&mut self, confirmed: Lsn) -> Verdict {
        self.slot = confirmed;
        for process in self.processes.values_mut() {
            process.reached = process.reached.max(confirmed);
        }
        self.cover(confirmed)
    }

    /// I1: the broker has everything that committed before `lsn`.
    fn cover(&mut self, lsn: Lsn) -> Verdict {
        while let Some(item) = self.log.items.get(self.covered) {
            let before = match item {
                Item::Transaction { commit, .. } => *commit < lsn,
                Item::Loose { .. } | Item::Other { .. } => item.end() <= lsn,
            };
            if !before {
                break;
            }
            if !self.given_up.contains(&self.covered)
                && let Some(event) = item.events().find(|event| !self.is_there(*event))
            {
                return Err(format!(
                    "I1: {lsn} was confirmed, but event {event} was not delivered"
                ));
            }
            self.covered += 1;
        }
        Ok(())
    }

    /// Whether that event must not be in its own topic.
    fn is_diverted(&self, event: &Event) -> bool {
        self.schedule.policy != Policy::Halt && event.poison != Poison::None
    }

    /// Whether the broker has the event, or a policy skips it.
    fn is_there(&self, event: usize) -> bool {
        let is_skipped = self.schedule.policy == Policy::Skip;
        self.appended.contains(&event)
            || is_skipped && self.log.events[event].poison != Poison::None
    }

    /// I6: a producer receives a partition's records in commit order, and only a new session starts
    /// again.
    fn produce(&mut self, producer: usize, event: usize) -> Verdict {
        let (partition, place) = (self.log.events[event].partition(), self.place[&event]);
        let commit = self.log.events[event].commit;
        let process = self.producers[producer].process;
        let of = self.process(process);
        of.produced = of.produced.max(commit);
        of.feeds.produced(event);
        let opened = self.process(process).opened;
        let last = self.producers[producer].produced[partition].replace((place, opened));
        let feeds = &self.process(process).feeds;
        match last {
            Some((last, then)) if place <= last && then == opened => {
                Err(format!("I6: event {event} is produced again in one session"))
            }
            Some((last, then)) if place <= last && !feeds.may_repeat(then) => {
                Err(format!("I5: event {event} is produced again by the feed that took over"))
            }
            _ => Ok(()),
        }
    }

    /// I6: a producer appends a partition's records in commit order without a gap, and first
    /// occurrences are in order.
    fn append(&mut self, producer: usize, event: usize) -> Verdict {
        let partition = self.log.events[event].partition();
        let place = self.place[&event];
        let last = self.producers[producer].last[partition].replace(place);
        let front = self.front[partition];
        let from = match last {
            Some(last) if place > last => Some(last),
            _ => front.filter(|front| place > *front).or(place.checked_sub(1)),
        };
        // Nothing precedes the first event.
        let first = match (last, front) {
            (None, None) => 0,
            _ => from.map_or(place, |from| from + 1),
        };
        let left_out = |place: &usize| {
            let event = &self.log.events[self.order[partition][*place]];
            !self.given_up.contains(&event.item) && !self.is_diverted(event)
        };
        if let Some(place) = (first..place).find(left_out) {
            let left_out = self.order[partition][place];
            return Err(format!(
                "I6: event {event} is appended without event {left_out} before it"
            ));
        }
        self.front[partition] = Some(front.map_or(place, |front| front.max(place)));
        self.is_new(event)?;
        self.appended.insert(event);
        Ok(())
    }

    /// I9: in exactly-once mode no event is committed twice.
    fn is_new(&self, event: usize) -> Verdict {
        let is_again = self.appended.contains(&event) && !self.accepted.contains(&event);
        if self.schedule.exactly_once && is_again {
            return Err(format!("I9: event {event} is published twice"));
        }
        Ok(())
    }

    fn was(&self, fault: InjectedFault) -> bool {
        self.faults.contains(&fault)
    }
}
