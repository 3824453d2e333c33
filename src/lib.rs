//! walpost tails a transactional outbox out of PostgreSQL's logical replication
//! into Kafka: in order, at least once, without polling the table.
//!
//! An application writes a row to its outbox table in the transaction that makes
//! the change the row tells of. PostgreSQL's write-ahead log then has both or
//! neither, and has them in commit order. walpost reads that log and makes one
//! Kafka record of each row. This crate is both the program and the library it
//! is made of; the program is a command line over [`assembly::relay`].
//!
//! # The way of an event
//!
//! ```text
//!   PostgreSQL                                                         Kafka
//!   walsender                                                         brokers
//!      │  bytes of pgoutput                                              ▲
//!      ▼                                                                 │
//!   source ──► pgoutput ──► outbox ──► record ──► relay::core ──► sink ──┘
//!      ▲       message      event      topic,        │  ▲           │
//!      │                               key, …        ▼  │ reports   │
//!      └───────── confirm A ◄──────────────────── ledger ◄───────────┘
//! ```
//!
//! Rows go to the right as they come, a large transaction's too: PostgreSQL
//! sends a transaction only once it has committed, so nothing is held back
//! here, and memory follows a budget, not the size of a transaction. Positions
//! come back to the left: delivery reports let the [`ledger`] raise the
//! position that is confirmed to the replication slot.
//!
//! # What is promised, and why it holds
//!
//! Every event of a committed transaction is delivered at least once; no event
//! of one that was rolled back ever is. In each partition, first deliveries
//! stand in commit order, and what comes twice is a repeated stretch of the same
//! order. Records with the same key share a partition.
//!
//! All rests on one rule for one position, **A**, which becomes the slot's
//! `confirmed_flush_lsn`. PostgreSQL sends a transaction again after a restart
//! at A exactly when its commit record lies at or after A. So:
//!
//! > A may pass a transaction only when the brokers have acknowledged, at
//! > `acks=all`, every record of it and of all that committed before it.
//!
//! A is the end of the last transaction for which that holds without a gap. An
//! outbox in which nothing happens would pin A while others write, and the log
//! with it: so where nothing is in flight and no transaction is open, A rises to
//! **K**, the position up to which the server says, in a keepalive of this very
//! session, to have sent everything. Nothing else moves A, and it never falls.
//!
//! What was never handed out has no acknowledgement to wait for. PostgreSQL
//! passes over rows that are committed while their table is not in the
//! publication, so A is confirmed only after a look at the catalogs has shown the
//! publication to be the same all along (`source/publication_guard.rs`).
//!
//! A failed delivery counts for nothing: the producer is thrown away with all
//! that it holds and everything from A on is read and produced again, so that
//! no record is ever retried behind its successors. An event that cannot be
//! delivered at all halts the relay before A passes it.
//!
//! # The modules
//!
//! Data goes down this list, and imports point up it: what stands higher knows
//! nothing of what stands lower. What decides is pure and takes no clock; what
//! does I/O decides nothing about delivery.
//!
//! | module | job |
//! |---|---|
//! | [`lsn`] | a position in the log, as a type |
//! | [`pgoutput`] | bytes to messages; any bytes at all give a message or an error |
//! | [`outbox`] | rows and logical messages to [`outbox::Event`] |
//! | [`record`] | event to [`record::Record`]: topic, key, headers, timestamp; or [`record::Poison`] |
//! | [`ledger`] | what is in flight, and from it A |
//! | [`relay::core`] | the state machine: what to produce, confirm, replay, when to stop |
//! | [`conninfo`] | connection strings as libpq reads them |
//! | [`source`] | the replication session, and the checks before it |
//! | [`sink`] | the [`sink::Sink`] trait and the idempotent Kafka producer behind it |
//! | [`relay`] | the loop that joins source, core and sink; reconnects, drains |
//! | [`replay`] | dead letters back through [`record`] and [`sink`] |
//! | [`config`] | flags, environment and file to values that are valid |
//! | [`import`] | a Debezium connector's configuration to walpost's |
//! | [`assembly`] | from a configuration to a relay |
//! | [`cli`] | the commands |
//!
//! # As a library
//!
//! ```no_run
//! use walpost::assembly;
//! use walpost::config::{Config, Environment, Flags};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // Once in a process, before the first connection.
//! walpost::source::install_crypto_provider();
//! let environment = Environment::of_process();
//! let config = Config::load(&Flags::new(Some("walpost.toml".into())), &environment)?;
//! let (relay, stop) = assembly::relay(&config, &environment, None)?;
//! tokio::spawn(async move {
//!     let _ = tokio::signal::ctrl_c().await;
//!     stop.drain();
//! });
//! let summary = relay.run().await?;
//! println!("{} records delivered, confirmed {}", summary.delivered, summary.confirmed);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/embed.rs` is this as a whole program. A [`relay::Relay`] fixes lost
//! connections by itself; what [`relay::Relay::run`] returns as an error is for
//! a person to act on.

#![warn(clippy::disallowed_methods)]

pub mod admin;
pub mod assembly;
pub mod cli;
pub mod config;
pub mod conninfo;
mod crash_points;
pub mod dead_letter_replay;
pub mod debezium_import;
mod excerpt;
pub mod ledger;
pub mod lsn;
pub mod metrics;
pub mod outbox;
pub mod outlet;
pub mod pgoutput;
pub mod position;
mod preflight;
#[cfg(test)]
mod property;
pub mod record;
pub mod relay;
pub mod setup;
pub mod sink;
pub mod source;
#[cfg(feature = "traces")]
pub mod traces;

pub use lsn::Lsn;
