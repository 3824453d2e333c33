//! A table that is locked against changes of its definition, and compared with what was read of it
//! before: for commands that write its rows, by the names of its columns, in several transactions.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::outbox::TableName;

/// Whether the name `$1` means the table `$2`; its file, the uppermost table that it is a partition of,
/// and its columns: names, and what else they are told by.
const SHAPE: &str = "
    SELECT coalesce(pg_catalog.to_regclass($1)::pg_catalog.oid = $2, false),
           pg_catalog.pg_relation_filenode($2::pg_catalog.oid::pg_catalog.regclass),
           pg_catalog.pg_partition_root($2::pg_catalog.oid::pg_catalog.regclass)::pg_catalog.oid,
           ARRAY(SELECT attname::pg_catalog.text FROM pg_catalog.pg_attribute
                  WHERE attrelid = $2 AND attnum > 0 AND NOT attisdropped),
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', attnum, atttypid, atttypmod, attname), ', '
                                         ORDER BY attnum)
              FROM pg_catalog.pg_attribute WHERE attrelid = $2 AND attnum > 0 AND NOT attisdropped)";

/// What a table is, apart from its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableShape {
    /// The file of its rows: another one once the table was rewritten.
    pub(crate) file: Option<u32>,
    /// The uppermost table that it is a partition of; itself, if it has partitions.
    pub(crate) root: Option<u32>,
    /// The names of its columns.
    pub(crate) names: Vec<String>,
    /// The numbers, types and names of its columns.
    pub(crate) columns: Option<String>,
}

impl TableShape {
    /// Reads the shape of the table `oid`; `None`: the name means another table, or none.
    pub(crate) async fn read(
        client: &Client,
        name: &TableName,
        oid: u32,
    ) -> Result<Option<Self>, tokio_postgres::Error> {
        let row = client.query_one(SHAPE, &[&name.regclass_text(), &oid]).await?;
        let shape = Self {
            file: row.try_get(1)?,
            root: row.try_get(2)?,
            names: row.try_get(3)?,
            columns: row.try_get(4)?,
        };
        Ok(row.try_get::<_, bool>(0)?.then_some(shape))
    }

    /// Begins a transaction in which nobody can change, rename, rewrite or drop the table, and reads its
    /// shape. `settings` are statements of that transaction.
    pub(crate) async fn lock(
        client: &Client,
        name: &TableName,
        oid: u32,
        settings: &str,
    ) -> Result<Option<Self>, tokio_postgres::Error> {
        // Each statement sees what was committed before it began: after the lock, all changes.
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {settings}
             LOCK TABLE ONLY {name} IN ROW EXCLUSIVE MODE"
        );
        match client.batch_execute(&sql).await {
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(None),
            done => {
                done?;
                Self::read(client, name, oid).await
            }
        }
    }
}
