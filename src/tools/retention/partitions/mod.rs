//! A partitioned outbox: partitions are made ahead, and dropped once all of their rows may be deleted.
//!
//! | files | what they do |
//! |---|---|
//! | `tree` | the table, its partitions, and who takes care of them |
//! | `periods` | the periods without a partition |
//! | `ahead` | makes partitions |
//! | `exclusion` | proves that a large default partition has no rows of theirs |
//! | `drop` | checks the rows of a partition, archives them, and drops it |

use postgres_protocol::escape::escape_literal;

mod ahead;
mod drop;
mod exclusion;
mod periods;
mod tree;

pub(crate) use ahead::{Made, make_ahead};
pub(crate) use drop::{Fate, Left};
pub(crate) use exclusion::left_behind;
pub(crate) use tree::{Manager, Partition, PartitionedTable};

/// The SQLSTATE with which a transaction ends if a name means another table meanwhile: a schema can be
/// renamed whatever locks its tables have.
const IS_ANOTHER: &str = "WP002";

/// A statement that ends the transaction with this SQLSTATE if the condition holds.
fn raise_if(condition: &str, code: &str) -> String {
    let body =
        format!("BEGIN IF {condition} THEN RAISE EXCEPTION USING ERRCODE = '{code}'; END IF; END");
    format!("DO {}", escape_literal(&body))
}
