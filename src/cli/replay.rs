//! `walpost replay`: inserts rows of the outbox again, so that `run` publishes their events again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::args::ReplayArguments;
use super::stdout::{complain, print};
use super::{Exit, block_on, configuration, run};
use crate::assembly;
use crate::config::{Config, Environment};
use crate::recovery::{Found, Inserted, Replay, RowReplayError, Selection};
use crate::source::{self, SourceError, SqlClient, log_if_slow};

/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(2);

pub(super) fn command(arguments: ReplayArguments) -> Exit {
    let ReplayArguments { id, since, until, time_column, new_ids, mark, apply, options } =
        arguments;
    let config = match configuration(&options.into()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let selection =
        if id.is_empty() { Selection::Times { since, until } } else { Selection::Ids(id) };
    let replay = Replay { selection, time_column, new_ids, mark };
    match block_on(replay_rows(&config, &replay, apply)) {
        Ok(()) => Exit::Ok,
        Err(exit) => exit,
    }
}

fn failed(error: &RowReplayError) -> Exit {
    complain(&error.to_string());
    Exit::Failure
}

async fn replay_rows(config: &Config, replay: &Replay, apply: bool) -> Result<(), Exit> {
    let invalid = |error: String| {
        complain(&error);
        Exit::Config
    };
    let profile = assembly::profile(config).map_err(|error| invalid(error.to_string()))?;
    let names = assembly::columns(config, &profile);
    let conninfo = assembly::conninfo(config, &Environment::of_process())
        .map_err(|error| invalid(error.to_string()))?;
    let control = source::control(&conninfo, "walpost replay").await.map_err(|error| {
        complain(&SourceError::from(error).to_string());
        Exit::Failure
    })?;
    let slow =
        || complain("PostgreSQL still looks for the rows: an index on their times or ids helps");
    let found = replay.find(&control.client, &config.outbox.tables, &names);
    let found = log_if_slow(slow, found).await.map_err(|error| failed(&error))?;
    for one in &found {
        print(&format!("{one}\n"));
        if one.rows > 0 {
            one.warnings().iter().for_each(|warning| complain(warning));
        }
    }
    if found.iter().all(|one| one.rows == 0) {
        return Ok(());
    }
    if !apply {
        print(&format!("nothing was changed; with --apply {}\n", consequence(replay)));
        return Ok(());
    }
    insert_again(&control.client, replay, &found).await
}

/// What `--apply` does, and what consumers make of it.
fn consequence(replay: &Replay) -> &'static str {
    if replay.new_ids {
        "they are copied with new ids, and `walpost run` publishes the copies; consumers take them \
         for other events"
    } else {
        "they are deleted and inserted again, and `walpost run` publishes them again; consumers that \
         deduplicate by id ignore them, unless --new-ids is given"
    }
}

async fn insert_again(client: &SqlClient, replay: &Replay, found: &[Found]) -> Result<(), Exit> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_stopped);
    tokio::spawn(async move {
        run::stop_signal().await;
        flag.store(true, Ordering::Relaxed);
    });
    for one in found.iter().filter(|one| one.rows > 0) {
        let of = one.rows;
        let (began, mut reported) = (Instant::now(), Instant::now());
        let report = |done: u64| {
            if reported.elapsed() >= PROGRESS {
                reported = Instant::now();
                complain(&progress(done, of, began.elapsed()));
            }
            !is_stopped.load(Ordering::Relaxed)
        };
        let mut inserted = Inserted::default();
        let ended = replay.apply(client, one, &mut inserted, report).await;
        print(&format!("{}: {} of {of} events inserted again\n", one.table(), inserted.rows));
        let is_interrupted = ended.is_err() || is_stopped.load(Ordering::Relaxed);
        if let Err(error) = &ended {
            failed(error);
        }
        if ended.is_err() || inserted.rows < of {
            match inserted.last.filter(|_| is_interrupted) {
                Some(last) => complain(&format!("the rest: --since '{last}'")),
                None if is_interrupted => {}
                None => complain("the others were deleted meanwhile, or a trigger kept them"),
            }
            return Err(Exit::Failure);
        }
    }
    Ok(())
}

/// For instance `2000 of 10000, 950 rows/s, 8 s left`.
fn progress(done: u64, of: u64, elapsed: Duration) -> String {
    let left = u128::from(of.saturating_sub(done));
    let done_u128 = u128::from(done.max(1));
    let left = elapsed.as_millis() * left / done_u128 / 1000;
    let rate = done_u128 * 1000 / elapsed.as_millis().max(1);
    format!("{done} of {of}, {rate} rows/s, {left} s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_the_rate_and_the_time_left() {
        let text = progress(2000, 10_000, Duration::from_secs(2));
        assert_eq!(text, "2000 of 10000, 1000 rows/s, 8 s left");
        assert_eq!(progress(0, 5, Duration::ZERO), "0 of 5, 1000 rows/s, 0 s left");
    }
}
