//! Notifications to systemd, if it started walpost and requests them: that it runs, its status, and
//! that its loop iterates.
//!
//! Protocol: systemd's `sd_notify(3)`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

use super::health;
use crate::metrics::Metrics;

/// How often to check for changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whether systemd requests notifications.
pub(super) fn is_requested() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Notifies systemd, until the process ends.
pub(super) async fn notify(metrics: Arc<Metrics>) {
    if !is_requested() {
        return;
    }
    let watchdog = sd_notify::watchdog_enabled();
    let every = watchdog.map_or(INTERVAL, |limit| (limit / 3).min(INTERVAL));
    let mut turns = interval(every.max(Duration::from_millis(10)));
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    send(&[NotifyState::Ready]);
    let mut told = String::new();
    loop {
        turns.tick().await;
        let status = status(&metrics);
        if status != told {
            send(&[NotifyState::Status(&status)]);
            told = status;
        }
        // Without this notification, systemd restarts a walpost whose loop is stuck.
        if watchdog.is_some() && health::live(&metrics).is_good() {
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// Notifies that the configuration is being reloaded.
pub fn reloading() {
    if is_requested()
        && let Ok(now) = NotifyState::monotonic_usec_now()
    {
        send(&[NotifyState::Reloading, now]);
    }
}

/// Notifies that the configuration was reloaded.
pub fn reloaded() {
    if is_requested() {
        send(&[NotifyState::Ready]);
    }
}

/// Notifies that walpost is stopping.
pub fn stopping() {
    if is_requested() {
        send(&[NotifyState::Stopping]);
    }
}

/// Ignores errors: systemd notices a missing notification itself.
fn send(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}

fn status(metrics: &Metrics) -> String {
    let health = health::ready(metrics, SystemTime::now());
    match health.known().first() {
        None => format!("delivering from {}", metrics.host()),
        // Its duration would change the text every second.
        Some(_) if !metrics.phase().0.reads() => metrics.phase().0.name().to_owned(),
        Some(reason) => reason.text.clone(),
    }
}
