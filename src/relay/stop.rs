//! Stop orders to a relay: first to drain, then to abort.

use tokio::sync::watch;

/// The last stop order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Run,
    Drain,
    Abort,
}

/// Stops a running relay. Dropping it does nothing.
#[derive(Debug, Clone)]
pub struct StopHandle(watch::Sender<Order>);

/// The receiver of stop orders.
#[derive(Debug, Clone)]
pub struct StopReceiver(watch::Receiver<Order>);

/// A handle, and the receiver for [`super::Relay::new`].
pub fn stop_channel() -> (StopHandle, StopReceiver) {
    let (sender, receiver) = watch::channel(Order::Run);
    (StopHandle(sender), StopReceiver(receiver))
}

impl StopHandle {
    /// Begins nothing more, delivers and confirms what was begun, and ends.
    pub fn drain(&self) {
        self.raise(Order::Drain);
    }

    /// Ends at once, without confirming anything more.
    pub fn abort(&self) {
        self.raise(Order::Abort);
    }

    /// Drains; the second call aborts.
    pub fn stop(&self) {
        let current = *self.0.borrow();
        self.raise(if current == Order::Run { Order::Drain } else { Order::Abort });
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

    /// Completes when the order changes; never if all handles are dropped.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Completes once the order is to abort.
    pub(super) async fn aborted(&mut self) {
        while self.order() != Order::Abort {
            self.changed().await;
        }
    }
}
