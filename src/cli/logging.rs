//! The log: where lines go and what they look like. Standard error; text for
//! people, one JSON object a line for programs.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// What the libraries below say is said again by walpost where it matters.
const QUIET: [&str; 2] = ["pgwire_replication=off", "rdkafka=off"];

/// Starts logging as configured. To be called once.
pub(super) fn start(log: &Log) -> Result<(), String> {
    let mut filter = EnvFilter::try_new(&log.level).map_err(|error| error.to_string())?;
    for directive in QUIET {
        filter = filter.add_directive(directive.parse().map_err(|error| format!("{error}"))?);
    }
    let terminal = std::io::stderr().is_terminal();
    let format = log.format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    match format {
        LogFormat::Text => lines.with_ansi(terminal).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
