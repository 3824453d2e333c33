//! Debezium's kinds of values, by PostgreSQL's data types.

use crate::outbox::DataType;
use crate::pgoutput::Oid;

/// How Debezium treats a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Bool,
    Int,
    /// The type that a partition number must have.
    Int4,
    Float4,
    Float8,
    Money,
    /// A `numeric` with a precision, and therefore a scale.
    Decimal,
    /// A `numeric` without one.
    AnyDecimal,
    Date,
    /// A time with the number of fraction digits, as for the next three.
    Time(Option<u8>),
    Timestamp(Option<u8>),
    Timestamptz(Option<u8>),
    Timetz,
    Interval,
    Bytea,
    /// Bits of a number, lowest first.
    Bits,
    Bit,
    Point,
    Hstore,
    /// A type for which Debezium emits the column, but always NULL.
    AlwaysNull,
}

/// The kind of a column, or of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    One(Kind),
    Array(Kind),
    /// Debezium omits the column.
    Absent,
}

/// The shape of values of that type; an error if the profiles do not support it.
pub(super) fn shape(data_type: DataType) -> Result<Shape, &'static str> {
    const NOT_WRITTEN: &str = "has a data type that the Debezium profiles do not write: cast it to text where it is written";
    let (oid, modifier) = match data_type {
        DataType::Builtin { oid, modifier } => (oid, modifier),
        DataType::Text => return Ok(Shape::One(Kind::Text)),
        DataType::Hstore => return Ok(Shape::One(Kind::Hstore)),
        DataType::TextArray => return Ok(Shape::Array(Kind::Text)),
        DataType::HstoreArray => return Ok(Shape::Array(Kind::Hstore)),
        DataType::EnumArray => return Ok(Shape::One(Kind::AlwaysNull)),
        DataType::Composite => return Ok(Shape::Absent),
        DataType::Special => return Err(NOT_WRITTEN),
        DataType::Unknown => {
            return Err("has a data type that was made after walpost connected: start it again");
        }
    };
    if let Some(kind) = one(oid, modifier) {
        return Ok(Shape::One(kind));
    }
    if LEFT_OUT.contains(&oid) {
        return Ok(Shape::Absent);
    }
    let array = ARRAYS.iter().find(|(array, _)| *array == oid);
    array.and_then(|(_, element)| one(*element, modifier)).map(Shape::Array).ok_or(NOT_WRITTEN)
}

fn one(oid: Oid, modifier: i32) -> Option<Kind> {
    let digits = u8::try_from(modifier).ok();
    Some(match oid {
        16 => Kind::Bool,
        17 => Kind::Bytea,
        // `name`, and arrays of bits.
        19 | 1561 => Kind::AlwaysNull,
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

/// Arrays that Debezium is known to write, with their element types.
const ARRAYS: [(Oid, Oid); 32] = [
    (651, 650),
    (775, 774),
    (1000, 16),
    (1001, 17),
    (1002, 18),
    (1005, 21),
    (1007, 23),
    (1009, 25),
    (1014, 1042),
    (1015, 1043),
    (1016, 20),
    (1021, 700),
    (1022, 701),
    (1028, 26),
    (1040, 829),
    (1041, 869),
    (1115, 1114),
    (1182, 1082),
    (1183, 1083),
    (1185, 1184),
    (1231, 1700),
    (1270, 1266),
    (2951, 2950),
    (3643, 3614),
    (3807, 3802),
    (199, 114),
    (3905, 3904),
    (3907, 3906),
    (3909, 3908),
    (3911, 3910),
    (3913, 3912),
    (3927, 3926),
];

/// Types that Debezium omits: xid, cid, tid, lseg, path, box, polygon, line, circle, `xml[]`,
/// `money[]`, `name[]`, `point[]`, `interval[]`, `varbit[]`, regclass, regtype, `txid_snapshot`,
/// `pg_lsn`, tsquery, jsonpath, the multiranges, `pg_snapshot`, xid8.
const LEFT_OUT: [Oid; 29] = [
    27, 28, 29, 143, 601, 602, 603, 604, 628, 718, 791, 1003, 1017, 1187, 1563, 2205, 2206, 2970,
    3220, 3615, 4072, 4451, 4532, 4533, 4534, 4535, 4536, 5038, 5069,
];
