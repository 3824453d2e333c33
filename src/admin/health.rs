//! The liveness and readiness of a relay, from its metrics.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::metrics::{Metrics, Phase, Trouble};

/// Maximum time between iterations of the loop: it iterates every second when nothing happens, and
/// the longest step of an iteration is to take a batch.
const LOOP_LIMIT: Duration = Duration::from_secs(30);

/// Maximum time without an acknowledgement while records are in flight.
const PROGRESS_LIMIT: Duration = Duration::from_secs(60);

/// Healthy, or the reasons why not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health(Vec<Reason>);

/// Why it is not healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) kind: ReasonKind,
    pub(super) text: String,
    /// Since when, if that is known.
    pub(super) since: Option<SystemTime>,
}

/// What a reason is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// The relay's loop.
    Loop,
    /// Another instance delivers.
    Standby,
    /// The slot is not read.
    Source,
    /// PostgreSQL sends nothing more.
    HeldUp,
    /// walpost's own position cannot be written.
    Position,
    /// An event waits for its schema.
    Registry,
    /// The destination.
    Destination,
    /// Nothing is acknowledged.
    Stalled,
}

impl Health {
    /// Whether it is healthy.
    pub fn is_good(&self) -> bool {
        self.0.is_empty()
    }

    /// The reasons why not, one per line.
    pub fn reasons(&self) -> Vec<String> {
        self.0.iter().map(|reason| reason.text.clone()).collect()
    }

    /// The same with what they are about.
    pub(super) fn known(&self) -> &[Reason] {
        &self.0
    }

    fn add(&mut self, kind: ReasonKind, text: String, since: Option<SystemTime>) {
        self.0.push(Reason { kind, text, since });
    }

    fn add_trouble(&mut self, kind: ReasonKind, trouble: Option<Trouble>) {
        if let Some(Trouble { text, since }) = trouble {
            self.add(kind, text, Some(since));
        }
    }
}

/// Whether the relay's loop iterates. Independent of PostgreSQL and Kafka: a restart would not make
/// them available.
pub fn live(metrics: &Metrics) -> Health {
    let since = metrics.since_last_iteration();
    if since < LOOP_LIMIT {
        return Health::default();
    }
    let mut health = Health::default();
    let text = format!("the relay's loop has not run for {} s", since.as_secs());
    health.add(ReasonKind::Loop, text, None);
    health
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
        let is_standby = phase == Phase::StandingBy;
        let kind = if is_standby { ReasonKind::Standby } else { ReasonKind::Source };
        health.add(kind, reason, Some(since));
    }
    health.add_trouble(ReasonKind::HeldUp, metrics.source_trouble());
    health.add_trouble(ReasonKind::Position, metrics.state_trouble());
    health.add_trouble(ReasonKind::Registry, metrics.schema_trouble());
    if let Some(Trouble { text, since }) = metrics.sink_trouble() {
        let text = format!("{} does not accept records: {text}", metrics.sink_name());
        health.add(ReasonKind::Destination, text, Some(since));
    } else if metrics.is_sink_connected() != Some(true) {
        let yet = if metrics.is_sink_connected().is_none() { " yet" } else { "" };
        let text = match metrics.sink_name() {
            "Kafka" => format!("no Kafka broker is connected{yet}"),
            other => format!("{other} is not connected{yet}"),
        };
        health.add(ReasonKind::Destination, text, None);
    }
    let waited = metrics.since_progress();
    if waited >= PROGRESS_LIMIT {
        let seconds = waited.as_secs();
        let text = format!("nothing of what is in flight was acknowledged for {seconds} s");
        health.add(ReasonKind::Stalled, text, None);
    }
    health
}

#[cfg(test)]
mod tests {
    use super::*;

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
        metrics.set_schema_trouble(Some("it has no schema"));
        assert_eq!(ready(&metrics, now).reasons(), ["it has no schema"]);
        metrics.set_schema_trouble(None);
        metrics.enter(Phase::StandingBy);
        let reasons =
            ready(&metrics, SystemTime::now() + Duration::from_secs(7)).reasons().join("\n");
        assert_eq!(reasons, "not streaming from the slot: standby for 7 s", "an old error");
    }
}
