//! The simulated state topic of exactly-once mode, whose records are committed together with those of
//! the process's producer. Opening it fences the producers of all other processes. Replies come late,
//! or never: what was written then counts or not.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;
use walpost::Lsn;
use walpost::state::{State, StateEvent, StateFailure, StateKey, StateStore};

use crate::trace::TraceEvent;
use crate::world::{Shared, World};

pub(crate) struct SimStore {
    world: Shared,
    process: usize,
    /// What was asked for, and when the reply comes.
    orders: VecDeque<(u64, Order)>,
}

enum Order {
    Open,
    Write {
        state: Box<State>,
        /// What became of it, if that is decided before the reply.
        done: Option<StateEvent>,
    },
}

/// The record that `walpost adopt` writes.
pub(crate) fn adopted(acked_upto: Lsn) -> State {
    State {
        generation: 0,
        timeline: 1,
        cluster: None,
        acked_upto,
        last: None,
        partial: None,
        skipped: Vec::new(),
        layout: String::new(),
        at_ms: 0,
    }
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
        self.fence();
        self.new_transactional_producer(process);
        let (upto, partial) = (self.broker.state.acked_upto, self.broker.state.partial);
        self.note(TraceEvent::StateRead { process, upto, partial });
        StateEvent::Opened { state: Some(self.broker.state.clone()), cluster: None }
    }

    /// Commits the process's transaction. After a failure its producer is of no use any more.
    fn write_state(&mut self, process: usize, state: &State) -> StateEvent {
        let current = self.broker.transactional(process);
        let Some(at) = current.filter(|at| self.broker.producers[*at].open) else {
            return StateEvent::Failed(StateFailure::Fenced);
        };
        let lost = self.broker.loses.take();
        let is_away = self.now_ms() < self.broker.away_until;
        if !is_away && lost != Some(false) {
            self.end_transaction(at, state);
        }
        if is_away || lost.is_some() {
            self.broker.producers[at].open = false;
            return unavailable();
        }
        StateEvent::Written
    }

    fn end_transaction(&mut self, at: usize, state: &State) {
        for event in self.take_transaction(at) {
            self.note(event);
        }
        self.broker.state = state.clone();
    }

    /// The operator runs `walpost adopt --apply` after the slot was moved.
    pub(crate) fn adopt(&mut self) {
        let confirmed = self.server.confirmed;
        let state = &mut self.broker.state;
        if state.acked_upto < confirmed {
            let partial = state.partial.filter(|partial| partial.commit_lsn >= confirmed);
            let layout = state.layout.clone();
            let generation = state.generation + 1;
            *state = State { generation, partial, layout, ..adopted(confirmed) };
        }
    }
}

fn unavailable() -> StateEvent {
    StateEvent::Failed(StateFailure::Unavailable("the brokers do not answer".to_owned()))
}
