//! Renders the status as one screen.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use super::{Found, Slot};
use crate::admin::words::{bytes, duration, latency, records};
use crate::admin::{Latency, PoisonStatus, SlotStatus, Status, TopicRate};
use crate::excerpt::line;

/// The delivery lag above which it is not shown in green, in seconds.
const LATE: f64 = 60.0;

/// The percentage of the limit below which the remainder is shown in red.
const RED_BELOW_PERCENT: u64 = 20;

/// Topics on the screen, which is one of 24 lines of 80 characters.
const TOPICS_SHOWN: usize = 2;

/// How many characters of a name are shown.
const NAME_LENGTH: usize = 20;

/// In so many seconds is soon: a day.
const SOON: f64 = 86_400.0;

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
        self.latency(status);
        self.topics(status);
        self.poison(status, now);
        let (used, limit) = (bytes(status.in_flight_bytes), bytes(status.in_flight_limit_bytes));
        let events = records(status.in_flight_events);
        self.line("in flight", &[plain(&format!("{events}, {used} of {limit}"))]);
        if let Some(figures) = &status.slot_figures {
            self.figures(figures);
        }
        if let Some(left) = status.seconds_until_lost {
            let text = format!("{} until the slot may be lost, at this rate", duration(left));
            self.line("", &[if left < SOON { red(&text) } else { plain(&text) }]);
        }
        self.outbox(status);
        self.findings(status, now);
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
        } else if status.position_kept_in.is_none() && !status.sink.is_empty() {
            let text = "kept nowhere: a slot that is made again, or moved, is not noticed";
            self.line("state", &[plain(text)]);
        }
        if let Some(error) = &status.last_error {
            let text = format!("{} ago: {}", duration(now - error.at), error.text);
            self.line("last error", &[plain(&text)]);
        }
    }

    /// The time from commit to acknowledgement.
    fn latency(&mut self, status: &Status) {
        let of = |it: &Latency| {
            let [p50, p99] = [it.p50, it.p99].map(latency);
            format!("{p50}, {p99} in {}", duration(it.over_seconds))
        };
        let parts: Vec<_> = status.latency.iter().map(of).collect();
        if !parts.is_empty() {
            self.line("p50, p99", &[plain(&parts.join("; "))]);
        }
    }

    fn topics(&mut self, status: &Status) {
        let of = |topic: &TopicRate| format!("{} {:.0}/s", short(&topic.topic), topic.per_second);
        let shown: Vec<_> = status.topics.iter().take(TOPICS_SHOWN).map(of).collect();
        if !shown.is_empty() {
            let more = status.topics.len().saturating_sub(TOPICS_SHOWN);
            let more = if more > 0 { format!(", {more} more") } else { String::new() };
            self.line("topics", &[plain(&(shown.join(", ") + &more))]);
        }
    }

    /// Undeliverable events.
    fn poison(&mut self, status: &Status, now: f64) {
        let count: u64 = status.poison.iter().map(|poison| poison.count).sum();
        let last = status.poison.iter().max_by(|a, b| a.last_at.total_cmp(&b.last_at));
        if let Some(PoisonStatus { cause, last_position, last_at, .. }) = last {
            let ago = duration(now - last_at);
            let text = format!("{count}, last {ago} ago: {cause} {last_position}");
            self.line("poison", &[red(&text)]);
        }
    }

    fn outbox(&mut self, status: &Status) {
        let sizes = &status.outbox_bytes;
        let text = match sizes.iter().next() {
            None => return,
            Some((table, size)) if sizes.len() == 1 => format!("{} {}", short(table), bytes(*size)),
            Some(_) => format!("{} tables, {}", sizes.len(), bytes(sizes.values().sum())),
        };
        self.line("outbox", &[plain(&text)]);
    }

    /// What the checks found that are repeated.
    fn findings(&mut self, status: &Status, now: f64) {
        let Some(at) = status.checked_at.filter(|_| !status.findings.is_empty()) else { return };
        let errors = status.findings.iter().filter(|finding| finding.level == "error").count();
        let warnings = status.findings.len() - errors;
        let ago = duration(now - at);
        let text = format!("{errors} errors, {warnings} warnings {ago} ago: see walpost check");
        self.line("checks", &[if errors > 0 { red(&text) } else { plain(&text) }]);
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
        let left = figures.left();
        let is_low =
            |safe| figures.limit_bytes.is_some_and(|limit| safe < limit / 100 * RED_BELOW_PERCENT);
        let left = if safe.is_some_and(is_low) { red(&left) } else { plain(&left) };
        let kept = format!("{retained}, wal_status ");
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

/// The end of a long name, which tells more than its beginning.
fn short(name: &str) -> String {
    let count = name.chars().count();
    if count <= NAME_LENGTH {
        return name.to_owned();
    }
    let end: String = name.chars().skip(count + 1 - NAME_LENGTH).collect();
    format!("…{end}")
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
    use crate::admin::FindingStatus;

    #[test]
    fn everything_fits_on_a_screen_of_80_by_24() {
        let long = "outbox.event.".to_owned() + &"x".repeat(200);
        let slot = SlotStatus {
            observed_at: 0.0,
            lag_bytes: 123 << 40,
            retained_bytes: 123 << 40,
            safe_bytes: Some(123 << 40),
            limit_bytes: Some(123 << 40),
            wal_status: Some("unreserved".to_owned()),
        };
        let latency = |over_seconds| Latency { over_seconds, p50: 0.8881, p99: 123.4 };
        let topic = TopicRate { topic: long.clone(), per_second: 123_456.7 };
        let poison = PoisonStatus {
            cause: "missing_field".to_owned(),
            action: "dead_letter".to_owned(),
            count: 12_345,
            last_position: "00000016B374D848/00000003".to_owned(),
            last_at: 0.0,
        };
        let mut status: Status = serde_json::from_str(STATUS).expect("a status");
        status.latency = vec![latency(60.0), latency(900.0)];
        status.topics = vec![topic; 11];
        status.poison = vec![poison; 9];
        status.slot_figures = Some(slot);
        status.seconds_until_lost = Some(1e6);
        status.outbox_bytes.insert(long, 1 << 40);
        status.checked_at = Some(0.0);
        status.findings = vec![finding(); 100];
        let found = Found {
            delivering: Some(true),
            daemon: Some(status),
            daemon_error: None,
            slot: None,
            slot_error: None,
        };
        let screen = Screen::new(false).of(&found, 1e6);
        assert!(screen.lines().count() <= 20, "room for reasons and an error: {screen}");
        for line in screen.lines() {
            assert!(line.chars().count() <= 80, "{} characters: {line}", line.chars().count());
        }
    }

    fn finding() -> FindingStatus {
        let [level, code, subject] = ["error", "role_replication", "role"].map(str::to_owned);
        let what = "x".repeat(200);
        FindingStatus { level, code, subject, what, why: None, fix: None }
    }

    /// As a walpost of a former version has it.
    const STATUS: &str = r#"{"version": "0.1.0", "slot": "walpost", "publication": "walpost",
        "ready": true, "reasons": [], "phase": "catching up", "phase_since": 0, "started_at": 0,
        "host": "127.0.0.1:5432", "sink": "Amazon SQS", "position": {"received": "FFFFFFFF/FFFFFFFF",
        "confirmed": "FFFFFFFF/FFFFFFFF"}, "oldest_unconfirmed_commit": 1.0,
        "delivery_lag_seconds": 1.0, "published": 123456789012, "published_per_second": 1.0,
        "in_flight_events": 123456, "in_flight_bytes": 1, "in_flight_limit_bytes": 1,
        "slot_figures": null, "last_error": null}"#;

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
