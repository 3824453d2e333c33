//! How a publication has a table, from the publication catalogs alone.
//!
//! The view `pg_publication_tables` opens all tables of a publication since PostgreSQL 18, and
//! waits for their locks: of a publication `FOR ALL TABLES` or of a schema, any role that may create
//! a table there could keep walpost from connecting.

/// Whether the schema of `{class}` is published as a whole; since PostgreSQL 15.
const BY_SCHEMA: &str = "EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
                  WHERE s.pnpubid = p.oid AND s.pnnspid = {class}.relnamespace)";

/// What the view shows, of one table. Without `publish_via_partition_root` only tables that store
/// rows are published; with it, a partition is not if its table is.
const MEMBERSHIP: &str = "
    LATERAL (
        SELECT own.*,
               CASE WHEN c.relkind NOT IN ('r', 'p') THEN false
                    WHEN own.all_tables THEN c.relpersistence = 'p'
                         AND CASE WHEN own.via_root THEN NOT c.relispartition ELSE c.relkind = 'r' END
                    WHEN own.via_root THEN (own.listed OR own.by_schema) AND NOT own.above
                    ELSE c.relkind = 'r' AND (own.listed OR own.by_schema OR own.above) END
               AS published
          FROM (SELECT p.puballtables AS all_tables, p.pubviaroot AS via_root,
                       e.oid IS NOT NULL AS listed, {by_schema} AS by_schema,
                       EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) a (relid)
                                 JOIN pg_catalog.pg_class u ON u.oid = a.relid AND u.oid <> c.oid
                                WHERE {above_by_schema}
                                   OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r
                                               WHERE r.prpubid = p.oid AND r.prrelid = u.oid))
                       AS above,
                       {columns} AS columns, {row_filter} AS row_filter,
                       {generated} AS generated
                  FROM pg_catalog.pg_publication p
                  LEFT JOIN pg_catalog.pg_publication_rel e
                    ON e.prpubid = p.oid AND e.prrelid = c.oid
                 WHERE p.pubname::pg_catalog.text = {publication}) AS own) AS m";

/// The column list and the row filter of the table's own entry; since PostgreSQL 15. Where its
/// schema is published too, they do not count.
const COLUMNS: &str = "CASE WHEN NOT {by_schema} THEN e.prattrs::pg_catalog.int2[] END";
const ROW_FILTER: &str =
    "CASE WHEN NOT {by_schema} THEN pg_catalog.pg_get_expr(e.prqual, e.prrelid) END";

/// Whether the columns that are sent without a column list include generated ones; since
/// PostgreSQL 18.
const GENERATED: &str = "p.pubgencols = 's'";

/// Whether the publication sends column `a` of `c`. Before PostgreSQL 18 no generated column comes.
const SENDS: &str = "CASE WHEN m.columns IS NULL
             THEN a.attgenerated = '' OR m.generated AND a.attgenerated = 's'
             ELSE a.attnum = ANY (m.columns) AND (a.attgenerated = '' OR {lists_generated}) END";

/// An item for FROM, on a server of `version`: the row `m` of how the publication that the
/// expression `publication` names has the table `c` of `pg_class`. None where there is no such
/// publication.
pub(crate) fn membership(version: i32, publication: &str) -> String {
    let since = |major: i32, sql: &'static str, before: &'static str| {
        if version >= major * 10_000 { sql } else { before }
    };
    MEMBERSHIP
        .replace("{columns}", since(15, COLUMNS, "NULL::pg_catalog.int2[]"))
        .replace("{row_filter}", since(15, ROW_FILTER, "NULL::pg_catalog.text"))
        .replace("{by_schema}", &since(15, BY_SCHEMA, "false").replace("{class}", "c"))
        .replace("{above_by_schema}", &since(15, BY_SCHEMA, "false").replace("{class}", "u"))
        .replace("{generated}", since(18, GENERATED, "false"))
        .replace("{publication}", publication)
}

/// Whether the publication sends column `a` of `pg_attribute`, beside [`membership`].
pub(super) fn sends(version: i32) -> String {
    SENDS.replace("{lists_generated}", if version >= 180_000 { "true" } else { "false" })
}
