//! What the slot will send, read ahead without moving it.

use std::collections::{HashMap, HashSet};

use super::error::RecoveryError;
use crate::lsn::Lsn;
use crate::outbox::{FoundTable, Outbox};
use crate::pgoutput::{Message, Oid, PgTimestamp};
use crate::position::EventPosition;
use crate::source::{LastTransaction, RowSnapshot, SourceConfig, SourceError, SqlClient};

/// A row that the slot sends.
struct AheadRow {
    commit_lsn: Lsn,
    relation: Oid,
    id: String,
}

/// The changes from the slot's position to the end of a snapshot.
#[derive(Default)]
pub(super) struct Ahead {
    rows: Vec<AheadRow>,
    /// Whether the transactions that were looked for are among it.
    pub(super) has_last: bool,
    pub(super) has_published: bool,
}

/// The ids of the rows that will be sent, by table.
#[derive(Debug, Default)]
pub(super) struct Streamed(HashMap<Oid, HashSet<String>>);

impl Ahead {
    /// Reads it, on a session that nobody else uses, and looks for `last`, and for one
    /// that commits at `published`.
    pub(super) async fn read(
        snapshot: &RowSnapshot,
        client: &SqlClient,
        source: &SourceConfig,
        outbox: &mut Outbox,
        (last, published): (Option<LastTransaction>, Option<Lsn>),
    ) -> Result<Self, RecoveryError> {
        for table in &snapshot.tables {
            expect(outbox, table)?;
        }
        let (mut ahead, mut open, mut failed) = (Self::default(), Lsn::ZERO, None);
        let each = |message| match message {
            Message::Begin(begin) => {
                open = begin.commit_lsn;
                let is_last = |last: LastTransaction| {
                    (last.commit_lsn, last.xid, last.commit_time)
                        == (begin.commit_lsn, begin.xid, begin.commit_time)
                };
                ahead.has_last |= last.is_some_and(is_last);
                ahead.has_published |= published == Some(begin.commit_lsn);
            }
            Message::Relation(relation) => {
                if let Err(error) = outbox.relation(&relation) {
                    failed = Some(error.to_string());
                }
            }
            Message::Insert(insert) => {
                let position = EventPosition { commit_lsn: open, ordinal: 0 };
                let event = outbox.event(&insert, position, PgTimestamp::from_micros(0));
                let Some(Ok(event)) = event else { return };
                let id = event.id.and_then(|id| String::from_utf8(id.into_owned()).ok());
                let relation = insert.relation;
                ahead.rows.extend(id.map(|id| AheadRow { commit_lsn: open, relation, id }));
            }
            _ => {}
        };
        snapshot.streamed(client, source, each).await?;
        match failed {
            Some(why) => Err(RecoveryError::Source(SourceError::Setup(why))),
            None => Ok(ahead),
        }
    }

    /// What will be sent once the slot is read from this position on.
    pub(super) fn from(self, position: Lsn) -> Streamed {
        let mut streamed = Streamed::default();
        for AheadRow { commit_lsn, relation, id } in self.rows {
            if commit_lsn >= position {
                streamed.0.entry(relation).or_default().insert(id);
            }
        }
        streamed
    }
}

impl Streamed {
    /// Whether that row is among it.
    pub(super) fn has(&self, relation: Oid, id: &str) -> bool {
        self.0.get(&relation).is_some_and(|ids| ids.contains(id))
    }

    /// The ids of a table.
    pub(super) fn ids(&self, relation: Oid) -> Vec<String> {
        self.0.get(&relation).into_iter().flatten().cloned().collect()
    }

    /// How many rows there are.
    pub(super) fn len(&self) -> u64 {
        self.0.values().map(|ids| ids.len() as u64).sum()
    }
}

/// Tells the outbox of the table's columns.
pub(super) fn expect(outbox: &mut Outbox, table: &FoundTable) -> Result<(), RecoveryError> {
    outbox
        .expect(table)
        .map_err(|error| RecoveryError::Source(SourceError::Setup(error.to_string())))
}
