//! From relation and tuple, or from a logical message, to an outbox event.
//!
//! It remembers a column plan for each outbox table, by the relation's id, and
//! nothing of other relations. What becomes of an event is decided elsewhere.

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

use crate::pgoutput::{Insert, LogicalMessage, Oid, PgTimestamp, Relation};

pub(crate) use columns::FieldTarget;
pub use columns::{ColumnNames, Needs, Role, Roles};
pub use event::{Event, Field};
pub use json::JsonFault;
pub use message::MessageFault;
pub(crate) use plan::hex_bytes;
pub use plan::{Plan, PlanError, RowFault};
pub use table::{ParseTableNameError, TableName};
pub use types::{DataType, FieldTypes, FoundTable};

/// What counts as an outbox event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutboxConfig {
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Their columns' names.
    pub columns: ColumnNames,
    /// Prefix of the logical messages that are events, as JSON; `None`: none are.
    pub message_prefix: Option<String>,
    /// What the prefix of a logical message begins with that is an event by its prefix, its
    /// content being the payload; `None`: none is.
    pub plain_message_prefix: Option<String>,
    /// Columns that the record's configuration names beyond the roles, in its order.
    pub placed: Vec<String>,
    /// Whether a table may lack them.
    pub placed_optional: bool,
    /// Whether records depend on the columns' data types.
    pub typed: bool,
    /// Which parts of an event its record is made of.
    pub needs: Needs,
}

/// Something that should be an outbox event and cannot be read as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// A row of an outbox table.
    #[error("event {position}: the row of table {table} cannot be read: {fault}")]
    Row {
        /// The table.
        table: TableName,
        /// Where the event stands in the log.
        position: EventPosition,
        /// What is the matter with the row.
        fault: RowFault,
    },
    /// A logical message with the configured prefix.
    #[error(
        "event {position}: the logical message with prefix `{prefix}` cannot be read: {fault}; \
         its content must be a JSON object in UTF-8 with a member for each column"
    )]
    Message {
        /// The message's prefix.
        prefix: String,
        /// Where the event stands in the log.
        position: EventPosition,
        /// What is the matter with the message.
        fault: MessageFault,
    },
}

/// The outbox: knows its tables by the ids that a replication session gave them.
#[derive(Debug)]
pub struct Outbox {
    config: OutboxConfig,
    /// Bounded by the number of tables of these names that one session sees:
    /// one each, unless a table is dropped and created again. So few are found sooner in
    /// order than by a hash.
    plans: BTreeMap<Oid, Plan>,
    /// By which plan rows of a table were read last, in any session.
    read: HashMap<TableName, Plan>,
    /// Types that are not PostgreSQL's own, as the catalogs have them.
    types: HashMap<Oid, DataType>,
}

impl Outbox {
    /// An outbox that has not seen a relation yet.
    pub fn new(config: OutboxConfig) -> Self {
        Self { config, plans: BTreeMap::new(), read: HashMap::new(), types: HashMap::new() }
    }

    /// Takes note of a table as the catalogs have it now: the rows that come first
    /// may be older, and have other columns.
    pub fn expect(&mut self, table: &FoundTable) -> Result<(), PlanError> {
        let relation = &table.relation;
        self.types.extend(table.types.iter().copied());
        if let Some(plan) = self.plan(relation)? {
            self.plans.insert(relation.oid, plan);
        }
        Ok(())
    }

    /// Takes note of a Relation message; one that comes again replaces the
    /// first. After an error the relation's rows must not be read.
    pub fn relation(&mut self, relation: &Relation) -> Result<(), PlanError> {
        if let Some(plan) = self.plan(relation)? {
            // What it lacks is met again, in the next session too.
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

    /// The plan of an outbox table; `None` where it is none.
    fn plan(&self, relation: &Relation) -> Result<Option<Plan>, PlanError> {
        let is_ours = self.config.tables.iter().any(|table| table.names(relation));
        let plan = || Plan::new(relation, &self.config, &self.types);
        is_ours.then(plan).transpose()
    }

    /// Whether rows of that relation are events.
    pub fn is_outbox(&self, relation: Oid) -> bool {
        self.plans.contains_key(&relation)
    }

    /// The outbox table of that id.
    pub fn table(&self, relation: Oid) -> Option<&TableName> {
        self.plans.get(&relation).map(Plan::table)
    }

    /// The event of an inserted row; `None`: the table is no outbox.
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

    /// The event of a logical message; `None`: its prefix is not a
    /// configured one, or it belongs to no transaction and so has no position.
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

    /// A message that cannot be read as an event: its content is all that is known.
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

    /// What the prefix of a plain message says of its event.
    fn named_by<'a>(&self, message: &'a LogicalMessage) -> Option<&'a str> {
        plain::named_by(&message.prefix, self.config.plain_message_prefix.as_deref()?)
    }

    /// Forgets the ids of all relations: a new session sends them again.
    pub fn forget(&mut self) {
        self.plans.clear();
    }
}

#[cfg(test)]
mod tests;
