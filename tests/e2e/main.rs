//! End to end: the walpost binary between a real PostgreSQL and a real Kafka, verified by the
//! oracle on what a real consumer read.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod backlog;
#[cfg(feature = "crash-points")]
mod bookmark;
mod catch_up;
mod conversion_errors;
mod dead_letters;
mod debezium;
mod endpoints;
#[cfg(feature = "crash-points")]
mod exactly_once;
#[cfg(feature = "crash-points")]
mod existing_rows;
mod failover;
mod feed_costs;
mod feed_switching;
#[cfg(feature = "crash-points")]
mod first_batch;
mod first_position;
mod library;
mod membership;
mod messages;
#[cfg(feature = "crash-points")]
mod outbox_partitions;
mod outbox_size;
mod partitioner;
mod partitions;
mod pg_upgrade;
mod pg_versions;
mod poison;
mod poison_isolation;
#[cfg(feature = "crash-points")]
mod prune;
#[cfg(feature = "crash-points")]
mod prune_changes;
#[cfg(feature = "crash-points")]
mod prune_histories;
#[cfg(feature = "crash-points")]
mod prune_reports;
mod records;
#[cfg(feature = "crash-points")]
mod recover;
#[cfg(feature = "crash-points")]
mod recover_ids;
mod reference_client;
mod replay;
mod replay_events;
#[cfg(feature = "crash-points")]
mod rows_elsewhere;
mod server_language;
mod sessions;
#[cfg(feature = "crash-points")]
mod several_producers;
mod sharded_slots;
mod skip;
mod slot;
mod standby;
mod startup_errors;
mod state_history;
mod state_topic;
mod suspects;
mod tables;
mod topics;
#[cfg(feature = "traces")]
mod traces;
mod transactions;
mod values;
mod visibility;
mod volume;
