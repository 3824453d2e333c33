//! A table whose rows are to be deleted, and the SQL that tells which ones.

use std::time::Duration;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::error::{PruneError, database};
use super::proof::Proof;
use crate::outbox::{ColumnNames, Role, TableName, identifier_in_quotes};
use crate::source::{
    COLUMN_TYPE, OwnersCode, RowEvents, TIME_COLUMN, in_text_form, in_utc, row_filter,
};

const TABLE: &str = "
    SELECT c.oid, c.relkind::pg_catalog.text,
           pg_catalog.has_table_privilege(c.oid, 'SELECT'),
           pg_catalog.has_table_privilege(c.oid, 'DELETE')
           AND pg_catalog.has_any_column_privilege(c.oid, 'UPDATE'),
           pg_catalog.row_security_active(c.oid),
           pg_catalog.current_setting('server_version_num')::pg_catalog.int4,
           pg_catalog.pg_partition_root(c.oid::pg_catalog.regclass)::pg_catalog.oid,
           pg_catalog.has_schema_privilege(n.oid, 'USAGE')
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2";

/// Columns: whether they have times, with or without a zone, whether their types are built in, and whether
/// each value has one text: an integer, a uuid or a text; also as domains.
const COLUMNS: &str = "
    SELECT a.attname::pg_catalog.text, coalesce(type.oid IN (1114, 1184), false),
           coalesce(type.oid = 1114, false), type.is_built_in,
           coalesce(type.oid IN (20, 21, 23, 25, 1042, 1043, 2950), false)
      FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
     CROSS JOIN {TYPE} AS type (oid, is_built_in, stranger)
     WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

/// A time after all others, in milliseconds since 1970: in the year 5138.
const FOR_EVER_MS: u64 = 100_000_000_000_000;

/// The maximum by which local times may differ from UTC, in milliseconds.
const ZONES_MS: u64 = 15 * 3_600_000;

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrunedTable {
    /// The table's name.
    pub(crate) name: TableName,
    pub(super) oid: u32,
    /// The uppermost table that it is a partition of; itself, if it has partitions.
    pub(super) root: Option<u32>,
    pub(super) columns: Vec<String>,
    /// The columns whose types are not built in.
    foreign: Vec<String>,
    /// The time at which a row was written, with its zone.
    written: String,
    /// Whether that is without a zone: local times seem to be later than they are, or earlier.
    is_without_zone: bool,
    /// The columns in which each value has one text.
    plain: Vec<String>,
    /// What the publication sends.
    filter: String,
    /// Whether its rows are in partitions.
    pub(crate) is_partitioned: bool,
    /// The transaction that attached it to the table that is published; 0: it is that table.
    attached: u64,
}

/// How long the search for the oldest row may take.
const OLDEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The oldest row that is left in a table, by its time in PostgreSQL's notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Oldest {
    /// No row has a time.
    None,
    /// The row's time.
    At(String),
    /// The search took too long: there is no index on the time.
    Unknown,
    /// Other sessions have the table locked.
    Locked,
}

/// The rows of a table, by what becomes of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The time of the oldest row, in PostgreSQL's notation.
    pub(crate) oldest: Option<String>,
    /// Delivered, and old enough: to be deleted.
    pub(crate) deletable: u64,
    /// Not old enough, or without a time.
    pub(crate) young: u64,
    /// Old enough, and not proved to be delivered.
    pub(crate) undelivered: u64,
    /// Old enough, and from before the slot.
    pub(crate) before_slot: u64,
    /// The publication does not send them.
    pub(crate) unpublished: u64,
    /// Old enough, and of skipped events.
    pub(crate) skipped: u64,
}

impl std::ops::AddAssign for Counted {
    fn add_assign(&mut self, other: Self) {
        let Self { oldest, deletable, young, undelivered, before_slot, unpublished, skipped } =
            other;
        // All are written in one format, and zone.
        self.oldest = self.oldest.take().into_iter().chain(oldest).min();
        self.deletable += deletable;
        self.young += young;
        self.undelivered += undelivered;
        self.before_slot += before_slot;
        self.unpublished += unpublished;
        self.skipped += skipped;
    }
}

impl PrunedTable {
    /// Reads what is needed of a table. `time_column`: that of the rows' times; `None`: as configured.
    pub(crate) async fn read(
        client: &Client,
        name: &TableName,
        publication: &str,
        (names, time_column): (&ColumnNames, Option<&str>),
    ) -> Result<Self, PruneError> {
        let failed = database(name, "looking at the table");
        let problem = |problem: String| PruneError::Table { table: name.clone(), problem };
        let row = client.query_opt(TABLE, &[&name.schema, &name.name]).await.map_err(&failed)?;
        let row = row.ok_or_else(|| problem("it does not exist".to_owned()))?;
        let oid: u32 = row.try_get(0).map_err(&failed)?;
        let kind: String = row.try_get(1).map_err(&failed)?;
        let (reads, deletes, hides): (bool, bool, bool) = (
            row.try_get(2).map_err(&failed)?,
            row.try_get(3).map_err(&failed)?,
            row.try_get(4).map_err(&failed)?,
        );
        let version: i32 = row.try_get(5).map_err(&failed)?;
        let is_partitioned = kind == "p";
        if !row.try_get::<_, bool>(7).map_err(&failed)? {
            let schema = identifier_in_quotes(&name.schema);
            return Err(problem(format!(
                "this user may not use its schema: GRANT USAGE ON SCHEMA {schema} TO it"
            )));
        }
        // Its partitions have rights and policies of their own.
        if !reads || !deletes && !is_partitioned {
            return Err(problem(format!(
                "this user may not read, lock and delete rows: GRANT SELECT, DELETE, UPDATE (COLUMN) ON \
                 {name} TO it, with any column, since PostgreSQL requires UPDATE of one to lock rows; or \
                 connect as the table's owner, with --source"
            )));
        }
        if hides && !is_partitioned {
            return Err(problem(
                "row-level security can hide rows from this user: connect as a role with BYPASSRLS, or as \
                 the table's owner unless it is forced"
                    .to_owned(),
            ));
        }
        let rows = client.query(&COLUMNS.replace("{TYPE}", COLUMN_TYPE), &[&oid]).await;
        let rows = rows.map_err(&failed)?;
        let rows = rows.iter().map(|row| {
            let is_time = (row.try_get(1)?, row.try_get(2)?);
            Ok((row.try_get(0)?, is_time, row.try_get(3)?, row.try_get(4)?))
        });
        let columns: Vec<(String, (bool, bool), bool, bool)> =
            rows.collect::<Result<_, tokio_postgres::Error>>().map_err(&failed)?;
        let plain = columns.iter().filter(|(.., is_plain)| *is_plain);
        let plain = plain.map(|(column, ..)| column.clone()).collect();
        let foreign = columns.iter().filter(|(_, _, is_built_in, _)| !is_built_in);
        let foreign = foreign.map(|(column, ..)| column.clone()).collect();
        let time = |wanted: &str| {
            let found =
                columns.iter().find(|(column, (is_time, _), ..)| column == wanted && *is_time);
            found.map(|(column, (_, is_without_zone), ..)| {
                (in_utc(column, *is_without_zone), *is_without_zone)
            })
        };
        let written = match time_column {
            Some(wanted) => time(wanted),
            None => names.looked_for(Role::Timestamp).find_map(time).or_else(|| time(TIME_COLUMN)),
        };
        let (written, is_without_zone) = written.ok_or_else(|| {
            let wanted = time_column.unwrap_or(TIME_COLUMN);
            problem(format!("it has no column {wanted} with a time: name one with --time-column"))
        })?;
        let filter = row_filter(client, version, publication, name).await.map_err(&failed)?;
        let filter =
            filter.ok_or_else(|| problem(format!("publication {publication} lacks it")))?;
        Ok(Self {
            name: name.clone(),
            oid,
            root: row.try_get(6).map_err(&failed)?,
            columns: columns.into_iter().map(|(column, ..)| column).collect(),
            foreign,
            written,
            is_without_zone,
            plain,
            filter: filter.unwrap_or_else(|| "true".to_owned()),
            is_partitioned,
            attached: 0,
        })
    }

    /// Code that runs with the rights of this superuser when rows are deleted, or moved to the archive,
    /// a line each.
    pub(crate) async fn warnings(
        &self,
        client: &Client,
        archive: Option<&TableName>,
    ) -> Result<Vec<String>, PruneError> {
        let mut lines = Vec::new();
        let deleted = Some((&self.name, RowEvents::Delete));
        for (name, events) in
            deleted.into_iter().chain(archive.map(|name| (name, RowEvents::Insert)))
        {
            let code = OwnersCode::read(client, name, events).await;
            let code = code.map_err(database(name, "looking for triggers"))?;
            if let Some(warning) = code.warning {
                lines.extend(code.triggers.into_iter().chain([warning]));
            }
        }
        Ok(lines)
    }

    /// A partition of it, which that transaction attached.
    pub(super) fn partition(&self, (name, oid): (TableName, u32), attached: u64) -> Self {
        Self { name, oid, is_partitioned: false, attached, ..self.clone() }
    }

    /// A row `o` in JSON. Its values of type `json` may have line breaks, which can only be between tokens.
    ///
    /// Values of types that are not built in are their texts: `row_to_json` would call a cast of the
    /// type's owner.
    pub(super) fn json(&self) -> String {
        let value = |column: &String| {
            let name = escape_identifier(column);
            let value = format!("o.{name}");
            let is_foreign = self.foreign.contains(column);
            format!("{} AS {name}", if is_foreign { in_text_form(&value) } else { value })
        };
        let values: Vec<_> = self.columns.iter().map(value).collect();
        let values = values.join(", ");
        format!("pg_catalog.row_to_json((SELECT r FROM (SELECT {values}) AS r))::pg_catalog.text")
    }

    /// The condition that a row `o` is to be deleted.
    pub(super) fn is_deletable(&self, proof: &Proof, before: &str) -> String {
        let Self { filter, oid, .. } = self;
        let (is_old, is_delivered, is_from_before, is_skipped) = (
            self.is_old(before),
            proof.is_delivered(),
            self.is_from_before(proof),
            self.is_skipped(proof),
        );
        // Never a row of another table that has got the name.
        format!(
            "o.tableoid = {oid} AND ({filter}) AND {is_old} AND {is_delivered} AND NOT {is_from_before} \
             AND NOT {is_skipped}"
        )
    }

    /// Whether that table is this one, or may be a partition of it, or have it as one.
    fn may_be(&self, table: &str, column: &str) -> bool {
        self.name.to_string() == table
            || self.root.is_some() && self.columns.iter().any(|one| one == column)
    }

    /// That a row `o` is of a skipped event.
    fn is_skipped(&self, proof: &Proof) -> String {
        let kept = proof.kept.iter().filter(|((table, column), _)| self.may_be(table, column));
        let any = kept.map(|((_, column), ids)| {
            let ids: Vec<_> = ids.iter().map(|id| escape_literal(id)).collect();
            let ids = ids.join(", ");
            let text = in_text_form(&format!("o.{}", escape_identifier(column)));
            format!("coalesce(({text}) = ANY (ARRAY[{ids}]::pg_catalog.text[]), false)")
        });
        format!("({})", any.chain(["false".to_owned()]).collect::<Vec<_>>().join(" OR "))
    }

    /// Fails if rows are to be kept that cannot be distinguished from others.
    pub(crate) fn require_ids(&self, proof: &Proof, slot: &str) -> Result<(), PruneError> {
        let mut kept = proof.kept.keys().filter(|(table, column)| self.may_be(table, column));
        if kept.all(|(_, column)| self.plain.contains(column)) {
            return Ok(());
        }
        Err(PruneError::Skips(slot.to_owned()))
    }

    fn is_old(&self, before: &str) -> String {
        format!("coalesce({} < '{before}'::pg_catalog.timestamptz, false)", self.written)
    }

    /// An update gives a row the id of its own transaction, and leaves its time as it is.
    fn is_from_before(&self, Proof { from, from_ms, before_slot_too, .. }: &Proof) -> String {
        let Self { written, is_without_zone, attached, .. } = self;
        if *before_slot_too || *from == 0 && *attached == 0 {
            return "false".to_owned();
        }
        // All rows of the table were published, and those of an attached one were not.
        if *from == 0 {
            return format!("(({XID}) <= {attached})");
        }
        // Without a known time everything is from before.
        let until_ms = match from_ms {
            0 => FOR_EVER_MS,
            ms if *is_without_zone => ms + ZONES_MS,
            ms => *ms,
        };
        format!(
            "(({XID}) < {from} OR ({XID}) <= {attached}
              OR coalesce({written} < pg_catalog.to_timestamp({until_ms} / 1000.0), true))"
        )
    }

    /// The error for a table that is no longer what it was.
    pub(super) fn changed(&self, how: &str) -> PruneError {
        PruneError::Changed {
            table: self.name.clone(),
            problem: format!("it was {how} meanwhile: nothing more was deleted. Run this again"),
        }
    }

    /// The error for a table whose name no longer means it.
    pub(super) fn replaced(&self) -> PruneError {
        self.changed("dropped, renamed or replaced by another table")
    }

    /// Fails if its name no longer means it.
    pub(super) async fn require_same(&self, client: &Client) -> Result<(), PruneError> {
        let failed = database(&self.name, "looking at the table");
        let sql = "SELECT coalesce(pg_catalog.to_regclass($1)::pg_catalog.oid = $2, false)";
        let row = client.query_one(sql, &[&self.name.regclass_text(), &self.oid]).await;
        let is_same: bool = row.and_then(|row| row.try_get(0)).map_err(failed)?;
        if is_same { Ok(()) } else { Err(self.replaced()) }
    }

    /// How many rows there are of each kind.
    pub(crate) async fn count(
        &self,
        client: &Client,
        proof: &Proof,
        before: &str,
    ) -> Result<Counted, PruneError> {
        let oldest = format!("pg_catalog.min({})", self.written);
        self.count_with(client, proof, before, ("true", &oldest)).await
    }

    /// How many rows there are of each kind, of those that this condition on the row `o` chooses; not
    /// which is the oldest.
    pub(super) async fn count_if(
        &self,
        client: &Client,
        proof: &Proof,
        before: &str,
        condition: &str,
    ) -> Result<Counted, PruneError> {
        self.count_with(client, proof, before, (condition, "NULL::pg_catalog.timestamptz")).await
    }

    async fn count_with(
        &self,
        client: &Client,
        proof: &Proof,
        before: &str,
        (condition, oldest): (&str, &str),
    ) -> Result<Counted, PruneError> {
        let failed = database(&self.name, "counting the rows");
        let Self { name, filter, oid, .. } = self;
        let (is_old, is_delivered, is_from_before, is_skipped) = (
            self.is_old(before),
            proof.is_delivered(),
            self.is_from_before(proof),
            self.is_skipped(proof),
        );
        let sql = format!(
            "WITH counted AS (
                 SELECT CASE WHEN o.tableoid <> {oid} THEN 2 WHEN NOT coalesce(({filter}), false) THEN 4 WHEN NOT {is_old} THEN 1
                             WHEN {is_from_before} THEN 3 WHEN {is_skipped} THEN 5 WHEN {is_delivered} THEN 0 ELSE 2 END AS kind,
                        pg_catalog.count(*) AS rows, {oldest} AS oldest
                   FROM ONLY {name} AS o WHERE {condition} GROUP BY 1)
             SELECT kind, rows, (SELECT pg_catalog.min(oldest) FROM counted)::pg_catalog.text
               FROM counted"
        );
        let (mut counts, mut oldest) = ([0; 6], None::<String>);
        for row in client.query(&sql, &[]).await.map_err(&failed)? {
            let (kind, rows): (i32, i64) =
                (row.try_get(0).map_err(&failed)?, row.try_get(1).map_err(&failed)?);
            if let Some(count) = usize::try_from(kind).ok().and_then(|kind| counts.get_mut(kind)) {
                *count = u64::try_from(rows).unwrap_or_default();
            }
            oldest = row.try_get(2).map_err(&failed)?;
        }
        let [deletable, young, undelivered, before_slot, unpublished, skipped] = counts;
        Ok(Counted { oldest, deletable, young, undelivered, before_slot, unpublished, skipped })
    }

    /// The oldest row. An index on the time makes that quick.
    pub(crate) async fn oldest(&self, client: &Client) -> Result<Oldest, PruneError> {
        let failed = database(&self.name, "looking for the oldest row");
        let Self { name, written, .. } = self;
        let limit = |ms: u128| format!("SET statement_timeout = {ms}");
        client.batch_execute(&limit(OLDEST_TIMEOUT.as_millis())).await.map_err(&failed)?;
        let sql =
            format!("SELECT pg_catalog.min({written})::pg_catalog.text FROM ONLY {name} AS o");
        let found = client.query_one(&sql, &[]).await;
        client.batch_execute(&limit(0)).await.map_err(&failed)?;
        match found.and_then(|row| row.try_get::<_, Option<String>>(0)) {
            Ok(found) => Ok(found.map_or(Oldest::None, Oldest::At)),
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => Ok(Oldest::Unknown),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(Oldest::Locked),
            Err(error) => Err(failed(error)),
        }
    }
}

/// The id of the transaction that has written the row `o`, with 64 bits: the row has the lower 32, and
/// the others are those of the highest id below the end of the statement's snapshot, before which every
/// visible row was written. Ids below 3 are of rows that an old release has frozen
/// (<https://www.postgresql.org/docs/current/routine-vacuuming.html#VACUUM-FOR-WRAPAROUND>).
///
/// A row that is older than four thousand million transactions is taken for a younger one: it is told
/// by its time, if it is from before the slot.
pub(super) const XID: &str = "
    CASE WHEN o.xmin::pg_catalog.text::pg_catalog.int8 < 3 THEN 0 ELSE
        (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())
                ::pg_catalog.text::pg_catalog.int8)
        - (((SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())
                    ::pg_catalog.text::pg_catalog.int8)
            - o.xmin::pg_catalog.text::pg_catalog.int8) & 4294967295) END";

impl Proof {
    fn is_delivered(&self) -> String {
        format!("({XID}) < {}", self.below)
    }
}

/// Columns as SQL writes them.
pub(super) fn listed(columns: &[String], of: &str) -> String {
    let quoted = columns.iter().map(|column| format!("{of}{}", escape_identifier(column)));
    quoted.collect::<Vec<_>>().join(", ")
}
