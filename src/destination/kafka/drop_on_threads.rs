//! Dropping librdkafka's clients without waiting.

use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;

/// Drops clients, each on a thread of its own, since that purges a producer, closes a consumer and
/// joins librdkafka's threads: a tenth of a second, and much longer where brokers do not answer. The
/// receiver completes, with an error, when all are gone.
pub(crate) fn drop_on_threads<T: Send + 'static>(
    clients: impl IntoIterator<Item = T>,
) -> oneshot::Receiver<()> {
    let (ended, receiver) = oneshot::channel();
    let ended = Arc::new(ended);
    for client in clients {
        let ended = Arc::clone(&ended);
        // Where no thread can be had, the closure is dropped here and now.
        let _ = thread::Builder::new().name("client drop".to_owned()).spawn(move || {
            drop(client);
            drop(ended);
        });
    }
    receiver
}
