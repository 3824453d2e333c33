//! A partitioned outbox: partitions are made ahead, and dropped once all of their rows may be deleted.
//!
//! | files | what they do |
//! |---|---|
//! | `tree` | the table, its partitions, and who takes care of them |
//! | `ahead` | makes partitions |
//! | `drop` | checks the rows of a partition, archives them, and drops it |

mod ahead;
mod drop;
mod tree;

pub(crate) use ahead::{Made, make_ahead};
pub(crate) use drop::{Fate, Left};
pub(crate) use tree::{Manager, Partition, PartitionedTable};
