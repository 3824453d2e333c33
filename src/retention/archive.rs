//! Where rows go before they are deleted: another table, or a command.
//!
//! A table gets them in the transaction that deletes them. A command gets them on its standard input,
//! and they are deleted once it has ended with 0: killed in between, they are archived again by the
//! next run, and none is lost.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio_postgres::Client;

use super::error::{PruneError, database};
use super::pruned_table::{PrunedTable, listed};
use crate::excerpt::excerpt;
use crate::outbox::TableName;

/// Where rows go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Archive<'a> {
    /// This table.
    Table(&'a TableName),
    /// This command of the shell.
    Command(&'a str),
}

/// Whether a relation is a table, and for each of the columns whether rows may be inserted with it.
const ARCHIVE: &str = "
    SELECT c.relkind IN ('r', 'p', 'f'), pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
           ARRAY(SELECT wanted.name FROM pg_catalog.unnest($3::pg_catalog.text[]) AS wanted (name)
                  WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                                     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                                       AND a.attgenerated = ''
                                       AND a.attname::pg_catalog.text = wanted.name)),
           ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                    AND a.attname::pg_catalog.text = ANY ($3::pg_catalog.text[])
                    AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'INSERT'))
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2";

/// Checks that this user may insert the rows of `table` into `archive`.
pub(crate) async fn check(
    client: &Client,
    table: &PrunedTable,
    archive: &TableName,
) -> Result<(), PruneError> {
    let failed = database(archive, "looking at the archive");
    let problem = |problem: String| PruneError::Table { table: archive.clone(), problem };
    let row = client
        .query_opt(ARCHIVE, &[&archive.schema, &archive.name, &table.columns])
        .await
        .map_err(&failed)?;
    let like = format!("CREATE TABLE {archive} (LIKE {})", table.name);
    let row = row.ok_or_else(|| {
        problem(format!("the archive does not exist: create it, for example with {like}"))
    })?;
    let is_table: bool = row.try_get(0).map_err(&failed)?;
    let is_reachable: bool = row.try_get(1).map_err(&failed)?;
    let missing: Vec<String> = row.try_get(2).map_err(&failed)?;
    let refused: Vec<String> = row.try_get(3).map_err(&failed)?;
    if !is_table {
        return Err(problem("the archive is no table".to_owned()));
    }
    if !missing.is_empty() {
        let (missing, name) = (missing.join(", "), &table.name);
        return Err(problem(format!(
            "the archive lacks columns of {name}, or has generated ones in their place: {missing}; add \
             them, or create another archive with {like}"
        )));
    }
    if !is_reachable || !refused.is_empty() {
        return Err(problem(format!(
            "this user may not insert into the archive: GRANT INSERT ON {archive} and USAGE on its schema \
             TO it"
        )));
    }
    Ok(())
}

/// Runs `delete`, which has the rows as its parameter, and inserts what it deletes, in a transaction
/// that is open, and to be undone after an error: the archive has to get every row. Returns how many
/// rows were deleted.
pub(super) async fn insert(
    client: &Client,
    table: &PrunedTable,
    archive: &TableName,
    (delete, rows): (&str, &String),
) -> Result<u64, PruneError> {
    let failed = database(&table.name, "archiving rows");
    let (columns, returned) = (listed(&table.columns, ""), listed(&table.columns, "o."));
    let sql = format!(
        "WITH gone AS ({delete} RETURNING {returned}),
              kept AS (INSERT INTO {archive} ({columns}) OVERRIDING SYSTEM VALUE
                       SELECT {columns} FROM gone RETURNING 1)
         SELECT (SELECT pg_catalog.count(*) FROM gone), (SELECT pg_catalog.count(*) FROM kept)"
    );
    let row = client.query_one(&sql, &[rows]).await.map_err(&failed)?;
    let (deleted, kept): (i64, i64) =
        (row.try_get(0).map_err(&failed)?, row.try_get(1).map_err(&failed)?);
    if deleted != kept {
        let (table, archive) = (table.name.clone(), archive.clone());
        return Err(PruneError::NotArchived { table, archive, deleted, kept });
    }
    Ok(u64::try_from(deleted).unwrap_or_default())
}

/// Writes the rows that meet `condition`, which has them as its parameter, to the command's standard
/// input; returns once it has ended with 0.
pub(super) async fn pipe(
    client: &Client,
    table: &PrunedTable,
    command: &str,
    (condition, rows): (&str, &String),
) -> Result<(), PruneError> {
    let sql = format!(
        "SELECT pg_catalog.row_to_json(o)::pg_catalog.text FROM ONLY {} AS o WHERE {condition}",
        table.name
    );
    let found = client.query(&sql, &[rows]).await.map_err(database(&table.name, "reading rows"))?;
    let mut lines = String::new();
    for row in found {
        let line: &str = row.try_get(0).map_err(database(&table.name, "reading rows"))?;
        lines.push_str(line);
        lines.push('\n');
    }
    let failed = |problem: String| PruneError::Command { table: table.name.clone(), problem };
    // Ends with this process: the rows are still in the table, and a later run starts it again.
    let child = Command::new("/bin/sh")
        .args(["-c", command])
        .env("WALPOST_TABLE", table.name.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| failed(format!("cannot be started: {error}")))?;
    let input = child.stdin.take();
    let written = async {
        if let Some(mut input) = input {
            // A command that does not read to the end has not archived the rows, unless it says so.
            input.write_all(lines.as_bytes()).await?;
            input.shutdown().await?;
        }
        Ok::<_, std::io::Error>(())
    };
    let (written, ended) = tokio::join!(written, child.wait());
    let status = ended.map_err(|error| failed(format!("cannot be awaited: {error}")))?;
    if !status.success() {
        return Err(failed(format!("ended with {}", excerpt(&status.to_string()))));
    }
    written.map_err(|error| failed(format!("ended with 0 before it had read every row: {error}")))
}
