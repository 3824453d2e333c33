//! The caller's end of a store: orders go to a thread of its own, and events come back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{State, StateEvent, StateFailure, StateKey, StateStore};

/// An order. Each one ends in one event, in their order.
pub(crate) enum Order {
    Open(StateKey),
    Write(Box<State>),
    /// To a store that tells it from the former.
    Adopt(Box<State>),
}

/// The thread's ends of both channels: orders in, events out.
pub(crate) type Worker = (UnboundedReceiver<Order>, UnboundedSender<StateEvent>);

/// The time for which the store may lose a write: set by its thread before it reports one.
#[derive(Debug, Clone)]
pub(crate) struct MayLose(Arc<AtomicU64>);

impl MayLose {
    /// Sets the time, to the millisecond.
    pub(crate) fn set(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }
}

/// A store whose work another thread does.
pub struct StoreHandle {
    /// What the store is called in errors.
    name: &'static str,
    orders: UnboundedSender<Order>,
    events: UnboundedReceiver<StateEvent>,
    /// Received by [`StateStore::wait`], or an order that nobody executes.
    next: Option<StateEvent>,
    may_lose_ms: Arc<AtomicU64>,
}

impl StoreHandle {
    /// A handle, and what the thread works with.
    pub(crate) fn new(name: &'static str) -> (Self, Worker) {
        let (orders, received) = unbounded_channel();
        let (reports, events) = unbounded_channel();
        let may_lose_ms = Arc::default();
        (Self { name, orders, events, next: None, may_lose_ms }, (received, reports))
    }

    /// The value in which the thread stores how long a write may be lost.
    pub(crate) fn loss(&self) -> MayLose {
        MayLose(Arc::clone(&self.may_lose_ms))
    }

    fn order(&mut self, order: Order) {
        if self.orders.send(order).is_err() {
            let reason = format!("the thread of the {} has ended", self.name);
            self.next = Some(StateEvent::Failed(StateFailure::Unavailable(reason)));
        }
    }
}

impl StateStore for StoreHandle {
    fn open(&mut self, key: &StateKey) {
        self.order(Order::Open(key.clone()));
    }

    fn write(&mut self, state: &State) {
        self.order(Order::Write(Box::new(state.clone())));
    }

    fn adopt(&mut self, state: &State) {
        self.order(Order::Adopt(Box::new(state.clone())));
    }

    fn may_lose(&self) -> Duration {
        Duration::from_millis(self.may_lose_ms.load(Ordering::Relaxed))
    }

    fn take_event(&mut self) -> Option<StateEvent> {
        self.next.take().or_else(|| self.events.try_recv().ok())
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            if self.next.is_none() {
                match self.events.recv().await {
                    Some(event) => self.next = Some(event),
                    None => std::future::pending().await,
                }
            }
        })
    }
}
