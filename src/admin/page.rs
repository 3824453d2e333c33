//! The page at `/` for a browser: what `walpost status` shows, with the last quarter of an hour. It is made here
//! as a whole, and a script only loads it again, so it works without scripts too. It changes nothing: where
//! something can be done, it shows the command.

use std::fmt::Write as _;

use super::checks::FindingStatus;
use super::health::ReasonKind;
use super::history::{History, Point};
use super::status::{EventStatus, PoisonStatus, SlotStatus, Status, TroubleStatus};
use super::words::{bytes, duration, latency, records, short_duration};
use crate::excerpt::line;

/// `/page.css`
pub(super) const STYLE: &str = include_str!("page.css");

/// `/page.js`
pub(super) const SCRIPT: &str = include_str!("page.js");

/// `/icon.svg`
pub(super) const ICON: &str = include_str!("icon.svg");

/// Nothing of others is loaded, and nothing that a text contains is run.
pub(super) const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A setting with its value and origin, without secrets.
pub type ShownSetting = [String; 3];

/// The page; `now` is in seconds since 1970.
pub(super) fn html(
    status: &Status,
    history: &History,
    settings: &[ShownSetting],
    now: f64,
) -> String {
    let mut page = Html(String::new());
    let verdict = verdict(status);
    page.raw(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <link rel=\"icon\" href=\"icon.svg\"><link rel=\"stylesheet\" href=\"page.css\"><script src=\"page.js\" defer></script>\
         <noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript><title>",
    );
    page.text(&format!("{verdict}: walpost, slot {}", status.slot));
    page.raw("</title></head>\n<body>");
    page.element("<p id=\"verdict\" role=\"status\">", verdict, "</p>");
    page.raw("<p id=\"lost\" class=\"bad\" hidden>walpost does not answer any more.</p>\n<main>");
    page.verdict(status, now);
    page.charts(&history.points());
    page.figures(status, now);
    page.findings(status);
    page.events(&status.events);
    page.raw("</main>\n");
    page.settings(settings);
    page.raw("</body></html>\n");
    page.0
}

/// The verdict in words.
fn verdict(status: &Status) -> &'static str {
    match status.troubles.first().map(|trouble| trouble.kind) {
        _ if status.ready => "Delivering",
        Some(ReasonKind::Standby) => "Standing by: another instance delivers",
        Some(ReasonKind::Destination | ReasonKind::Stalled) => "Waiting for the destination",
        Some(ReasonKind::Source | ReasonKind::HeldUp) => "Waiting for PostgreSQL",
        Some(ReasonKind::Registry) => "Waiting for the schema registry",
        Some(ReasonKind::Position) => "Waiting until its position can be written",
        Some(ReasonKind::Loop) | None => "Not delivering",
    }
}

/// What helps: a command, and a page of the documentation.
fn help(kind: ReasonKind) -> (&'static str, &'static str) {
    match kind {
        ReasonKind::Standby => ("walpost status", "operations.md, warm standby"),
        ReasonKind::Source => ("walpost check", "runbooks/slot-inactive.md"),
        ReasonKind::HeldUp => ("walpost status", "runbooks/delivery-lag-high.md"),
        ReasonKind::Position => ("walpost check", "runbooks/state-not-written.md"),
        ReasonKind::Registry => ("walpost check", "schema-registry.md"),
        ReasonKind::Destination | ReasonKind::Stalled => ("walpost check", "runbooks/stalled.md"),
        ReasonKind::Loop => ("journalctl --unit walpost", "runbooks/relay-down.md"),
    }
}

/// HTML in the making.
struct Html(String);

impl Html {
    fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    /// Text of whatever origin: on one line, and never markup.
    fn text(&mut self, text: &str) {
        for sign in line(text).chars() {
            match sign {
                '&' => self.raw("&amp;"),
                '<' => self.raw("&lt;"),
                '>' => self.raw("&gt;"),
                '"' => self.raw("&quot;"),
                '\'' => self.raw("&#39;"),
                sign => self.0.push(sign),
            }
        }
    }

    fn element(&mut self, start: &str, text: &str, end: &str) {
        self.raw(start);
        self.text(text);
        self.raw(end);
    }

    fn row(&mut self, name: &str, cells: &[&str]) {
        self.element("<tr><th scope=\"row\">", name, "</th>");
        for cell in cells {
            self.element("<td>", cell, "</td>");
        }
        self.raw("</tr>\n");
    }

    /// Whether it delivers, or what it waits for, since when, and what to do.
    fn verdict(&mut self, status: &Status, now: f64) {
        let is_standby = status.troubles.iter().any(|it| it.kind == ReasonKind::Standby);
        let class = if status.ready || is_standby { "good" } else { "bad" };
        let _ = write!(self.0, "<h1 class=\"{class}\">");
        self.element("", verdict(status), "</h1>");
        if !status.troubles.is_empty() {
            self.raw("<ul>");
        }
        for TroubleStatus { kind, text, since } in &status.troubles {
            let since =
                since.map_or(String::new(), |since| format!(", for {}", duration(now - since)));
            let (command, page) = help(*kind);
            self.element("<li>", &format!("{text}{since}"), "");
            self.element("<br><code>", command, "</code>");
            self.element(" <span class=\"faint\">documentation: ", page, "</span></li>");
        }
        if !status.troubles.is_empty() {
            self.raw("</ul>");
        }
        let host = &status.host;
        let from = if host.is_empty() { String::new() } else { format!(" from {host}") };
        let [since, uptime] =
            [status.phase_since, status.started_at].map(|then| duration(now - then));
        let doing =
            format!("{}{from} for {since}; up for {uptime}; as of {}", status.phase, clock(now));
        self.element("<p class=\"faint\">", &doing, "</p>\n");
    }

    /// All settings; none are shown to those who may be anybody.
    fn settings(&mut self, settings: &[ShownSetting]) {
        if settings.is_empty() {
            return;
        }
        self.raw("<h2>Settings at the start</h2><details><summary>All values and where they were given</summary><table>");
        for [key, value, origin] in settings {
            self.row(key, &[value, origin]);
        }
        self.raw("</table></details>\n");
    }

    /// The last quarter of an hour as lines.
    fn charts(&mut self, points: &[Point]) {
        let lag = |point: &Point| point.lag_seconds;
        #[allow(clippy::cast_precision_loss, reason = "a line")]
        let retained = |point: &Point| point.lag_bytes as f64;
        let (received, published) =
            (|point: &Point| point.received_per_second, |point: &Point| point.published_per_second);
        self.raw("<div class=\"charts\">\n");
        self.chart("Delivery lag", points, &[&lag], short_duration);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of bytes"
        )]
        self.chart("WAL not confirmed", points, &[&retained], |most| bytes(most as u64));
        self.chart("Published (grey: received)", points, &[&published, &received], rate);
        self.raw("</div>\n");
    }

    fn chart(
        &mut self,
        title: &str,
        points: &[Point],
        lines: &[&dyn Fn(&Point) -> f64],
        unit: impl Fn(f64) -> String,
    ) {
        let values = || lines.iter().flat_map(|of| points.iter().map(of));
        let most = values().fold(0.0, f64::max);
        let last = points.last().map_or(0.0, |point| lines[0](point));
        let range = format!("now {}, at most {} in 15 minutes", unit(last), unit(most));
        self.element("<div><h2>", title, "</h2>");
        self.raw(
            "<svg viewBox=\"0 0 900 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
        );
        self.element("", &format!("{title}: {range}"), "\">");
        for (number, of) in lines.iter().enumerate() {
            self.raw(if number == 0 {
                "<polyline points=\""
            } else {
                "<polyline class=\"second\" points=\""
            });
            for point in points {
                let height = if most > 0.0 { of(point) / most * 96.0 } else { 0.0 };
                let _ = write!(self.0, "{:.0},{:.1} ", 900.0 - point.seconds_ago, 98.0 - height);
            }
            self.raw("\"/>");
        }
        self.raw("</svg>");
        self.element("<p class=\"faint\">", &range, "</p></div>\n");
    }

    fn figures(&mut self, status: &Status, now: f64) {
        self.raw("<h2>Now</h2><table>\n");
        let by = duration(status.delivery_lag_seconds);
        let late = status.oldest_unconfirmed_commit.map_or("nothing that was received", |_| &by);
        self.row("late", &[late]);
        if let Some(figures) = &status.slot_figures {
            self.slot(figures, status.seconds_until_lost);
        }
        let (received, published) = (status.received_per_second, status.published_per_second);
        let total = records(status.published);
        self.row(
            "rate",
            &[&format!("{} in, {} out; {total} in all", rate(received), rate(published))],
        );
        for (name, span) in [("p50, p99 in a minute", 0), ("p50, p99 in 15 minutes", 1)] {
            let times = status.latency.get(span);
            let times = times.map(|it| [it.p50, it.p99].map(latency).join(", "));
            let times = times.map(|times| format!("{times} from commit to acknowledgement"));
            self.row(name, &[&times.unwrap_or_else(|| "not known yet".to_owned())]);
        }
        let (used, limit) = (bytes(status.in_flight_bytes), bytes(status.in_flight_limit_bytes));
        let in_flight = records(status.in_flight_events);
        self.row("in flight", &[&format!("{in_flight}, {used} of {limit}")]);
        for poison in &status.poison {
            self.poison(poison, now);
        }
        self.places(status, now);
        // Last, since their number changes.
        for topic in &status.topics {
            self.row("topic", &[&format!("{}: {}", topic.topic, rate(topic.per_second))]);
        }
        self.raw("</table>\n");
    }

    fn slot(&mut self, figures: &SlotStatus, seconds_until_lost: Option<f64>) {
        self.row("WAL not confirmed", &[&bytes(figures.lag_bytes)]);
        let left = figures.left();
        let time = seconds_until_lost;
        let time =
            time.map_or(String::new(), |left| format!(", in {} at this rate", duration(left)));
        let state = figures.wal_status.as_deref().unwrap_or("unknown");
        let retained = bytes(figures.retained_bytes);
        self.row("WAL retained", &[&format!("{retained}, wal_status {state}; {left}{time}")]);
    }

    fn poison(&mut self, poison: &PoisonStatus, now: f64) {
        let PoisonStatus { cause, action, count, last_position, last_at } = poison;
        let command = match action.as_str() {
            "dead_letter" => "; see `walpost replay-dead-letters --dry-run`",
            _ => "",
        };
        let ago = duration(now - last_at);
        self.row(
            "undeliverable",
            &[&format!(
                "{cause}, {action}: {count}, the last {ago} ago at {last_position}{command}"
            )],
        );
    }

    /// What the checks found that are repeated.
    fn findings(&mut self, status: &Status) {
        let Some(at) = status.checked_at else { return };
        self.element("<h2>Checks</h2><p class=\"faint\">", &format!("at {}", clock(at)), "");
        self.raw(if status.findings.is_empty() {
            ": nothing was found</p>\n"
        } else {
            "</p><ul>\n"
        });
        for FindingStatus { level, code, subject, what, why, fix } in &status.findings {
            let why = why.as_ref().map_or(String::new(), |why| format!(": {why}"));
            let class = if level == "error" { "<li class=\"bad\">" } else { "<li>" };
            self.element(class, &format!("{level} [{code}], {subject}: {what}{why}"), "");
            if let Some(fix) = fix {
                self.element("<br><code>", fix, "</code>");
            }
            self.raw("</li>\n");
        }
        self.raw(if status.findings.is_empty() { "" } else { "</ul>\n" });
    }

    /// The last events.
    fn events(&mut self, events: &[EventStatus]) {
        const COLUMNS: [&str; 7] =
            ["at", "topic", "hash of key", "id", "position", "size", "latency"];
        if events.is_empty() {
            return;
        }
        self.raw("<h2>Last events <span class=\"faint\">of more than 50 in a second only some</span></h2>");
        self.raw("<div class=\"wide\"><table><tr>");
        for column in COLUMNS {
            self.element("<th scope=\"col\">", column, "</th>");
        }
        self.raw("</tr>\n");
        for event in events {
            let EventStatus { at, topic, key_hash, id, position, .. } = event;
            let key = key_hash.as_deref().unwrap_or("none");
            let (size, after) = (bytes(event.bytes), short_duration(event.latency_seconds));
            self.raw("<tr>");
            for cell in [&clock(*at), topic, key, id, position, &size, &after] {
                self.element("<td>", cell, "</td>");
            }
            self.raw("</tr>\n");
        }
        self.raw("</table></div>\n");
    }

    /// Positions, where they are kept, what is connected, and the last error.
    fn places(&mut self, status: &Status, now: f64) {
        let connected = if status.sink_connected { "connected" } else { "not connected" };
        self.row(&status.sink, &[connected]);
        let position = &status.position;
        self.row(
            "position",
            &[&format!("confirmed {}, received {}", position.confirmed, position.received)],
        );
        let kept = status.position_kept_in.as_deref();
        let kept = kept.unwrap_or(
            "nowhere: a slot that is made again, or moved by another client, is not noticed",
        );
        self.row("walpost's own position", &[kept]);
        for (table, size) in &status.outbox_bytes {
            let removed = status.outbox_removed_at.get(table);
            let removed = removed.map_or(String::new(), |at| {
                format!(", rows were last removed {} ago", duration(now - at))
            });
            self.row("outbox", &[&format!("{table}: {}{removed}", bytes(*size))]);
        }
        if let Some(standbys) = status.standbys {
            self.row("standby instances", &[&standbys.to_string()]);
        }
        if let Some(error) = &status.last_error {
            self.row("last error", &[&format!("{} ago: {}", duration(now - error.at), error.text)]);
        }
        let title = format!(
            "walpost {}, slot {}, publication {}",
            status.version, status.slot, status.publication
        );
        self.row("instance", &[&title]);
    }
}

/// Events or records per second.
fn rate(per_second: f64) -> String {
    if per_second < 100.0 {
        format!("{per_second:.1} a second")
    } else {
        format!("{per_second:.0} a second")
    }
}

/// The time of day in UTC.
fn clock(now: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of day")]
    let seconds = now as u64 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::super::About;
    use super::super::checks::Checked;
    use super::*;
    use crate::lsn::Lsn;
    use crate::metrics::{Metrics, TrailEvent};
    use crate::position::EventPosition;

    fn page(metrics: &Metrics, settings: &[ShownSetting]) -> String {
        page_with(metrics, &Checked::default(), settings)
    }

    fn page_with(metrics: &Metrics, checked: &Checked, settings: &[ShownSetting]) -> String {
        let [database, slot, publication] = ["d", "s", "p"].map(str::to_owned);
        let about = About { database, slot, publication, ..About::default() };
        let mut history = History::default();
        history.sample(std::time::Instant::now(), metrics);
        let status = Status::of(metrics, (&about, checked), &history, SystemTime::now());
        html(&status, &history, settings, 0.0)
    }

    #[test]
    fn texts_of_others_are_never_markup() {
        let metrics = Metrics::default();
        let evil = "<script>alert(1)</script>\" onload='x' &\n<b>";
        metrics.failed(evil);
        metrics.published(evil, crate::metrics::Published { events: 1, bytes: 1 });
        metrics.trail.add(TrailEvent {
            at: SystemTime::now(),
            topic: evil.to_owned(),
            key: Some(7 << 32),
            id: evil.to_owned(),
            position: EventPosition { commit_lsn: Lsn::new(1), ordinal: 2 },
            bytes: 100,
            latency: Duration::from_millis(3),
        });
        let checked = Checked::default();
        let [level, code, subject, what] = ["error", "c", "s", evil].map(str::to_owned);
        let (why, fix) = (Some(what.clone()), Some(what.clone()));
        checked.set(vec![FindingStatus { level, code, subject, what, why, fix }]);
        let setting = [evil.to_owned(), evil.to_owned(), evil.to_owned()];
        let page = page_with(&metrics, &checked, &[setting]);
        assert!(page.contains("<td>00000007</td>") && page.contains("<td>3.0 ms</td>"), "{page}");
        assert!(
            page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&#39;x&#39; &amp;")
        );
        assert_eq!(page.matches("<script").count(), 1, "its own");
        assert!(!page.contains("<b>") && !page.contains("onload='"));
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let page = page(&Metrics::default(), &[]);
        for text in [&page, STYLE, SCRIPT] {
            assert!(!text.contains("//") || text == SCRIPT, "{text}");
            assert!(!text.contains("http:") && !text.contains("https:"), "{text}");
        }
        assert!(page.contains("<h1 class=\"bad\">Waiting for PostgreSQL</h1>"), "{page}");
        assert!(page.contains("documentation: runbooks/slot-inactive.md"), "{page}");
    }

    #[test]
    fn pages_that_it_names_exist() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        for kind in [
            ReasonKind::Loop,
            ReasonKind::Standby,
            ReasonKind::Source,
            ReasonKind::HeldUp,
            ReasonKind::Position,
            ReasonKind::Registry,
            ReasonKind::Destination,
            ReasonKind::Stalled,
        ] {
            let page = help(kind).1.split(',').next().unwrap_or_default();
            assert!(docs.join(page).is_file(), "{page}");
        }
    }
}
