//! `walpost status`: one screen with whether it delivers, the delivery lag and the retained WAL:
//! from the running walpost, or from PostgreSQL if none responds.

mod screen;

use std::io::IsTerminal as _;
use std::time::{Duration, SystemTime};

use clap::ColorChoice;
use serde::Serialize;

use self::screen::Screen;
use super::args::StatusArguments;
use super::stdout::print;
use super::{Exit, block_on, configuration};
use crate::admin::{self, SlotStatus, Status};
use crate::assembly;
use crate::config::{Config, Origin, Setting};
use crate::metrics::unix_seconds;
use crate::source::{self, SourceError};
use crate::tools::check::is_status_of;

/// Starts a new screen on a terminal (ECMA-48: cursor to the top, erase below).
const AFRESH: &str = "\u{1b}[H\u{1b}[J";

/// The collected status.
#[derive(Debug, Serialize)]
struct Found {
    /// Whether it delivers; `None` if unknown, because no walpost of this slot responds.
    delivering: Option<bool>,
    /// The running walpost's status.
    daemon: Option<Status>,
    /// Why it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_error: Option<String>,
    /// PostgreSQL's view of the slot, if it was queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<Slot>,
    /// Why it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_error: Option<String>,
}

/// A slot, as PostgreSQL reports it.
#[derive(Debug, Serialize)]
struct Slot {
    name: String,
    /// Whether a client streams from it.
    active: bool,
    #[serde(flatten)]
    figures: SlotStatus,
}

pub(super) fn command(arguments: StatusArguments) -> Exit {
    let StatusArguments { watch, json, color, options } = arguments;
    let config = match configuration(&options.into()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let terminal = std::io::stdout().is_terminal();
    let coloured = match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            terminal && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
        }
    };
    loop {
        let found = block_on(look(&config));
        let text = if json {
            serde_json::to_string(&found).unwrap_or_default() + "\n"
        } else {
            Screen::new(coloured).of(&found, unix_seconds(SystemTime::now()))
        };
        let begin = if watch.is_some() && terminal && !json { AFRESH } else { "" };
        let printed = print(&format!("{begin}{text}"));
        let Some(seconds) = watch else {
            return if found.delivering == Some(true) { printed } else { Exit::Failure };
        };
        if printed != Exit::Ok {
            return printed;
        }
        std::thread::sleep(Duration::from_secs(seconds.into()));
    }
}

async fn look(config: &Config) -> Found {
    let daemon = match &config.admin.listen {
        Some(address) => ask_daemon(address, config).await,
        None => Err("no walpost answers: admin.listen is `off`".to_owned()),
    };
    let (daemon, daemon_error) = match daemon {
        Ok(status) => {
            let delivering = Some(status.ready);
            let daemon = Some(status);
            return Found { delivering, daemon, daemon_error: None, slot: None, slot_error: None };
        }
        Err(error) => (None, Some(error)),
    };
    let (slot, slot_error) = match ask_postgres(config).await {
        Ok(slot) => (Some(slot), None),
        Err(error) => (None, Some(error)),
    };
    // A client that streams from the slot may or may not deliver.
    let delivering = slot.as_ref().filter(|slot| !slot.active).map(|_| false);
    Found { delivering, daemon, daemon_error, slot, slot_error }
}

/// The status of this configuration's walpost, or why there is none.
async fn ask_daemon(address: &str, config: &Config) -> Result<Status, String> {
    let answer = admin::status(address).await.map_err(|error| match error {
        admin::StatusError::Ask(error) => format!("no walpost answers: {error}"),
        foreign @ admin::StatusError::Foreign { .. } => foreign.to_string(),
    })?;
    if asks_for_any(config) || is_status_of(&answer, config) {
        return Ok(answer);
    }
    let (slot, publication) = (&config.source.slot, &config.source.publication);
    let at = if answer.host.is_empty() { String::new() } else { format!(" at {}", answer.host) };
    Err(format!(
        "another walpost answers on {address}, of slot \"{}\" and publication \"{}\"{at}, not of \
         \"{slot}\" and \"{publication}\" of this configuration: see admin.listen of both",
        answer.slot, answer.publication
    ))
}

/// Whether the configuration names no walpost (by source, slot or publication), so that any is meant.
fn asks_for_any(config: &Config) -> bool {
    let says = [Setting::SOURCE_URL, Setting::SOURCE_SLOT, Setting::SOURCE_PUBLICATION];
    says.into_iter().all(|setting| *config.origin(setting) == Origin::Default)
}

async fn ask_postgres(config: &Config) -> Result<Slot, String> {
    let conninfo = assembly::conninfo(config);
    let conninfo = conninfo.map_err(|error| error.to_string())?;
    let control = source::control(&conninfo, "walpost status").await;
    let control = control.map_err(|error| SourceError::from(error).to_string())?;
    let name = &config.source.slot;
    let found = source::read_slot_metrics(&control.client, name).await;
    match found.map_err(|error| error.to_string())? {
        Some((figures, active)) => {
            Ok(Slot { name: name.clone(), active, figures: SlotStatus::from(&figures) })
        }
        None => Err(format!("there is no replication slot \"{name}\": run `walpost init --apply`")),
    }
}
