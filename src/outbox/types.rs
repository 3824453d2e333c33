//! The data types of an event's fields, as far as a record's form depends on them.

use crate::pgoutput::{Oid, Relation};

use super::columns::Role;

/// The first `pg_type.oid` that is not PostgreSQL's own (`FirstNormalObjectId`).
const OWN_OIDS_END: Oid = 16_384;

/// A column's data type; a domain counts as what it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// One of PostgreSQL's own.
    Builtin {
        /// `pg_type.oid`.
        oid: Oid,
        /// `pg_attribute.atttypmod`; -1 where there is none.
        modifier: i32,
    },
    /// An enum, or an extension's type: its values are texts.
    Text,
    /// `hstore`.
    Hstore,
    /// A composite type.
    Composite,
    /// An array of what is none of PostgreSQL's own.
    OtherArray,
    /// One that was not there when the types were looked up.
    Unknown,
}

impl DataType {
    /// The type of that column, if it is one of PostgreSQL's own.
    pub fn builtin(oid: Oid, modifier: i32) -> Option<Self> {
        (oid < OWN_OIDS_END).then_some(Self::Builtin { oid, modifier })
    }
}

/// An outbox table as the catalogs have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTable {
    /// The columns that its publication sends.
    pub relation: Relation,
    /// Their data types, as far as these are not PostgreSQL's own, by `pg_type.oid`.
    pub types: Vec<(Oid, DataType)>,
}

impl From<Relation> for FoundTable {
    fn from(relation: Relation) -> Self {
        Self { relation, types: Vec::new() }
    }
}

/// The types of an event's fields; `None` where the table has no such column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldTypes {
    pub(super) roles: [Option<DataType>; Role::ALL.len()],
    pub(super) placed: Vec<Option<DataType>>,
}

impl FieldTypes {
    /// The type of the field that plays that part.
    pub fn role(&self, role: Role) -> Option<DataType> {
        self.roles[role as usize]
    }

    /// The type of the placed field of that index.
    pub fn placed(&self, index: usize) -> Option<DataType> {
        self.placed.get(index).copied().flatten()
    }
}
