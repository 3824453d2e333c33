//! What librdkafka's statistics say of the connections to brokers.
//!
//! Format: librdkafka's STATISTICS.md.

use std::collections::HashMap;

use serde::Deserialize;

/// The part of the statistics that is read.
#[derive(Deserialize)]
struct Statistics<'a> {
    #[serde(borrow)]
    brokers: HashMap<&'a str, Broker<'a>>,
}

#[derive(Deserialize)]
struct Broker<'a> {
    state: &'a str,
}

/// Whether a connection to a broker stands: also one whose password is asked again. What cannot be read says that none does.
pub(super) fn is_connected(statistics: &[u8]) -> bool {
    let Ok(Statistics { brokers }) = serde_json::from_slice(statistics) else {
        return false;
    };
    brokers.values().any(|broker| matches!(broker.state, "UP" | "REAUTH"))
}

#[cfg(test)]
mod tests {
    use super::is_connected;

    #[test]
    fn a_broker_that_is_up_is_a_connection() {
        let statistics = |first: &str, second: &str| {
            format!(
                r#"{{"name":"walpost#producer-1","brokers":{{"localhost:9092/1":{{"nodeid":1,
                "state":"{first}","stateage":7}},"localhost:9092/bootstrap":{{"state":"{second}"}}}},
                "topics":{{}}}}"#
            )
        };
        assert!(is_connected(statistics("DOWN", "UP").as_bytes()));
        assert!(is_connected(statistics("REAUTH", "INIT").as_bytes()));
        assert!(!is_connected(statistics("TRY_CONNECT", "DOWN").as_bytes()));
        assert!(!is_connected(b"{"));
    }
}
