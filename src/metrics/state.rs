//! The state of a relay that is not a number.

use std::time::SystemTime;

use super::{Metrics, lock};
use crate::excerpt::line;
use crate::source::Security;

/// The phase of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Opening a session with PostgreSQL.
    #[default]
    Connecting,
    /// Another walpost holds the slot, and it waits for it.
    StandingBy,
    /// Streaming.
    Streaming,
    /// Reading a backlog in batches.
    CatchingUp,
    /// Replaying with a new producer after the end of its session.
    Replaying,
    /// Delivering the records in flight before the end.
    Stopping,
}

impl Phase {
    /// Whether it receives events.
    pub fn reads(self) -> bool {
        matches!(self, Self::Streaming | Self::CatchingUp)
    }

    /// The phase's name in `/status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::StandingBy => "standby",
            Self::Streaming => "streaming",
            Self::CatchingUp => "catching up",
            Self::Replaying => "replaying",
            Self::Stopping => "stopping",
        }
    }
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastError {
    /// When it occurred.
    pub at: SystemTime,
    /// The text of the problem, as logged.
    pub text: String,
}

#[derive(Debug, Default)]
pub(super) struct State {
    phase: Phase,
    since: Option<SystemTime>,
    host: String,
    security: Option<Security>,
    last_error: Option<LastError>,
    sink_trouble: Option<Trouble>,
    source_trouble: Option<Trouble>,
    position_trouble: Option<Trouble>,
    schema_trouble: Option<Trouble>,
}

/// What keeps walpost from delivering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What is wrong, on one line.
    pub text: String,
    /// When it began, whatever the text was then.
    pub since: SystemTime,
}

/// Sets the text of a trouble, which goes on if there was one.
fn set(trouble: &mut Option<Trouble>, text: Option<String>) {
    let since = trouble.as_ref().map_or_else(SystemTime::now, |before| before.since);
    *trouble = text.map(|text| Trouble { text, since });
}

impl Metrics {
    /// Enters a phase.
    pub fn enter(&self, phase: Phase) {
        let mut state = lock(&self.state);
        if state.phase != phase || state.since.is_none() {
            (state.phase, state.since) = (phase, Some(SystemTime::now()));
        }
    }

    /// The current phase, and when it began.
    pub fn phase(&self) -> (Phase, SystemTime) {
        let state = lock(&self.state);
        (state.phase, state.since.unwrap_or(self.started_at))
    }

    /// Sets the server and how the connection is secured; returns whether either differs from the
    /// last one.
    pub fn streams_from(&self, host: &str, security: Security) -> bool {
        let mut state = lock(&self.state);
        let is_another = state.host != host || state.security != Some(security);
        if is_another {
            host.clone_into(&mut state.host);
            state.security = Some(security);
        }
        is_another
    }

    /// How the last connection was secured; `None` before the first.
    pub fn security(&self) -> Option<Security> {
        lock(&self.state).security
    }

    /// The server from which it last streamed; empty before the first time.
    pub fn host(&self) -> String {
        lock(&self.state).host.clone()
    }

    /// Records an error.
    pub fn failed(&self, text: &str) {
        let text = line(text);
        lock(&self.state).last_error = Some(LastError { at: SystemTime::now(), text });
    }

    /// The last error.
    pub fn last_error(&self) -> Option<LastError> {
        lock(&self.state).last_error.clone()
    }

    /// Sets why the destination accepts no records, as logged; `None` if it does.
    pub fn set_sink_trouble(&self, trouble: Option<&str>) {
        let trouble = trouble.map(line);
        let mut state = lock(&self.state);
        if state.sink_trouble.as_ref().map(|before| &before.text) != trouble.as_ref() {
            if let Some(text) = trouble.clone() {
                state.last_error = Some(LastError { at: SystemTime::now(), text });
            }
            set(&mut state.sink_trouble, trouble);
        }
    }

    /// Sets why PostgreSQL sends nothing more although it can be reached; `None` if it does.
    pub fn set_source_trouble(&self, trouble: Option<String>) {
        set(&mut lock(&self.state).source_trouble, trouble);
    }

    /// Why PostgreSQL sends nothing more.
    pub fn source_trouble(&self) -> Option<Trouble> {
        lock(&self.state).source_trouble.clone()
    }

    /// Sets why the position cannot be written; `None` if it can.
    pub fn set_state_trouble(&self, trouble: Option<String>) {
        set(&mut lock(&self.state).position_trouble, trouble);
    }

    /// Why the position cannot be written.
    pub fn state_trouble(&self) -> Option<Trouble> {
        lock(&self.state).position_trouble.clone()
    }

    /// Sets why an event waits for its schema; `None` if none does.
    pub fn set_schema_trouble(&self, trouble: Option<&str>) {
        let trouble = trouble.map(line);
        let mut state = lock(&self.state);
        if let Some(text) = trouble.clone() {
            state.last_error = Some(LastError { at: SystemTime::now(), text });
        }
        set(&mut state.schema_trouble, trouble);
    }

    /// Why an event waits for its schema.
    pub fn schema_trouble(&self) -> Option<Trouble> {
        lock(&self.state).schema_trouble.clone()
    }

    /// Why the destination accepts no records.
    pub fn sink_trouble(&self) -> Option<Trouble> {
        lock(&self.state).sink_trouble.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_one_line_of_bounded_length() {
        let metrics = Metrics::default();
        let text = format!("a\nforged\u{1b}[2J{}", "x".repeat(1 << 20));
        metrics.failed(&text);
        let told = metrics.last_error().expect("it is kept").text;
        assert!(told.len() < 10_000, "{} bytes", told.len());
        assert!(told.starts_with(r"a\nforged\u{1b}[2Jx"), "{told}");
        metrics.set_sink_trouble(Some(&text));
        let trouble = metrics.sink_trouble().expect("it is kept");
        assert_eq!(trouble.text, told);
        metrics.set_sink_trouble(Some("another"));
        assert_eq!(metrics.sink_trouble().map(|trouble| trouble.since), Some(trouble.since));
        metrics.set_sink_trouble(Some(&text));
        assert_eq!(metrics.last_error().map(|last| last.text), Some(told));
    }
}
