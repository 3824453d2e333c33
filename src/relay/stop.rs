//! How a relay is told to stop: once to drain, twice to leave at once.

use tokio::sync::watch;

/// What a relay was last told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Run,
    Drain,
    Abort,
}

/// Tells a running relay to stop. Dropping it tells nothing.
#[derive(Debug, Clone)]
pub struct StopHandle(watch::Sender<Order>);

/// The relay's end.
#[derive(Debug, Clone)]
pub struct StopReceiver(watch::Receiver<Order>);

/// A handle and the end that [`super::Relay::new`] takes.
pub fn stop_channel() -> (StopHandle, StopReceiver) {
    let (sender, receiver) = watch::channel(Order::Run);
    (StopHandle(sender), StopReceiver(receiver))
}

impl StopHandle {
    /// Begin nothing more, deliver and confirm what was begun, leave.
    pub fn drain(&self) {
        self.raise(Order::Drain);
    }

    /// Leave at once, with nothing more confirmed.
    pub fn abort(&self) {
        self.raise(Order::Abort);
    }

    /// Drain; told a second time, abort.
    pub fn stop(&self) {
        let told = *self.0.borrow();
        self.raise(if told == Order::Run { Order::Drain } else { Order::Abort });
    }

    fn raise(&self, order: Order) {
        self.0.send_if_modified(|current| {
            let raised = order > *current;
            *current = order.max(*current);
            raised
        });
    }
}

impl StopReceiver {
    pub(super) fn order(&self) -> Order {
        *self.0.borrow()
    }

    /// Completes when the order changed. Never, once every handle is gone.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Completes once it is told to leave at once.
    pub(super) async fn aborted(&mut self) {
        while self.order() != Order::Abort {
            self.changed().await;
        }
    }
}
