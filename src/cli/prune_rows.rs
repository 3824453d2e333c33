//! `walpost prune` on the rows of a table, with its progress.

use std::time::{Duration, Instant};

use super::progress;
use super::stdout::{complain, print};
use crate::tools::retention::{Prune, PruneError, Pruned, PrunedTable};

/// Deletes the rows of a table one by one, and prints how many.
pub(super) async fn delete_rows(
    pruning: &mut Prune<'_>,
    table: &PrunedTable,
) -> Result<Pruned, PruneError> {
    let (began, mut reported) = (Instant::now(), Instant::now());
    let pruned = pruning.table(table, |so_far| {
        if reported.elapsed() >= progress::INTERVAL {
            reported = Instant::now();
            complain(&shown(table, so_far, began.elapsed()));
        }
    });
    let (pruned, ended) = pruned.await;
    let done = if pruning.archives() { "archived" } else { "deleted" };
    print(&format!("{}: {} rows {done}\n", table.name, pruned.rows));
    if pruned.locked > 0 {
        complain(&format!(
            "{}: {} rows were left to the next run, since other sessions had them locked",
            table.name, pruned.locked
        ));
    }
    if pruned.changed > 0 {
        complain(&format!(
            "{}: {} rows were archived and not deleted, since other sessions changed or locked them \
             meanwhile: the next run archives them again",
            table.name, pruned.changed
        ));
    }
    if pruned.locked_pages > 0 {
        complain(&format!(
            "{}: {} pages were left to the next run, since other sessions had rows locked that theirs need",
            table.name, pruned.locked_pages
        ));
    }
    ended.map(|()| pruned)
}

/// The text `public.outbox: 2000 rows, 10 % of the table, 950 rows/s, 8 s left`.
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
