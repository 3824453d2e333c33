//! End to end: the walpost binary between a real PostgreSQL and a real Kafka, verified by the
//! oracle on what a real consumer read.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod backlog;
mod bookmark;
mod catch_up;
mod conversion_errors;
mod dead_letters;
mod debezium;
mod endpoints;
mod exactly_once;
mod existing_rows;
mod failover;
mod feed_costs;
mod feed_switching;
mod first_batch;
mod first_position;
mod messages;
mod outbox_partitions;
mod outbox_size;
mod page;
mod partitioner;
mod partitions;
mod pg_upgrade;
mod pg_versions;
mod poison;
mod poison_isolation;
mod prune;
mod prune_changes;
mod prune_histories;
mod prune_reports;
mod records;
mod recover;
mod recover_ids;
mod replay;
mod replay_events;
mod rows_elsewhere;
mod schemas;
mod server_language;
mod sessions;
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
mod traces;
mod transactions;
mod values;
mod visibility;
mod volume;
