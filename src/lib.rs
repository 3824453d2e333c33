//! walpost tails a transactional outbox out of PostgreSQL into Kafka.
// The essay is written last, when there is something to describe.

pub mod assembly;
pub mod cli;
pub mod config;
pub mod conninfo;
pub mod ledger;
pub mod lsn;
pub mod outbox;
pub mod pgoutput;
pub mod record;
pub mod relay;
pub mod sink;
pub mod source;

pub use lsn::Lsn;
