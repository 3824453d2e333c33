//! Where rows go before they are deleted: another table, or a command.
//!
//! A table gets them in the transaction that deletes them. A command gets them on its standard input,
//! and they are deleted once it has ended with 0: killed in between, they are archived again by the
//! next run, and none is lost.

use std::io::Read as _;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;
use tokio::process::Command;
use tokio_postgres::Client;

use super::error::{PruneError, database};
use super::pruned_table::{PrunedTable, listed};
use crate::config::secret_variables;
use crate::excerpt::excerpt;
use crate::outbox::TableName;
use crate::source::SqlClient;

/// The destination of archived rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Archive<'a> {
    /// This table.
    Table(&'a TableName),
    /// This command of the shell.
    Command(&'a str),
}

/// What `lines` does.
pub(super) const READING: &str = "reading rows";

/// What is wrong with a relation as the archive of the table `$3`: whether it is a table, this user
/// reaches it, and all of it survives a crash; then columns that are missing, generated, of another
/// type, or that this user may not insert; others that require a value; whether policies apply, and
/// whether both are partitions of one table. A type without a modifier takes all values of one with it.
const ARCHIVE: &str = "
    SELECT c.relkind IN ('r', 'p') AND NOT parts.has_others,
           pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
           c.relpersistence = 'p' AND NOT parts.has_volatile,
           columns.missing, columns.generated, columns.other, columns.refused,
           (SELECT pg_catalog.string_agg(a.attname::pg_catalog.text, ', ' ORDER BY a.attnum)
              FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull
               AND NOT a.atthasdef AND a.attidentity = ''
               AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute o
                                WHERE o.attrelid = $3 AND o.attnum > 0 AND NOT o.attisdropped
                                  AND o.attname = a.attname)),
           coalesce(pg_catalog.row_security_active(c.oid), false),
           coalesce(pg_catalog.pg_partition_root(c.oid::pg_catalog.regclass)
                    = pg_catalog.pg_partition_root($3::pg_catalog.oid::pg_catalog.regclass), false)
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     CROSS JOIN LATERAL (
        SELECT coalesce(pg_catalog.bool_or(part.relkind NOT IN ('r', 'p')), false) AS has_others,
               coalesce(pg_catalog.bool_or(part.relpersistence <> 'p'), false) AS has_volatile
          FROM pg_catalog.pg_partition_tree(c.oid::pg_catalog.regclass) t
          JOIN pg_catalog.pg_class part ON part.oid = t.relid) AS parts
     CROSS JOIN LATERAL (
        SELECT pg_catalog.string_agg(o.attname::pg_catalog.text, ', ' ORDER BY o.attnum)
                   FILTER (WHERE a.attname IS NULL) AS missing,
               pg_catalog.string_agg(a.attname::pg_catalog.text, ', ' ORDER BY o.attnum)
                   FILTER (WHERE a.attgenerated <> '') AS generated,
               pg_catalog.string_agg(pg_catalog.format('%s is %s, and %s in the archive', o.attname,
                       pg_catalog.format_type(o.atttypid, o.atttypmod),
                       pg_catalog.format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY o.attnum)
                   FILTER (WHERE a.atttypid <> o.atttypid OR a.atttypmod NOT IN (-1, o.atttypmod)) AS other,
               pg_catalog.string_agg(a.attname::pg_catalog.text, ', ' ORDER BY o.attnum)
                   FILTER (WHERE NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'INSERT')) AS refused
          FROM pg_catalog.pg_attribute o
          LEFT JOIN pg_catalog.pg_attribute a
               ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = o.attname
         WHERE o.attrelid = $3 AND o.attnum > 0 AND NOT o.attisdropped) AS columns
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2";

/// Checks that this user may insert the rows of `table` into `archive`, and that it keeps them as they
/// are.
pub(crate) async fn check(
    client: &Client,
    table: &PrunedTable,
    archive: &TableName,
) -> Result<(), PruneError> {
    let failed = database(archive, "looking at the archive");
    let row = client
        .query_opt(ARCHIVE, &[&archive.schema, &archive.name, &table.oid])
        .await
        .map_err(&failed)?;
    let name = &table.name;
    let like = format!("CREATE TABLE {archive} (LIKE {name})");
    let problem = match row {
        None => Some(format!("the archive does not exist: create it, for example with {like}")),
        Some(row) => {
            let yes = |index| row.try_get::<_, bool>(index).map_err(&failed);
            let columns = |index| row.try_get::<_, Option<String>>(index).map_err(&failed);
            let (missing, generated, other, refused) =
                (columns(3)?, columns(4)?, columns(5)?, columns(6)?);
            if !yes(0)? {
                Some(
                    "the archive, or a partition of it, is no table of this server, where rows are inserted in \
                     the transaction that deletes them"
                        .to_owned(),
                )
            } else if yes(9)? {
                Some(format!(
                    "the archive and {name} are partitions of one table: rows could come back from it"
                ))
            } else if !yes(2)? {
                Some(format!(
                    "the archive, or a partition of it, is unlogged or temporary, and a crash empties it: \
                     ALTER TABLE {archive} SET LOGGED, or create another archive with {like}"
                ))
            } else if let Some(missing) = missing {
                Some(format!(
                    "the archive lacks columns of {name}: {missing}; add them, or create another archive \
                     with {like}"
                ))
            } else if let Some(generated) = generated {
                Some(format!(
                    "the archive has generated columns, which would not get the values of {name}: \
                     {generated}; make them ordinary ones with ALTER TABLE {archive} ALTER COLUMN … DROP \
                     EXPRESSION, or create another archive with {like}"
                ))
            } else if let Some(other) = other {
                Some(format!(
                    "the archive has other types than {name}, which could change values: {other}; change \
                     them with ALTER TABLE {archive} ALTER COLUMN … TYPE, or create another archive with {like}"
                ))
            } else if let Some(required) = columns(7)? {
                Some(format!(
                    "the archive requires values of columns that {name} does not have: {required}; give them a \
                     default, or let them be NULL"
                ))
            } else if yes(8)? {
                Some(
                    "row-level security can keep rows of this user out of the archive: connect as a role with \
                     BYPASSRLS, or as the archive's owner unless it is forced"
                        .to_owned(),
                )
            } else if !yes(1)? || refused.is_some() {
                Some(format!(
                    "this user may not insert into the archive: GRANT INSERT ON {archive} and USAGE on its \
                     schema TO it"
                ))
            } else {
                None
            }
        }
    };
    let table = archive.clone();
    problem.map_or(Ok(()), |problem| Err(PruneError::Table { table, problem }))
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
    // It may have been changed, or replaced by another one of its name, and cannot be now.
    check(client, table, archive).await?;
    Ok(u64::try_from(deleted).unwrap_or_default())
}

/// Rows as they go to a command.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) text: String,
    /// The `ctid` of the rows, as an array.
    pub(super) rows: String,
    pub(super) count: u64,
    /// Whether the table was rewritten before they were read.
    pub(super) is_rewritten: bool,
}

/// Reads the rows that meet `condition`, which has them as its parameter, from this file of the table.
///
/// One statement without locks of rows: while it sends, the server waits for a program that does not
/// read, and afterwards it has nothing locked.
pub(super) async fn lines(
    client: &SqlClient,
    table: &PrunedTable,
    (condition, rows): (&str, &String),
    file: Option<u32>,
) -> Result<Lines, PruneError> {
    let failed = database(&table.name, READING);
    let sql = format!(
        "SELECT pg_catalog.replace(pg_catalog.replace({}, E'\\n', ' '), E'\\r', ' '),
                o.ctid::pg_catalog.text,
                pg_catalog.pg_relation_filenode(o.tableoid::pg_catalog.regclass)
           FROM ONLY {} AS o WHERE {condition}",
        table.json(),
        table.name
    );
    // They are no more than were chosen by their size.
    let _large = client.large_rows();
    let (mut lines, mut ids) = (Lines::default(), Vec::new());
    for row in client.query(&sql, &[rows]).await.map_err(&failed)? {
        let (line, id): (&str, &str) =
            (row.try_get(0).map_err(&failed)?, row.try_get(1).map_err(&failed)?);
        lines.is_rewritten |= row.try_get::<_, Option<u32>>(2).map_err(&failed)? != file;
        lines.text.push_str(line);
        lines.text.push('\n');
        lines.count += 1;
        ids.push(format!("\"{id}\""));
    }
    lines.rows = format!("{{{}}}", ids.join(","));
    Ok(lines)
}

/// Writes lines to the command's standard input; returns once it has ended with 0, and has read them.
pub(super) async fn pipe(
    table: &PrunedTable,
    command: &str,
    lines: &str,
) -> Result<(), PruneError> {
    let failed = |problem: String| PruneError::Command { table: table.name.clone(), problem };
    let (mut rest, input) =
        std::io::pipe().map_err(|error| failed(format!("has no input: {error}")))?;
    let read = rest.try_clone().map_err(|error| failed(format!("has no input: {error}")))?;
    let mut shell = Command::new("/bin/sh");
    for name in secret_variables() {
        shell.env_remove(name);
    }
    // Ends with this process: the rows are still in the table, and a later run starts it again.
    let child = shell
        .args(["-c", command])
        .env("WALPOST_TABLE", table.name.to_string())
        .stdin(Stdio::from(read))
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| failed(format!("cannot be started: {error}")))?;
    let mut input = Sender::from_owned_fd(input.into())
        .map_err(|error| failed(format!("has no input: {error}")))?;
    let (status, is_written) = tokio::select! {
        status = child.wait() => (status, false),
        // The lines fit, or are read.
        written = input.write_all(lines.as_bytes()) => {
            drop(input);
            (child.wait().await, written.is_ok())
        }
    };
    let status = status.map_err(|error| failed(format!("cannot be awaited: {error}")))?;
    if !status.success() {
        return Err(failed(format!("ended with {}", excerpt(&status.to_string()))));
    }
    // What it has not read is still in the pipe, of which nobody else has the other end.
    if is_written && matches!(rest.read(&mut [0]), Ok(0)) {
        return Ok(());
    }
    Err(failed("ended with 0 before it had read every row".to_owned()))
}
