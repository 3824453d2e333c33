//! `walpost prune` on a partitioned outbox: makes partitions ahead, and drops old ones.

use std::time::Instant;

use super::Exit;
use super::progress;
use super::prune_args::PruneArguments;
use super::prune_rows::delete_rows;
use super::stdout::{complain, print};
use crate::outbox::TableName;
use crate::source::SqlClient;
use crate::tools::retention::{
    Fate, LOCK_ATTEMPTS, Left, Made, Manager, Partition, PartitionedTable, Prune, PruneError,
    PrunedTable, Stopped, make_ahead, require_short_waits,
};

/// After so many partitions that could not be dropped because of locks, the others of the table are
/// left too: most likely the same session has it.
const LOCKED_MAX: u32 = 3;

/// What was done with partitions, and what is left to do.
pub(super) struct Partitions {
    pub(super) exit: Exit,
    /// Other sessions had some of them locked.
    pub(super) are_locked: bool,
    /// Partitions that were dropped, or would be.
    dropped: Vec<TableName>,
    /// Nothing more is to be done.
    pub(super) stopped: Option<Stopped>,
    /// Tables without partitions, of which rows are to be deleted one by one.
    pub(super) rows: Vec<PrunedTable>,
}

/// Reads a table that has partitions, and checks that it can be pruned with these arguments.
pub(super) async fn read(
    client: &SqlClient,
    table: &PrunedTable,
    arguments: &PruneArguments,
    before: &str,
) -> Result<PartitionedTable, PruneError> {
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
            problem: "pg_partman has its partitions, and walpost archives none of them".to_owned(),
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
    if table.manager == Manager::Walpost {
        table.require_owner()?;
        PartitionedTable::require_rows(table.default())?;
    }
    if arguments.delete_rows {
        PartitionedTable::require_rows(&table.partitions)?;
    }
    Ok(table)
}

/// Makes and drops partitions.
pub(super) async fn prune(
    pruning: &mut Prune<'_>,
    client: &SqlClient,
    (tables, partitioned): (&[PrunedTable], &[PartitionedTable]),
    arguments: &PruneArguments,
) -> Result<Partitions, PruneError> {
    if let Some(table) = partitioned.iter().find(|one| one.manager == Manager::Walpost) {
        require_short_waits(client, &table.name, arguments.lock_timeout).await?;
    }
    let rows = tables.iter().filter(|table| !table.is_partitioned).cloned().collect();
    let (exit, dropped) = (Exit::Ok, Vec::new());
    let mut done = Partitions { exit, are_locked: false, dropped, stopped: None, rows };
    for table in partitioned {
        if done.stopped.is_some() {
            break;
        }
        let mut is_unmade = false;
        if table.manager == Manager::Walpost {
            is_unmade = done.make(pruning, client, table, arguments).await?;
        }
        report_default(client, table).await?;
        done.drop_old(pruning, table, arguments, is_unmade).await?;
        done.add_rows(table, arguments);
    }
    Ok(done)
}

/// Moves the rows of a partition to the archive, and drops it, if all of them may be deleted.
async fn drop_partition(
    pruning: &mut Prune<'_>,
    (table, partition): (&PartitionedTable, &Partition),
    attempts: u32,
) -> Result<Fate, PruneError> {
    let mut archived = 0;
    if pruning.archives() {
        let fate = pruning.would_drop(table, partition).await?;
        let Fate::Dropped(found) = fate else { return Ok(fate) };
        if let Some(rows) = table.rows_of(partition).filter(|_| found > 0) {
            let moved = match delete_rows(pruning, rows).await {
                Err(PruneError::Changed { .. }) => return Ok(Fate::Left(Left::Gone)),
                moved => moved?,
            };
            match moved.stopped {
                None => archived = moved.rows,
                Some(Stopped::Locks) => return Ok(Fate::Left(Left::Busy)),
                Some(stopped) => return Ok(Fate::Stopped(stopped)),
            }
        }
    }
    let mut reported = Instant::now();
    let report = |(read, all): (u64, u64)| {
        if reported.elapsed() >= progress::INTERVAL {
            reported = Instant::now();
            let percent = read.saturating_mul(100) / all.max(1);
            complain(&format!("{}: {percent} % of it read", partition.name));
        }
    };
    Ok(match pruning.drop_partition(table, partition, attempts, report).await? {
        Fate::Dropped(rows) => {
            pruning.pause().await;
            Fate::Dropped(archived + rows)
        }
        fate => fate,
    })
}

impl Partitions {
    /// Drops the partitions whose period is old enough.
    async fn drop_old(
        &mut self,
        pruning: &mut Prune<'_>,
        table: &PartitionedTable,
        arguments: &PruneArguments,
        is_unmade: bool,
    ) -> Result<(), PruneError> {
        let newest = table.partitions.iter().rfind(|one| !one.is_default);
        let mut locked = 0;
        for partition in table.partitions.iter().filter(|one| one.is_old && !one.is_default) {
            let name = &partition.name;
            if newest.is_some_and(|newest| newest.name == *name) && is_unmade {
                complain(&format!(
                    "{name}: partition left: it is the newest one, which shows how long a period is"
                ));
                continue;
            }
            if locked >= LOCKED_MAX {
                complain(&format!("{name}: partition left, as those before it"));
                continue;
            }
            let fate = if arguments.dry_run || table.manager == Manager::Partman {
                pruning.would_drop(table, partition).await?
            } else {
                let attempts = if locked == 0 { LOCK_ATTEMPTS } else { 1 };
                drop_partition(pruning, (table, partition), attempts).await?
            };
            match fate {
                Fate::Left(Left::Locked | Left::Busy) => locked += 1,
                Fate::Dropped(_) => locked = 0,
                Fate::Left(_) | Fate::Stopped(_) => {}
            }
            self.note(table, partition, fate, arguments);
            if self.stopped.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether some are missing, and none could be made.
    async fn make(
        &mut self,
        pruning: &Prune<'_>,
        client: &SqlClient,
        table: &PartitionedTable,
        arguments: &PruneArguments,
    ) -> Result<bool, PruneError> {
        let (mut are_made, mut are_unmade) = (false, false);
        let times = (arguments.partitions_ahead, arguments.lock_timeout);
        let is_stopped = pruning.is_stopped;
        for made in make_ahead(client, table, times, arguments.dry_run, is_stopped).await? {
            match made {
                Made::Partition(name) if arguments.dry_run => {
                    print(&format!("{name}: partition would be made\n"));
                    are_made = true;
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
                self.dropped.push(name.clone());
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
                self.are_locked |= matches!(left, Left::Locked | Left::Busy);
            }
            Fate::Stopped(stopped) => self.stopped = Some(stopped),
        }
    }

    /// The default partition is never dropped; as long as it has rows of a period, none can be made
    /// for it.
    fn add_rows(&mut self, table: &PartitionedTable, arguments: &PruneArguments) {
        let default: Option<&TableName> =
            table.default().filter(|_| table.manager == Manager::Walpost).map(|one| &one.name);
        let leaves = table.leaves().iter().filter(|leaf| !self.dropped.contains(&leaf.name));
        let wanted = leaves.filter(|leaf| arguments.delete_rows || Some(&leaf.name) == default);
        self.rows.extend(wanted.cloned().collect::<Vec<_>>());
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
