//! walpost streams a transactional outbox from PostgreSQL's WAL to Kafka, or to Redis, NATS, RabbitMQ, an
//! HTTP endpoint or Amazon SQS: in order, at least once, without polling the table.
//!
//! An application inserts a row into its outbox table in the transaction of the change that the row
//! describes. The WAL then contains both or neither, in commit order. walpost decodes the WAL
//! through a logical replication slot and publishes one record per row. This crate is the
//! program and the library behind it; the program is a command line over [`Walpost`].
//!
//! # Data path
//!
//! ```text
//!   PostgreSQL                                                       Kafka, …
//!   walsender                                                        brokers
//!      │ pgoutput                                                       ▲
//!      ▼                                                                │ requests
//!   source ─────── messages ──────► relay ◄──────── reports ──────── destination
//!      ▲                            │  ▲                                ▲     ▲
//!      │                     offers │  │ produce, replay, halt          │     │
//!      │                            ▼  │                        records │     │
//!      │              ┌─────────── walpost-core ───────────┐            │     │
//!      │              │ outbox: event ──► record: topic, … │────────────┘     │
//!      │              │ ledger: what is acknowledged       │                  │
//!      │              └──────────────┬─────────────────────┘                  │
//!      │                  flush LSN  ▼                        position        │
//!      └── publication guard ◄── state keeper ────────────────────────────────┘
//! ```
//!
//! The source decodes `pgoutput`, by the core's decoder. Where the destination can keep walpost's own
//! position, that is written before it is confirmed: it shows at the next start whether the slot is still
//! where walpost left it.
//!
//! The relay takes a message from the source and offers it to the core. The core makes an event of it and
//! a record of that, gives the record to the destination's outlet, and says what else is to be done: wait,
//! replay, halt. What the destination reports goes back to the core, whose ledger tells what may be
//! confirmed to the slot; the publication guard of the source sees to it that nothing was skipped before.
//!
//! Rows flow to the right as they arrive, also those of a large transaction: PostgreSQL sends a
//! transaction only after its commit, so walpost buffers none, and memory follows the in-flight
//! limit, not the size of a transaction. Positions flow back to the left: delivery reports let the
//! ledger advance the flush LSN, the position that is confirmed to the replication slot.
//!
//! # The guarantee, and why it holds
//!
//! Every event of a committed transaction is delivered at least once; no event of a rolled-back
//! transaction is ever delivered. Within a partition, first deliveries are in commit order, and
//! repeats are a repeated stretch of the same order. Records with the same key share a partition.
//!
//! All of it rests on one rule for the **flush LSN**, which becomes the slot's
//! `confirmed_flush_lsn`. After a restart at that position, PostgreSQL sends a transaction again
//! exactly if its commit record lies at or after it. Therefore:
//!
//! > The flush LSN passes a transaction only after the brokers have acknowledged, with `acks=all`,
//! > every record of that transaction and of all transactions that committed before it.
//!
//! The flush LSN is the end of the last transaction for which that holds without a gap. If nothing
//! is in flight and no transaction is open, it advances to `wal_end`: the position up to which the
//! server, in a keepalive of this session, reports to have sent everything. Otherwise an outbox
//! without writes would retain the WAL of the other tables. The flush LSN never moves backwards;
//! `docs/design/delivery.md`, I1, has the two special cases.
//!
//! Rows that PostgreSQL never sent cannot be awaited: it skips rows that are committed while their
//! table is not in the publication. So the flush LSN is confirmed only after the publication guard
//! has seen in the catalogs that the publication has not changed.
//!
//! After a failed delivery the producer is discarded with everything in its queues, and everything
//! after the flush LSN is read and produced again, so no record is retried after its successors. An
//! event that cannot be delivered at all halts the relay before the flush LSN passes it.
//!
//! The invariants, with their tests, and the decisions behind them are in `docs/design`.
//!
//! # Modules
//!
//! Listed from the bottom up: a module imports only modules above it (`tests/tidy` checks that).
//! The core decides order, replay and halt; it is pure and takes the time as an argument. It is a crate
//! of its own, `crates/core`, without I/O. The other decisions (timeouts, batch size, the
//! publication guard) are listed in `docs/design`.
//!
//! | module | purpose |
//! |---|---|
//! | `walpost_core` | [`lsn`], `pgoutput`, `outbox`, `record`, `ledger`, and `relay`, the state machine |
//! | `crash_points` | only for tests: points at which walpost crashes |
//! | `conninfo` | connection strings, as libpq reads them |
//! | `source` | the replication session, catch-up reads, and the checks before them |
//! | [`metrics`], `traces` | the metrics' names and values; the export of spans |
//! | `sink` | the trait by which the relay uses a destination's producer |
//! | `state` | walpost's own position: its record, and the trait of what stores it |
//! | `relay` | the driver, which connects source, core and sink |
//! | [`config`] | flags, environment and file to valid values |
//! | `findings` | what a check found, with its fix |
//! | `destination` | Kafka, Redis, NATS, RabbitMQ, HTTP, SQS: of each its settings, checks, sink and store |
//! | `registry` | questions to a schema registry, and what its answers say |
//! | `admin` | health, status and metrics over HTTP; systemd notifications |
//! | `assembly` | from a configuration to a relay |
//! | `embedded` | [`Walpost`], the interface of the library |
//! | `tools` | what operators run beside a relay: `check`, `init`, `recover`, `replay`, `prune` and others |
//! | `cli` | arguments, printing, exit codes |
//!
//! # As a library
//!
//! What is documented here is the library's interface. The hidden modules are public for this project's
//! own tests, benchmarks and fuzz targets, and may change in any release. Without the default feature
//! `cli` the crate has no commands, and does not depend on what only they use.
//!
//! ```no_run
//! use walpost::Walpost;
//! use walpost::config::{Config, Environment, Flags};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let environment = Environment::of_process();
//! let config = Config::load(&Flags::new(Some("walpost.toml".into())), &environment)?;
//! let walpost = Walpost::new(&config)?;
//! let stop = walpost.stop_handle();
//! tokio::spawn(async move {
//!     let _ = tokio::signal::ctrl_c().await;
//!     stop.drain();
//! });
//! let summary = walpost.run().await?;
//! println!("{} records delivered, confirmed {}", summary.delivered, summary.confirmed);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/embed.rs` is a complete program.

#![warn(clippy::disallowed_methods)]
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports, reason = "the commands use it"))]

pub mod config;
mod embedded;
pub mod metrics;

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod admin;
#[doc(hidden)]
pub mod assembly;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod conninfo;
mod crash_points;
#[doc(hidden)]
pub mod destination;
mod findings;
mod registry;
#[doc(hidden)]
pub mod relay;
#[doc(hidden)]
pub mod sink;
#[doc(hidden)]
pub mod source;
#[doc(hidden)]
pub mod state;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod tools;
#[cfg(feature = "traces")]
mod traces;

pub use assembly::AssemblyError;
pub use embedded::Walpost;
pub use relay::{RelayError, StopHandle, Summary, Until};
pub use sink::Reloader;
#[doc(hidden)]
pub use source::install_crypto_provider;
#[cfg(test)]
use walpost_core::property;
#[doc(inline)]
pub use walpost_core::{Lsn, lsn};
#[doc(hidden)]
pub use walpost_core::{excerpt, ledger, outbox, outlet, pgoutput, position, record};
