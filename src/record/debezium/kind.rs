//! What kinds of values Debezium knows, by PostgreSQL's data types.

use crate::outbox::DataType;
use crate::pgoutput::Oid;

/// What a column's values are to Debezium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Bool,
    Int,
    /// The one that a partition's number must be.
    Int4,
    Float4,
    Float8,
    Money,
    /// A `numeric` with a precision, and so a scale of its own.
    Decimal,
    /// A `numeric` without one.
    AnyDecimal,
    Date,
    /// With how many digits of fraction, as the three below.
    Time(Option<u8>),
    Timestamp(Option<u8>),
    Timestamptz(Option<u8>),
    Timetz,
    Interval,
    Bytea,
    /// Bits of a number: the lowest first.
    Bits,
    Bit,
    Point,
    Hstore,
    /// A type that Debezium knows the column of, but writes NULL for.
    AlwaysNull,
}

/// A column's kind, or that of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    One(Kind),
    Array(Kind),
    /// Debezium leaves the column out.
    Absent,
}

/// The shape of that type's values; the reason where the profiles do not know it.
pub(super) fn shape(data_type: DataType) -> Result<Shape, &'static str> {
    let (oid, modifier) = match data_type {
        DataType::Builtin { oid, modifier } => (oid, modifier),
        DataType::Text => return Ok(Shape::One(Kind::Text)),
        DataType::Hstore => return Ok(Shape::One(Kind::Hstore)),
        DataType::OtherArray => return Ok(Shape::One(Kind::AlwaysNull)),
        DataType::Composite => return Ok(Shape::Absent),
        DataType::Unknown => {
            return Err("has a data type that was made after walpost connected: start it again");
        }
    };
    if let Some(kind) = one(oid, modifier) {
        return Ok(Shape::One(kind));
    }
    let array = ARRAYS.iter().find(|(array, _)| *array == oid);
    array.and_then(|(_, element)| one(*element, modifier)).map(Shape::Array).ok_or(
        "has a data type that the Debezium profiles do not write: cast it to text where it is written",
    )
}

fn one(oid: Oid, modifier: i32) -> Option<Kind> {
    let digits = u8::try_from(modifier).ok();
    Some(match oid {
        16 => Kind::Bool,
        17 => Kind::Bytea,
        19 => Kind::AlwaysNull,
        20 | 21 | 26 => Kind::Int,
        23 => Kind::Int4,
        600 => Kind::Point,
        700 => Kind::Float4,
        701 => Kind::Float8,
        790 => Kind::Money,
        1082 => Kind::Date,
        1083 => Kind::Time(digits),
        1114 => Kind::Timestamp(digits),
        1184 => Kind::Timestamptz(digits),
        1186 => Kind::Interval,
        1266 => Kind::Timetz,
        1560 if modifier == 1 => Kind::Bit,
        1560 | 1562 => Kind::Bits,
        1700 if modifier < 0 => Kind::AnyDecimal,
        1700 => Kind::Decimal,
        _ if TEXTS.contains(&oid) => Kind::Text,
        _ => return None,
    })
}

/// `"char"`, text, json, xml, cidr, macaddr8, macaddr, inet, bpchar, varchar, uuid,
/// tsvector, jsonb, and the ranges.
const TEXTS: [Oid; 19] = [
    18, 25, 114, 142, 650, 774, 829, 869, 1042, 1043, 2950, 3614, 3802, 3904, 3906, 3908, 3910,
    3912, 3926,
];

/// Arrays that Debezium is known to write, by the type of their elements.
const ARRAYS: [(Oid, Oid); 20] = [
    (651, 650),
    (1000, 16),
    (1001, 17),
    (1005, 21),
    (1007, 23),
    (1009, 25),
    (1014, 1042),
    (1015, 1043),
    (1016, 20),
    (1021, 700),
    (1022, 701),
    (1040, 829),
    (1041, 869),
    (1115, 1114),
    (1182, 1082),
    (1185, 1184),
    (1231, 1700),
    (2951, 2950),
    (3807, 3802),
    (199, 114),
];
