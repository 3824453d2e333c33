//! `walpost replay`: inserts rows of the outbox again, so that `run` publishes their events again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::args::ReplayArguments;
use super::progress::{self, progress};
use super::stdout::{complain, print};
use super::{Exit, block_on, configuration, recover, run};
use crate::assembly;
use crate::config::{self, Config};
use crate::source::{self, SourceError, SqlClient, log_if_slow};
use crate::tools::recovery::{
    self, Filter, Found, Inserted, Manner, Replay, RowReplayError, Selection, publisher_warnings,
};

pub(super) fn command(arguments: ReplayArguments) -> Exit {
    let config = match configuration(&arguments.options.into()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let (id, since, until) = (arguments.id, arguments.since, arguments.until);
    let positions = arguments.position.map(|range| (range, arguments.read_topic));
    let selection = match &positions {
        Some(_) => Selection::Published(Vec::new()),
        None if id.is_empty() => Selection::Times { since, until },
        None => Selection::Ids(id),
    };
    let filter =
        Filter { aggregate_type: arguments.aggregate_type, aggregate_id: arguments.aggregate_id };
    let mut replay = Replay {
        selection,
        filter,
        time_column: arguments.time_column,
        order_by: arguments.order_by,
        manner: Manner { new_ids: arguments.new_ids, mark: arguments.mark },
    };
    let replayed = block_on(async {
        if let Some((range, topics)) = positions {
            let published =
                recovery::published(&config).map_err(|error| recover::failed(&error))?;
            let ids = recovery::ids_at(published, &topics, &range, complain).await;
            replay.selection = Selection::Published(ids.map_err(|error| failed(&error))?);
        }
        replay_rows(&config, &mut replay, arguments.apply).await
    });
    match replayed {
        Ok(()) => Exit::Ok,
        Err(exit) => exit,
    }
}

fn failed(error: &RowReplayError) -> Exit {
    complain(&error.to_string());
    Exit::Failure
}

async fn replay_rows(config: &Config, replay: &mut Replay, apply: bool) -> Result<(), Exit> {
    let invalid = |error: String| {
        complain(&error);
        Exit::Config
    };
    let profile = config::profile(config).map_err(|error| invalid(error.to_string()))?;
    let names = config::columns(config, &profile);
    let conninfo = assembly::conninfo(config).map_err(|error| invalid(error.to_string()))?;
    let control = source::control(&conninfo, "walpost replay").await.map_err(|error| {
        complain(&SourceError::from(error).to_string());
        Exit::Failure
    })?;
    let notice =
        || complain("PostgreSQL still looks for the rows: an index on their times or ids helps");
    let found = replay.find(&control.client, &config.outbox.tables, (&names, profile.needs()));
    let (found, gone) = log_if_slow(notice, found).await.map_err(|error| failed(&error))?;
    for one in &found {
        print(&format!("{one}\n"));
        one.warnings().iter().filter(|_| one.rows > 0).for_each(|warning| complain(warning));
    }
    if gone > 0 {
        complain(&format!("{gone} of the published events have no row any more"));
    }
    if found.iter().all(|one| one.rows == 0) {
        complain("there is nothing to publish again");
        return Ok(());
    }
    let (slot, publication) = (&config.source.slot, &config.source.publication);
    match publisher_warnings(&control.client, slot, publication).await {
        Ok(warnings) => warnings.iter().for_each(|warning| complain(warning)),
        Err(error) => complain(&format!("cannot look for the slot and the publication: {error}")),
    }
    if !apply {
        print(&format!("nothing was changed; with --apply {}\n", consequence(replay)));
        return Ok(());
    }
    insert_again(&control.client, replay, &found).await
}

/// What `--apply` does, and what consumers make of it.
fn consequence(replay: &Replay) -> &'static str {
    if replay.manner.new_ids {
        "they are copied with new ids, and `walpost run` publishes the copies; consumers take them \
         for other events"
    } else {
        "they are deleted and inserted again, and `walpost run` publishes them again; consumers that \
         deduplicate by id ignore them, unless --new-ids is given"
    }
}

/// Set by the first stop signal; the second one ends the process.
pub(super) fn stop_flag() -> Arc<AtomicBool> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_stopped);
    tokio::spawn(async move {
        run::stop_signal().await;
        flag.store(true, Ordering::Relaxed);
        complain("stopping after this transaction; a second signal ends it at once");
        run::stop_signal().await;
        // PostgreSQL undoes the open transaction.
        std::process::exit(i32::from(Exit::Failure as u8));
    });
    is_stopped
}

async fn insert_again(client: &SqlClient, replay: &Replay, found: &[Found]) -> Result<(), Exit> {
    let is_stopped = stop_flag();
    let mut exit = Ok(());
    for one in found.iter().filter(|one| one.rows > 0) {
        let mut inserted = Inserted::default();
        if exit.is_ok() && !is_stopped.load(Ordering::Relaxed) {
            let (began, mut reported) = (Instant::now(), Instant::now());
            let report = |done: u64| {
                if reported.elapsed() >= progress::INTERVAL {
                    reported = Instant::now();
                    complain(&progress(done, one.rows, began.elapsed()));
                }
                !is_stopped.load(Ordering::Relaxed)
            };
            if let Err(error) = replay.apply(client, one, &mut inserted, report).await {
                exit = Err(failed(&error));
            }
        }
        print(&format!("{}: {} events inserted again\n", one.table(), inserted.rows));
        if inserted.gone > 0 {
            complain(&format!("{}: {} rows were gone, or changed", one.table(), inserted.gone));
            exit = Err(Exit::Failure);
        }
        if !inserted.is_complete {
            complain(&rest(&replay.selection, one, &inserted));
            exit = Err(Exit::Failure);
        }
    }
    exit
}

/// How to continue with a table that was not completed.
fn rest(selection: &Selection, found: &Found, inserted: &Inserted) -> String {
    let table = found.table();
    match (selection, &inserted.last) {
        (Selection::Published(_), None) => format!("the rest: --table {table}, with all positions"),
        (Selection::Published(_), Some((id, _))) => {
            format!("the rest: --table {table}, with the positions from that of event {id} on")
        }
        (Selection::Ids(_), None) => format!("the rest: --table {table}, with all ids"),
        (Selection::Ids(_), Some((id, _))) => {
            format!("the rest: --table {table}, with the ids that come after {id} by time")
        }
        (Selection::Times { since, until }, last) => {
            let since = last.as_ref().and_then(|(_, time)| time.as_ref()).or(since.as_ref());
            let [since, until] = [since, until.as_ref()]
                .map(|time| time.map_or_else(String::new, |time| format!("'{time}'")));
            let again = if last.is_some() { ", which repeats the events of that time" } else { "" };
            format!("the rest: --table {table} --since {since} --until {until}{again}")
        }
    }
}
