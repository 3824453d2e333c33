//! The status of a running walpost, as `/status` gives it and `walpost status` reads it.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{About, health};
use crate::metrics::{Metrics, unix_seconds};
use crate::source::SlotFigures;

/// What a walpost says of itself. Times are seconds since 1970; sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Whether it delivers: what `/readyz` says.
    pub ready: bool,
    /// What keeps it from delivering.
    pub reasons: Vec<String>,
    /// What it does: connecting, standby, streaming, catching up, replaying, stopping.
    pub phase: String,
    /// Since when it does that.
    pub phase_since: f64,
    /// Since when the process runs.
    pub started_at: f64,
    /// The server that it streams from, or did last; empty before.
    pub host: String,
    /// The version of TLS of that connection; none without TLS, or before.
    #[serde(default)]
    pub tls: Option<String>,
    /// The authentication method of that connection: `none`, `password`, `md5`, `scram-sha-256` or
    /// `scram-sha-256-plus`; none before.
    #[serde(default)]
    pub authentication: Option<String>,
    /// Whether a Kafka broker is connected.
    pub kafka_connected: bool,
    /// How far it is.
    pub position: Position,
    /// When the oldest unconfirmed transaction was committed; none where nothing is late.
    pub oldest_unconfirmed_commit: Option<f64>,
    /// How late that is, in seconds.
    pub delivery_lag_seconds: f64,
    /// Records that were acknowledged.
    pub published: u64,
    /// The same for each second of the last ten.
    pub published_per_second: f64,
    /// Records in flight.
    pub in_flight_events: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Their limit.
    pub in_flight_limit_bytes: u64,
    /// What PostgreSQL said of the slot last.
    pub slot_figures: Option<SlotStatus>,
    /// What went wrong last.
    pub last_error: Option<LastError>,
}

/// Positions in the log, as PostgreSQL writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Up to where was received.
    pub received: String,
    /// Up to where may be confirmed.
    pub confirmed: String,
}

/// What PostgreSQL says of a slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// When it said so.
    pub observed_at: f64,
    /// Log that is not confirmed.
    pub lag_bytes: u64,
    /// Log that is kept on disk.
    pub retained_bytes: u64,
    /// Log that may be written until the slot may be lost; none where nothing limits it.
    pub safe_bytes: Option<i64>,
    /// `max_slot_wal_keep_size`; none where nothing limits it.
    pub limit_bytes: Option<u64>,
    /// `wal_status`.
    pub wal_status: Option<String>,
}

/// What went wrong last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastError {
    /// When.
    pub at: f64,
    /// What.
    pub text: String,
}

impl From<&SlotFigures> for SlotStatus {
    fn from(figures: &SlotFigures) -> Self {
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

impl Status {
    /// The status by the figures, `now`.
    pub(super) fn of(metrics: &Metrics, about: &About, rate: f64, now: SystemTime) -> Self {
        let health = health::ready(metrics, now);
        let (phase, since) = metrics.phase();
        let security = metrics.security();
        #[allow(clippy::cast_precision_loss, reason = "to the microsecond until the year 2255")]
        let oldest = metrics.oldest_unconfirmed.get().map(|micros| micros as f64 / 1e6);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            slot: about.slot.clone(),
            publication: about.publication.clone(),
            ready: health.is_good(),
            reasons: health.reasons().to_vec(),
            phase: phase.name().to_owned(),
            phase_since: unix_seconds(since),
            started_at: unix_seconds(metrics.started_at()),
            host: metrics.host(),
            tls: security.and_then(|security| security.tls).map(str::to_owned),
            authentication: security.map(|security| security.method.to_string()),
            kafka_connected: metrics.is_sink_connected() == Some(true),
            position: Position {
                received: crate::lsn::Lsn::new(metrics.received_lsn.get()).to_string(),
                confirmed: metrics.confirmed().to_string(),
            },
            oldest_unconfirmed_commit: oldest,
            delivery_lag_seconds: oldest
                .map_or(0.0, |oldest| (unix_seconds(now) - oldest).max(0.0)),
            published: metrics.delivered.get(),
            published_per_second: (rate * 10.0).round() / 10.0,
            in_flight_events: metrics.in_flight_events.get(),
            in_flight_bytes: metrics.in_flight_bytes.get(),
            in_flight_limit_bytes: metrics.in_flight_limit_bytes.get(),
            slot_figures: metrics.slot_figures().as_ref().map(SlotStatus::from),
            last_error: metrics
                .last_error()
                .map(|told| LastError { at: unix_seconds(told.at), text: told.text }),
        }
    }
}
