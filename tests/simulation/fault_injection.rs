//! Writes the outbox, and injects faults in the meantime.

use std::time::Duration;

use tokio::time::sleep;
use walpost::Lsn;
use walpost::sink::Condition;

use crate::trace::{InjectedFault, TraceEvent};
use crate::wal::Poison;
use crate::world::{Shared, World};

const FOREVER: u64 = u64::MAX;

/// Commits all transactions of the schedule, with other WAL records in between.
pub(crate) async fn write(world: Shared) {
    let (left, apart) = {
        let world = world.lock();
        let left = world.schedule.transactions;
        (left, world.schedule.faults_ms * 2 / left.max(1) as u64)
    };
    for _ in 0..left {
        let nap = {
            let mut world = world.lock();
            if world.calm { 0 } else { world.rng.u64(0..=apart) }
        };
        sleep(Duration::from_millis(nap)).await;
        world.lock().commit();
    }
    let mut world = world.lock();
    if matches!(world.schedule.poison, Some((Poison::Forbidden, _))) {
        // Whether an event is at fault shows only once another is accepted.
        let World { log, rng, .. } = &mut *world;
        log.commit(rng, 12, Poison::None);
        let item = world.log.items.len() - 1;
        world.note(TraceEvent::Committed { item });
    }
}

/// Injects faults for as long as the schedule says, then ends them all.
pub(crate) async fn inject(world: Shared) {
    let (until, apart) = {
        let world = world.lock();
        (world.schedule.faults_ms, world.schedule.apart_ms)
    };
    while world.lock().now_ms() < until {
        let nap = world.lock().rng.u64(0..=apart * 2);
        sleep(Duration::from_millis(nap)).await;
        let mut world = world.lock();
        let enabled = world.schedule.faults.len();
        if enabled > 0 {
            let fault = world.rng.usize(0..enabled);
            let fault = world.schedule.faults[fault];
            world.inject(fault);
        }
    }
    world.lock().end_all_faults();
}

impl World {
    fn commit(&mut self) {
        while self.one_in(6) {
            if self.one_in(2) {
                self.log.nontransactional_message(&mut self.rng);
            } else {
                self.log.other(&mut self.rng);
            }
        }
        let most = self.schedule.events_most;
        let size = match self.rng.u8(0..12) {
            0..2 => 0,
            2..6 => 1,
            6..11 => self.rng.usize(0..=most.min(40)),
            _ => self.rng.usize(0..=most),
        };
        let (poison, times) = self.schedule.poison.unwrap_or((Poison::None, 1));
        let poison = if self.one_in(times) { poison } else { Poison::None };
        self.log.commit(&mut self.rng, size, poison);
        let item = self.log.items.len() - 1;
        self.note(TraceEvent::Committed { item });
    }

    pub(crate) fn inject(&mut self, fault: InjectedFault) {
        self.note(TraceEvent::InjectedFault(fault));
        let span = [20, 500, 8000, 20_000][self.rng.usize(0..4)];
        let span = self.rng.u64(0..span);
        let until = self.now_ms() + span;
        match fault {
            InjectedFault::SessionEnds => self.end_session(),
            InjectedFault::ServerRestarts => self.restart_server(span),
            InjectedFault::ServerAway => {
                self.end_session();
                self.server.away_until = until;
            }
            InjectedFault::AccessRefused => {
                self.end_session();
                self.server.closed_until = until;
            }
            InjectedFault::SlotHeld => {
                // Between two advances any client may use the slot.
                if self.server.is_held() || self.one_in(2) {
                    self.end_session();
                }
                self.server.held_until = until;
                self.server.forget_the_last();
            }
            InjectedFault::SlotMoved => self.foreign_client_advances_the_slot(),
            InjectedFault::SlotDropped => {
                self.end_session();
                self.server.slot_is_there = false;
            }
            InjectedFault::OtherServer => {
                self.restart_server(span);
                self.server.timeline += 1;
            }
            InjectedFault::BrokerAway => {
                self.broker.away_until = until;
                self.notify_producers(&Condition::Unreachable("all brokers are down".into()));
            }
            // Once: the only accepted event since a refusal must not be one of another outage.
            InjectedFault::RefusesAll if self.broker.refuses_until == 0 => {
                self.broker.refuses_until = until;
            }
            InjectedFault::RefusesAll => {}
            InjectedFault::BrokerSlow => self.broker.slow_until = until,
            InjectedFault::BatchLost => self.broker.loses = Some(false),
            InjectedFault::AckLost => self.broker.loses = Some(true),
            InjectedFault::ProducerFails => self.for_a_producer(Self::fail_producer),
            InjectedFault::ProducerStuck => self.for_a_producer(|world, at| {
                let for_ever = world.one_in(4);
                world.hold_producer(at, if for_ever { FOREVER } else { until });
            }),
            InjectedFault::QueueFull => self.broker.full_until = until,
            InjectedFault::ReplacementSlow => self.broker.replacement_ms = Some(span),
            InjectedFault::ReplacementFails => self.broker.replacement_fails = true,
            InjectedFault::Unauthenticated => {
                self.notify_producers(&Condition::Unauthenticated("wrong password".into()));
            }
            InjectedFault::BatchRefused => self.server.refuses = true,
            InjectedFault::MoveSlow => self.server.move_ms = Some(span),
            InjectedFault::ServerRestored => self.save_or_restore(),
            InjectedFault::LayoutChanged => self.layout = 1 - self.layout,
        }
    }

    fn end_all_faults(&mut self) {
        self.server.away_until = 0;
        self.server.closed_until = 0;
        self.server.held_until = 0;
        self.server.refuses = false;
        self.server.move_ms = None;
        self.broker.away_until = 0;
        self.broker.slow_until = 0;
        self.broker.refuses_until = self.broker.refuses_until.min(1);
        self.broker.full_until = 0;
        self.broker.loses = None;
        self.broker.replacement_ms = None;
        self.broker.replacement_fails = false;
        // The relay has to replace a producer that is stuck forever.
        let stuck = self.broker.producers.iter_mut().filter(|one| one.stuck_until < FOREVER);
        stuck.for_each(|producer| producer.stuck_until = 0);
        self.calm = true;
        self.note(TraceEvent::Calm);
    }

    /// An operator advances the slot while no client uses it.
    fn foreign_client_advances_the_slot(&mut self) {
        if self.server.is_held() || !self.server.slot_is_there {
            return;
        }
        let far = self.rng.u64(self.server.confirmed.as_u64()..=self.log.end.as_u64());
        let to = self.rng.u64(self.server.confirmed.as_u64()..=far);
        self.advance(Lsn::new(to));
    }

    /// An operator advances the slot and gives up the events that it skips.
    pub(crate) fn advance(&mut self, to: Lsn) {
        if to <= self.server.confirmed {
            return;
        }
        let passed = self.server.confirmed..to;
        for item in 0..self.log.items.len() {
            if self.log.items[item].commit().is_some_and(|commit| passed.contains(&commit)) {
                self.note(TraceEvent::GivenUp { item });
            }
        }
        self.foreign_client_sets_the_slot(to);
    }

    fn notify_producers(&mut self, condition: &Condition) {
        for producer in self.broker.producers.iter_mut().filter(|producer| producer.open) {
            producer.unreachable(condition.clone());
        }
    }

    fn for_a_producer(&mut self, act: impl FnOnce(&mut Self, usize)) {
        let mut producers = self.broker.producers.iter();
        if let Some(at) = producers.rposition(|producer| producer.open) {
            act(self, at);
        }
    }
}
