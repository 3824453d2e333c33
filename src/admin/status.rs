//! The status of a running walpost, served at `/status` and read by `walpost status`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::checks::{Checked, FindingStatus};
use super::health::{Reason, ReasonKind};
use super::history::{History, Latency, TopicRate};
use super::words::bytes;
use super::{About, health};
use crate::metrics::{Metrics, Poisoned, TrailEvent, unix_seconds};
use crate::source::SlotMetrics;

/// The status of a walpost. Times are seconds since 1970; sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// walpost's version.
    pub version: String,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Whether it delivers, as in `/readyz`.
    pub ready: bool,
    /// Why it does not deliver.
    pub reasons: Vec<String>,
    /// The same with what they are about, and since when.
    #[serde(default)]
    pub troubles: Vec<TroubleStatus>,
    /// The phase: connecting, standby, streaming, catching up, replaying, stopping.
    pub phase: String,
    /// When that phase began.
    pub phase_since: f64,
    /// When the process started.
    pub started_at: f64,
    /// The server from which it streams, or last did; empty before that.
    pub host: String,
    /// The TLS version of that connection; `None` without TLS, or before the first connection.
    #[serde(default)]
    pub tls: Option<String>,
    /// The authentication method of that connection: `none`, `password`, `md5`, `scram-sha-256` or
    /// `scram-sha-256-plus`; `None` before the first connection.
    #[serde(default)]
    pub authentication: Option<String>,
    /// What the destination is called, such as `Kafka`.
    #[serde(default)]
    pub sink: String,
    /// Whether it is connected.
    #[serde(default)]
    pub sink_connected: bool,
    /// The same, by its former name; `None` with another destination than Kafka.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka_connected: Option<bool>,
    /// The WAL positions.
    pub position: Position,
    /// Where walpost's own position is kept; `None`: nowhere, so that a slot which was made again, or moved by
    /// another client, is not noticed.
    #[serde(default)]
    pub position_kept_in: Option<String>,
    /// The state topic; `None` without one, or before it was read.
    #[serde(default)]
    pub state_topic: Option<StateTopicStatus>,
    /// When the oldest unconfirmed transaction committed; `None` if there is no lag.
    pub oldest_unconfirmed_commit: Option<f64>,
    /// The delivery lag, in seconds.
    pub delivery_lag_seconds: f64,
    /// Acknowledged records.
    pub published: u64,
    /// Acknowledged records per second over the last ten seconds.
    pub published_per_second: f64,
    /// New events received per second over the last ten seconds.
    #[serde(default)]
    pub received_per_second: f64,
    /// The time from commit to acknowledgement, over the last minute and the last quarter of an hour; none
    /// where nothing was acknowledged.
    #[serde(default)]
    pub latency: Vec<Latency>,
    /// The busiest topics.
    #[serde(default)]
    pub topics: Vec<TopicRate>,
    /// Undeliverable events since the start, by cause and by what became of them.
    #[serde(default)]
    pub poison: Vec<PoisonStatus>,
    /// Records in flight.
    pub in_flight_events: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// The limit of bytes in flight.
    pub in_flight_limit_bytes: u64,
    /// The slot's last known metrics.
    pub slot_figures: Option<SlotStatus>,
    /// Seconds until the slot may be lost (`max_slot_wal_keep_size`), at the rate of the last quarter of an hour;
    /// `None`: the WAL that is retained does not grow, or has no limit.
    #[serde(default)]
    pub seconds_until_lost: Option<f64>,
    /// The sizes of the outbox tables, as last read.
    #[serde(default)]
    pub outbox_bytes: BTreeMap<String, u64>,
    /// When rows or partitions were last removed from them, as seen since the start: `prune`, for instance.
    #[serde(default)]
    pub outbox_removed_at: BTreeMap<String, f64>,
    /// Instances that stand by; `None`: not known.
    #[serde(default)]
    pub standbys: Option<u64>,
    /// What the last checks in this process found: warnings and errors.
    #[serde(default)]
    pub findings: Vec<FindingStatus>,
    /// When that was: about a minute after the start, then once an hour.
    #[serde(default)]
    pub checked_at: Option<f64>,
    /// The last events, the newest first: of more than 50 in a second only some. Only with the page at `/`.
    #[serde(default)]
    pub events: Vec<EventStatus>,
    /// The last error.
    pub last_error: Option<LastError>,
}

/// Why it does not deliver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TroubleStatus {
    /// What it is about.
    pub kind: ReasonKind,
    /// What is wrong.
    pub text: String,
    /// Since when, if that is known.
    pub since: Option<f64>,
}

impl From<&Reason> for TroubleStatus {
    fn from(reason: &Reason) -> Self {
        let Reason { kind, text, since } = reason;
        Self { kind: *kind, text: text.clone(), since: since.map(unix_seconds) }
    }
}

/// Undeliverable events of a cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoisonStatus {
    /// The cause, as in the settings `poison.*`.
    pub cause: String,
    /// What became of them: `dead_letter`, `skip` or `halt`.
    pub action: String,
    /// How many.
    pub count: u64,
    /// The position of the last one.
    pub last_position: String,
    /// When that was.
    pub last_at: f64,
}

/// An event that was acknowledged: never its payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventStatus {
    /// When it was acknowledged.
    pub at: f64,
    /// The topic.
    pub topic: String,
    /// A hash of the key; `None`: it has no key.
    pub key_hash: Option<String>,
    /// The event's id; empty on an address that is no loopback one, or where the headers do not have it.
    pub id: String,
    /// The event's position.
    pub position: String,
    /// Bytes of topic, key, value and headers.
    pub bytes: u64,
    /// The time from commit to acknowledgement.
    pub latency_seconds: f64,
}

impl From<TrailEvent> for EventStatus {
    fn from(event: TrailEvent) -> Self {
        Self {
            at: unix_seconds(event.at),
            topic: event.topic,
            key_hash: event.key.map(|key| format!("{:08x}", key >> 32)),
            id: event.id,
            position: event.position.to_string(),
            bytes: event.bytes,
            latency_seconds: event.latency.as_secs_f64(),
        }
    }
}

/// Positions in the WAL, as PostgreSQL prints them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The end of what was received.
    pub received: String,
    /// The flush LSN.
    pub confirmed: String,
}

/// walpost's own position at the destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateTopicStatus {
    /// The brokers have acknowledged every event that committed before this position in the WAL.
    pub position: String,
    /// When that was written, or read at the start.
    pub written_at: f64,
    /// Why it cannot be written now.
    pub error: Option<String>,
}

/// The slot, as PostgreSQL reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// When PostgreSQL reported it.
    pub observed_at: f64,
    /// WAL that is not confirmed.
    pub lag_bytes: u64,
    /// WAL retained on disk.
    pub retained_bytes: u64,
    /// WAL that may be written before the slot may be lost; `None` without a limit.
    pub safe_bytes: Option<i64>,
    /// `max_slot_wal_keep_size`; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// `wal_status`.
    pub wal_status: Option<String>,
}

/// The last error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastError {
    /// When it occurred.
    pub at: f64,
    /// The text of the problem.
    pub text: String,
}

impl SlotStatus {
    /// What is left until the slot may be lost, in words.
    pub(crate) fn left(&self) -> String {
        match (self.safe_bytes, self.limit_bytes) {
            (Some(left), _) => {
                format!("{} until it may be lost", bytes(u64::try_from(left).unwrap_or_default()))
            }
            (None, None) => "no limit is set".to_owned(),
            // PostgreSQL says nothing of a slot that is lost.
            (None, Some(_)) => "see runbooks/slot-lost.md".to_owned(),
        }
    }
}

impl From<&SlotMetrics> for SlotStatus {
    fn from(figures: &SlotMetrics) -> Self {
        Self {
            observed_at: unix_seconds(figures.observed),
            lag_bytes: figures.lag_bytes,
            retained_bytes: figures.retained_bytes,
            safe_bytes: figures.safe_bytes,
            limit_bytes: figures.limit_bytes,
            wal_status: figures.wal_status.clone(),
        }
    }
}

fn state_topic(metrics: &Metrics) -> Option<StateTopicStatus> {
    #[allow(clippy::cast_precision_loss, reason = "to the microsecond until the year 2255")]
    let written_at = metrics.state_written.get()? as f64 / 1e6;
    let position = crate::lsn::Lsn::new(metrics.state_lsn.get()).to_string();
    Some(StateTopicStatus {
        position,
        written_at,
        error: metrics.state_trouble().map(|it| it.text),
    })
}

fn poison(metrics: &Metrics) -> Vec<PoisonStatus> {
    let of = |((cause, action), poisoned): ((&str, &str), Poisoned)| PoisonStatus {
        cause: cause.to_owned(),
        action: action.to_owned(),
        count: poisoned.count,
        last_position: poisoned.last.to_string(),
        last_at: unix_seconds(poisoned.at),
    };
    metrics.poison().into_iter().map(of).collect()
}

impl Status {
    /// The status at `now`, from the metrics.
    pub(super) fn of(
        metrics: &Metrics,
        (about, checked): (&About, &Checked),
        history: &History,
        now: SystemTime,
    ) -> Self {
        let health = health::ready(metrics, now);
        let (phase, since) = metrics.phase();
        let security = metrics.security();
        let (received, published) = history.rates();
        let rounded = |rate: f64| (rate * 10.0).round() / 10.0;
        #[allow(clippy::cast_precision_loss, reason = "to the microsecond until the year 2255")]
        let oldest = metrics.oldest_unconfirmed.get().map(|micros| micros as f64 / 1e6);
        let tables = metrics.outbox();
        let removed = tables.iter().filter_map(|(table, it)| Some((table, it.removed_at?)));
        let (checked_at, mut findings) = checked.get();
        if about.is_open {
            findings = findings.into_iter().map(FindingStatus::for_anybody).collect();
        }
        let id = |id: String| if about.is_open { String::new() } else { id };
        let events = metrics.trail.last().into_iter().map(EventStatus::from);
        let events = events.map(|event| EventStatus { id: id(event.id), ..event });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            slot: about.slot.clone(),
            publication: about.publication.clone(),
            ready: health.is_good(),
            reasons: health.reasons(),
            troubles: health.known().iter().map(TroubleStatus::from).collect(),
            phase: phase.name().to_owned(),
            phase_since: unix_seconds(since),
            started_at: unix_seconds(metrics.started_at()),
            host: metrics.host(),
            tls: security.and_then(|security| security.tls).map(str::to_owned),
            authentication: security.map(|security| security.method.to_string()),
            sink: metrics.sink_name().to_owned(),
            sink_connected: metrics.is_sink_connected() == Some(true),
            kafka_connected: (metrics.sink_name() == "Kafka")
                .then(|| metrics.is_sink_connected() == Some(true)),
            position: Position {
                received: crate::lsn::Lsn::new(metrics.received_lsn.get()).to_string(),
                confirmed: metrics.confirmed().to_string(),
            },
            position_kept_in: about.place_of_position.clone(),
            state_topic: state_topic(metrics),
            oldest_unconfirmed_commit: oldest,
            delivery_lag_seconds: metrics.lag_seconds(now),
            published: metrics.delivered.get(),
            published_per_second: rounded(published),
            received_per_second: rounded(received),
            latency: history.latency(),
            topics: history.topics(),
            poison: poison(metrics),
            in_flight_events: metrics.in_flight_events.get(),
            in_flight_bytes: metrics.in_flight_bytes.get(),
            in_flight_limit_bytes: metrics.in_flight_limit_bytes.get(),
            slot_figures: metrics.slot_metrics().as_ref().map(SlotStatus::from),
            seconds_until_lost: history.seconds_until_lost(),
            outbox_removed_at: removed
                .map(|(table, at)| (table.clone(), unix_seconds(at)))
                .collect(),
            outbox_bytes: tables.into_iter().map(|(table, it)| (table, it.bytes)).collect(),
            standbys: metrics.standbys(),
            findings,
            checked_at: checked_at.map(unix_seconds),
            events: events.collect(),
            last_error: metrics
                .last_error()
                .map(|error| LastError { at: unix_seconds(error.at), text: error.text }),
        }
    }
}
