//! The data types of an event's fields, as far as a record's format depends on them.

use std::collections::HashMap;
use std::fmt;

use crate::pgoutput::{Column, Oid, Relation};

use super::columns::FieldTarget;
use super::columns::Role;

/// The first `pg_type.oid` of a type that is not built in (`FirstNormalObjectId`).
const OWN_OIDS_END: Oid = 16_384;

/// A column's data type; a domain counts as its base type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// A built-in type.
    Builtin {
        /// `pg_type.oid`.
        oid: Oid,
        /// `pg_attribute.atttypmod`; -1 if there is none.
        modifier: i32,
    },
    /// An enum, `citext`, `ltree`, or a product number type (`isn`): its values are text.
    Text,
    /// `hstore`.
    Hstore,
    /// A composite type, a user-defined range, most extensions' types, or an array of these or of a
    /// domain.
    Composite,
    /// An array of `citext` or a similar type.
    TextArray,
    /// An array of `hstore`.
    HstoreArray,
    /// An array of an enum.
    EnumArray,
    /// An extension's type for which Debezium has its own format: `geometry`, `vector`.
    Special,
    /// A type that did not exist when the types were read.
    Unknown,
}

impl DataType {
    /// `bytea`, which has no modifiers.
    pub(super) const BYTEA: Self = Self::Builtin { oid: 17, modifier: -1 };

    /// The data type with that OID, if it is built in.
    pub fn builtin(oid: Oid, modifier: i32) -> Option<Self> {
        (oid < OWN_OIDS_END).then_some(Self::Builtin { oid, modifier })
    }

    /// The data type of a column; `known` are the types that are not built in.
    pub(super) fn of(column: &Column, known: &HashMap<Oid, Self>) -> Self {
        let own = Self::builtin(column.type_oid, column.type_modifier);
        own.or_else(|| known.get(&column.type_oid).copied()).unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin { oid, modifier: -1 } => write!(f, "{oid}"),
            Self::Builtin { oid, modifier } => write!(f, "{oid}/{modifier}"),
            Self::Text => f.write_str("text"),
            Self::Hstore => f.write_str("hstore"),
            Self::Composite => f.write_str("composite"),
            Self::TextArray => f.write_str("text[]"),
            Self::HstoreArray => f.write_str("hstore[]"),
            Self::EnumArray => f.write_str("enum[]"),
            Self::Special => f.write_str("special"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl DataType {
    /// Parses that text form; `None` if it is invalid.
    pub fn from_text(text: &str) -> Option<Self> {
        Some(match text {
            "text" => Self::Text,
            "hstore" => Self::Hstore,
            "composite" => Self::Composite,
            "text[]" => Self::TextArray,
            "hstore[]" => Self::HstoreArray,
            "enum[]" => Self::EnumArray,
            "special" => Self::Special,
            "unknown" => Self::Unknown,
            number => {
                let (oid, modifier) = number.split_once('/').unwrap_or((number, "-1"));
                Self::Builtin { oid: oid.parse().ok()?, modifier: modifier.parse().ok()? }
            }
        })
    }
}

/// An outbox table, as the catalogs have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTable {
    /// The columns that its publication sends.
    pub relation: Relation,
    /// Data types that are not built in, by `pg_type.oid`.
    pub types: Vec<(Oid, DataType)>,
}

impl From<Relation> for FoundTable {
    fn from(relation: Relation) -> Self {
        Self { relation, types: Vec::new() }
    }
}

/// The types of an event's fields; `None` if the table has no such column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldTypes {
    pub(super) roles: [Option<DataType>; Role::ALL.len()],
    pub(super) placed: Vec<Option<DataType>>,
}

impl FieldTypes {
    /// The output formats of the types by role, and by index of the additional columns.
    pub(crate) fn new(
        role: impl Fn(Role) -> Option<DataType>,
        placed: Vec<Option<DataType>>,
    ) -> Self {
        Self { roles: Role::ALL.map(role), placed }
    }

    /// Whether the type of this field is unknown.
    pub(super) fn is_unknown(&self, place: FieldTarget) -> bool {
        let found = match place {
            FieldTarget::Role(role) => self.role(role),
            FieldTarget::Placed(index) => self.placed(index),
            FieldTarget::Trace => None,
        };
        found == Some(DataType::Unknown)
    }

    /// The type of the field for `role`.
    pub fn role(&self, role: Role) -> Option<DataType> {
        self.roles[role as usize]
    }

    /// The type of the additional column with that index.
    pub fn placed(&self, index: usize) -> Option<DataType> {
        self.placed.get(index).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_printed_type_is_parsed_to_the_same_value(oid: Oid, modifier in -1..i32::MAX) {
            let own = DataType::Builtin { oid, modifier };
            let others = [
                DataType::Text,
                DataType::Hstore,
                DataType::Composite,
                DataType::TextArray,
                DataType::HstoreArray,
                DataType::EnumArray,
                DataType::Special,
                DataType::Unknown,
            ];
            for data_type in others.into_iter().chain([own]) {
                prop_assert_eq!(DataType::from_text(&data_type.to_string()), Some(data_type));
            }
        }
    }

    #[test]
    fn an_invalid_type_name_is_none() {
        for text in ["", "/", "1/", "x", "1/2/3"] {
            assert_eq!(DataType::from_text(text), None, "{text}");
        }
    }
}
