//! `walpost prune`: deletes rows of the outbox that are proved to be delivered.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::progress;
use super::prune_args::PruneArguments;
use super::replay::stop_flag;
use super::stdout::{complain, print};
use super::{Exit, block_on, logged, require_kafka};
use crate::assembly;
use crate::config::{Config, Environment, Flags, show_bytes};
use crate::record::Policy;
use crate::retention::{
    Counted, Limits, Proof, Prune, PruneError, Pruned, PrunedTable, Stopped, Wanted,
};
use crate::source::{self, SourceError, SqlClient, log_if_slow};
use crate::state::unix_ms;

/// For the session.
const NAME: &str = "walpost prune";

pub(super) fn command(mut arguments: PruneArguments) -> Exit {
    let options = std::mem::take(&mut arguments.options);
    let config = match logged(&Flags::from(options)) {
        Ok((config, _level)) => config,
        Err(exit) => return exit,
    };
    if let Err(exit) = require_kafka(&config, "prune") {
        return exit;
    }
    match block_on(prune(&config, &arguments)) {
        Ok(exit) => exit,
        Err(error) => {
            complain(&error.to_string());
            match error {
                PruneError::Source(error) => (&error).into(),
                PruneError::NoTables | PruneError::NoStateTopic | PruneError::Table { .. } => {
                    Exit::Config
                }
                PruneError::Standby
                | PruneError::State { .. }
                | PruneError::Unproved(_)
                | PruneError::Skips
                | PruneError::NotArchived { .. }
                | PruneError::Database { .. } => Exit::Failure,
            }
        }
    }
}

async fn prune(config: &Config, arguments: &PruneArguments) -> Result<Exit, PruneError> {
    if config.outbox.tables.is_empty() {
        return Err(PruneError::NoTables);
    }
    let topic = config.delivery.state_topic.as_deref().ok_or(PruneError::NoStateTopic)?;
    if config.poison.include(Policy::Skip) && !arguments.include_skipped {
        return Err(PruneError::Skips);
    }
    let setup = |error: String| SourceError::Setup(error);
    let environment = Environment::of_process();
    let conninfo =
        assembly::conninfo(config, &environment).map_err(|error| setup(error.to_string()))?;
    let profile = assembly::profile(config).map_err(|error| setup(error.to_string()))?;
    let names = assembly::columns(config, &profile);
    let control = source::control(&conninfo, NAME).await.map_err(SourceError::from)?;
    let client = &control.client;
    let source =
        assembly::source(config, &environment).map_err(|error| setup(error.to_string()))?;
    let (proof, published) = Proof::read(
        client,
        Wanted {
            kafka: &assembly::kafka(config),
            topic,
            delivery_id: &config.delivery.id,
            layout: &assembly::layout(config),
            source: &source,
            ignored: &arguments.ignore_slot,
            skipped_too: arguments.include_skipped,
            before_slot_too: arguments.include_before_slot,
        },
    )
    .await?;
    let before = time_before(client, arguments.older_than).await?;
    announce(&proof, &before);
    let mut tables = Vec::with_capacity(config.outbox.tables.len());
    for name in &config.outbox.tables {
        let columns = (&names, arguments.time_column.as_deref());
        tables.push(PrunedTable::read(client, name, &config.source.publication, columns).await?);
    }
    if let Some(archive) = &arguments.archive_to
        && published.iter().any(|table| archive.names(&table.relation))
    {
        return Err(PruneError::Table {
            table: archive.clone(),
            problem: "an outbox cannot be the archive: its rows would be published again"
                .to_owned(),
        });
    }
    if arguments.dry_run {
        for table in &tables {
            let notice = || complain(&format!("still counting the rows of {}", table.name));
            let counted = log_if_slow(notice, table.count(client, &proof, &before)).await?;
            print(&report(table, counted));
        }
        return Ok(Exit::Ok);
    }
    delete(config, arguments, (client, &proof, &before), &tables).await
}

/// The time that lies this long ago, by the server's clock.
async fn time_before(client: &SqlClient, ago: Duration) -> Result<String, SourceError> {
    let failed = |error| SourceError::query("asking for the time", &error);
    let set = "SET datestyle = 'ISO'; SET timezone = 'UTC'";
    client.batch_execute(set).await.map_err(failed)?;
    let sql = "SELECT (pg_catalog.now() - $1::pg_catalog.float8 * '1 s'::pg_catalog.interval)
                      ::pg_catalog.text";
    let row = client.query_one(sql, &[&ago.as_secs_f64()]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

fn announce(proof: &Proof, before: &str) {
    let ago = unix_ms().saturating_sub(proof.at_ms) / 1000;
    print(&format!(
        "rows that were written before {before}, and are delivered, as the state topic told {ago} s ago\n"
    ));
    if let Some((slot, confirmed)) = &proof.held_by {
        complain(&format!(
            "replication slot \"{slot}\" has confirmed only {confirmed}: newer rows are kept"
        ));
    }
}

fn report(table: &PrunedTable, counted: Counted) -> String {
    let Counted { deletable, young, undelivered, before_slot, unpublished } = counted;
    format!(
        "{}:\n\
         to be deleted:                       {deletable}\n\
         younger, or without a time:          {young}\n\
         old, and not proved to be delivered: {undelivered}\n\
         from before the slot:                {before_slot}\n\
         not sent by the publication:         {unpublished}\n",
        table.name
    )
}

async fn delete(
    config: &Config,
    arguments: &PruneArguments,
    (client, proof, before): (&SqlClient, &Proof, &str),
    tables: &[PrunedTable],
) -> Result<Exit, PruneError> {
    let limits = Limits {
        batch: arguments.batch,
        pause: arguments.sleep,
        duration: arguments.max_duration,
        lag_bytes: arguments.max_lag,
    };
    let is_stopped = stop_flag();
    let what = (proof, before, config.source.slot.as_str());
    let prepared = Prune::begin(client, what, arguments.archive_to.as_ref(), limits).await;
    let mut pruning =
        prepared.map_err(|error| SourceError::query("preparing the session", &error))?;
    let done = if arguments.archive_to.is_some() { "archived" } else { "deleted" };
    let mut exit = Exit::Ok;
    for table in tables {
        let (began, mut reported) = (Instant::now(), Instant::now());
        let pruned = pruning.table(table, |so_far| {
            if reported.elapsed() >= progress::INTERVAL {
                reported = Instant::now();
                complain(&shown(table, so_far, began.elapsed()));
            }
            !is_stopped.load(Ordering::Relaxed)
        });
        let pruned = pruned.await?;
        print(&format!("{}: {} rows {done}\n", table.name, pruned.rows));
        if pruned.locked_pages > 0 {
            complain(&format!(
                "{}: {} pages were left out, since other sessions had rows of them locked",
                table.name, pruned.locked_pages
            ));
        }
        if let Some(stopped) = pruned.stopped {
            complain(&why(stopped));
            if stopped != Stopped::Duration {
                exit = Exit::Failure;
            }
            break;
        }
    }
    Ok(exit)
}

fn why(stopped: Stopped) -> String {
    let why = match stopped {
        Stopped::Signal => "stopped by a signal".to_owned(),
        Stopped::Duration => "stopped after --max-duration".to_owned(),
        Stopped::Lag(u64::MAX) => "stopped: the slot is gone".to_owned(),
        Stopped::Lag(bytes) => format!(
            "stopped: the slot is {} behind, more than --max-lag",
            show_bytes(bytes >> 20 << 20)
        ),
        Stopped::Locks => "stopped: other sessions keep rows locked (pg_blocking_pids)".to_owned(),
    };
    format!("{why}; run it again for the rest")
}

/// For instance `public.outbox: 2000 rows, 10 % of the table, 950 rows/s, 8 s left`.
fn shown(table: &PrunedTable, so_far: &Pruned, elapsed: Duration) -> String {
    let Pruned { rows, pages: (read, all), .. } = *so_far;
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let left = milliseconds.saturating_mul(all.saturating_sub(read)) / read.max(1) / 1000;
    format!(
        "{}: {rows} rows, {} % of the table, {} rows/s, {left} s left",
        table.name,
        read.saturating_mul(100) / all.max(1),
        rows.saturating_mul(1000) / milliseconds
    )
}
