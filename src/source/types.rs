//! The database's data types that are not PostgreSQL's own.
//!
//! The log names a type by its id alone, and a domain by its own: what it is over is
//! in the catalogs. All are looked up, not those of the outbox alone, since the log may be
//! from a time when its columns had others.

use tokio_postgres::Client;

use super::SourceError;
use crate::outbox::DataType;
use crate::pgoutput::Oid;

/// Domains are followed to what they are over; the innermost modifier counts.
const TYPES: &str = "
    WITH RECURSIVE base AS (
        SELECT t.oid AS used, t.oid, -1 AS modifier
          FROM pg_catalog.pg_type t
          LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
          LEFT JOIN pg_catalog.pg_class c ON c.oid IN (t.typrelid, e.typrelid)
         -- Not the row types of tables.
         WHERE t.oid >= 16384 AND coalesce(c.relkind, 'c') = 'c'
         UNION
        SELECT b.used, t.typbasetype, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE b.modifier END
          FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid
         WHERE t.typtype = 'd')
    SELECT b.used, b.oid, b.modifier, t.typtype::pg_catalog.text, t.typname::pg_catalog.text,
           e.typtype::pg_catalog.text, e.typname::pg_catalog.text
      FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid
      LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
     WHERE t.typtype <> 'd'";

/// These types, by the ids that the log gives them.
pub(super) async fn of_database(client: &Client) -> Result<Vec<(Oid, DataType)>, SourceError> {
    let rows = client
        .query(TYPES, &[])
        .await
        .map_err(|error| SourceError::query("reading the data types", &error))?;
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
