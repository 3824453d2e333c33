//! What walpost decides, without I/O: no socket, no clock, no task, no log.
//!
//! Messages of PostgreSQL's output plugin become events of an outbox, and these the records of a
//! destination. The relay's state machine publishes them through an [`outlet`], and the ledger derives
//! from the acknowledgements what may be confirmed to PostgreSQL. The crate `walpost` has the driver,
//! the replication session and the destinations around it, and its documentation the whole.
//!
//! The modules from the bottom up; a module imports only modules above it (`tests/tidy` checks that):
//!
//! | module | purpose |
//! |---|---|
//! | [`lsn`], [`position`] | a position in the WAL; the position of an event |
//! | [`excerpt`] | formats external text for messages |
//! | [`pgoutput`] | bytes to messages; any input yields a message or an error |
//! | [`outbox`] | rows and logical messages to events |
//! | [`record`] | event to record, and what makes an event undeliverable |
//! | [`ledger`] | records in flight, and the flush LSN that follows from them |
//! | [`outlet`] | the trait through which the relay publishes |
//! | [`relay`] | the state machine: order, replay, poison events, halt |
//!
//! Its interface is that of walpost's own parts, and may change in any release.

#![warn(clippy::disallowed_methods)]

pub mod excerpt;
pub mod ledger;
pub mod lsn;
pub mod outbox;
pub mod outlet;
pub mod pgoutput;
pub mod position;
#[cfg(any(test, feature = "test-support"))]
#[allow(clippy::missing_panics_doc, reason = "for tests")]
pub mod property;
pub mod record;
pub mod relay;

pub use lsn::Lsn;
