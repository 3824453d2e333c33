//! Everything outside of walpost, behind one lock, and the schedule's random number generator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use tokio::time::Instant;

use crate::broker::Broker;
use crate::schedule::Schedule;
use crate::server::{Server, Snapshot};
use crate::trace::{Trace, TraceEvent};
use crate::wal::Log;

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) schedule: Schedule,
    pub(crate) log: Log,
    pub(crate) server: Server,
    pub(crate) broker: Broker,
    pub(crate) trace: Trace,
    /// What the server had committed before it was restored, each time.
    pub(crate) lost: Vec<Log>,
    /// To what it can be restored.
    pub(crate) snapshot: Option<Snapshot>,
    /// Whether it is to be restored, once no process is left.
    pub(crate) is_restored: bool,
    pub(crate) running: usize,
    /// Which configuration processes are started with.
    pub(crate) layout: u8,
    /// Whether the faults are over.
    pub(crate) calm: bool,
    began: Instant,
}

/// The shared world. There is one thread, so the lock never blocks.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<World>>);

impl Shared {
    /// Creates the world of `seed`, inside the runtime with virtual time.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let schedule = Schedule::new(&mut rng);
        Self(Arc::new(Mutex::new(World {
            log: Log::new(schedule.scale),
            rng,
            schedule,
            server: Server::new(),
            broker: Broker::new(Server::new().confirmed),
            trace: Vec::new(),
            lost: Vec::new(),
            snapshot: None,
            is_restored: false,
            running: 0,
            layout: 0,
            calm: false,
            began: Instant::now(),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// What the server had, each time until it was restored, and has in the end.
    pub(crate) fn logs(&self) -> Vec<&Log> {
        self.lost.iter().chain([&self.log]).collect()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).expect("a schedule is short")
    }

    pub(crate) fn note(&mut self, event: TraceEvent) {
        let now = self.now_ms();
        self.trace.push((now, event));
    }

    /// True once in this many calls, on average.
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.rng.u64(0..times) == 0
    }
}
