//! `walpost recover`: publishes rows that the slot does not send and that are not published.

use std::sync::Arc;
use std::time::Instant;

use super::args::RecoverArguments;
use super::progress::{self, progress};
use super::stdout::{complain, print, say, with_flags};
use super::{Exit, block_on, logged, run};
use crate::assembly;
use crate::config::{Config, Flags};
use crate::destination::published::ReadError;
use crate::metrics::Metrics;
use crate::source::APPLICATION_NAME;
use crate::state::unix_ms;
use crate::tools::recovery::{Compared, Listed, Purpose, Recovery, RecoveryError, RowWish, Since};
use crate::tools::setup::{AdoptError, Positions, Wanted};

/// Events that are named unless all are listed.
const NAMED: u64 = 10;

/// What to do with the rows.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct RowOptions {
    pub(super) wish: RowWish,
    /// Name all events whose rows are gone.
    pub(super) list: bool,
    pub(super) publish_undecided: bool,
    /// Publish the others though some cannot be told.
    pub(super) leave_undecided: bool,
    pub(super) apply: bool,
}

pub(super) fn command(arguments: RecoverArguments) -> Exit {
    let (config, _level) = match logged(&Flags::from(arguments.options)) {
        Ok(begun) => begun,
        Err(exit) => return exit,
    };
    let purpose = match (arguments.publish_since, arguments.since) {
        (Some(time), _) => Purpose::Again(time),
        (None, Some(time)) => Purpose::Recover(Since::Time(time)),
        (None, None) if arguments.all => Purpose::Recover(Since::Everything),
        (None, None) => Purpose::Recover(Since::Bookmark),
    };
    let options = RowOptions {
        wish: RowWish {
            purpose,
            order_by: arguments.order_by,
            time_column: arguments.time_column,
            topics: arguments.read_topic,
            ids_alone: arguments.ids_alone,
        },
        list: arguments.list,
        publish_undecided: arguments.publish_undecided,
        leave_undecided: arguments.leave_undecided,
        apply: arguments.apply,
    };
    let recovered = block_on(async {
        // Before anything else is looked at.
        options.wish.purpose.require_possible(&config)?;
        let is_again = matches!(options.wish.purpose, Purpose::Again(_));
        let positions = positions(&config, options.apply, is_again).await?;
        publish(&config, positions, options).await
    });
    match recovered {
        Ok(exit) => exit,
        Err(error) => failed(&error),
    }
}

/// The slot's position, and the one that walpost keeps. `may_lack_store`: it may keep none.
pub(super) async fn positions(
    config: &Config,
    creates: bool,
    may_lack_store: bool,
) -> Result<Positions, RecoveryError> {
    let conninfo = assembly::conninfo(config)?;
    let wanted =
        Wanted { command: APPLICATION_NAME, create: creates, may_lack_slot: true, may_lack_store };
    Ok(Positions::read(config, &conninfo, wanted).await?)
}

/// Prints the error.
pub(super) fn failed(error: &RecoveryError) -> Exit {
    complain(&error.to_string());
    match error {
        RecoveryError::Source(error) | RecoveryError::Positions(AdoptError::Source(error)) => {
            error.into()
        }
        RecoveryError::Relay(error) => run::exit(error),
        RecoveryError::Halted(_) => Exit::Poison,
        RecoveryError::Config(_)
        | RecoveryError::Read(ReadError::Client(_))
        | RecoveryError::NotReadable(_)
        | RecoveryError::Readable(_)
        | RecoveryError::Assembly(_)
        | RecoveryError::NoIds
        | RecoveryError::Framed
        | RecoveryError::RowsWithoutIds(_)
        | RecoveryError::SeveralTables
        | RecoveryError::Positions(AdoptError::Off) => Exit::Config,
        RecoveryError::NoSlot(_) | RecoveryError::Used(_) | RecoveryError::TakenOver => Exit::Slot,
        RecoveryError::Positions(_)
        | RecoveryError::Read(_)
        | RecoveryError::NoBookmark(_)
        | RecoveryError::PartlyPublished
        | RecoveryError::OtherChoice
        | RecoveryError::Ghosts(_)
        | RecoveryError::NoTopic(_)
        | RecoveryError::Undecided(_)
        | RecoveryError::NoPositions(_) => Exit::Failure,
    }
}

/// Compares, reports, and publishes if that is ordered.
pub(super) async fn publish(
    config: &Config,
    positions: Positions,
    options: RowOptions,
) -> Result<Exit, RecoveryError> {
    let RowOptions { wish, list, publish_undecided, leave_undecided, apply } = options;
    let has_slot = positions.has_slot();
    let mut ghosts = 0;
    let listed = |listed: Listed| match listed {
        Listed::Gap(text) => complain(&text),
        Listed::Ghost(_) | Listed::OtherContent(_) => {
            ghosts += 1;
            if list || ghosts <= NAMED {
                say(&in_no_table(&listed));
            }
            if !list && ghosts == NAMED + 1 {
                print("… (--list names all of them)\n");
            }
        }
    };
    let recovery = Recovery::begin(config, positions, wish, listed, complain).await?;
    if let Some(bookmark) = recovery.bookmark() {
        let ago = unix_ms().saturating_sub(bookmark.at_ms) / 1000;
        print(&format!(
            "rows of transactions {}up to {} are delivered, as the position tells ({ago} s ago)\n",
            recovery.from().map_or_else(String::new, |from| format!("from {from} ")),
            bookmark.below.saturating_sub(1)
        ));
        if let Some(from) = recovery.from() {
            print(&format!(
                "rows of transactions before {from} are from before the slot, or were left out by an \
                 earlier recovery: they are not compared (--all compares them)\n"
            ));
        }
    }
    if let Some(compared) = recovery.compared() {
        print(&report(&compared, recovery.streamed()));
        if compared.differing > 0 {
            complain(&format!(
                "{} of those that cannot be told have the id of a record with another key or value: the \
                 row was updated, records had another form then (record.*; --ids-alone compares by \
                 ids), or its id was given twice, as after a restore",
                compared.differing
            ));
        }
    }
    let undecided = recovery.compared().map_or(0, |compared| compared.undecided);
    let rows = recovery.rows(publish_undecided);
    if let Some(time) = recovery.again_since() {
        print(&format!(
            "{rows} rows were written since {time} and do not wait in the slot: all of them are published, \
             whether they were before or not; consumers deduplicate by id\n"
        ));
    }
    if !apply {
        recovery.require_history()?;
        let slot =
            if has_slot { "" } else { "; the slot is missing: `walpost init --apply` first" };
        let text = format!("nothing was changed; with --apply {rows} events are published{slot}\n");
        print(&with_flags(&text));
        let is_known = recovery.again_since().is_none();
        return Ok(if rows + undecided > 0 && is_known { Exit::Failure } else { Exit::Ok });
    }
    if undecided > 0 && !publish_undecided && !leave_undecided {
        return Err(RecoveryError::Undecided(undecided));
    }
    let then = if recovery.may_lack_rows(publish_undecided) {
        "starts after `walpost adopt --apply`: the publication was changed"
    } else {
        "continues with what the slot sends"
    };
    let mut progress = None;
    let published = recovery.publish(publish_undecided, |stop, metrics| {
        if let Err(error) = run::stop_on_signals(stop) {
            complain(&format!("cannot take signals: {error}"));
        }
        progress = Some(tokio::spawn(report_progress(metrics, rows)));
    });
    let published = published.await;
    if let Some(progress) = progress {
        progress.abort();
    }
    let summary = published?;
    let counters = summary.map(|summary| summary.counters).unwrap_or_default();
    print(&format!("{} events published", counters.events - counters.skipped));
    if counters.dead_letters > 0 {
        print(&format!(", {} of them as dead letters", counters.dead_letters));
    }
    if counters.skipped > 0 {
        print(&format!(", {} skipped", counters.skipped));
    }
    print(&format!("; `walpost run` {then}\n"));
    if undecided > 0 && !publish_undecided {
        complain(&format!("{undecided} events that cannot be told were left out"));
    }
    Ok(Exit::Ok)
}

fn in_no_table(listed: &Listed) -> String {
    match listed {
        Listed::Ghost(id) => format!("in no table: {id}"),
        Listed::OtherContent(id) => {
            format!("in no table: {id}, whose row has another key or value")
        }
        Listed::Gap(_) => String::new(),
    }
}

fn report(compared: &Compared, streamed: u64) -> String {
    let Compared { rows, published, missing, undecided, differing: _, ghosts } = compared;
    format!(
        "rows that were compared:           {rows}\n\
         published:                         {published}\n\
         missing:                           {missing}\n\
         cannot be told:                    {undecided}\n\
         waiting in the slot, not compared: {streamed}\n\
         published, and in no table:        {ghosts}\n"
    )
}

async fn report_progress(metrics: Arc<Metrics>, rows: u64) {
    let began = Instant::now();
    let mut ticks = tokio::time::interval(progress::INTERVAL);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        complain(&progress(metrics.delivered.get(), rows, began.elapsed()));
    }
}
