//! The caller's end of a store: orders go to a thread of its own, and events come back.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{State, StateEvent, StateFailure, StateKey, StateStore};

/// An order. Each one ends in one event, in their order.
pub(super) enum Order {
    Open(StateKey),
    Write(Box<State>),
    /// To a store that tells it from the former.
    Adopt(Box<State>),
}

/// Where the thread gets its orders, and reports events.
pub(super) type Worker = (UnboundedReceiver<Order>, UnboundedSender<StateEvent>);

/// A store whose work another thread does.
pub struct StoreHandle {
    /// What the store is called in errors.
    name: &'static str,
    orders: UnboundedSender<Order>,
    events: UnboundedReceiver<StateEvent>,
    /// Received by [`StateStore::wait`], or an order that nobody executes.
    next: Option<StateEvent>,
}

impl StoreHandle {
    /// A handle, and what the thread works with.
    pub(super) fn new(name: &'static str) -> (Self, Worker) {
        let (orders, received) = unbounded_channel();
        let (reports, events) = unbounded_channel();
        (Self { name, orders, events, next: None }, (received, reports))
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
