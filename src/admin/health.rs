//! The liveness and readiness of a relay, from its metrics.

use std::time::{Duration, SystemTime};

use crate::metrics::Metrics;

/// Maximum time between iterations of the loop: it iterates every second when nothing happens, and
/// the longest step of an iteration is to take a batch.
const LOOP_LIMIT: Duration = Duration::from_secs(30);

/// Maximum time without an acknowledgement while records are in flight.
const PROGRESS_LIMIT: Duration = Duration::from_secs(60);

/// Healthy, or the reasons why not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health(Vec<String>);

impl Health {
    /// Whether it is healthy.
    pub fn is_good(&self) -> bool {
        self.0.is_empty()
    }

    /// The reasons why not, one per line.
    pub fn reasons(&self) -> &[String] {
        &self.0
    }
}

/// Whether the relay's loop iterates. Independent of PostgreSQL and Kafka: a restart would not make
/// them available.
pub fn live(metrics: &Metrics) -> Health {
    let since = metrics.since_last_iteration();
    if since < LOOP_LIMIT {
        return Health::default();
    }
    Health(vec![format!("the relay's loop has not run for {} s", since.as_secs())])
}

/// Whether the relay delivers, or would: it streams, Kafka accepts records, and the records in
/// flight make progress.
pub fn ready(metrics: &Metrics, now: SystemTime) -> Health {
    let mut health = live(metrics);
    let (phase, since) = metrics.phase();
    if !phase.reads() {
        let seconds = now.duration_since(since).unwrap_or_default().as_secs();
        let mut reason = format!("not streaming from the slot: {} for {seconds} s", phase.name());
        if let Some(error) = metrics.last_error().filter(|error| error.at >= since) {
            reason = format!("{reason}; {}", error.text);
        }
        health.0.push(reason);
    }
    health.0.extend(metrics.source_trouble());
    health.0.extend(metrics.state_trouble());
    if let Some(trouble) = metrics.sink_trouble() {
        health.0.push(format!("{} does not accept records: {trouble}", metrics.sink_name()));
    } else if metrics.is_sink_connected() != Some(true) {
        let yet = if metrics.is_sink_connected().is_none() { " yet" } else { "" };
        health.0.push(match metrics.sink_name() {
            "Kafka" => format!("no Kafka broker is connected{yet}"),
            other => format!("{other} is not connected{yet}"),
        });
    }
    let waited = metrics.since_progress();
    if waited >= PROGRESS_LIMIT {
        let seconds = waited.as_secs();
        health.0.push(format!("nothing of what is in flight was acknowledged for {seconds} s"));
    }
    health
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Phase;

    #[test]
    fn it_is_ready_while_it_streams_and_kafka_accepts_records() {
        let metrics = Metrics::default();
        let now = SystemTime::now();
        assert!(live(&metrics).is_good());
        metrics.enter(Phase::Connecting);
        metrics.failed("refused");
        let reasons = ready(&metrics, now).reasons().join("\n");
        assert!(reasons.contains("connecting for 0 s; refused"), "{reasons}");
        assert!(reasons.contains("no Kafka broker"), "{reasons}");
        metrics.enter(Phase::Streaming);
        metrics.sink_connected(Some(true));
        assert_eq!(ready(&metrics, now), Health::default());
        metrics.set_sink_trouble(Some("too few replicas"));
        assert_eq!(
            ready(&metrics, now).reasons(),
            ["Kafka does not accept records: too few replicas"]
        );
        metrics.set_sink_trouble(None);
        metrics.set_source_trouble(Some("PostgreSQL ended the stream".to_owned()));
        assert_eq!(ready(&metrics, now).reasons(), ["PostgreSQL ended the stream"]);
        metrics.set_source_trouble(None);
        metrics.set_state_trouble(Some("the state topic is gone".to_owned()));
        assert_eq!(ready(&metrics, now).reasons(), ["the state topic is gone"]);
        metrics.set_state_trouble(None);
        metrics.enter(Phase::StandingBy);
        let reasons =
            ready(&metrics, SystemTime::now() + Duration::from_secs(7)).reasons().join("\n");
        assert_eq!(reasons, "not streaming from the slot: standby for 7 s", "an old error");
    }
}
