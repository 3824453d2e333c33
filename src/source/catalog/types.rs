//! The data types of the outbox tables' columns and of the database that are not built in.
//!
//! The WAL identifies a type by its OID, and a domain by the domain's own OID: its base type is in
//! the catalogs. The columns' current types are always read. If records depend on types, the types
//! of the whole database are read too, because the WAL may date from a time when a column had
//! another type. Any role that may connect can create types in its temporary schema. So the types
//! of other owners come last, at most [`MOST_TYPES`] are read, and domains are followed to a depth
//! of [`DOMAIN_DEPTH`].

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::outbox::{DataType, TableName};
use crate::pgoutput::Oid;
use crate::source::SourceError;

/// Maximum number of types read.
const MOST_TYPES: i64 = 10_000;

/// Maximum depth of domains over domains.
const DOMAIN_DEPTH: i32 = 32;

/// The type of column `a` of `pg_attribute`, with domains resolved to their base type.
pub(crate) const BASE_TYPE: &str = "(
    WITH RECURSIVE base AS (
        SELECT t.oid, t.typtype, t.typbasetype FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid
         UNION ALL
        SELECT t.oid, t.typtype, t.typbasetype
          FROM base JOIN pg_catalog.pg_type t ON t.oid = base.typbasetype
         WHERE base.typtype = 'd')
    SELECT oid FROM base WHERE typtype <> 'd')";

/// Resolves domains to their base types; the innermost type modifier applies.
const TYPES: &str = "
    WITH RECURSIVE outbox AS (
        SELECT c.oid, c.relowner, n.nspowner
          FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]),
                          pg_catalog.unnest($2::pg_catalog.text[]))
               AS named (nspname, relname)
          JOIN pg_catalog.pg_namespace n ON n.nspname = named.nspname::pg_catalog.name
          JOIN pg_catalog.pg_class c
            ON c.relnamespace = n.oid AND c.relname = named.relname::pg_catalog.name
    ), used AS (
        SELECT a.atttypid AS oid FROM outbox o
          JOIN pg_catalog.pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
    ), owner AS (
        SELECT relowner AS oid FROM outbox
         UNION SELECT nspowner FROM outbox
         UNION SELECT datdba FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
         UNION SELECT oid FROM pg_catalog.pg_roles WHERE rolsuper
    ), chosen AS (
        SELECT t.oid
          FROM pg_catalog.pg_type t
          LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
          LEFT JOIN pg_catalog.pg_class c
            ON c.oid = CASE WHEN t.typrelid <> 0 THEN t.typrelid ELSE e.typrelid END
         -- Not the row types of tables.
         WHERE t.oid >= 16384 AND coalesce(c.relkind, 'c') = 'c' {which}
         LIMIT $3
    ), base AS (
        SELECT oid AS used, oid, -1 AS modifier, 0 AS depth FROM chosen
         UNION ALL
        SELECT b.used, t.typbasetype,
               CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE b.modifier END, b.depth + 1
          FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid
         WHERE t.typtype = 'd' AND b.depth < $4)
    SELECT b.used, b.oid, b.modifier, t.typtype::pg_catalog.text, t.typname::pg_catalog.text,
           e.typtype::pg_catalog.text, e.typname::pg_catalog.text
      FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid
      LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
     WHERE t.typtype <> 'd'";

/// Only the columns' own types.
const OF_COLUMNS: &str = "AND t.oid IN (SELECT oid FROM used)";

/// All types: the columns' own first, then those of the tables' owners.
const OF_DATABASE: &str = "ORDER BY t.oid IN (SELECT oid FROM used) DESC,
                                    t.typowner IN (SELECT oid FROM owner) DESC, t.oid";

/// The types of these tables' columns by OID; with `of_database`, also all other types of the
/// database.
pub(in crate::source) async fn of(
    client: &Client,
    tables: &[TableName],
    of_database: bool,
) -> Result<Vec<(Oid, DataType)>, SourceError> {
    let schemas: Vec<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    let query = TYPES.replace("{which}", if of_database { OF_DATABASE } else { OF_COLUMNS });
    let parameters: [&(dyn ToSql + Sync); 4] = [&schemas, &names, &MOST_TYPES, &DOMAIN_DEPTH];
    let failed = |error| SourceError::query("reading the data types", &error);
    let rows = client.query(&query, &parameters).await.map_err(failed)?;
    rows.iter().map(read).collect::<Result<_, _>>().map_err(failed)
}

fn read(row: &Row) -> Result<(Oid, DataType), tokio_postgres::Error> {
    let (used, oid, modifier): (Oid, Oid, i32) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (kind, name): (&str, &str) = (row.try_get(3)?, row.try_get(4)?);
    let (element_kind, element): (Option<&str>, Option<&str>) = (row.try_get(5)?, row.try_get(6)?);
    let own = DataType::builtin(oid, modifier);
    Ok((used, own.unwrap_or_else(|| other(kind, name, element_kind.zip(element)))))
}

/// Types of extensions whose values Debezium writes as text.
const TEXTS: [&str; 10] =
    ["citext", "ltree", "ean13", "isbn", "isbn13", "ismn", "ismn13", "issn", "issn13", "upc"];

/// Types of extensions for which Debezium has its own format.
const SPECIAL: [&str; 5] = ["geometry", "geography", "vector", "halfvec", "sparsevec"];

/// The data type for a `typtype` and name, and those of the elements if it is an array
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
