//! The data types of an outbox table that are not PostgreSQL's own.
//!
//! The log names a type by its id alone, and a domain by its own: what it is over is
//! in the catalogs.

use tokio_postgres::Client;

use super::SourceError;
use crate::outbox::DataType;
use crate::pgoutput::Oid;

/// Domains are followed to what they are over; the innermost modifier counts.
const TYPES: &str = "
    WITH RECURSIVE base AS (
        SELECT DISTINCT a.atttypid AS used, a.atttypid AS oid, -1 AS modifier
          FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
         UNION
        SELECT b.used, t.typbasetype, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE b.modifier END
          FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid
         WHERE t.typtype = 'd')
    SELECT b.used, b.oid, b.modifier, t.typtype::text, t.typname::text,
           e.typtype::text, e.typname::text
      FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid
      LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
     WHERE t.typtype <> 'd'";

/// The types of that table's columns, by the ids that the log gives them.
pub(super) async fn of_table(
    client: &Client,
    table: Oid,
) -> Result<Vec<(Oid, DataType)>, SourceError> {
    let rows = client
        .query(TYPES, &[&table])
        .await
        .map_err(|error| SourceError::query("reading the outbox table's data types", &error))?;
    let found = rows.iter().map(|row| {
        let (used, oid, modifier): (Oid, Oid, i32) = (row.get(0), row.get(1), row.get(2));
        let (kind, name): (&str, &str) = (row.get(3), row.get(4));
        let (element_kind, element): (Option<&str>, Option<&str>) = (row.get(5), row.get(6));
        let element = element_kind.zip(element);
        let own = DataType::builtin(oid, modifier);
        (used, own.unwrap_or_else(|| other(kind, name, element)))
    });
    Ok(found.collect())
}

/// Extensions' types whose values are texts to Debezium.
const TEXTS: [&str; 10] =
    ["citext", "ltree", "ean13", "isbn", "isbn13", "ismn", "ismn13", "issn", "issn13", "upc"];

/// Extensions' types that Debezium writes in a form of its own.
const SPECIAL: [&str; 5] = ["geometry", "geography", "vector", "halfvec", "sparsevec"];

/// A type by its `typtype` and name, and by those of its elements if it is an array
/// (<https://www.postgresql.org/docs/current/catalog-pg-type.html>).
fn other(kind: &str, name: &str, element: Option<(&str, &str)>) -> DataType {
    match (kind, name, element) {
        (_, _, Some(("e", _))) => DataType::EnumArray,
        (_, _, Some(("b", "hstore"))) => DataType::HstoreArray,
        (_, _, Some(("b", name))) if TEXTS.contains(&name) => DataType::TextArray,
        (_, _, Some((_, name))) | (_, name, None) if SPECIAL.contains(&name) => DataType::Special,
        ("e", _, None) => DataType::Text,
        ("b", "hstore", None) => DataType::Hstore,
        ("b", name, None) if TEXTS.contains(&name) => DataType::Text,
        _ => DataType::Composite,
    }
}
