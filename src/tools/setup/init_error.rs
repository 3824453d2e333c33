//! Why `walpost init --apply` fails.

use super::sql::Object;
use crate::outbox::TableName;
use crate::source::{ADD_PLUGIN, Silent, said};

/// Why init failed. Objects created before remain; init can be run again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    /// The server's WAL lacks the information for logical replication.
    #[error("wal_level is `{level}`, and logical replication needs `logical`: {fix}")]
    WalLevel {
        /// The current value.
        level: String,
        /// The remedy, for this server or managed service.
        fix: String,
    },
    /// The server does not load the output plugin.
    #[error("output_plugin_libraries is \"{0}\", and the slot needs pgoutput: {ADD_PLUGIN}")]
    Plugin(String),
    /// The server does not support failover slots.
    #[error(
        "--failover needs PostgreSQL 17 or later, and this is {0}: leave it out; after a failover \
         the slot has to be made again"
    )]
    NoFailover(i32),
    /// The existing slot is not a failover slot.
    #[error(
        "slot {0} exists, and standbys do not keep it (failover is off). It is left as it is; \
         while nobody uses it this fixes it, and keeps its position: psql \"$SOURCE_URL \
         replication=database\" -c 'ALTER_REPLICATION_SLOT {0} (FAILOVER true)'"
    )]
    SlotWithoutFailover(String),
    /// The server is a standby.
    #[error("this server is a standby, where nothing can be created: connect to the primary")]
    Standby,
    /// The user may not create the object.
    #[error(
        "{user} may not create {object}: {message}. Connect as a role that may, or give the \
         output of `walpost init` to somebody who may{instead}"
    )]
    Denied {
        /// The object.
        object: Box<Object>,
        /// The connected user.
        user: String,
        /// PostgreSQL's message.
        message: String,
        /// The alternative.
        instead: String,
    },
    /// The language of what creates the object is missing.
    #[error(
        "{0} is created by code in plpgsql, which this database lacks: CREATE EXTENSION plpgsql; it may \
         be dropped afterwards, unless you use outbox.publish"
    )]
    NoPlpgsql(Box<Object>),
    /// No slot is free.
    #[error(
        "no replication slot is free for {0}: drop one that is no longer needed, or raise \
         max_replication_slots and restart PostgreSQL"
    )]
    NoFreeSlot(Box<Object>),
    /// The existing publication is not sufficient.
    #[error(
        "publication {name} exists, and {problem}. It is left as it is; this would fix it: {fix}"
    )]
    Publication {
        /// The object's name.
        name: String,
        /// What it lacks.
        problem: String,
        /// The statement that fixes it.
        fix: String,
    },
    /// `--partition-by`, and the table exists without partitions.
    #[error(
        "table {0} exists, and is not partitioned: PostgreSQL cannot partition it where it is. Leave \
         --partition-by out and keep the table, or replace it: see \"Partition an existing outbox\" in \
         docs/retention.md"
    )]
    NotPartitioned(TableName),
    /// A slot with that name belongs to another application.
    #[error("slot {name} exists, and {problem}: choose another name with --slot")]
    ForeignSlot {
        /// The object's name.
        name: String,
        /// How it differs.
        problem: String,
    },
    /// The slot was invalidated.
    #[error(
        "slot {0} is lost: PostgreSQL has removed WAL that it still needed, and the slot cannot \
         be recovered: run SELECT pg_catalog.pg_drop_replication_slot('{0}'); and init again, then \
         `walpost recover --apply` for what it has not delivered"
    )]
    LostSlot(String),
    /// The existing slot is older than the publication would be.
    #[error(
        "slot {slot} exists, and publication {publication} does not: a slot cannot see a \
         publication that is younger than itself. If nothing that waits in the slot is wanted, \
         run SELECT pg_catalog.pg_drop_replication_slot('{slot}'); and init again"
    )]
    SlotBeforePublication {
        /// The slot.
        slot: String,
        /// The publication.
        publication: String,
    },
    /// The slot is still being created.
    #[error(
        "slot {0} is still being created by another session, which waits for the end of all \
         transactions that were open when it began (pg_stat_activity.xact_start): run init again \
         after that"
    )]
    UnfinishedSlot(String),
    /// The server does not respond.
    #[error(transparent)]
    Silent(#[from] Silent),
    /// Any other error of PostgreSQL.
    #[error("{doing}: {}", said(source))]
    Database {
        /// The operation.
        doing: String,
        /// The error.
        source: tokio_postgres::Error,
    },
}
