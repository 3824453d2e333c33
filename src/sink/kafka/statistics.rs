//! What librdkafka's statistics say of the connections to brokers, and of the right to
//! write.
//!
//! Format: librdkafka's STATISTICS.md.

use std::collections::HashMap;

use serde::Deserialize;

/// The part of the statistics that is read.
#[derive(Deserialize)]
struct Statistics<'a> {
    #[serde(borrow)]
    brokers: HashMap<&'a str, Broker<'a>>,
    #[serde(borrow)]
    eos: Option<Idempotence<'a>>,
}

#[derive(Deserialize)]
struct Broker<'a> {
    state: &'a str,
}

#[derive(Deserialize)]
struct Idempotence<'a> {
    idemp_state: &'a str,
}

/// How a producer stands to the brokers. Where that cannot be read it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ConnectionState {
    /// A connection to a broker stands: also one whose password is asked again.
    pub(crate) is_connected: bool,
    /// The brokers have given it the producer id that it writes with.
    pub(crate) has_id: bool,
}

pub(crate) fn connection_state(statistics: &[u8]) -> ConnectionState {
    let Ok(Statistics { brokers, eos }) = serde_json::from_slice(statistics) else {
        return ConnectionState::default();
    };
    ConnectionState {
        is_connected: brokers.values().any(|broker| matches!(broker.state, "UP" | "REAUTH")),
        has_id: eos.is_some_and(|eos| eos.idemp_state == "Assigned"),
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectionState, connection_state};

    #[test]
    fn a_broker_that_is_up_is_a_connection_and_an_id_is_the_right_to_write() {
        let found = |first: &str, second: &str, id: &str| {
            let statistics = format!(
                r#"{{"name":"walpost#producer-1","brokers":{{"localhost:9092/1":{{"nodeid":1,
                "state":"{first}","stateage":7}},"localhost:9092/bootstrap":{{"state":"{second}"}}}},
                "topics":{{}},"eos":{{"idemp_state":"{id}","idemp_stateage":3,"txn_state":""}}}}"#
            );
            let ConnectionState { is_connected, has_id } = connection_state(statistics.as_bytes());
            (is_connected, has_id)
        };
        assert_eq!(found("DOWN", "UP", "Assigned"), (true, true));
        assert_eq!(found("REAUTH", "INIT", "WaitPID"), (true, false));
        assert_eq!(found("TRY_CONNECT", "DOWN", "Assigned"), (false, true));
        assert_eq!(connection_state(b"{"), ConnectionState::default());
    }
}
