//! A partitioned outbox: partitions are made ahead, and dropped once all of their rows may be deleted.
//!
//! | files | what they do |
//! |---|---|
//! | `tree` | the table, its partitions, and who takes care of them |
//! | `periods` | the periods without a partition |
//! | `ahead` | makes partitions |
//! | `exclusion` | proves that a large default partition has no rows of theirs |
//! | `drop` | checks the rows of a partition, archives them, and drops it |

mod ahead;
mod drop;
mod exclusion;
mod periods;
mod tree;

pub(crate) use ahead::{Made, make_ahead};
pub(crate) use drop::{Fate, Left};
pub(crate) use exclusion::{clean as clean_up, left_behind};
pub(crate) use tree::{Manager, Partition, PartitionedTable};
