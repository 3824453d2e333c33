//! The log: where lines go and what they look like. Standard error; text for
//! people, one JSON object a line for programs. The level can be changed while
//! the program runs. A standard error that is closed is no reason to end.

use std::io::IsTerminal as _;

use tracing_subscriber::reload;
use tracing_subscriber::{EnvFilter, Registry, prelude::*};

use crate::config::{Log, LogFormat};

/// What the libraries below say is said again by walpost where it matters. Those of HTTP name the
/// address of the collector for traces, with the login that may be in it. Each is what targets begin
/// with: `hyper` is `hyper_util` too.
const QUIET: [&str; 6] = [
    "rdkafka=off",
    "tokio_postgres=off",
    "hyper=off",
    "reqwest=off",
    "tower=off",
    "opentelemetry=off",
];

/// Changes the level of a log that was started.
pub(super) struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// From now on as `log` says; its format stays what it was.
    pub(super) fn set(&self, log: &Log) -> Result<(), String> {
        self.0.reload(filter(log)?).map_err(|error| error.to_string())
    }
}

/// Starts logging as configured. To be called once.
pub(super) fn start(log: &Log) -> Result<LogLevel, String> {
    let (filter, handle) = reload::Layer::new(filter(log)?);
    let terminal = std::io::stderr().is_terminal();
    let format = log.format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // Else a line that cannot be written is told of by one that panics.
        .log_internal_errors(false)
        .with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => registry.with(lines.with_ansi(terminal)).init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    Ok(LogLevel(handle))
}

fn filter(log: &Log) -> Result<EnvFilter, String> {
    let mut filter = EnvFilter::try_new(&log.level).map_err(|error| error.to_string())?;
    for directive in QUIET {
        filter = filter.add_directive(directive.parse().map_err(|error| format!("{error}"))?);
    }
    Ok(filter)
}
