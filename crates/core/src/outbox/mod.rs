//! Turns a relation and a tuple, or a logical message, into an outbox event.
//!
//! It keeps a column plan for each outbox table, by relation OID, and nothing about other
//! relations. Routing of an event happens elsewhere.

mod columns;
mod event;
pub(crate) mod json;
mod message;
mod plain;
mod plan;
mod table;
mod trace;
mod types;

use crate::position::EventPosition;
use std::collections::{BTreeMap, HashMap};

use crate::pgoutput::{Insert, LogicalMessage, Oid, PgTimestamp, Relation, TypeName};

pub(crate) use columns::FieldTarget;
pub use columns::{ColumnNames, Needs, Role, Roles};
pub use event::{Event, Field, RowId};
pub use json::JsonFault;
pub use message::MessageFault;
pub(crate) use plan::hex_bytes;
pub use plan::{Plan, PlanError, RowFault};
pub use table::{ParseTableNameError, TableName, identifier_in_quotes, identifier_text};
pub use types::{DataType, FieldTypes, FoundTable};

/// Which rows and messages are outbox events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutboxConfig {
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// The names of the tables' columns.
    pub columns: ColumnNames,
    /// Prefix of logical messages whose content is an event as JSON; `None` disables them.
    pub message_prefix: Option<String>,
    /// Start of the prefix of logical messages whose prefix names the event and whose content is
    /// the payload; `None` disables them.
    pub plain_message_prefix: Option<String>,
    /// Additional columns that the record configuration names, in its order.
    pub placed: Vec<String>,
    /// Whether a table may lack these columns.
    pub placed_optional: bool,
    /// Whether records depend on the columns' data types.
    pub typed: bool,
    /// The roles from which records are built.
    pub needs: Needs,
}

/// A row or message that should be an outbox event but cannot be read as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// A row of an outbox table.
    #[error("event {position}: the row of table {table} cannot be read: {fault}")]
    Row {
        /// The table.
        table: TableName,
        /// The event's position.
        position: EventPosition,
        /// Why the row is unreadable.
        fault: RowFault,
    },
    /// A logical message with the configured prefix.
    #[error(
        "event {position}: the logical message with prefix `{prefix}` cannot be read: {fault}; \
         its content must be a JSON object with a member for each column, as text in the database's \
         encoding"
    )]
    Message {
        /// The message's prefix.
        prefix: String,
        /// The event's position.
        position: EventPosition,
        /// Why the message is unreadable.
        fault: MessageFault,
    },
}

/// The outbox: knows its tables by the OIDs of the current replication session.
#[derive(Debug)]
pub struct Outbox {
    config: OutboxConfig,
    /// One per outbox table, unless a table is dropped and created again within a session. For so
    /// few, an ordered map is faster than a hash map.
    plans: BTreeMap<Oid, Plan>,
    /// The plan by which rows of a table were last read, in any session.
    read: HashMap<TableName, Plan>,
    /// Data types that are not built in, from the catalogs and from Type messages.
    types: HashMap<Oid, DataType>,
}

impl Outbox {
    /// An outbox that has not received a relation yet.
    pub fn new(config: OutboxConfig) -> Self {
        Self { config, plans: BTreeMap::new(), read: HashMap::new(), types: HashMap::new() }
    }

    /// Checks a table as it is in the catalogs now: the first rows may be older, and have other
    /// columns.
    pub fn expect(&mut self, table: &FoundTable) -> Result<(), PlanError> {
        let relation = &table.relation;
        self.types.extend(table.types.iter().copied());
        if let Some(plan) = self.plan(relation)? {
            self.plans.insert(relation.oid, plan);
        }
        Ok(())
    }

    /// Takes a Type message. The stream alone tells what a type was when the rows were written: the
    /// catalogs may have lost it since.
    pub fn type_named(&mut self, named: &TypeName) {
        let TypeName { oid, base_schema, base_name } = named;
        if (base_schema.as_str(), base_name.as_str()) == ("pg_catalog", "bytea") {
            self.types.insert(*oid, DataType::BYTEA);
        }
    }

    /// Takes a Relation message; a later one for the same relation replaces it. After an error the
    /// relation's rows must not be read.
    pub fn relation(&mut self, relation: &Relation) -> Result<(), PlanError> {
        if let Some(plan) = self.plan(relation)? {
            // A missing column is detected again, in the next session too.
            if let Some(before) = self.read.get(plan.table()) {
                plan.continues(before)?;
            }
            self.read.insert(plan.table().clone(), plan.clone());
            self.plans.insert(relation.oid, plan);
        } else if let Some(plan) = self.plans.remove(&relation.oid) {
            let was = plan.table().clone();
            return Err(PlanError::Renamed { was, is: TableName::from(relation) });
        }
        Ok(())
    }

    /// The plan of an outbox table; `None` for any other table.
    fn plan(&self, relation: &Relation) -> Result<Option<Plan>, PlanError> {
        let is_ours = self.config.tables.iter().any(|table| table.names(relation));
        let plan = || Plan::new(relation, &self.config, &self.types);
        is_ours.then(plan).transpose()
    }

    /// Whether rows of that relation are events.
    pub fn is_outbox(&self, relation: Oid) -> bool {
        self.plans.contains_key(&relation)
    }

    /// The outbox table with that OID.
    pub fn table(&self, relation: Oid) -> Option<&TableName> {
        self.plans.get(&relation).map(Plan::table)
    }

    /// The event of an inserted row; `None` if the table is not an outbox.
    pub fn event<'a>(
        &self,
        insert: &'a Insert,
        position: EventPosition,
        commit_time: PgTimestamp,
    ) -> Option<Result<Event<'a>, EventError>> {
        let plan = self.plans.get(&insert.relation)?;
        Some(plan.event(&insert.tuple, position, commit_time).map_err(|fault| EventError::Row {
            table: plan.table().clone(),
            position,
            fault,
        }))
    }

    /// The identity of an event's row, if the row has an id.
    pub fn row_id(&self, relation: Oid, event: &Event<'_>) -> Option<RowId> {
        let plan = self.plans.get(&relation)?;
        RowId::new(plan.table().to_string(), plan.column(Role::Id)?, event.id.as_deref()?)
    }

    /// The event of a logical message; `None` if its prefix is not a configured one, or if it is
    /// non-transactional and so has no position.
    pub fn message_event<'a>(
        &self,
        message: &'a LogicalMessage,
        position: EventPosition,
        commit_time: PgTimestamp,
    ) -> Option<Result<Event<'a>, EventError>> {
        if !message.transactional {
            return None;
        }
        let OutboxConfig { columns, placed, .. } = &self.config;
        if !self.is_json(message) {
            let named = self.named_by(message)?;
            return Some(Ok(plain::event(
                named,
                &message.content,
                placed.len(),
                position,
                commit_time,
            )));
        }
        let event = message::event(&message.content, columns, placed, position, commit_time);
        Some(event.map_err(|fault| EventError::Message {
            prefix: message.prefix.clone(),
            position,
            fault,
        }))
    }

    /// An event for an unreadable message: only its content is known.
    pub fn unread(
        message: &LogicalMessage,
        position: EventPosition,
        commit_time: PgTimestamp,
    ) -> Event<'_> {
        let mut event = Event::empty(position, commit_time, 0);
        event.payload = Some(message.content.as_ref().into());
        event
    }

    /// Whether the message has a configured prefix.
    pub fn is_ours(&self, message: &LogicalMessage) -> bool {
        self.is_json(message) || self.named_by(message).is_some()
    }

    fn is_json(&self, message: &LogicalMessage) -> bool {
        self.config.message_prefix.as_ref() == Some(&message.prefix)
    }

    /// The part of a plain message's prefix that names its event.
    fn named_by<'a>(&self, message: &'a LogicalMessage) -> Option<&'a str> {
        plain::named_by(&message.prefix, self.config.plain_message_prefix.as_deref()?)
    }

    /// Forgets all relation OIDs: a new session sends the relations again.
    pub fn forget(&mut self) {
        self.plans.clear();
    }
}

#[cfg(test)]
mod tests;
