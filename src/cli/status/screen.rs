//! What was found, as one screen.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use super::words::{bytes, count, duration};
use super::{Found, Slot};
use crate::admin::{SlotStatus, Status};

/// How late is too late to be green, in seconds.
const LATE: f64 = 60.0;

/// A share of the limit below which what is left of it is red, in percent.
const LITTLE: u64 = 20;

/// Renders, in colours or without.
pub(super) struct Screen {
    coloured: bool,
    text: String,
}

impl Screen {
    pub(super) fn new(coloured: bool) -> Self {
        Self { coloured, text: String::new() }
    }

    /// The screen, `now` in seconds since 1970.
    pub(super) fn of(mut self, found: &Found, now: f64) -> String {
        match (&found.daemon, &found.daemon_error) {
            (Some(status), _) => self.daemon(status, now),
            (None, error) => {
                let error = error.as_deref().unwrap_or("no walpost answers");
                let said = match found.delivering {
                    Some(_) => format!("{}  {error}", self.red("no")),
                    None => format!("{}: {error}", self.red("not known")),
                };
                self.line("delivering", &said);
            }
        }
        if let Some(slot) = &found.slot {
            self.slot(slot);
        }
        if let Some(error) = &found.slot_error {
            let error = self.red(error);
            self.line("PostgreSQL", &error);
        }
        self.text
    }

    fn daemon(&mut self, status: &Status, now: f64) {
        let title = self.styled(
            Style::new().bold(),
            &format!(
                "walpost {}, slot {}, publication {}",
                status.version, status.slot, status.publication
            ),
        );
        let _ = writeln!(self.text, "{title}");
        let since = duration(now - status.since);
        let doing = match status.host.as_str() {
            "" => format!("{} for {since}", status.phase),
            host => format!("{} from {host} for {since}", status.phase),
        };
        let ready = if status.ready { self.green("yes") } else { self.red("no") };
        self.line("delivering", &format!("{ready}  {doing}"));
        for reason in &status.reasons {
            let reason = self.red(reason);
            self.line("", &reason);
        }
        let kafka =
            if status.kafka_connected { "connected".into() } else { self.red("not connected") };
        self.line("Kafka", &kafka);
        self.late(status);
        let (published, rate) = (count(status.published), status.published_a_second);
        let uptime = duration(now - status.started);
        self.line("published", &format!("{published} records in {uptime}, {rate:.1} a second now"));
        let (used, limit) = (bytes(status.in_flight_bytes), bytes(status.in_flight_limit_bytes));
        let records = count(status.in_flight_events);
        self.line("in flight", &format!("{records} records, {used} of {limit}"));
        if let Some(figures) = &status.slot_figures {
            self.figures(figures);
        }
        let position = &status.position;
        self.line(
            "position",
            &format!("confirmed {}, received {}", position.confirmed, position.received),
        );
        if let Some(error) = &status.last_error {
            self.line("last error", &format!("{} ago: {}", duration(now - error.at), error.text));
        }
    }

    fn late(&mut self, status: &Status) {
        let late = match status.oldest_unconfirmed_commit {
            None => self.green("nothing is"),
            Some(_) if status.late_seconds < LATE => duration(status.late_seconds),
            Some(_) => self.red(&duration(status.late_seconds)),
        };
        self.line("late", &late);
    }

    fn slot(&mut self, slot: &Slot) {
        let used = if slot.active {
            "somebody streams from it".to_owned()
        } else {
            self.red("nobody streams from it")
        };
        self.line("slot", &format!("{}: {used}", slot.name));
        self.figures(&slot.figures);
    }

    fn figures(&mut self, figures: &SlotStatus) {
        let lag = bytes(figures.lag_bytes);
        self.line("lag", &format!("{lag} of log not confirmed"));
        let status = match figures.wal_status.as_deref() {
            Some(status @ ("unreserved" | "lost")) => self.red(status),
            Some(status) => status.to_owned(),
            None => "unknown".to_owned(),
        };
        let retained = bytes(figures.retained_bytes);
        let left = match (figures.safe_bytes, figures.limit_bytes) {
            (Some(safe), limit) => {
                let safe = u64::try_from(safe).unwrap_or_default();
                let little = limit.is_some_and(|limit| safe < limit / 100 * LITTLE);
                let left = format!("{} left until the slot may be lost", bytes(safe));
                if little { self.red(&left) } else { left }
            }
            (None, _) => "no limit is set".to_owned(),
        };
        self.line("kept", &format!("{retained} of log for the slot; wal_status {status}; {left}"));
    }

    fn line(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.text, "{name:<11} {text}");
    }

    fn red(&self, text: &str) -> String {
        self.styled(AnsiColor::Red.on_default(), text)
    }

    fn green(&self, text: &str) -> String {
        self.styled(AnsiColor::Green.on_default(), text)
    }

    fn styled(&self, style: Style, text: &str) -> String {
        if self.coloured { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
