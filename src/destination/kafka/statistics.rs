//! Reads librdkafka's statistics: connections to brokers, the producer ID, the brokers' response
//! times, and the number of partitions of each topic.
//!
//! Format: librdkafka's STATISTICS.md.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// The part of the statistics that is read. `int_latency` is not: without a `message.timeout.ms` it
/// is not a time.
#[derive(Deserialize)]
struct Statistics<'a> {
    #[serde(borrow)]
    brokers: HashMap<&'a str, Broker<'a>>,
    #[serde(borrow)]
    eos: Option<Idempotence<'a>>,
    #[serde(borrow, default)]
    topics: HashMap<&'a str, Topic>,
}

#[derive(Deserialize)]
struct Broker<'a> {
    #[serde(default = "unknown")]
    nodeid: i64,
    state: &'a str,
    /// Microseconds from a request to its response, since the last statistics.
    #[serde(default)]
    rtt: Window,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Window {
    min: u64,
    p50: u64,
    cnt: u64,
}

#[derive(Deserialize)]
struct Idempotence<'a> {
    idemp_state: &'a str,
}

#[derive(Deserialize)]
struct Topic {
    #[serde(default)]
    partitions: Partitions,
}

/// How many partitions a topic has, of those that librdkafka lists.
#[derive(Default)]
struct Partitions(u32);

#[derive(Deserialize)]
struct Partition {
    #[serde(default)]
    unknown: bool,
}

impl From<&Window> for RoundTrips {
    fn from(Window { min, p50, cnt }: &Window) -> Self {
        Self { shortest: *min, median: *p50, count: *cnt }
    }
}

fn unknown() -> i64 {
    -1
}

impl<'de> Deserialize<'de> for Partitions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counter;
        impl<'de> Visitor<'de> for Counter {
            type Value = Partitions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("partitions by number")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Partitions, A::Error> {
                let mut count = 0;
                while let Some(number) = map.next_key::<&str>()? {
                    // Records without a partition are listed under partition -1.
                    if number.starts_with('-') {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        count += u32::from(!map.next_value::<Partition>()?.unknown);
                    }
                }
                Ok(Partitions(count))
            }
        }
        deserializer.deserialize_map(Counter)
    }
}

/// The producer's state at the brokers; all false if the statistics cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ConnectionState {
    /// Whether a connection to a broker is open, also while it authenticates again.
    pub(crate) is_connected: bool,
    /// Whether the brokers have assigned it a producer ID.
    pub(crate) has_id: bool,
}

/// The times from a request to its response, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RoundTrips {
    pub(crate) shortest: u64,
    pub(crate) median: u64,
    /// The number of requests.
    pub(crate) count: u64,
}

/// The measurements of one producer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Measured {
    /// Known brokers.
    pub(crate) brokers: u32,
    /// The round trips of each broker that has responded since the last statistics.
    pub(crate) round_trips: Vec<RoundTrips>,
    /// The number of partitions of each topic that it has written to.
    pub(crate) partitions: HashMap<String, u32>,
}

/// The parsed statistics.
pub(crate) fn read(statistics: &[u8]) -> (ConnectionState, Measured) {
    let Ok(Statistics { brokers, eos, topics }) = serde_json::from_slice(statistics) else {
        return Default::default();
    };
    let state = ConnectionState {
        is_connected: brokers.values().any(|broker| matches!(broker.state, "UP" | "REAUTH")),
        has_id: eos.is_some_and(|eos| eos.idemp_state == "Assigned"),
    };
    let known = brokers.values().filter(|broker| broker.nodeid >= 0);
    let asked = brokers.values().filter(|broker| broker.rtt.cnt > 0);
    let partitions = topics.into_iter().map(|(name, topic)| (name.to_owned(), topic.partitions.0));
    let measured = Measured {
        brokers: u32::try_from(known.count()).unwrap_or(u32::MAX),
        round_trips: asked.map(|broker| RoundTrips::from(&broker.rtt)).collect(),
        partitions: partitions.filter(|(_, count)| *count > 0).collect(),
    };
    (state, measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_that_is_up_is_connected_and_producer_id_means_ready() {
        let found = |first: &str, second: &str, id: &str| {
            let statistics = format!(
                r#"{{"name":"walpost#producer-1","brokers":{{"localhost:9092/1":{{"nodeid":1,
                "state":"{first}","stateage":7}},"localhost:9092/bootstrap":{{"state":"{second}"}}}},
                "topics":{{}},"eos":{{"idemp_state":"{id}","idemp_stateage":3,"txn_state":""}}}}"#
            );
            let (ConnectionState { is_connected, has_id }, _) = read(statistics.as_bytes());
            (is_connected, has_id)
        };
        assert_eq!(found("DOWN", "UP", "Assigned"), (true, true));
        assert_eq!(found("REAUTH", "INIT", "WaitPID"), (true, false));
        assert_eq!(found("TRY_CONNECT", "DOWN", "Assigned"), (false, true));
        assert_eq!(read(b"{").0, ConnectionState::default());
    }

    #[test]
    fn round_trips_and_partitions_are_read() {
        let statistics = r#"{"brokers":{
            "a:9092/1":{"nodeid":1,"state":"UP","rtt":{"min":512,"max":900,"p50":700,"cnt":60},
             "int_latency":{"min":-9223368702336467143,"avg":-1,"cnt":90}},
            "b:9092/2":{"nodeid":2,"state":"UP","rtt":{"min":0,"max":0,"cnt":0}},
            "a:9092/bootstrap":{"nodeid":-1,"state":"UP","rtt":{"min":480,"max":9,"p50":8,"cnt":2}}},
          "topics":{"t":{"topic":"t","partitions":{"0":{"partition":0,"unknown":false},
            "1":{"partition":1,"unknown":false},"7":{"partition":7,"unknown":true},
            "-1":{"partition":-1,"unknown":false}}},
            "u":{"topic":"u","partitions":{"-1":{"partition":-1}}}}}"#;
        let (_, mut measured) = read(statistics.as_bytes());
        measured.round_trips.sort_unstable();
        let expected = Measured {
            brokers: 2,
            round_trips: vec![
                RoundTrips { shortest: 480, median: 8, count: 2 },
                RoundTrips { shortest: 512, median: 700, count: 60 },
            ],
            partitions: HashMap::from([("t".to_owned(), 2)]),
        };
        assert_eq!(measured, expected);
    }
}
