//! A relation's column plan: which column of a row becomes which field of the event.
//!
//! It is built once for each Relation message and then used for every row. Values are passed on
//! unchanged; only `bytea` is decoded, from its text form.

use crate::position::EventPosition;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::pgoutput::{Column, Oid, PgTimestamp, Relation, Tuple, Value};

use super::OutboxConfig;
use super::columns::FieldTarget;
use super::columns::{Role, Roles};
use super::event::{Event, Field};
use super::table::TableName;
use super::trace;
use super::types::{DataType, FieldTypes};

/// Why a table cannot be used as the configured outbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No column for a field that an event needs.
    #[error(
        "table {table} has no column for `{}`: looked for {}, it has {}; name the column in \
         outbox.columns.{}, or let the publication's column list include it",
        role.name(), looked_for.join(" and "), has.join(", "), role.name()
    )]
    MissingColumn {
        /// The table.
        table: TableName,
        /// The column's role.
        role: Role,
        /// The accepted names.
        looked_for: Vec<String>,
        /// The columns that the table, or its publication, has.
        has: Vec<String>,
    },
    /// The record's configuration names a column that does not exist.
    #[error(
        "table {table} has no column `{column}`, which the configuration of the record names; it has \
         {}; change record.topic, record.key or record.place, or let the publication's column list include it",
        has.join(", ")
    )]
    MissingPlaced {
        /// The table.
        table: TableName,
        /// The column's name.
        column: String,
        /// The columns that the table, or its publication, has.
        has: Vec<String>,
    },
    /// A column's data type is unknown, and the records depend on it.
    #[error(
        "column `{column}` of table {table} has a data type ({oid}) that was made after walpost looked for \
         types, or that was dropped since the rows were written: start walpost again; a type that was \
         dropped has to be published by hand"
    )]
    UnknownType {
        /// The table.
        table: TableName,
        /// The column's name.
        column: String,
        /// `pg_type.oid`.
        oid: Oid,
    },
    /// A column for an optional field, which the table had until now, was dropped.
    #[error(
        "table {table} has no column `{column}` any more, which was its `{}`: put it back, name the \
         column in outbox.columns.{}, or start walpost again to continue without it",
        role.name(), role.name()
    )]
    LostColumn {
        /// The table.
        table: TableName,
        /// The column's role.
        role: Role,
        /// The column's name.
        column: String,
    },
    /// Rows were written to an outbox table while it had another name.
    #[error(
        "rows were written to table {was} while its name was {is}: give it that name again until they are \
         delivered, or publish them by hand"
    )]
    Renamed {
        /// The outbox table.
        was: TableName,
        /// The table's name when the rows were written.
        is: TableName,
    },
}

/// Why a row cannot be read as an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowFault {
    /// The row does not match the last Relation message.
    #[error("it has {found} columns where its Relation message announced {expected}")]
    ColumnCount {
        /// Columns of the relation.
        expected: usize,
        /// Columns of the row.
        found: usize,
    },
    /// A column's value cannot be decoded.
    #[error("column `{column}` {why}")]
    Undecodable {
        /// The column.
        column: String,
        /// Why it cannot be decoded.
        why: &'static str,
    },
}

/// Maps a relation's columns to fields.
#[derive(Debug, Clone)]
pub struct Plan {
    table: TableName,
    columns: usize,
    placed: usize,
    /// Sorted by column, so that one pass over the row is enough.
    steps: Vec<Step>,
    types: Arc<FieldTypes>,
    /// The roles that records contain.
    used: Roles,
}

/// Maps one column to a field; a column may have several steps.
#[derive(Debug, Clone)]
struct Step {
    column: usize,
    name: String,
    place: FieldTarget,
    is_bytea: bool,
}

impl Plan {
    /// Finds the columns of `relation` that `config` names; `types` are the data types that are not
    /// built in.
    pub fn new(
        relation: &Relation,
        config: &OutboxConfig,
        types: &HashMap<Oid, DataType>,
    ) -> Result<Self, PlanError> {
        let OutboxConfig { columns: names, placed, needs, .. } = config;
        let table = TableName::from(relation);
        let has = || relation.columns.iter().map(|column| column.name.clone()).collect();
        let step = |name: &str, place| {
            let column = relation.columns.iter().position(|column| column.name == name)?;
            let is_bytea = place == FieldTarget::Role(Role::Payload)
                && DataType::of(&relation.columns[column], types) == DataType::BYTEA;
            Some(Step { column, name: name.to_owned(), place, is_bytea })
        };
        let mut steps = Vec::new();
        for role in Role::ALL {
            let found = names.looked_for(role).find_map(|name| step(name, FieldTarget::Role(role)));
            if found.is_none() && names.is_required(role, *needs) {
                let looked_for = names.looked_for(role).map(str::to_owned).collect();
                return Err(PlanError::MissingColumn { table, role, looked_for, has: has() });
            }
            steps.extend(found);
        }
        steps.extend(step(trace::COLUMN, FieldTarget::Trace));
        for (index, column) in placed.iter().enumerate() {
            let found = step(column, FieldTarget::Placed(index));
            if found.is_none() && !config.placed_optional {
                let column = column.clone();
                return Err(PlanError::MissingPlaced { table, column, has: has() });
            }
            steps.extend(found);
        }
        steps.sort_by_key(|step| step.column);
        let types = Arc::new(field_types(&steps, relation, placed.len(), types));
        let unknown =
            |step: &&Step| config.typed && step.is_used(needs.used) && types.is_unknown(step.place);
        if let Some(step) = steps.iter().find(unknown) {
            let Column { name: column, type_oid: oid, .. } = relation.columns[step.column].clone();
            return Err(PlanError::UnknownType { table, column, oid });
        }
        let (columns, placed, used) = (relation.columns.len(), placed.len(), needs.used);
        Ok(Self { table, columns, placed, steps, types, used })
    }

    /// Fails if a field that events had by the plan `before` is missing now.
    pub fn continues(&self, before: &Self) -> Result<(), PlanError> {
        // Other steps are either optional in every event, or required when the plan is built.
        let is_missed = |step: &&Step| {
            matches!(step.place, FieldTarget::Role(_))
                && step.is_used(self.used)
                && !self.steps.iter().any(|mine| mine.place == step.place)
        };
        match before.steps.iter().find(is_missed) {
            Some(Step { place: FieldTarget::Role(role), name, .. }) => {
                let (table, column) = (self.table.clone(), name.clone());
                Err(PlanError::LostColumn { table, role: *role, column })
            }
            _ => Ok(()),
        }
    }

    /// The plan's table.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// The column that has a role.
    pub(super) fn column(&self, role: Role) -> Option<&str> {
        let step = self.steps.iter().find(|step| step.place == FieldTarget::Role(role));
        step.map(|step| step.name.as_str())
    }

    /// The event of a row. Its fields borrow from the row, except a decoded `bytea` payload.
    pub fn event<'a>(
        &self,
        tuple: &'a Tuple,
        position: EventPosition,
        commit_time: PgTimestamp,
    ) -> Result<Event<'a>, RowFault> {
        if tuple.len() != self.columns {
            return Err(RowFault::ColumnCount { expected: self.columns, found: tuple.len() });
        }
        let mut event = Event::empty(position, commit_time, self.placed);
        event.types = Some(Arc::clone(&self.types));
        let mut trace = None;
        let mut values = tuple.iter();
        // The last value taken, and how many were taken.
        let (mut value, mut taken) = (Value::Null, 0);
        for step in &self.steps {
            if step.column >= taken {
                let Some(next) = values.nth(step.column - taken) else { break };
                (value, taken) = (next, step.column + 1);
            }
            let field = step
                .field(value)
                .map_err(|why| RowFault::Undecodable { column: step.name.clone(), why })?;
            match step.place {
                FieldTarget::Trace => trace = field,
                place => event.put(place, field),
            }
        }
        event.trace_by(&trace);
        Ok(event)
    }
}

/// The fields' data types.
fn field_types(
    steps: &[Step],
    relation: &Relation,
    placed: usize,
    known: &HashMap<Oid, DataType>,
) -> FieldTypes {
    let mut types = FieldTypes { placed: vec![None; placed], ..FieldTypes::default() };
    for step in steps {
        let column = &relation.columns[step.column];
        let found = DataType::of(column, known);
        let slot = match step.place {
            FieldTarget::Role(role) => Some(&mut types.roles[role as usize]),
            FieldTarget::Placed(index) => types.placed.get_mut(index),
            FieldTarget::Trace => None,
        };
        if let Some(slot) = slot {
            *slot = Some(found);
        }
    }
    types
}

impl Step {
    /// Whether records contain what this step reads; `used` are their roles.
    fn is_used(&self, used: Roles) -> bool {
        match self.place {
            FieldTarget::Role(role) => used.contains(role),
            FieldTarget::Placed(_) | FieldTarget::Trace => true,
        }
    }

    fn field<'a>(&self, value: Value<'a>) -> Result<Field<'a>, &'static str> {
        match value {
            Value::Text(text) if self.is_bytea => hex_bytes(text).map(|bytes| Some(bytes.into())),
            Value::Text(text) => Ok(Some(Cow::Borrowed(text))),
            Value::Null => Ok(None),
            Value::Unchanged => Err("was not sent, which an inserted row does not allow"),
            Value::Binary(_) => Err("was sent in binary form, which was not asked for"),
        }
    }
}

/// Decodes a `bytea` from its hex text form
/// (<https://www.postgresql.org/docs/current/datatype-binary.html>).
pub(crate) fn hex_bytes(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let digits = text.strip_prefix(b"\\x").ok_or(
        "is a bytea in the old escape format: set bytea_output = 'hex' for walpost's role",
    )?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("is a bytea with half a byte at its end");
    }
    let mut bytes = Vec::with_capacity(pairs.len());
    for &[high, low] in pairs {
        let (high, low) = (HEX[usize::from(high)], HEX[usize::from(low)]);
        if high > 0xF || low > 0xF {
            return Err("is a bytea with a character that is not a hexadecimal digit");
        }
        bytes.push(high << 4 | low);
    }
    Ok(bytes)
}

/// The value of each hexadecimal digit; `0xFF` for any other byte.
const HEX: [u8; 256] = {
    let mut values = [0xFF; 256];
    let mut value = 0;
    while value < 16 {
        values[b"0123456789abcdef"[value as usize] as usize] = value;
        values[b"0123456789ABCDEF"[value as usize] as usize] = value;
        value += 1;
    }
    values
};

#[cfg(test)]
mod tests;
