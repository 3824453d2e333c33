//! Checks the publication, and how it includes each outbox table.

use std::sync::Arc;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::{Client, Row};

use super::{AS_OWNER, INIT, others};
use crate::findings::{Finding, Findings};
use crate::outbox::TableName;
use crate::source::{self, CatalogState, PartKind, SourceConfig, SqlClient, UnsentPart};

const SUBJECT: &str = "publication";

/// Why a table that other roles may create should not be published.
const OTHERS: &str = "every role that may create a table there can halt `run` (exit code 4) with a \
                      row that PostgreSQL cannot send";

/// Whether it publishes inserts, all tables, and via the partition root; which other operations it
/// publishes, and the schemas that it publishes. `{schemas}` is replaced by the latter, since
/// PostgreSQL 15.
const PUBLICATION: &str = "
    SELECT pubinsert, puballtables, pubviaroot,
           pg_catalog.concat_ws(', ', CASE WHEN pubupdate THEN 'update' END,
                                CASE WHEN pubdelete THEN 'delete' END,
                                CASE WHEN pubtruncate THEN 'truncate' END),
           {schemas}
      FROM pg_catalog.pg_publication p WHERE pubname::pg_catalog.text = $1";

const SCHEMAS: &str = "ARRAY(SELECT pg_catalog.quote_ident(n.nspname)
                   FROM pg_catalog.pg_publication_namespace s
                   JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid
                  WHERE s.pnpubid = p.oid ORDER BY 1)";
const NO_SCHEMAS: &str = "ARRAY[]::pg_catalog.text[]";

/// The table's kind, and how the publication includes it.
const TABLE: &str = "
    SELECT c.relkind::pg_catalog.text, coalesce(m.listed, false), coalesce(m.by_schema, false),
           coalesce(m.published, false), CASE WHEN m.published THEN m.row_filter END, c.oid
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN {membership} ON true
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2";

/// The database's publications.
const PUBLICATIONS: &str = "
    SELECT pg_catalog.quote_ident(pubname) FROM pg_catalog.pg_publication ORDER BY 1 LIMIT 6";

/// Tables that may be an outbox by their names, the likelier ones first.
const TABLES: &str = "
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
       AND c.relname::pg_catalog.text ~* 'outbox|event'
       AND n.nspname::pg_catalog.text !~ '^(pg_|information_schema)'
     ORDER BY c.relname::pg_catalog.text !~* 'outbox', 1 LIMIT 6";

/// The publication, quoted for SQL, and its properties.
struct Publication {
    quoted: String,
    inserts: bool,
    all_tables: bool,
    via_root: bool,
    /// The other operations that it publishes.
    others: String,
    /// Schemas of which it publishes all tables.
    schemas: Vec<String>,
}

impl Publication {
    fn of(row: &Row, name: &str) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            quoted: escape_identifier(name),
            inserts: row.try_get(0)?,
            all_tables: row.try_get(1)?,
            via_root: row.try_get(2)?,
            others: row.try_get(3)?,
            schemas: row.try_get(4)?,
        })
    }
}

/// A table, and how the publication includes it.
struct Table {
    kind: String,
    is_listed: bool,
    is_by_schema: bool,
    is_published: bool,
    filter: Option<String>,
    oid: u32,
}

impl Table {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            kind: row.try_get(0)?,
            is_listed: row.try_get(1)?,
            is_by_schema: row.try_get(2)?,
            is_published: row.try_get(3)?,
            filter: row.try_get(4)?,
            oid: row.try_get(5)?,
        })
    }
}

/// Runs the checks; returns whether the publication exists, and the tables whose columns can be
/// checked.
pub(crate) async fn check(
    client: &Client,
    source: &SourceConfig,
    facts: &CatalogState,
    findings: &mut Findings,
) -> Option<(bool, Vec<TableName>)> {
    let name = &source.publication;
    let schemas = if facts.version >= 150_000 { SCHEMAS } else { NO_SCHEMAS };
    let row = client.query_opt(&PUBLICATION.replace("{schemas}", schemas), &[name]).await;
    let found = row.and_then(|row| row.map(|row| Publication::of(&row, name)).transpose());
    let found = findings.answer((SUBJECT, "publication"), found)?;
    match &found {
        None => findings.add(missing(source, facts, &others(client, PUBLICATIONS).await)),
        Some(found) => operations(found, source, findings),
    }
    let (mut tables, mut unlisted) = (Vec::new(), Vec::new());
    for table in &source.tables {
        let query = TABLE.replace("{membership}", &source::membership(facts.version, "$3"));
        let row = client.query_opt(&query, &[&table.schema, &table.name, name]).await;
        let found_table = row.and_then(|row| row.as_ref().map(Table::of).transpose());
        match findings.answer(("table", "table"), found_table)? {
            None => findings.add(
                Finding::error(
                    ("table", "table_missing"),
                    format!(
                        "table {table} does not exist in database \"{}\"{}",
                        facts.database,
                        others(client, TABLES).await
                    ),
                )
                .why(format!(
                    "applications write their events to this table; if it has another name, set \
                     --table instead; {AS_OWNER}"
                ))
                .command(INIT),
            ),
            Some(found_table) => {
                check_table(&found_table, table, found.as_ref(), findings);
                if matches!(found_table.kind.as_str(), "r" | "p") {
                    let all = &source.tables;
                    let parts = source::unsent_parts(client, (found_table.oid, table), all).await;
                    let parts = findings.answer(("table", "table"), parts)?;
                    findings.extend(parts.iter().map(unsent));
                }
                tables.push(table.clone());
                let is_table = matches!(found_table.kind.as_str(), "r" | "p");
                if is_table && !found_table.is_listed {
                    unlisted.push(table.to_string());
                }
            }
        }
    }
    if let Some(Publication { quoted, schemas, .. }) = &found
        && !schemas.is_empty()
    {
        findings.add(by_schema(quoted, &schemas.join(", "), &unlisted.join(", ")));
    }
    Some((found.is_some(), tables))
}

fn missing(source: &SourceConfig, facts: &CatalogState, hint: &str) -> Finding {
    let quoted = escape_identifier(&source.publication);
    let database = &facts.database;
    let text = format!("publication {quoted} does not exist in database \"{database}\"{hint}");
    let finding = Finding::error((SUBJECT, "publication_missing"), text);
    if facts.slot.is_none() {
        return finding
            .why(format!("the publication selects the rows that PostgreSQL sends; {AS_OWNER}"))
            .command(INIT);
    }
    finding
        .why(
            "the publication selects the rows that PostgreSQL sends; the slot is older, and rows \
             that are committed before the publication exists are not sent",
        )
        .sql(create(&quoted, &source.tables))
}

fn create(quoted: &str, tables: &[TableName]) -> String {
    let names: Vec<_> = tables.iter().map(ToString::to_string).collect();
    let tables =
        if names.is_empty() { String::new() } else { format!(" FOR TABLE {}", names.join(", ")) };
    format!(
        "CREATE PUBLICATION {quoted}{tables} WITH (publish = 'insert', publish_via_partition_root \
         = true);"
    )
}

fn operations(publication: &Publication, source: &SourceConfig, findings: &mut Findings) {
    let Publication { quoted, inserts, all_tables, others, .. } = publication;
    if source.tables.is_empty() {
        let text = format!("{quoted} exists; logical messages need no table in it");
        return findings.add(Finding::ok((SUBJECT, "publication"), text));
    }
    if !inserts {
        let all = if others.is_empty() { "insert".to_owned() } else { format!("insert, {others}") };
        return findings.add(
            Finding::error(
                (SUBJECT, "publication_inserts"),
                format!("{quoted} does not publish inserts"),
            )
            .why("each event is an inserted row, so PostgreSQL would send no event")
            .sql(format!("ALTER PUBLICATION {quoted} SET (publish = '{all}');")),
        );
    }
    if *all_tables {
        findings.add(
            Finding::warning(
                (SUBJECT, "publication_all_tables"),
                format!("{quoted} is FOR ALL TABLES"),
            )
            .why(format!(
                "PostgreSQL decodes the changes of every table for walpost; walpost cannot detect \
                 that the outbox table was missing from the publication for a while; and \
                 {OTHERS}. Before the fix, deliver everything (run --until current) and leave \
                 walpost stopped"
            ))
            .sql(format!(
                "BEGIN; DROP PUBLICATION {quoted}; {} COMMIT;",
                create(quoted, &source.tables)
            )),
        );
    } else {
        let also = if others.is_empty() {
            String::new()
        } else {
            format!(" (and {others}, which walpost ignores)")
        };
        findings.add(Finding::ok(
            (SUBJECT, "publication"),
            format!("{quoted} publishes inserts{also}"),
        ));
    }
}

fn check_table(
    found: &Table,
    table: &TableName,
    publication: Option<&Publication>,
    findings: &mut Findings,
) {
    let Table { kind, is_listed, is_by_schema, is_published, filter, .. } = found;
    if !matches!(kind.as_str(), "r" | "p") {
        let text = format!("{table} is not an ordinary or partitioned table");
        return findings.add(
            Finding::error(("table", "table_kind"), text)
                .why("logical decoding sends only rows of tables")
                .advice("set --table to the table that stores the rows"),
        );
    }
    let Some(Publication { quoted, all_tables, via_root, .. }) = publication else {
        return;
    };
    if kind == "p" && !via_root && (*is_listed || *is_by_schema || *all_tables) {
        let text =
            format!("{quoted} publishes the partitions of {table} instead of {table} itself");
        return findings.add(
            Finding::error((SUBJECT, "publication_partition_root"), text)
                .why(
                    "PostgreSQL would send rows under the names of the partitions, which walpost \
                     does not know",
                )
                .sql(format!(
                    "ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true);"
                )),
        );
    }
    if !is_published {
        return findings.add(
            Finding::error(
                (SUBJECT, "publication_table"),
                format!("{quoted} does not contain the table {table}"),
            )
            .why(
                "PostgreSQL sends none of its rows; rows that are committed before the table is \
                 added are never sent",
            )
            .sql(format!("ALTER PUBLICATION {quoted} ADD TABLE {table};")),
        );
    }
    if let Some(filter) = filter {
        let text = format!("{quoted} has a row filter on {table}: WHERE {filter}");
        findings.add(
            Finding::warning((SUBJECT, "publication_row_filter"), text)
                .why(
                    "PostgreSQL does not send the rows that the filter excludes, and nothing \
                     reports them",
                )
                .sql(relist(quoted, table)),
        );
    }
}

/// A table with rows that are never published.
fn unsent(part: &UnsentPart) -> Finding {
    let error = |code, why| Finding::error(("table", code), part.to_string()).why(why);
    match part.kind {
        PartKind::Unlogged => {
            let why = "PostgreSQL writes no WAL for its rows, so they are never published";
            error("table_unlogged", why).sql(format!("{};", part.remedy()))
        }
        PartKind::Foreign => {
            let why = "another server stores its rows, so the WAL of this one has none of them, and \
                       they are never published";
            error("table_foreign_partition", why).sql(format!("{};", part.remedy()))
        }
        PartKind::Child => {
            let why = "PostgreSQL sends its rows under its own name, if at all, so they are never \
                       published; a trigger that routes rows, and the chunks of TimescaleDB, make \
                       such tables. `walpost recover --all` counts what is not published";
            error("table_inherited", why).advice(part.remedy())
        }
    }
}

/// A publication that includes tables by schema, and these outbox tables in no other way.
fn by_schema(quoted: &str, schemas: &str, unlisted: &str) -> Finding {
    let text = format!("{quoted} publishes all tables of a schema: {schemas}");
    let list = if unlisted.is_empty() {
        String::new()
    } else {
        format!("ALTER PUBLICATION {quoted} ADD TABLE {unlisted}; ")
    };
    Finding::warning((SUBJECT, "publication_schema"), text)
        .why(format!(
            "walpost cannot detect that a table that is not listed was missing from the \
             publication for a while, and {OTHERS}; list only the outbox tables (stop walpost \
             first: it exits when the publication changes)"
        ))
        .sql(format!(
            "BEGIN; {list}ALTER PUBLICATION {quoted} DROP TABLES IN SCHEMA {schemas}; COMMIT;"
        ))
}

/// Removes the table and adds it again with all columns, in one transaction, so that no row is
/// missed.
pub(crate) fn relist(quoted: &str, table: &TableName) -> String {
    format!(
        "BEGIN; ALTER PUBLICATION {quoted} DROP TABLE {table}; ALTER PUBLICATION {quoted} ADD \
         TABLE {table}; COMMIT;"
    )
}

/// Checks whether the slot has yet to decode changes from before the publication.
pub(crate) async fn check_age(
    client: &Arc<SqlClient>,
    source: &SourceConfig,
    facts: &CatalogState,
    findings: &mut Findings,
) {
    let young = source::is_newer_than_slot(client, facts.version, source).await;
    if findings.answer((SUBJECT, "publication"), young) == Some(true) {
        findings.add(young_publication(source));
    }
}

fn young_publication(source: &SourceConfig) -> Finding {
    let slot = escape_literal(&source.slot);
    let text = format!(
        "{} may be newer than the position of slot \"{}\"",
        escape_identifier(&source.publication),
        source.slot
    );
    Finding::warning((SUBJECT, "publication_newer_than_slot"), text)
        .why(
            "PostgreSQL does not send rows that were committed without it, and up to PostgreSQL \
             17 the stream fails at a position where the publication did not exist yet; a long \
             transaction looks the same",
        )
        .advice(format!(
            "start `run`; if it fails there, publish by hand what was committed before, then run \
             (and `walpost adopt --apply` after it, if walpost keeps its position) \
             SELECT pg_catalog.pg_replication_slot_advance({}, pg_catalog.pg_current_wal_lsn());",
            slot.trim_start()
        ))
}
