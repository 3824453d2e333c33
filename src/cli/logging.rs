//! The log: written to standard error, as text for reading or as one JSON object per line. The
//! level can be changed at run time. A closed standard error does not end the program.

use std::io::IsTerminal as _;

use tracing_subscriber::reload;
use tracing_subscriber::{EnvFilter, Registry, prelude::*};

use crate::config::{Log, LogFormat};

/// walpost itself logs what matters of the libraries' messages. Those of HTTP libraries contain the
/// address of the trace collector, with a login that may be in it. Each entry is a prefix of
/// targets: `hyper` also matches `hyper_util`, and `aws` all crates of that SDK.
const QUIET: [&str; 8] = [
    "rdkafka=off",
    "async_nats=off",
    "aws=off",
    "tokio_postgres=off",
    "hyper=off",
    "reqwest=off",
    "tower=off",
    "opentelemetry=off",
];

/// Changes the level of a running log.
pub(super) struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Sets the level from `log`; the format does not change.
    pub(super) fn set(&self, log: &Log) -> Result<(), String> {
        self.0.reload(filter(log)?).map_err(|error| error.to_string())
    }
}

/// Starts logging as configured. Call it once.
pub(super) fn start(log: &Log) -> Result<LogLevel, String> {
    let (filter, handle) = reload::Layer::new(filter(log)?);
    let terminal = std::io::stderr().is_terminal();
    let format = log.format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // Otherwise a failed write is reported by a print that panics.
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
