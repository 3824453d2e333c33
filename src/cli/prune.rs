//! `walpost prune`: deletes rows of the outbox that are proved to be delivered.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::prune_args::PruneArguments;
use super::prune_partitions;
use super::prune_rows::delete_rows;
use super::replay::stop_flag;
use super::stdout::{complain, print};
use super::{Exit, block_on, logged};
use crate::assembly;
use crate::config::{self, Config, Flags, show_bytes};
use crate::destination;
use crate::outbox::{ColumnNames, TableName};
use crate::record::Policy;
use crate::source::{self, SourceError, SqlClient, log_if_slow};
use crate::tools::retention::{
    Archive, Counted, Limits, Oldest, PartitionedTable, Proof, Prune, PruneError, PrunedTable,
    Stopped, Wanted, check_archive, left_behind, lock_out_others, prepare, require_short_waits,
    unless_locked,
};

/// The `application_name` of the session.
const NAME: &str = "walpost prune";

pub(super) fn command(mut arguments: PruneArguments) -> Exit {
    let options = std::mem::take(&mut arguments.options);
    let config = match logged(&Flags::from(options)) {
        Ok((config, _level)) => config,
        Err(exit) => return exit,
    };
    match block_on(prune(&config, &arguments)) {
        Ok(exit) => exit,
        Err(error) => {
            complain(&error.to_string());
            match error {
                PruneError::Source(error) => (&error).into(),
                PruneError::NoTables
                | PruneError::SlotAlone
                | PruneError::NotAlone(_)
                | PruneError::UnknownSlot { .. }
                | PruneError::LockTimeout { .. }
                | PruneError::Table { .. } => Exit::Config,
                PruneError::Standby
                | PruneError::State { .. }
                | PruneError::Unproved(_)
                | PruneError::Skips(_)
                | PruneError::InUse { .. }
                | PruneError::Changed { .. }
                | PruneError::Kept { .. }
                | PruneError::Command { .. }
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
    match destination::of(config).place_of_position(config) {
        Some(place) if arguments.by_slot_alone => return Err(PruneError::NotAlone(place)),
        None if arguments.dry_run => complain(&PruneError::SlotAlone.to_string()),
        None if !arguments.by_slot_alone => return Err(PruneError::SlotAlone),
        _ => {}
    }
    if config.poison.include(Policy::Skip) && !arguments.include_skipped {
        return Err(PruneError::Skips(config.source.slot.clone()));
    }
    let setup = |error: String| SourceError::Setup(error);
    let conninfo = assembly::conninfo(config).map_err(|error| setup(error.to_string()))?;
    let profile = config::profile(config).map_err(|error| setup(error.to_string()))?;
    let names = config::columns(config, &profile);
    let control = source::control(&conninfo, NAME).await.map_err(SourceError::from)?;
    let client = &control.client;
    let source = assembly::source(config).map_err(|error| setup(error.to_string()))?;
    let failed = |error| SourceError::query("preparing the session", &error);
    prepare(client).await.map_err(failed)?;
    clean(client, &config.outbox.tables, arguments).await?;
    let (proof, published) = Proof::read(
        client,
        Wanted {
            config,
            source: &source,
            ignored: &arguments.ignore_slot,
            skipped_too: arguments.include_skipped,
            before_slot_too: arguments.include_before_slot,
        },
    )
    .await?;
    let before = time_before(client, arguments.older_than).await?;
    announce(&proof, &before);
    let columns = (&names, arguments.time_column.as_deref());
    let publication = config.source.publication.as_str();
    if let Some(archive) = &arguments.archive_to
        && published.iter().any(|table| archive.names(&table.relation))
    {
        return Err(PruneError::Table {
            table: archive.clone(),
            problem: "an outbox cannot be the archive: its rows would be published again"
                .to_owned(),
        });
    }
    let of = (publication, columns, before.as_str());
    let (tables, partitioned, are_locked) =
        read(client, &config.outbox.tables, of, arguments).await?;
    tables.iter().try_for_each(|table| table.require_ids(&proof, &config.source.slot))?;
    let tables = (tables.as_slice(), partitioned.as_slice());
    if arguments.dry_run {
        let stop = AtomicBool::new(false);
        let mut pruning = begin(config, arguments, (client, &proof, &before), &stop);
        let partitions = prune_partitions::prune(&mut pruning, client, tables, arguments).await?;
        let count = async |table: &PrunedTable| {
            let notice = || complain(&format!("still counting the rows of {}", table.name));
            log_if_slow(notice, table.count(client, &proof, &before)).await
        };
        for table in tables.1 {
            let mut counted = Counted::default();
            for leaf in table.leaves() {
                if table.is_readable(leaf) {
                    counted += count(leaf).await?;
                } else {
                    let name = &leaf.name;
                    complain(&format!("{name}: not counted: this user may not read its rows"));
                }
            }
            print(&report(&table.name, "old and delivered: ", counted));
        }
        for table in &partitions.rows {
            print(&report(&table.name, "to be deleted:     ", count(table).await?));
        }
        return Ok(if are_locked { Exit::Failure } else { partitions.exit });
    }
    delete(config, arguments, (client, &proof, &before), (tables.0, tables.1, are_locked)).await
}

/// Reads the tables, and checks that they can be pruned with these arguments. Also returns those of them
/// that have partitions, and whether other sessions keep some locked, which are not returned.
async fn read(
    client: &SqlClient,
    names: &[TableName],
    (publication, columns, before): (&str, (&ColumnNames, Option<&str>), &str),
    arguments: &PruneArguments,
) -> Result<(Vec<PrunedTable>, Vec<PartitionedTable>, bool), PruneError> {
    let (mut tables, mut partitioned, mut are_locked) = (Vec::new(), Vec::new(), false);
    for name in names {
        let read = async || {
            let table = PrunedTable::read(client, name, publication, columns).await?;
            if let Some(archive) = &arguments.archive_to {
                check_archive(client, &table, archive).await?;
            }
            let warnings = table.warnings(client, arguments.archive_to.as_ref()).await?;
            let parts = if table.is_partitioned {
                Some(prune_partitions::read(client, &table, arguments, before).await?)
            } else {
                None
            };
            Ok((table, parts, warnings))
        };
        // A signal ends the program here.
        let read = unless_locked(&AtomicBool::new(false), read).await?;
        if let Some((table, parts, warnings)) = read {
            for warning in &warnings {
                complain(warning);
            }
            tables.push(table);
            partitioned.extend(parts);
        } else {
            complain(&format!(
                "{name}: other sessions keep it, a partition of it or the archive locked (pg_blocking_pids): \
                 nothing is done in it"
            ));
            are_locked = true;
        }
    }
    Ok((tables, partitioned, are_locked))
}

/// Locks out other runs, and undoes first what a killed one has left, whatever becomes of this one.
async fn clean(
    client: &SqlClient,
    tables: &[TableName],
    arguments: &PruneArguments,
) -> Result<(), PruneError> {
    if !arguments.dry_run {
        lock_out_others(client, tables).await?;
    }
    for table in tables {
        let Some(exclusion) = left_behind(client, table).await? else { continue };
        if arguments.dry_run {
            complain(&format!(
                "{}: a run has not ended yet, or was killed, while it made partitions: until then, or \
                 until the next one, rows of the periods to come are refused",
                exclusion.default
            ));
        } else {
            require_short_waits(client, table, arguments.lock_timeout).await?;
            exclusion.end(client, arguments.lock_timeout).await?;
        }
    }
    Ok(())
}

fn begin<'a>(
    config: &'a Config,
    arguments: &'a PruneArguments,
    (client, proof, before): (&'a SqlClient, &'a Proof, &'a str),
    is_stopped: &'a AtomicBool,
) -> Prune<'a> {
    let limits = Limits {
        batch: arguments.batch,
        pause: arguments.sleep,
        duration: arguments.max_duration,
        lag_bytes: arguments.max_lag,
        lock: arguments.lock_timeout,
    };
    let what = (proof, before, config.source.slot.as_str());
    let command = arguments.archive_command.as_deref().map(Archive::Command);
    let archive = arguments.archive_to.as_ref().map(Archive::Table).or(command);
    Prune::new(client, what, archive, limits, is_stopped)
}

/// The time that lies this long ago, by the server's clock, in a session that `prepare` has prepared.
async fn time_before(client: &SqlClient, ago: Duration) -> Result<String, SourceError> {
    let failed = |error| SourceError::query("asking for the time", &error);
    let sql = "SELECT (pg_catalog.now() - $1::pg_catalog.float8 * '1 s'::pg_catalog.interval)
                      ::pg_catalog.text";
    let row = client.query_one(sql, &[&ago.as_secs_f64()]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

fn announce(proof: &Proof, before: &str) {
    print(&format!(
        "rows that were written before {before}, by transactions up to {} at most: those are confirmed\n",
        proof.below.saturating_sub(1)
    ));
    if let Some((slot, confirmed, is_lost)) = &proof.held_by {
        let is_lost = if *is_lost { " is lost, and" } else { "" };
        complain(&format!(
            "replication slot \"{slot}\"{is_lost} has confirmed only {confirmed}: newer rows are kept"
        ));
    }
}

/// `deletable`: what the rows are called that may be deleted, or dropped with their partition.
fn report(table: &TableName, deletable: &str, counted: Counted) -> String {
    let Counted { oldest, deletable: rows, young, undelivered, before_slot, unpublished, skipped } =
        counted;
    let oldest = oldest.unwrap_or_else(|| "none".to_owned());
    format!(
        "{table}:\n\
         {deletable}                  {rows}\n\
         younger, or without a time:          {young}\n\
         old, and not proved to be delivered: {undelivered}\n\
         from before the slot:                {before_slot}\n\
         not sent by the publication:         {unpublished}\n\
         passed over by `walpost skip`:       {skipped}\n\
         oldest row:                          {oldest}\n"
    )
}

async fn delete(
    config: &Config,
    arguments: &PruneArguments,
    (client, proof, before): (&SqlClient, &Proof, &str),
    (tables, partitioned, mut are_locked): (&[PrunedTable], &[PartitionedTable], bool),
) -> Result<Exit, PruneError> {
    let is_stopped = stop_flag();
    let mut pruning = begin(config, arguments, (client, proof, before), &is_stopped);
    let tables = (tables, partitioned);
    let partitions = prune_partitions::prune(&mut pruning, client, tables, arguments).await?;
    let mut exit = partitions.exit;
    if let Some(stopped) = partitions.stopped {
        complain(&why(stopped));
        return Ok(if stopped == Stopped::Duration { exit } else { Exit::Failure });
    }
    are_locked |= partitions.are_locked;
    for table in &partitions.rows {
        let pruned = match delete_rows(&mut pruning, table).await {
            // The others are not concerned.
            Err(error @ PruneError::Changed { .. }) => {
                complain(&error.to_string());
                exit = Exit::Failure;
                continue;
            }
            pruned => pruned?,
        };
        if pruned.stopped != Some(Stopped::Signal) {
            let oldest = table.oldest(client).await?;
            print(&format!("{}: {}\n", table.name, left(oldest)));
        }
        match pruned.stopped {
            None => {}
            // The rows of other tables may be free.
            Some(Stopped::Locks) => are_locked = true,
            Some(stopped) => {
                complain(&why(stopped));
                if stopped != Stopped::Duration {
                    exit = Exit::Failure;
                }
                break;
            }
        }
    }
    if are_locked {
        complain(&why(Stopped::Locks));
        exit = Exit::Failure;
    }
    Ok(exit)
}

fn left(oldest: Oldest) -> String {
    match oldest {
        Oldest::None => "no row with a time is left".to_owned(),
        Oldest::At(time) => format!("the oldest row that is left is from {time}"),
        Oldest::Unknown => {
            "the oldest row that is left was not found within 10 s: an index on the time \
                            helps"
                .to_owned()
        }
        Oldest::Locked => {
            "the oldest row that is left was not looked for: other sessions keep the table locked"
                .to_owned()
        }
    }
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
        Stopped::Locks => {
            "other sessions keep rows or tables locked (pg_blocking_pids): they were left"
                .to_owned()
        }
    };
    format!("{why}; run it again for the rest")
}
