//! Renders the status as one screen.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use super::words::{bytes, duration, records};
use super::{Found, Slot};
use crate::admin::{SlotStatus, Status};
use crate::excerpt::line;

/// The delivery lag above which it is not shown in green, in seconds.
const LATE: f64 = 60.0;

/// The percentage of the limit below which the remainder is shown in red.
const RED_BELOW_PERCENT: u64 = 20;

/// Renders with or without colours.
pub(super) struct Screen {
    coloured: bool,
    text: String,
}

impl Screen {
    pub(super) fn new(coloured: bool) -> Self {
        Self { coloured, text: String::new() }
    }

    /// The screen; `now` is in seconds since 1970.
    pub(super) fn of(mut self, found: &Found, now: f64) -> String {
        match (&found.daemon, &found.daemon_error) {
            (Some(status), _) => self.daemon(status, now),
            (None, error) => {
                let error = error.as_deref().unwrap_or("no walpost answers");
                let (answer, gap) = match found.delivering {
                    Some(_) => ("no", "  "),
                    None => ("not known", ": "),
                };
                self.line("delivering", &[red(answer), plain(gap), plain(error)]);
            }
        }
        if let Some(slot) = &found.slot {
            self.slot(slot);
        }
        if let Some(error) = &found.slot_error {
            self.line("PostgreSQL", &[red(error)]);
        }
        self.text
    }

    fn daemon(&mut self, status: &Status, now: f64) {
        let title = format!(
            "walpost {}, slot {}, publication {}",
            status.version, status.slot, status.publication
        );
        self.spans(&[(Style::new().bold(), &title)]);
        let since = duration(now - status.phase_since);
        let doing = match status.host.as_str() {
            "" => format!("{} for {since}", status.phase),
            host => format!("{} from {host} for {since}", status.phase),
        };
        let ready = if status.ready { green("yes") } else { red("no") };
        self.line("delivering", &[ready, plain("  "), plain(&doing)]);
        for reason in &status.reasons {
            self.line("", &[red(reason)]);
        }
        let is_connected = status.sink_connected || status.kafka_connected == Some(true);
        let connected = if is_connected { plain("connected") } else { red("not connected") };
        // A walpost of an older version does not say which.
        let sink = if status.sink.is_empty() { "Kafka" } else { &status.sink };
        self.line(sink, &[connected]);
        self.late(status);
        let (published, rate) = (records(status.published), status.published_per_second);
        let uptime = duration(now - status.started_at);
        let published = format!("{published} in {uptime}, {rate:.1} a second now");
        self.line("published", &[plain(&published)]);
        let (used, limit) = (bytes(status.in_flight_bytes), bytes(status.in_flight_limit_bytes));
        let events = records(status.in_flight_events);
        self.line("in flight", &[plain(&format!("{events}, {used} of {limit}"))]);
        if let Some(figures) = &status.slot_figures {
            self.figures(figures);
        }
        let position = &status.position;
        let position = format!("confirmed {}, received {}", position.confirmed, position.received);
        self.line("position", &[plain(&position)]);
        if let Some(state) = &status.state_topic {
            let written = format!(
                "acknowledged up to {}, written {} ago",
                state.position,
                duration(now - state.written_at)
            );
            self.line("state", &[plain(&written)]);
        }
        if let Some(error) = &status.last_error {
            let text = format!("{} ago: {}", duration(now - error.at), error.text);
            self.line("last error", &[plain(&text)]);
        }
    }

    fn late(&mut self, status: &Status) {
        let by = duration(status.delivery_lag_seconds);
        let late = match status.oldest_unconfirmed_commit {
            None => green("nothing is"),
            Some(_) if status.delivery_lag_seconds < LATE => plain(&by),
            Some(_) => red(&by),
        };
        self.line("late", &[late]);
    }

    fn slot(&mut self, slot: &Slot) {
        let used = if slot.active {
            plain("a client streams from it")
        } else {
            red("no client streams from it")
        };
        self.line("slot", &[plain(&slot.name), plain(": "), used]);
        self.figures(&slot.figures);
    }

    fn figures(&mut self, figures: &SlotStatus) {
        let lag = bytes(figures.lag_bytes);
        self.line("lag", &[plain(&lag), plain(" of WAL not confirmed")]);
        let status = match figures.wal_status.as_deref() {
            Some(status @ ("unreserved" | "lost")) => red(status),
            Some(status) => plain(status),
            None => plain("unknown"),
        };
        let retained = bytes(figures.retained_bytes);
        let safe = figures.safe_bytes.map(|safe| u64::try_from(safe).unwrap_or_default());
        let left = safe.map_or_else(
            || "no limit is set".to_owned(),
            |safe| format!("{} left until the slot may be lost", bytes(safe)),
        );
        let is_low =
            |safe| figures.limit_bytes.is_some_and(|limit| safe < limit / 100 * RED_BELOW_PERCENT);
        let left = if safe.is_some_and(is_low) { red(&left) } else { plain(&left) };
        let kept = format!("{retained} of WAL for the slot; wal_status ");
        self.line("kept", &[plain(&kept), status, plain("; "), left]);
    }

    fn line(&mut self, name: &str, spans: &[Span<'_>]) {
        let _ = write!(self.text, "{name:<11} ");
        self.spans(spans);
    }

    /// Ends a line with these spans. The endpoint may not be a walpost, and its texts may contain a
    /// server's messages: they stay on this line, and only the styles used here reach the terminal.
    fn spans(&mut self, spans: &[Span<'_>]) {
        for (style, text) in spans {
            let text = line(text);
            let _ = if self.coloured && *style != Style::new() {
                write!(self.text, "{style}{text}{style:#}")
            } else {
                write!(self.text, "{text}")
            };
        }
        self.text.push('\n');
    }
}

/// A part of a line, with its style.
type Span<'a> = (Style, &'a str);

fn plain(text: &str) -> Span<'_> {
    (Style::new(), text)
}

fn red(text: &str) -> Span<'_> {
    (AnsiColor::Red.on_default(), text)
}

fn green(text: &str) -> Span<'_> {
    (AnsiColor::Green.on_default(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_on_their_line_without_control_sequences() {
        let text = format!("a\nforged\r\u{1b}[2J\u{202e}{}", "x".repeat(1 << 20));
        let found = Found {
            delivering: Some(false),
            daemon: None,
            daemon_error: Some(text.clone()),
            slot: None,
            slot_error: Some(text),
        };
        for coloured in [false, true] {
            let screen = Screen::new(coloured).of(&found, 0.0);
            assert!(screen.len() < 20_000, "{} bytes", screen.len());
            assert_eq!(screen.lines().count(), 2, "{screen:?}");
            assert!(!screen.contains("\u{1b}[2J") && !screen.contains(['\r', '\u{202e}']));
            assert_eq!(screen.contains('\u{1b}'), coloured, "{screen:?}");
        }
    }
}
