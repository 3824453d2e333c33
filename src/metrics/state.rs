//! What a relay is doing, in words: what becomes no number.

use std::time::SystemTime;

use super::{Metrics, lock};
use crate::excerpt::line;
use crate::source::Security;

/// What a relay is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// It has no session with PostgreSQL and tries to get one.
    #[default]
    Connecting,
    /// Another walpost has the slot: it waits for its turn.
    StandingBy,
    /// It streams.
    Streaming,
    /// It reads a backlog in batches.
    CatchingUp,
    /// Its session streams no more, and it begins again with a new producer.
    Replaying,
    /// It delivers what is in flight, and then ends.
    Stopping,
}

impl Phase {
    /// Whether it has what was written, or gets it.
    pub fn reads(self) -> bool {
        matches!(self, Self::Streaming | Self::CatchingUp)
    }

    /// Its word, in `/status`.
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

/// Something that went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// When.
    pub at: SystemTime,
    /// What, as the log has it.
    pub text: String,
}

#[derive(Debug, Default)]
pub(super) struct State {
    phase: Phase,
    since: Option<SystemTime>,
    host: String,
    security: Option<Security>,
    last_error: Option<Told>,
    sink_trouble: Option<String>,
    source_trouble: Option<String>,
}

impl Metrics {
    /// From now on it does this.
    pub fn enter(&self, phase: Phase) {
        let mut state = lock(&self.state);
        if state.phase != phase || state.since.is_none() {
            (state.phase, state.since) = (phase, Some(SystemTime::now()));
        }
    }

    /// What it does, and since when.
    pub fn phase(&self) -> (Phase, SystemTime) {
        let state = lock(&self.state);
        (state.phase, state.since.unwrap_or(self.started_at))
    }

    /// The server that it streams from, and how the connection is protected; whether either is
    /// another than the last one.
    pub fn streams_from(&self, host: &str, security: Security) -> bool {
        let mut state = lock(&self.state);
        let is_another = state.host != host || state.security != Some(security);
        if is_another {
            host.clone_into(&mut state.host);
            state.security = Some(security);
        }
        is_another
    }

    /// How the last connection was protected; none before the first.
    pub fn security(&self) -> Option<Security> {
        lock(&self.state).security
    }

    /// The server that it streamed from last; empty before the first time.
    pub fn host(&self) -> String {
        lock(&self.state).host.clone()
    }

    /// This went wrong.
    pub fn failed(&self, text: &str) {
        let text = line(text);
        lock(&self.state).last_error = Some(Told { at: SystemTime::now(), text });
    }

    /// What went wrong last.
    pub fn last_error(&self) -> Option<Told> {
        lock(&self.state).last_error.clone()
    }

    /// What keeps Kafka from taking records, as people were told; `None` where nothing does.
    pub fn sink_trouble(&self, trouble: Option<&str>) {
        let trouble = trouble.map(line);
        let mut state = lock(&self.state);
        if state.sink_trouble != trouble {
            if let Some(text) = trouble.clone() {
                state.last_error = Some(Told { at: SystemTime::now(), text });
            }
            state.sink_trouble = trouble;
        }
    }

    /// What keeps PostgreSQL from sending more, though it can be reached; `None` where nothing
    /// does.
    pub fn source_trouble(&self, trouble: Option<String>) {
        lock(&self.state).source_trouble = trouble;
    }

    /// What keeps PostgreSQL from sending more.
    pub fn stuck(&self) -> Option<String> {
        lock(&self.state).source_trouble.clone()
    }

    /// What keeps Kafka from taking records.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.state).sink_trouble.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_wrong_is_kept_as_one_line_of_bounded_length() {
        let metrics = Metrics::default();
        let text = format!("a\nforged\u{1b}[2J{}", "x".repeat(1 << 20));
        metrics.failed(&text);
        let told = metrics.last_error().expect("it is kept").text;
        assert!(told.len() < 10_000, "{} bytes", told.len());
        assert!(told.starts_with(r"a\nforged\u{1b}[2Jx"), "{told}");
        metrics.sink_trouble(Some(&text));
        assert_eq!(metrics.trouble(), Some(told.clone()));
        assert_eq!(metrics.last_error().map(|last| last.text), Some(told));
    }
}
