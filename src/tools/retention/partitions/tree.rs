//! A partitioned table, its partitions, and who takes care of them.

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::{Client, Row};

use crate::outbox::{TableName, identifier_in_quotes};
use crate::tools::retention::error::{PruneError, database};
use crate::tools::retention::pruned_table::{PrunedTable, XID};

/// Whether it has a range for each period of one column with a time; that column and its type, what
/// its rows are partitioned by, its owner, and rights.
const PARENT: &str = "
    SELECT c.oid, p.partstrat = 'r' AND p.partnatts = 1 AND coalesce(a.atttypid IN (1082, 1114, 1184), false),
           coalesce(a.attname::pg_catalog.text, ''), coalesce(a.atttypid, 0), pg_catalog.pg_get_partkeydef(c.oid),
           pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text, pg_catalog.pg_has_role(c.relowner, 'USAGE'),
           pg_catalog.has_schema_privilege(n.oid, 'CREATE')
           AND pg_catalog.has_schema_privilege(c.relowner, n.oid, 'CREATE'), t.spcname::pg_catalog.text,
           CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 160000 THEN true
                ELSE pg_catalog.pg_has_role(c.relowner, 'SET') END
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = c.oid
      LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
      LEFT JOIN pg_catalog.pg_tablespace t ON t.oid = c.reltablespace
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2";

/// The beginning and the end of the period of the partition `c`, as PostgreSQL writes them.
pub(super) const LOWER: &str = "pg_catalog.substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid), 'FROM [(]''([^'']*)''[)]')";
pub(super) const UPPER: &str =
    "pg_catalog.substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid), 'TO [(]''([^'']*)''[)]')";

/// The partitions of a table, the oldest first: with `{upper}`, the time at which one ends.
const PARTITIONS: &str = "
    SELECT part.*, coalesce({upper} <= '{before}'::pg_catalog.timestamptz, false)
      FROM (SELECT c.oid, n.nspname::pg_catalog.text, c.relname::pg_catalog.text, c.relkind::pg_catalog.text,
                   pg_catalog.pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT', i.inhdetachpending,
                   coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT'), false),
                   coalesce(pg_catalog.row_security_active(c.oid), false),
                   {LOWER} AS lower, {UPPER} AS upper,
                   coalesce(pg_catalog.has_table_privilege(c.oid, 'DELETE')
                            AND pg_catalog.has_any_column_privilege(c.oid, 'UPDATE'), false),
                   CASE WHEN NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')
                        THEN pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text END
              FROM pg_catalog.pg_inherits i
              JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
              JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
             WHERE i.inhparent = $1) AS part
     ORDER BY {upper} NULLS LAST, 3";

/// The tables below it that have rows, each with the newest transaction that attached it, or a table
/// above it.
const LEAVES: &str = "
    SELECT o.nspname, o.relname, pg_catalog.max({xid}), o.oid
      FROM (SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, i.xmin, c.oid
              FROM pg_catalog.pg_partition_tree($1::pg_catalog.oid::pg_catalog.regclass) t
              JOIN pg_catalog.pg_class c ON c.oid = t.relid
              JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
              CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(c.oid) a (relid)
              JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid
             WHERE t.isleaf AND c.relkind = 'r'
               AND a.relid NOT IN (SELECT above.relid FROM pg_catalog.pg_partition_ancestors($1::pg_catalog.oid::pg_catalog.regclass)
                                     AS above (relid))
           ) AS o
     GROUP BY 1, 2, 4 ORDER BY 1, 2";

/// The schema of the extension `pg_partman`, and whether this user may read its configuration.
const PARTMAN: &str = "
    SELECT n.nspname::pg_catalog.text,
           pg_catalog.has_schema_privilege(n.oid, 'USAGE')
           AND coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT'), false)
      FROM pg_catalog.pg_extension e
      JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'part_config'
     WHERE e.extname = 'pg_partman'";

/// Who makes and drops the partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manager {
    /// walpost.
    Walpost,
    /// The extension `pg_partman` has the table in its configuration.
    Partman,
    /// Nobody: its partitions are not periods.
    Nobody,
}

/// The column whose ranges are the partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TimeKey {
    /// Quoted.
    pub(super) column: String,
    /// The type of the column, in SQL.
    pub(super) kind: &'static str,
    /// Whether its times are without a zone, so that local times differ from UTC.
    pub(super) is_without_zone: bool,
}

/// A table with partitions.
#[derive(Debug, Clone)]
pub(crate) struct PartitionedTable {
    /// The table's name.
    pub(crate) name: TableName,
    /// Who makes and drops partitions.
    pub(crate) manager: Manager,
    /// What it is partitioned by, as PostgreSQL writes it.
    pub(crate) partitioned_by: String,
    /// The oldest first.
    pub(crate) partitions: Vec<Partition>,
    pub(super) oid: u32,
    pub(super) key: Option<TimeKey>,
    pub(super) owner: String,
    pub(super) tablespace: Option<String>,
    /// Whether this user may do what its owner may, give it tables, and create tables beside it.
    pub(super) is_owned: bool,
    may_become_owner: bool,
    pub(super) may_create: bool,
    /// Tables with rows.
    leaves: Vec<PrunedTable>,
}

/// What a partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A table.
    Table,
    /// A table with partitions of its own.
    Partitioned,
    /// A foreign table, or another kind.
    Foreign,
}

/// A partition.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub(crate) struct Partition {
    /// The partition's name.
    pub(crate) name: TableName,
    /// Whether it has the rows of no other partition.
    pub(crate) is_default: bool,
    /// Whether its period ended before the time until which rows are old.
    pub(crate) is_old: bool,
    pub(super) oid: u32,
    pub(super) kind: Kind,
    pub(super) is_detaching: bool,
    pub(super) is_readable: bool,
    pub(super) hides_rows: bool,
    /// The bounds of the range, as PostgreSQL writes them; `None`: there are none.
    pub(super) lower: Option<String>,
    pub(super) upper: Option<String>,
    may_delete: bool,
    /// The partition's owner, if this user may not act as it.
    pub(super) other_owner: Option<String>,
}

impl Partition {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let kind: String = row.try_get(3)?;
        Ok(Self {
            oid: row.try_get(0)?,
            name: TableName { schema: row.try_get(1)?, name: row.try_get(2)? },
            kind: match kind.as_str() {
                "r" => Kind::Table,
                "p" => Kind::Partitioned,
                _ => Kind::Foreign,
            },
            is_default: row.try_get(4)?,
            is_detaching: row.try_get(5)?,
            is_readable: row.try_get(6)?,
            hides_rows: row.try_get(7)?,
            lower: row.try_get(8)?,
            upper: row.try_get(9)?,
            may_delete: row.try_get(10)?,
            other_owner: row.try_get(11)?,
            is_old: row.try_get(12)?,
        })
    }
}

impl PartitionedTable {
    /// Reads what is needed of a table. Rows are old that were written before `before`.
    pub(crate) async fn read(
        client: &Client,
        table: &PrunedTable,
        before: &str,
    ) -> Result<Self, PruneError> {
        let name = &table.name;
        let failed = database(name, "looking at its partitions");
        let row = client.query_opt(PARENT, &[&name.schema, &name.name]).await.map_err(&failed)?;
        let row = row.ok_or_else(|| PruneError::Table {
            table: name.clone(),
            problem: "it was dropped meanwhile".to_owned(),
        })?;
        let oid: u32 = row.try_get(0).map_err(&failed)?;
        let has_periods: bool = row.try_get(1).map_err(&failed)?;
        let (column, kind): (String, u32) =
            (row.try_get(2).map_err(&failed)?, row.try_get(3).map_err(&failed)?);
        let key = has_periods.then(|| TimeKey {
            column: escape_identifier(&column),
            kind: match kind {
                1082 => "pg_catalog.date",
                1114 => "pg_catalog.timestamp",
                _ => "pg_catalog.timestamptz",
            },
            is_without_zone: kind != 1184,
        });
        let upper = if has_periods { "part.upper" } else { "NULL" };
        let upper = format!("{upper}::pg_catalog.timestamptz");
        let sql = PARTITIONS.replace("{LOWER}", LOWER).replace("{UPPER}", UPPER);
        let sql = sql.replace("{upper}", &upper).replace("{before}", before);
        let rows = client.query(&sql, &[&oid]).await.map_err(&failed)?;
        let partitions = rows.iter().map(Partition::of).collect::<Result<Vec<_>, _>>();
        let sql = LEAVES.replace("{xid}", XID);
        let rows = client.query(&sql, &[&oid]).await.map_err(&failed)?;
        let leaves = rows.iter().map(|row| {
            let name = TableName { schema: row.try_get(0)?, name: row.try_get(1)? };
            let (attached, oid): (i64, u32) = (row.try_get(2)?, row.try_get(3)?);
            Ok(table.partition((name, oid), u64::try_from(attached).unwrap_or_default()))
        });
        let is_managed = is_in_partman(client, name).await?;
        Ok(Self {
            manager: match (has_periods, is_managed) {
                (_, true) => Manager::Partman,
                (true, false) => Manager::Walpost,
                (false, false) => Manager::Nobody,
            },
            name: name.clone(),
            partitioned_by: row.try_get(4).map_err(&failed)?,
            partitions: partitions.map_err(&failed)?,
            oid,
            key,
            owner: row.try_get(5).map_err(&failed)?,
            is_owned: row.try_get(6).map_err(&failed)?,
            may_create: row.try_get(7).map_err(&failed)?,
            tablespace: row.try_get(8).map_err(&failed)?,
            may_become_owner: row.try_get(9).map_err(&failed)?,
            leaves: leaves.collect::<Result<_, tokio_postgres::Error>>().map_err(&failed)?,
        })
    }

    /// The tables below it that have rows.
    pub(crate) fn leaves(&self) -> &[PrunedTable] {
        &self.leaves
    }

    /// Whether this user may read the rows of a table below it; of one that is no partition of its own
    /// that is not known.
    pub(crate) fn is_readable(&self, leaf: &PrunedTable) -> bool {
        let mut found = self.partitions.iter().filter(|one| one.name == leaf.name);
        found.all(|one| one.is_readable && !one.hides_rows)
    }

    /// The rows of a partition that is a table.
    pub(crate) fn rows_of(&self, partition: &Partition) -> Option<&PrunedTable> {
        self.leaves.iter().find(|leaf| leaf.name == partition.name)
    }

    /// The default partition.
    pub(crate) fn default(&self) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.is_default)
    }

    /// The rights that making and dropping partitions needs.
    pub(crate) fn require_owner(&self) -> Result<(), PruneError> {
        let Self { name, owner, .. } = self;
        let owner = identifier_in_quotes(owner);
        let default = self.default().filter(|default| default.other_owner.is_some());
        let problem = if !self.is_owned {
            format!(
                "its partitions are made and dropped by its owner: GRANT {owner} TO this user, or \
                 connect as the owner, with --source"
            )
        } else if !self.may_become_owner {
            format!(
                "this user may not give partitions to its owner: GRANT {owner} TO it WITH SET TRUE"
            )
        } else if !self.may_create {
            let schema = identifier_in_quotes(&name.schema);
            format!(
                "this user may not create partitions: GRANT CREATE ON SCHEMA {schema} TO {owner}"
            )
        } else if let Some(default) = default {
            let default = &default.name;
            format!(
                "its default partition has another owner: ALTER TABLE {default} OWNER TO {owner}"
            )
        } else {
            return Ok(());
        };
        Err(PruneError::Table { table: name.clone(), problem })
    }

    /// The rights that deleting the rows of these partitions needs.
    pub(crate) fn require_rows<'a>(
        partitions: impl IntoIterator<Item = &'a Partition>,
    ) -> Result<(), PruneError> {
        let mut wanted = partitions.into_iter().filter(|one| one.kind == Kind::Table);
        let bad = wanted.find(|one| !one.is_readable || !one.may_delete || one.hides_rows);
        bad.map_or(Ok(()), |partition| {
            let name = &partition.name;
            let problem = if partition.hides_rows {
                "row-level security can hide its rows from this user: connect as its owner, or as a \
                 role with BYPASSRLS"
                    .to_owned()
            } else {
                format!(
                    "this user may not read, lock and delete its rows: GRANT SELECT, DELETE, UPDATE (COLUMN) \
                     ON {name} TO it, with any column"
                )
            };
            Err(PruneError::Table { table: name.clone(), problem })
        })
    }

    /// Fails if the archive is one of its partitions.
    pub(crate) async fn require_other(
        &self,
        client: &Client,
        archive: &TableName,
    ) -> Result<(), PruneError> {
        let failed = database(&self.name, "looking at the archive");
        let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_partition_tree($1::pg_catalog.oid::pg_catalog.regclass)
                                   WHERE relid = pg_catalog.to_regclass($2))";
        let row = client.query_one(sql, &[&self.oid, &archive.regclass_text()]).await;
        let is_within: bool = row.and_then(|row| row.try_get(0)).map_err(failed)?;
        if !is_within {
            return Ok(());
        }
        Err(PruneError::Table {
            table: archive.clone(),
            problem: format!("a partition of {} cannot be the archive", self.name),
        })
    }

    /// The rows of the default partition, with the times of the first and the last one; not if it is
    /// locked.
    pub(crate) async fn default_rows(
        &self,
        client: &Client,
    ) -> Result<Option<(i64, String, String)>, PruneError> {
        let (Some(partition), Some(key)) = (self.default(), &self.key) else { return Ok(None) };
        if !partition.is_readable {
            return Ok(None);
        }
        let failed = database(&partition.name, "counting its rows");
        let TimeKey { column, .. } = key;
        let sql = format!(
            "SELECT pg_catalog.count(*), pg_catalog.min(o.{column})::pg_catalog.text,
                    pg_catalog.max(o.{column})::pg_catalog.text FROM {} AS o",
            partition.name
        );
        let row = match client.query_one(&sql, &[]).await.map_err(&failed) {
            Err(error) if error.is_locked() => return Ok(None),
            row => row?,
        };
        let read = (row.try_get(0), row.try_get(1), row.try_get(2));
        let (rows, first, last): (i64, Option<String>, Option<String>) =
            (read.0.map_err(&failed)?, read.1.map_err(&failed)?, read.2.map_err(&failed)?);
        Ok((rows > 0).then(|| {
            let unknown = || "NULL".to_owned();
            (rows, first.unwrap_or_else(unknown), last.unwrap_or_else(unknown))
        }))
    }
}

/// Whether `pg_partman` takes care of the table.
async fn is_in_partman(client: &Client, name: &TableName) -> Result<bool, PruneError> {
    let failed = database(name, "looking at the configuration of pg_partman");
    let Some(row) = client.query_opt(PARTMAN, &[]).await.map_err(&failed)? else {
        return Ok(false);
    };
    let (schema, is_readable): (String, bool) =
        (row.try_get(0).map_err(&failed)?, row.try_get(1).map_err(&failed)?);
    let schema = identifier_in_quotes(&schema);
    if !is_readable {
        return Err(PruneError::Table {
            table: name.clone(),
            problem: format!(
                "the extension pg_partman may take care of its partitions, which this user cannot see: \
                 GRANT USAGE ON SCHEMA {schema} TO it, and GRANT SELECT ON {schema}.part_config TO it"
            ),
        });
    }
    let plain = escape_literal(&format!("{}.{}", name.schema, name.name));
    let quoted = escape_literal(&name.regclass_text());
    let sql = format!(
        "SELECT EXISTS (SELECT FROM {schema}.part_config WHERE parent_table IN ({plain}, {quoted}))"
    );
    let row = client.query_one(&sql, &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(failed)
}
