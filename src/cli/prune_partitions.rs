//! `walpost prune` on a partitioned outbox: makes partitions ahead, and drops old ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::Exit;
use super::progress;
use super::prune_args::PruneArguments;
use super::stdout::{complain, print};
use crate::outbox::TableName;
use crate::retention::{
    Fate, Left, Made, Manager, Partition, PartitionedTable, Prune, PruneError, PrunedTable,
    Stopped, make_ahead,
};
use crate::source::SqlClient;

/// What was done with partitions, and what is left to do.
pub(super) struct Partitions {
    pub(super) exit: Exit,
    /// Nothing more is to be done.
    pub(super) stopped: Option<Stopped>,
    /// Tables without partitions, of which rows are to be deleted one by one.
    pub(super) rows: Vec<PrunedTable>,
}

/// Reads the tables that have partitions, and checks that they can be pruned with these arguments.
pub(super) async fn read(
    client: &SqlClient,
    tables: &[PrunedTable],
    arguments: &PruneArguments,
    before: &str,
) -> Result<Vec<PartitionedTable>, PruneError> {
    let mut found = Vec::new();
    for table in tables.iter().filter(|table| table.is_partitioned) {
        let table = PartitionedTable::read(client, table, before).await?;
        if table.manager == Manager::Nobody && !arguments.delete_rows {
            return Err(PruneError::Table {
                problem: format!(
                    "it is partitioned by {}, and walpost drops partitions only if they are ranges of one \
                     column with a time: delete rows one by one, with --delete-rows",
                    table.partitioned_by
                ),
                table: table.name,
            });
        }
        let archives = arguments.archive_to.is_some() || arguments.archive_command.is_some();
        if table.manager == Manager::Partman && archives {
            return Err(PruneError::Table {
                table: table.name,
                problem: "pg_partman has its partitions, and walpost archives none of them"
                    .to_owned(),
            });
        }
        if table.manager == Manager::Walpost && arguments.archive_command.is_some() {
            return Err(PruneError::Table {
                table: table.name,
                problem: "partitions that are dropped cannot go to a command: use --archive-to"
                    .to_owned(),
            });
        }
        if let Some(archive) = &arguments.archive_to {
            table.require_other(client, archive).await?;
        }
        if !arguments.dry_run {
            if table.manager == Manager::Walpost {
                table.require_owner()?;
                PartitionedTable::require_rows(table.default())?;
            }
            if arguments.delete_rows {
                PartitionedTable::require_rows(&table.partitions)?;
            }
        }
        found.push(table);
    }
    Ok(found)
}

/// Makes and drops partitions; `is_stopped` tells when to stop.
pub(super) async fn prune(
    pruning: &mut Prune<'_>,
    client: &SqlClient,
    (tables, partitioned): (&[PrunedTable], &[PartitionedTable]),
    arguments: &PruneArguments,
    is_stopped: &AtomicBool,
) -> Result<Partitions, PruneError> {
    let rows = tables.iter().filter(|table| !table.is_partitioned).cloned().collect();
    let mut done = Partitions { exit: Exit::Ok, stopped: None, rows };
    for table in partitioned {
        if done.stopped.is_some() {
            break;
        }
        let mut is_unmade = false;
        if table.manager == Manager::Walpost && !arguments.partitions_ahead.is_zero() {
            is_unmade = done.make(client, table, arguments).await?;
        }
        report_default(client, table).await?;
        let newest = table.partitions.iter().rfind(|one| !one.is_default);
        for partition in table.partitions.iter().filter(|one| one.is_old && !one.is_default) {
            let is_newest = newest.is_some_and(|newest| newest.name == partition.name);
            if is_newest && is_unmade {
                let name = &partition.name;
                complain(&format!(
                    "{name}: partition left: it is the newest one, which shows how long a period is"
                ));
                continue;
            }
            if is_stopped.load(Ordering::Relaxed) {
                done.stopped = Some(Stopped::Signal);
            }
            if done.stopped.is_some() {
                break;
            }
            let fate = if arguments.dry_run || table.manager == Manager::Partman {
                pruning.would_drop(table, partition).await?
            } else {
                let mut reported = Instant::now();
                let report = |(read, all): (u64, u64)| {
                    if reported.elapsed() >= progress::INTERVAL {
                        reported = Instant::now();
                        let percent = read.saturating_mul(100) / all.max(1);
                        complain(&format!("{}: {percent} % of it read", partition.name));
                    }
                    !is_stopped.load(Ordering::Relaxed)
                };
                let fate = pruning.drop_partition(table, partition, report).await?;
                if matches!(fate, Fate::Dropped(_)) {
                    tokio::time::sleep(arguments.sleep).await;
                }
                fate
            };
            done.note(table, partition, fate, arguments);
        }
        done.add_rows(table, arguments);
    }
    Ok(done)
}

impl Partitions {
    /// Returns whether some are missing, and none could be made.
    async fn make(
        &mut self,
        client: &SqlClient,
        table: &PartitionedTable,
        arguments: &PruneArguments,
    ) -> Result<bool, PruneError> {
        let (mut are_made, mut are_unmade) = (false, false);
        let times = (arguments.partitions_ahead, arguments.lock_timeout);
        for made in make_ahead(client, table, times, arguments.dry_run).await? {
            match made {
                Made::Partition(name) if arguments.dry_run => {
                    print(&format!("{name}: partition would be made\n"));
                }
                Made::Partition(name) => {
                    print(&format!("{name}: partition made\n"));
                    are_made = true;
                }
                Made::Not(name, why) => {
                    complain(&format!("{name}: partition not made: {why}"));
                    self.exit = Exit::Failure;
                    are_unmade = true;
                }
            }
        }
        Ok(are_unmade && !are_made)
    }

    fn note(
        &mut self,
        table: &PartitionedTable,
        Partition { name, .. }: &Partition,
        fate: Fate,
        arguments: &PruneArguments,
    ) {
        let is_partmans = table.manager == Manager::Partman;
        match fate {
            Fate::Dropped(_) if is_partmans => {
                print(&format!("safe to drop: {name}\n"));
            }
            Fate::Dropped(rows) => {
                let done = match (arguments.dry_run, &arguments.archive_to) {
                    (true, None) => "would be dropped",
                    (true, Some(_)) => "would be archived and dropped",
                    (false, None) => "dropped",
                    (false, Some(_)) => "archived and dropped",
                };
                print(&format!("{name}: partition with {rows} rows {done}\n"));
            }
            Fate::Left(left) => {
                let said = if is_partmans { "not safe to drop" } else { "partition left" };
                complain(&format!("{name}: {said}: {left}"));
                if left.needs_operator() {
                    self.exit = Exit::Failure;
                }
                if left == Left::Locked {
                    self.stopped = Some(Stopped::Locks);
                }
            }
            Fate::Stopped(stopped) => self.stopped = Some(stopped),
        }
    }

    /// The default partition is never dropped; as long as it has rows of a period, none can be made
    /// for it.
    fn add_rows(&mut self, table: &PartitionedTable, arguments: &PruneArguments) {
        let default: Option<&TableName> =
            table.default().filter(|_| table.manager == Manager::Walpost).map(|one| &one.name);
        let leaves = table.leaves().iter();
        let wanted = leaves.filter(|leaf| arguments.delete_rows || Some(&leaf.name) == default);
        self.rows.extend(wanted.cloned());
    }
}

async fn report_default(client: &SqlClient, table: &PartitionedTable) -> Result<(), PruneError> {
    if let (Some(default), Some((rows, first, last))) =
        (table.default(), table.default_rows(client).await?)
    {
        complain(&format!(
            "{}: the default partition has {rows} rows, from {first} to {last}: no other partition has \
             their times. If they are of times that passed without a partition, run prune more often, or \
             with longer --partitions-ahead",
            default.name
        ));
    }
    Ok(())
}
