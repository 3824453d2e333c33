//! Whether and how a publication includes a table, from the publication catalogs alone.
//!
//! Since PostgreSQL 18 the view `pg_publication_tables` opens all tables of a publication, and so
//! waits for their locks. With a publication `FOR ALL TABLES` or of a schema, any role that may
//! create a table there could block walpost from connecting.

use tokio_postgres::Client;

use crate::outbox::TableName;

/// Whether the whole schema of `{class}` is published; since PostgreSQL 15.
const BY_SCHEMA: &str = "EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
                  WHERE s.pnpubid = p.oid AND s.pnnspid = {class}.relnamespace)";

/// The view's content for one table. Without `publish_via_partition_root` only tables that store
/// rows are published; with it, a partition is not published if its table is.
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

/// The column list and the row filter of the table's own entry; since PostgreSQL 15. They do not
/// apply if its schema is published too.
const COLUMNS: &str = "CASE WHEN NOT {by_schema} THEN e.prattrs::pg_catalog.int2[] END";
const ROW_FILTER: &str =
    "CASE WHEN NOT {by_schema} THEN pg_catalog.pg_get_expr(e.prqual, e.prrelid) END";

/// Whether generated columns are sent without a column list; since PostgreSQL 18.
const GENERATED: &str = "p.pubgencols = 's'";

/// Whether the publication sends column `a` of `c`. Before PostgreSQL 18 no generated column is
/// sent.
const SENDS: &str = "CASE WHEN m.columns IS NULL
             THEN a.attgenerated = '' OR m.generated AND a.attgenerated = 's'
             ELSE a.attnum = ANY (m.columns) AND (a.attgenerated = '' OR {lists_generated}) END";

/// A FROM item for a server of `version`: the row `m` describes how the publication named by the
/// parameter `publication` (`$1`) includes the table `c` of `pg_class`. The item yields no row if
/// there is no such publication.
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

/// Whether the publication sends column `a` of `pg_attribute`; used together with [`membership`].
pub(in crate::source) fn sends(version: i32) -> String {
    SENDS.replace("{lists_generated}", if version >= 180_000 { "true" } else { "false" })
}

/// The publication's condition on the rows of a table, with unqualified columns, if it has one (from
/// PostgreSQL 15 on); `None`: it lacks the table. `version` is `server_version_num`.
pub(crate) async fn row_filter(
    client: &Client,
    version: i32,
    publication: &str,
    table: &TableName,
) -> Result<Option<Option<String>>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT m.row_filter
           FROM pg_catalog.pg_class c
           JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
          CROSS JOIN {}
          WHERE n.nspname::pg_catalog.text = $2 AND c.relname::pg_catalog.text = $3 AND m.published",
        membership(version, "$1")
    );
    let row = client.query_opt(&sql, &[&publication, &table.schema, &table.name]).await?;
    row.map(|row| row.try_get(0)).transpose()
}
