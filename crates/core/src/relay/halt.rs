//! Why a relay halts until an operator acts, and the remedy.

use std::fmt;

use crate::excerpt::excerpt;
use crate::lsn::Lsn;
use crate::outbox::{PlanError, TableName};
use crate::record::{Cause, Poison};

/// Why the relay halts until an operator acts.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Halt {
    /// An event that cannot become a record, or whose record is permanently rejected.
    #[error("{origin}, {poison}")]
    Poison {
        /// The table or message that the event is from.
        origin: EventOrigin,
        /// Why it is undeliverable.
        poison: Poison,
    },
    /// The dead letter of an event is permanently rejected.
    #[error(
        "{origin}, {poison}; this is its dead letter: have the destination accept it, or set poison.{} \
         to `skip`",
        cause.key()
    )]
    DeadLetter {
        /// The table or message that the event is from.
        origin: EventOrigin,
        /// The event, and why its dead letter is undeliverable.
        poison: Poison,
        /// Why the event is.
        cause: Cause,
    },
    /// The outbox table's columns do not match the configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The columns were changed: the following rows lack one.
    #[error("an outbox table was changed: {error}")]
    Changed {
        /// The mismatch.
        error: PlanError,
        /// The commit LSN of the transaction whose rows follow.
        commit_lsn: Lsn,
    },
}

impl Halt {
    /// The event that cannot be delivered.
    pub fn poison(&self) -> Option<&Poison> {
        match self {
            Self::Poison { poison, .. } | Self::DeadLetter { poison, .. } => Some(poison),
            Self::Plan(_) | Self::Changed { .. } => None,
        }
    }

    /// How an operator resumes on `slot`: by making the event deliverable, or by skipping it, without
    /// a state topic with its whole transaction. Valid only once everything before it is durable.
    pub fn remedy(&self, slot: &str, has_state: bool) -> String {
        let commit_lsn = match self {
            Self::Poison { poison, .. } | Self::DeadLetter { poison, .. } if has_state => {
                return format!(
                    "then start walpost again. Nothing from its transaction on is confirmed, and \
                     the WAL cannot be edited: to skip this event, publish it by hand, then run \
                     `walpost skip --position {} --apply`",
                    poison.position
                );
            }
            Self::Poison { poison, .. } | Self::DeadLetter { poison, .. } => {
                poison.position.commit_lsn
            }
            Self::Changed { commit_lsn, .. } => *commit_lsn,
            Self::Plan(_) => return "then start walpost again".to_owned(),
        };
        // PostgreSQL sends a transaction again unless its commit record lies before the slot's
        // position.
        let after = Lsn::new(commit_lsn.as_u64().saturating_add(1));
        let adopt = if has_state { ", and run `walpost adopt --apply`" } else { "" };
        format!(
            "then start walpost again. Nothing from its transaction on is confirmed, and the WAL \
             cannot be edited: to skip the whole transaction, publish it by hand, then SELECT \
             pg_catalog.pg_replication_slot_advance('{slot}', '{after}'){adopt}"
        )
    }
}

/// The source of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventOrigin {
    /// An outbox table.
    Table(TableName),
    /// A logical message with this prefix.
    Message(String),
}

impl EventOrigin {
    /// The table's name or the prefix, unescaped.
    pub fn name(&self) -> String {
        match self {
            Self::Table(table) => table.to_string(),
            Self::Message(prefix) => prefix.clone(),
        }
    }
}

/// Escaped for the log: any role may choose a message's prefix, and a table's owner its name.
impl fmt::Display for EventOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table) => write!(f, "table {}", excerpt(&table.to_string())),
            Self::Message(prefix) => {
                write!(f, "logical message with prefix `{}`", excerpt(prefix))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_cannot_forge_log_lines() {
        let prefix = "shop\n2026-01-01 INFO all is well\u{1b}[2K";
        let message = EventOrigin::Message(prefix.to_owned());
        assert_eq!(
            message.to_string(),
            r"logical message with prefix `shop\n2026-01-01 INFO all is well\u{1b}[2K`"
        );
        assert_eq!(message.name(), prefix);
        let table = TableName { schema: "public".to_owned(), name: "a\nb".to_owned() };
        let table = EventOrigin::Table(table);
        assert_eq!(table.to_string(), r#"table public.U&"a\000Ab""#);
        assert_eq!(table.name(), r#"public.U&"a\000Ab""#);
    }
}
