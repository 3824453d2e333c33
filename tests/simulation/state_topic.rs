//! The simulated state topic. In exactly-once mode its records are committed together with those of
//! the process's producer, which are fenced when another process opens it; otherwise it has a producer
//! of its own, and only that one is. Replies come late, or never: what was written then counts or not.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;
use walpost::position::Checkpoint;
use walpost::sink::Condition;
use walpost::state::{State, StateEvent, StateFailure, StateKey, StateStore};

use crate::trace::TraceEvent;
use crate::world::{Shared, World};

pub(crate) struct SimStore {
    world: Shared,
    process: usize,
    /// What was asked for, and when the reply comes.
    orders: VecDeque<(u64, Order)>,
}

#[allow(clippy::large_enum_variant, reason = "there are few")]
enum Order {
    Open,
    Write {
        state: Box<State>,
        /// What became of it, if that is decided before the reply.
        done: Option<StateEvent>,
    },
}

impl SimStore {
    pub(crate) fn new(world: &Shared, process: usize) -> Self {
        Self { world: world.clone(), process, orders: VecDeque::new() }
    }

    fn order(&mut self, order: Order) {
        let due = {
            let mut world = self.world.lock();
            world.now_ms() + world.rng.u64(0..150)
        };
        self.orders.push_back((due, order));
    }
}

impl StateStore for SimStore {
    fn open(&mut self, _: &StateKey) {
        self.order(Order::Open);
    }

    fn write(&mut self, state: &State) {
        let done = {
            let mut world = self.world.lock();
            let is_early = world.rng.bool();
            is_early.then(|| world.write_state(self.process, state))
        };
        self.order(Order::Write { state: Box::new(state.clone()), done });
    }

    fn take_event(&mut self) -> Option<StateEvent> {
        let mut world = self.world.lock();
        let now = world.now_ms();
        self.orders.front().filter(|(due, _)| *due <= now)?;
        let (_, order) = self.orders.pop_front()?;
        Some(match order {
            Order::Open => world.open_state(self.process),
            Order::Write { state, done } => {
                done.unwrap_or_else(|| world.write_state(self.process, &state))
            }
        })
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let now = self.world.lock().now_ms();
        let left = self.orders.front().map(|(due, _)| due.saturating_sub(now));
        Box::pin(async move {
            match left {
                Some(left) => sleep(Duration::from_millis(left)).await,
                None => pending().await,
            }
        })
    }
}

impl World {
    fn open_state(&mut self, process: usize) -> StateEvent {
        if self.now_ms() < self.broker.away_until {
            return unavailable();
        }
        if self.schedule.exactly_once {
            self.fence();
            self.new_transactional_producer(process);
            let Checkpoint { upto, partial } = self.broker.state.checkpoint();
            self.note(TraceEvent::StateRead { process, upto, partial });
        } else {
            self.broker.state_writer = Some(process);
        }
        StateEvent::Opened {
            state: Some(self.broker.state.clone()),
            cluster: None,
            published: None,
            is_diverged: false,
            transaction_timeout: None,
        }
    }

    /// Writes the position; in exactly-once mode that commits the process's transaction. After a
    /// failure its producer is of no use any more.
    fn write_state(&mut self, process: usize, state: &State) -> StateEvent {
        let events = self.broker.transactional(process);
        let events = events.filter(|at| self.broker.producers[*at].open);
        let is_writer = self.broker.state_writer == Some(process);
        let may_write = if self.schedule.exactly_once { events.is_some() } else { is_writer };
        if !may_write {
            self.note(TraceEvent::StateFailed { process });
            return StateEvent::Failed(StateFailure::Fenced);
        }
        let lost = self.broker.loses.take();
        let is_away = self.now_ms() < self.broker.away_until;
        if !is_away && lost != Some(false) {
            self.end_transaction(events, state);
        }
        if is_away || lost.is_some() {
            match events {
                Some(at) => self.broker.producers[at].open = false,
                None => self.broker.state_writer = None,
            }
            self.note(TraceEvent::StateFailed { process });
            return unavailable();
        }
        StateEvent::Written
    }

    fn end_transaction(&mut self, events: Option<usize>, state: &State) {
        for event in events.map(|at| self.take_transaction(at)).into_iter().flatten() {
            self.note(event);
        }
        self.note(TraceEvent::StateWritten { upto: state.acked_upto });
        self.broker.state = state.clone();
    }

    /// All transactional producers are fenced; their transactions are aborted.
    fn fence(&mut self) {
        let producers = self.broker.producers.iter_mut();
        for producer in producers.filter(|producer| producer.owner.is_some() && producer.open) {
            producer.open = false;
            producer.condition(Condition::Broken("fenced".into()));
        }
    }

    fn new_transactional_producer(&mut self, process: usize) {
        let new = self.new_producer(process);
        // The next producer makes smaller batches.
        let refused = self.broker.producers.iter().any(|one| one.refused);
        let producer = &mut self.broker.producers[new];
        (producer.owner, producer.members, producer.refused) = (Some(process), 1, refused);
    }

    /// The operator runs `walpost adopt --apply` after the slot was moved.
    pub(crate) fn adopt(&mut self) {
        let confirmed = self.server.confirmed;
        let state = &mut self.broker.state;
        if state.acked_upto < confirmed {
            let partial = state.partial.filter(|partial| partial.next.commit_lsn >= confirmed);
            let layout = state.layout.clone();
            let generation = state.generation + 1;
            *state = State { generation, partial, layout, ..State::accepted(1, confirmed) };
            self.note(TraceEvent::StateWritten { upto: confirmed });
            // It writes as each walpost does.
            self.broker.state_writer = None;
            self.fence();
        }
    }

    /// The operator runs `walpost adopt --apply` after the server was restored, while no walpost runs:
    /// one that has no session at the moment would confirm what it knows, beyond the adopted position.
    pub(crate) fn accept(&mut self) {
        if self.slot_is_in_use() || self.running > 0 {
            return;
        }
        let (upto, timeline) = (self.server.confirmed, self.server.timeline);
        let generation = self.broker.state.generation + 1;
        self.broker.state = State { generation, ..State::accepted(timeline, upto) };
        self.note(TraceEvent::Adopted { upto });
        self.broker.state_writer = None;
        self.fence();
    }
}

fn unavailable() -> StateEvent {
    StateEvent::Failed(StateFailure::Unavailable("the brokers do not answer".to_owned()))
}
