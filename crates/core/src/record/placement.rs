//! Additional columns in a record.

use std::fmt;
use std::str::FromStr;

use crate::outbox::Field;

use super::poison::Cause;

/// A column, and where in the record its value goes: `tenant_id:header`, `tenant_id:header:tenant`,
/// `region:envelope`, `shard:partition`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The column's name.
    pub column: String,
    /// The destination of the value.
    pub target: Target,
    /// The name in the record; `None` means the column's own name.
    pub alias: Option<String>,
}

/// The part of the record that receives a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A header; null if the column is NULL.
    Header,
    /// A member of the value object.
    Envelope,
    /// The partition number.
    Partition,
}

/// An invalid placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` {why}: write it as tenant_id:header, tenant_id:header:tenant, \
         region:envelope or shard:partition"
)]
pub struct PlacementError {
    text: String,
    why: &'static str,
}

impl Placement {
    /// The name in the record.
    pub fn name(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.column)
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why| PlacementError { text: text.to_owned(), why };
        let mut parts = text.splitn(3, ':').map(str::trim);
        let column = parts.next().filter(|column| !column.is_empty());
        let column = column.ok_or_else(|| wrong("names no column"))?.to_owned();
        let target = match parts.next() {
            Some("header") => Target::Header,
            Some("envelope") => Target::Envelope,
            Some("partition") => Target::Partition,
            Some(_) => {
                let why =
                    "places it neither in a `header`, nor in the `envelope`, nor as `partition`";
                return Err(wrong(why));
            }
            None => return Err(wrong("does not say where the column goes")),
        };
        let alias = match parts.next() {
            Some(_) if target == Target::Partition => {
                return Err(wrong("has an alias, where a partition has a number only"));
            }
            Some("") => return Err(wrong("has an alias without a sign")),
            // Kafka's client passes names as C strings.
            Some(alias) if alias.contains('\0') => return Err(wrong("has a zero byte")),
            alias => alias.map(str::to_owned),
        };
        Ok(Self { column, target, alias })
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match self.target {
            Target::Header => "header",
            Target::Envelope => "envelope",
            Target::Partition => "partition",
        };
        write!(f, "{}:{target}", self.column)?;
        self.alias.as_ref().map_or(Ok(()), |alias| write!(f, ":{alias}"))
    }
}

/// The partition in a column, in PostgreSQL's text form of an integer.
pub(super) fn partition(field: &Field<'_>, column: &str) -> Result<i32, Cause> {
    let text = field.as_deref().filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| Cause::MissingField { field: column.to_owned() })?;
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(is_digit));
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| {
        Cause::undecodable(column, "is not a partition number, an integer from 0 to 2147483647")
    })
}

fn is_digit(sign: u8) -> bool {
    sign.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_is_parsed_and_printed() {
        for text in [
            "tenant_id:header",
            "tenant_id:header:tenant",
            "region:envelope:x:y",
            "shard:partition",
        ] {
            assert_eq!(text.parse::<Placement>().map(|it| it.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("a:header:b".parse::<Placement>().expect("one").name(), "b");
        assert_eq!("a:header".parse::<Placement>().expect("one").name(), "a");
    }

    #[test]
    fn an_invalid_placement_is_rejected_with_the_reason() {
        for (text, why) in [
            ("", "names no column"),
            ("a", "where the column goes"),
            ("a:key", "neither"),
            ("a:header:", "alias"),
            ("a:partition:b", "alias"),
            (":header", "names no column"),
        ] {
            let error = text.parse::<Placement>().expect_err(text).to_string();
            assert!(error.contains(why) && error.contains("tenant_id:header"), "{error}");
        }
    }
}
