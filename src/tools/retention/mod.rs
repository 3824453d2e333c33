//! Deletes rows of the outbox that are proved to be delivered.
//!
//! | files | what they do |
//! |---|---|
//! | `proof` | which rows are delivered, told by the slots and walpost's own position |
//! | `pruned_table` | a table, and the SQL of its rows |
//! | `prune` | deletes them, some at a time |
//! | `batch` | those of one transaction |
//! | `archive` | where they go before that |
//! | `partitions` | makes and drops partitions |
//! | `error` | errors |

mod archive;
mod batch;
mod error;
mod partitions;
mod proof;
mod prune;
mod pruned_table;

pub(crate) use archive::{Archive, check as check_archive};
pub(crate) use error::PruneError;
pub(crate) use partitions::{
    Fate, Left, Made, Manager, Partition, PartitionedTable, left_behind, make_ahead,
};
pub(crate) use proof::{Proof, Wanted};
pub(crate) use prune::{
    LOCK_ATTEMPTS, Limits, Prune, Pruned, Stopped, lock_out_others, prepare, require_short_waits,
    unless_locked,
};
pub(crate) use pruned_table::{Counted, Oldest, PrunedTable};
