//! Waiting for a broker before the first transaction of a producer.

use std::time::Duration;

use rdkafka::client::{Client, ClientContext};

/// Waits until a broker answers on a connection that is used for long. Otherwise librdkafka may ask
/// for the transaction coordinator through the bootstrap connection, which it closes meanwhile, and
/// wait half a second to ask again.
pub(super) fn await_broker<C: ClientContext>(client: &Client<C>, topic: &str, timeout: Duration) {
    // The first answer may come through the bootstrap connection. Only a request for metadata has it
    // made at once: a new transactional producer may choose to connect to its coordinator, which has
    // no address yet, and then connects to nothing for a second.
    for _ in 0..2 {
        if let Err(error) = client.fetch_metadata(Some(topic), timeout) {
            return tracing::debug!(%error, "no answer before a transaction");
        }
    }
}
