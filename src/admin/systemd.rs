//! What systemd is told, where it started walpost and asks for it: that it runs, what it
//! does, and that its loop turns.
//!
//! Protocol: systemd's `sd_notify(3)`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

use super::health;
use crate::metrics::Metrics;

/// How often is looked whether there is something to tell.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whether systemd listens.
pub(super) fn is_asked_for() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Tells it, until the process ends.
pub(super) async fn notify(metrics: Arc<Metrics>) {
    if !is_asked_for() {
        return;
    }
    let watchdog = sd_notify::watchdog_enabled();
    let every = watchdog.map_or(INTERVAL, |limit| (limit / 3).min(INTERVAL));
    let mut turns = interval(every.max(Duration::from_millis(10)));
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tell(&[NotifyState::Ready]);
    let mut told = String::new();
    loop {
        turns.tick().await;
        let status = status(&metrics);
        if status != told {
            tell(&[NotifyState::Status(&status)]);
            told = status;
        }
        // Without it systemd ends a walpost whose loop does not turn, and starts another.
        if watchdog.is_some() && health::live(&metrics).is_good() {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

/// The configuration is being read again.
pub fn reloading() {
    if is_asked_for()
        && let Ok(now) = NotifyState::monotonic_usec_now()
    {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// The configuration was read again.
pub fn reloaded() {
    if is_asked_for() {
        tell(&[NotifyState::Ready]);
    }
}

/// walpost is stopping.
pub fn stopping() {
    if is_asked_for() {
        tell(&[NotifyState::Stopping]);
    }
}

/// Where it cannot be told it notices by itself.
fn tell(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}

fn status(metrics: &Metrics) -> String {
    let health = health::ready(metrics, SystemTime::now());
    match health.reasons().first() {
        None => format!("delivering from {}", metrics.host()),
        // The seconds that it has lasted would be news each time.
        Some(_) if !metrics.phase().0.reads() => metrics.phase().0.name().to_owned(),
        Some(reason) => reason.clone(),
    }
}
