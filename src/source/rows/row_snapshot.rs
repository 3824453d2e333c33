//! The rows of the outbox tables in one snapshot, read in the text form of the output plugin.

mod slot_reader;

use std::sync::Arc;
use std::time::Duration;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio::time::{Instant, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, SimpleQueryMessage};

use crate::conninfo::ConnInfo;
use crate::lsn::Lsn;
use crate::outbox::{ColumnNames, FoundTable, Role, TableName};
use crate::pgoutput::Tuple;
use crate::source::catalog::CatalogState;
use crate::source::catalog::membership::row_filter;
use crate::source::catalog::unsent_parts::{PartKind, UnsentPart, require_none};
use crate::source::connection::connect::{self, Control, SqlClient};
use crate::source::connection::instance::Instance;
use crate::source::error::said;
use crate::source::identity::publication_guard::Catalogs;
use crate::source::identity::timeline::Timelines;
use crate::source::open::session_setup::{server_history, session_settings};
use crate::source::rows::row_conditions::{from_xid, in_text_form, in_utc, is_not_one_of};
use crate::source::{PublicationFingerprint, Security, ServerIdentity, SourceConfig, SourceError};

/// Rows that are fetched together, and bytes of them: the first ones show how large rows are.
const FETCHED: usize = 1_000;
const FETCHED_FIRST: usize = 1;
const FETCHED_BYTES: usize = 4 << 20;

/// How long the WAL before the snapshot may take to be flushed. The WAL writer does that several
/// times a second.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// After that time a commit of walpost's own flushes it.
const FLUSH_PAUSE: Duration = Duration::from_millis(300);

/// The column with the time at which a row was written, unless configured.
pub(crate) const TIME_COLUMN: &str = "created_at";

/// Bytes of a WAL page, and of the longest header of one: the insert position may lie behind a
/// header that is not written yet.
const PAGE: u64 = 8192;
const PAGE_HEADER: u64 = 40;

/// `int8`, `int2`, `int4` and `numeric`.
const NUMBERS: [u32; 4] = [20, 21, 23, 1700];

/// How a table is read.
const TABLE: &str = "
    SELECT c.relkind = 'p', pg_catalog.row_security_active(c.oid),
           pg_catalog.has_table_privilege(c.oid, 'SELECT')
      FROM pg_catalog.pg_class c WHERE c.oid = $1";

/// The role whose rights count, quoted.
const ROLE: &str = "SELECT pg_catalog.quote_ident(CURRENT_USER)";

/// The columns: whether they have times, with or without a zone, and may be NULL.
const COLUMNS: &str = "
    SELECT attname::pg_catalog.text, atttypid IN (1114, 1184), atttypid = 1114, attnotnull
      FROM pg_catalog.pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped";

/// Which rows are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowBound {
    /// All.
    All,
    /// Rows that were written, or updated, by transactions with this id or a higher one; and those
    /// with a time of `since_ms` (milliseconds since 1970) or later: a server that was restored
    /// assigns transaction ids again.
    FromXid {
        /// The lowest id.
        xid: u64,
        /// When all transactions with lower ids had ended.
        since_ms: u64,
    },
    /// Rows that were written at this time or later, in PostgreSQL's notation, or have no time.
    Since(String),
}

/// Which rows are read, and in which order.
#[derive(Debug, Clone)]
pub(crate) struct RowChoice {
    /// Which ones.
    pub(crate) bound: RowBound,
    /// The column with the time at which a row was written; `None`: as configured.
    pub(crate) time_column: Option<String>,
    /// The column by which the rows are ordered; `None`: by time.
    pub(crate) order_by: Option<String>,
}

/// A row.
#[derive(Debug, Clone)]
pub(crate) struct ScannedRow {
    /// The columns that the publication sends.
    pub(crate) tuple: Tuple,
    /// When it was written, in milliseconds since 1970, if the table tells.
    pub(crate) written_ms: Option<i64>,
}

/// The SQL of a table's rows.
#[derive(Debug, Clone)]
struct Scan {
    name: TableName,
    /// The expressions that are selected: texts alone, so that a column may have any type.
    columns: String,
    /// `FROM … WHERE …` of all rows.
    from: String,
    /// The condition for those that are chosen.
    bound: String,
    /// The id.
    id: String,
    order: String,
    /// Whether the column of the ids is never NULL.
    has_ids: bool,
    /// Whether the table tells when each row was written.
    has_times: bool,
}

/// A column of a table.
struct TableColumn {
    name: String,
    is_time: bool,
    is_without_zone: bool,
    /// Whether the column is never NULL.
    is_set: bool,
}

impl TableColumn {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            name: row.try_get(0)?,
            is_time: row.try_get(1)?,
            is_without_zone: row.try_get(2)?,
            is_set: row.try_get(3)?,
        })
    }
}

/// A session with a snapshot.
pub(crate) struct RowSnapshot {
    client: Arc<SqlClient>,
    control: Control,
    /// The server.
    pub(crate) identity: ServerIdentity,
    /// The publication.
    pub(crate) fingerprint: PublicationFingerprint,
    /// The tables, with the columns that the publication sends.
    pub(crate) tables: Vec<FoundTable>,
    /// Tables with rows of theirs that PostgreSQL does not send, for each of them.
    unsent: Vec<Vec<UnsentPart>>,
    /// No transaction with this id or a higher one is visible.
    pub(crate) xmax: u64,
    /// The server's time when it was taken, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Everything that is visible has committed before this LSN, and is flushed.
    pub(crate) end: Lsn,
    timelines: Timelines,
    database_oid: u32,
    /// `server_version_num`.
    version: i32,
    scans: Vec<Scan>,
}

impl RowSnapshot {
    /// Opens a session with a snapshot of now.
    pub(crate) async fn open(
        config: &SourceConfig,
        conninfo: &ConnInfo,
        application_name: &str,
    ) -> Result<Self, SourceError> {
        let control = connect::control(conninfo, application_name).await?;
        let (system_identifier, timeline, timelines) =
            server_history(conninfo, &control, application_name).await?;
        let client = Arc::clone(&control.client);
        let facts = CatalogState::read(&client, &config.slot).await?;
        facts.require_version()?;
        if facts.in_recovery {
            return Err(SourceError::Setup(
                "this server is a standby: connect to the primary".to_owned(),
            ));
        }
        let postmaster_start = Instance::of(&client).await?.postmaster_start;
        let identity = ServerIdentity { system_identifier, timeline, postmaster_start };
        let (catalogs, check) =
            Catalogs::checked(Arc::clone(&client), facts.version, config).await?;
        let (tables, unsent) = catalogs.found_tables().await?.into_iter().unzip();
        let mut snapshot = Self {
            client,
            control,
            identity,
            fingerprint: check.fingerprint,
            tables,
            unsent,
            xmax: 0,
            at_ms: 0,
            end: Lsn::ZERO,
            timelines,
            database_oid: facts.database_oid,
            version: facts.version,
            scans: Vec::new(),
        };
        let settings = session_settings(conninfo, facts.version);
        snapshot.begin(&settings).await?;
        snapshot.wait_for_flush(conninfo, application_name).await?;
        Ok(snapshot)
    }

    async fn begin(&mut self, settings: &str) -> Result<(), SourceError> {
        let failed = |error| SourceError::query("taking a snapshot", &error);
        let begin = format!(
            "{settings}; SET idle_in_transaction_session_timeout = 0; SET cursor_tuple_fraction = 1;
             BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        );
        self.client.batch_execute(&begin).await.map_err(failed)?;
        // The snapshot is that of the query, so it is older than the position.
        let sql =
            "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text,
                          pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text,
                          (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::pg_catalog.int8";
        let row = self.client.query_one(sql, &[]).await.map_err(failed)?;
        let (xmax, end): (String, String) =
            (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        let unreadable = || SourceError::Lost("the snapshot cannot be read".to_owned());
        self.xmax = xmax.parse().map_err(|_| unreadable())?;
        let at_ms: i64 = row.try_get(2).map_err(failed)?;
        self.at_ms = u64::try_from(at_ms).unwrap_or_default();
        self.end = end.parse().map_err(|_| unreadable())?;
        Ok(())
    }

    /// A transaction that commits asynchronously is visible before its commit is flushed, and the
    /// server decodes only what is flushed. Other WAL, such as that of pages which were pruned by
    /// reading them, can stay unflushed for long on an idle server: then a commit flushes it.
    async fn wait_for_flush(
        &self,
        conninfo: &ConnInfo,
        application_name: &str,
    ) -> Result<(), SourceError> {
        let failed = |error| SourceError::query("reading the end of WAL", &error);
        let wanted = self.end.as_u64();
        let wanted = if wanted % PAGE <= PAGE_HEADER { wanted - wanted % PAGE } else { wanted };
        let began = Instant::now();
        let mut has_flushed = false;
        loop {
            let sql = "SELECT pg_catalog.pg_current_wal_flush_lsn()::pg_catalog.text";
            let row = self.client.query_one(sql, &[]).await.map_err(failed)?;
            let text: String = row.try_get(0).map_err(failed)?;
            if text.parse::<Lsn>().is_ok_and(|flushed| flushed.as_u64() >= wanted) {
                return Ok(());
            }
            if began.elapsed() >= FLUSH_PAUSE && !has_flushed {
                has_flushed = true;
                flush(conninfo, application_name).await?;
            }
            if began.elapsed() >= FLUSH_LIMIT {
                let end = self.end;
                return Err(SourceError::Lost(format!(
                    "PostgreSQL has flushed its WAL only up to {text}, and the snapshot has rows up to {end}"
                )));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether all tables tell when each row was written. To be called after the choice.
    pub(crate) fn has_times(&self) -> bool {
        self.scans.iter().all(|scan| scan.has_times)
    }

    /// A table that has a row without an id, if there is one.
    pub(crate) async fn table_without_ids(&self) -> Result<Option<TableName>, SourceError> {
        for Scan { name, from, id, .. } in self.scans.iter().filter(|scan| !scan.has_ids) {
            let looking = |error| SourceError::query("looking for rows without an id", &error);
            let sql = format!("SELECT EXISTS (SELECT {from} AND {id} IS NULL)");
            let row = self.client.query_one(&sql, &[]).await.map_err(looking)?;
            if row.try_get(0).map_err(looking)? {
                return Ok(Some(name.clone()));
            }
        }
        Ok(None)
    }

    /// The end of that timeline in the server's history.
    pub(crate) fn end_of_timeline(&self, timeline: u32) -> Option<Lsn> {
        self.timelines.end_of(timeline)
    }

    /// The server's name or address.
    pub(crate) fn host(&self) -> String {
        self.control.endpoint.host.to_string()
    }

    /// How the connection is secured.
    pub(crate) fn security(&self) -> Security {
        self.control.security
    }

    /// The oid of the database.
    pub(crate) fn database_oid(&self) -> u32 {
        self.database_oid
    }

    /// Chooses the rows. To be called before any of the following.
    pub(crate) async fn choose(
        &mut self,
        publication: &str,
        names: &ColumnNames,
        choice: &RowChoice,
    ) -> Result<(), SourceError> {
        if let RowBound::Since(time) = &choice.bound {
            self.require_time(time).await?;
        }
        let mut scans = Vec::with_capacity(self.tables.len());
        for (table, unsent) in self.tables.iter().zip(&self.unsent) {
            scans.push(self.scan((table, unsent), publication, names, choice).await?);
        }
        self.scans = scans;
        Ok(())
    }

    async fn require_time(&self, time: &str) -> Result<(), SourceError> {
        let sql = format!("SELECT {}::pg_catalog.timestamptz", escape_literal(time));
        match self.client.simple_query(&sql).await {
            Ok(_) => Ok(()),
            Err(error) if error.as_db_error().is_some() => Err(SourceError::Setup(format!(
                "--since {time:?} is no time: {}; for instance 2026-01-31 18:00+00",
                said(&error)
            ))),
            Err(error) => Err(SourceError::query("reading --since", &error)),
        }
    }

    async fn scan(
        &self,
        (table, unsent): (&FoundTable, &[UnsentPart]),
        publication: &str,
        names: &ColumnNames,
        choice: &RowChoice,
    ) -> Result<Scan, SourceError> {
        let name = TableName::from(&table.relation);
        let failed = |error| SourceError::query("looking at the outbox table", &error);
        let oid = table.relation.oid;
        let row = self.client.query_one(TABLE, &[&oid]).await.map_err(failed)?;
        let fact = |index| row.try_get::<_, bool>(index).map_err(failed);
        if fact(1)? {
            return Err(SourceError::Setup(format!(
                "row-level security can hide rows of {name} from this user: connect as a role with \
                 BYPASSRLS, or as the table's owner unless it is forced"
            )));
        }
        if !fact(2)? {
            let role = self.client.query_one(ROLE, &[]).await.map_err(failed)?;
            let role: String = role.try_get(0).map_err(failed)?;
            return Err(SourceError::Setup(format!(
                "{role} may not read {name}: GRANT SELECT ON {name} TO {role}, or connect as the table's \
                 owner, with --source"
            )));
        }
        // The rows of other outbox tables that inherit from it are their own.
        let children = unsent.iter().filter(|part| part.kind == PartKind::Child);
        let children: Vec<_> = children.map(|part| part.oid.to_string()).collect();
        let (only, stored) = match (fact(0)?, children.as_slice()) {
            (true, _) => ("", String::new()),
            (false, []) => ("ONLY ", String::new()),
            (false, children) => {
                ("", format!("o.tableoid IN ({oid}, {}) AND ", children.join(", ")))
            }
        };
        let rows = self.client.query(COLUMNS, &[&oid]).await.map_err(failed)?;
        let columns = rows.iter().map(TableColumn::of).collect::<Result<Vec<_>, _>>();
        let columns = columns.map_err(failed)?;
        let missing = |what: &str| SourceError::Setup(format!("table {name} has no column {what}"));
        let has = |wanted: &str| columns.iter().any(|column| column.name == wanted);
        let id = names.looked_for(Role::Id).find(|id| has(id));
        let id = id.ok_or_else(|| missing("for the events' ids (outbox.columns.id)"))?;
        let has_ids = columns.iter().any(|column| column.name == id && column.is_set);
        let kind = table.relation.columns.iter().find(|column| column.name == id);
        let is_number = kind.is_some_and(|column| NUMBERS.contains(&column.type_oid));
        let id = format!("o.{}", escape_identifier(id));
        let time =
            |wanted: &str| columns.iter().find(|column| column.name == wanted && column.is_time);
        let time_column = match choice.time_column.as_deref() {
            Some(wanted) => {
                let no_time = || missing(&format!("{wanted} with a time (--time-column)"));
                Some(time(wanted).ok_or_else(no_time)?)
            }
            None => names.looked_for(Role::Timestamp).find_map(time).or_else(|| time(TIME_COLUMN)),
        };
        let has_times = time_column.is_some_and(|column| column.is_set);
        let written = time_column.map(|column| in_utc(&column.name, column.is_without_zone));
        let order = match choice.order_by.as_deref() {
            Some(wanted) if !has(wanted) => {
                return Err(missing(&format!("{wanted} (--order-by)")));
            }
            Some(wanted) => Some(format!("o.{}", escape_identifier(wanted))),
            None => written.clone(),
        };
        // Rows with the same time mostly lie in the order in which they were inserted; numbers tell.
        let place = "o.tableoid, o.ctid".to_owned();
        let last = if is_number { [id.clone(), place] } else { [place, id.clone()] };
        let order = order.into_iter().chain(last).collect::<Vec<_>>().join(", ");
        let bound = match (&choice.bound, &written) {
            (RowBound::All, _) => "true".to_owned(),
            (RowBound::FromXid { xid, .. }, None) => from_xid(*xid, self.xmax),
            (RowBound::FromXid { xid, since_ms }, Some(written)) => {
                let xids = from_xid(*xid, self.xmax);
                let seconds = since_ms / 1000;
                format!("({xids} OR {written} >= pg_catalog.to_timestamp({seconds}))")
            }
            (RowBound::Since(time), Some(written)) => {
                let time = escape_literal(time);
                format!("({written} IS NULL OR {written} >= {time}::pg_catalog.timestamptz)")
            }
            (RowBound::Since(_), None) => {
                return Err(missing("created_at with a time: name one with --time-column"));
            }
        };
        let filter = row_filter(&self.client, self.version, publication, &name).await;
        let filter = filter.map_err(failed)?.flatten().unwrap_or_else(|| "true".to_owned());
        let ms = written.map_or_else(
            || "NULL".to_owned(),
            |time| {
                format!(
                    "CASE WHEN pg_catalog.isfinite({time}) THEN \
                     (pg_catalog.date_part('epoch', {time}) * 1000)::pg_catalog.int8 END"
                )
            },
        );
        let sent = table.relation.columns.iter();
        let sent =
            sent.map(|column| in_text_form(&format!("o.{}", escape_identifier(&column.name))));
        let columns = sent.chain([ms]).collect::<Vec<_>>().join(", ");
        // A filter names the columns without a table.
        let from = format!("FROM {only}{name} AS o WHERE {stored}({filter})");
        Ok(Scan { name, columns, from, bound, id, order, has_ids, has_times })
    }

    /// Fails if PostgreSQL does not send all rows of these tables.
    pub(crate) fn require_sent(&self) -> Result<(), SourceError> {
        self.unsent.iter().try_for_each(|parts| require_none(parts))
    }

    /// The tables with rows that PostgreSQL never sends, and how many. To be called after the choice.
    pub(crate) async fn unsent(&self) -> Result<Vec<(UnsentPart, u64)>, SourceError> {
        let counting = |error| SourceError::query("counting rows that are not sent", &error);
        let mut found = Vec::new();
        for (parts, Scan { from, .. }) in self.unsent.iter().zip(&self.scans) {
            let oids: Vec<u32> = parts.iter().map(|part| part.oid).collect();
            if oids.is_empty() {
                continue;
            }
            let sql = format!(
                "SELECT o.tableoid, pg_catalog.count(*) {from} AND o.tableoid = ANY ($1) GROUP BY 1"
            );
            let rows = self.client.query(&sql, &[&oids]).await.map_err(counting)?;
            let count = |row: &Row| {
                Ok::<(u32, i64), tokio_postgres::Error>((row.try_get(0)?, row.try_get(1)?))
            };
            let counts = rows.iter().map(count).collect::<Result<Vec<_>, _>>().map_err(counting)?;
            for part in parts {
                let count = counts.iter().find(|(oid, _)| *oid == part.oid).map(|(_, rows)| *rows);
                found.push((part.clone(), u64::try_from(count.unwrap_or_default()).unwrap_or(0)));
            }
        }
        Ok(found)
    }

    /// How many rows of a table are chosen, without those that have one of the ids in `without`.
    pub(crate) async fn count(&self, table: usize, without: &[String]) -> Result<u64, SourceError> {
        let mut all = 0;
        if let Some(Scan { from, bound, name, id, .. }) = self.scans.get(table) {
            let counting =
                |error| SourceError::query(&format!("counting the rows of {name}"), &error);
            let sql =
                format!("SELECT pg_catalog.count(*) {from} AND {bound} AND {}", is_not_one_of(id));
            let row = self.client.query_one(&sql, &[&without]).await.map_err(counting)?;
            let rows: i64 = row.try_get(0).map_err(counting)?;
            all += u64::try_from(rows).unwrap_or_default();
        }
        Ok(all)
    }

    /// Calls `each` with the chosen rows of a table in their order, without those that have one of
    /// the ids in `without`; stops when that returns false. The order is the same each time.
    pub(crate) async fn rows(
        &self,
        table: usize,
        without: &[String],
        each: impl AsyncFnMut(Vec<ScannedRow>) -> bool,
    ) -> Result<(), SourceError> {
        let Some(Scan { columns, from, bound, id, order, .. }) = self.scans.get(table) else {
            return Ok(());
        };
        let sql = format!(
            "SELECT {columns} {from} AND {bound} AND {} ORDER BY {order}",
            is_not_one_of(id)
        );
        self.fetch(table, &sql, &[&without], each).await
    }

    /// Calls `each` with up to `limit` rows of a table, chosen or not, if possible the newest; stops
    /// when that returns false.
    pub(crate) async fn newest(
        &self,
        table: usize,
        limit: u32,
        each: impl AsyncFnMut(Vec<ScannedRow>) -> bool,
    ) -> Result<(), SourceError> {
        let Some(Scan { columns, from, .. }) = self.scans.get(table) else { return Ok(()) };
        // The end of the table is read last, and mostly written last.
        let sql = format!("SELECT {columns} {from} ORDER BY o.ctid DESC LIMIT {limit}");
        self.fetch(table, &sql, &[], each).await
    }

    /// Calls `each` with the rows of a query, some at a time.
    async fn fetch(
        &self,
        table: usize,
        query: &str,
        parameters: &[&(dyn ToSql + Sync)],
        mut each: impl AsyncFnMut(Vec<ScannedRow>) -> bool,
    ) -> Result<(), SourceError> {
        let name = self.scans.get(table).map(|scan| scan.name.to_string()).unwrap_or_default();
        let reading = |error| SourceError::query(&format!("reading the rows of {name}"), &error);
        let sql = format!("DECLARE walpost_rows NO SCROLL CURSOR FOR {query}");
        self.client.execute(&sql, parameters).await.map_err(reading)?;
        let mut fetched = FETCHED_FIRST;
        loop {
            let fetch = format!("FETCH {fetched} FROM walpost_rows");
            let answer = {
                let _large = self.client.large_rows();
                self.client.simple_query(&fetch).await.map_err(reading)?
            };
            let mut rows = Vec::with_capacity(fetched);
            for message in answer {
                let SimpleQueryMessage::Row(row) = message else { continue };
                let sent = row.len().saturating_sub(1);
                rows.push(ScannedRow {
                    tuple: Tuple::of_texts((0..sent).map(|column| row.get(column))),
                    written_ms: row.get(sent).and_then(|text| text.parse().ok()),
                });
            }
            let bytes: usize = rows.iter().map(|row: &ScannedRow| row.tuple.size()).sum();
            let row_bytes = bytes.div_ceil(rows.len().max(1)).max(1);
            fetched = (FETCHED_BYTES / row_bytes).clamp(1, FETCHED);
            if rows.is_empty() || !each(rows).await {
                break;
            }
        }
        self.client.batch_execute("CLOSE walpost_rows").await.map_err(reading)
    }

    /// The given ids that no row of any table has, whatever rows are chosen.
    pub(crate) async fn absent(&self, ids: Vec<String>) -> Result<Vec<String>, SourceError> {
        let looking = |error| SourceError::query("looking for ids", &error);
        let mut left = ids;
        for Scan { name, id, .. } in &self.scans {
            let sql = format!(
                "SELECT w.id FROM pg_catalog.unnest($1::pg_catalog.text[]) AS w (id)
                  WHERE NOT EXISTS (SELECT FROM {name} AS o WHERE {} = w.id)",
                in_text_form(id)
            );
            let rows = self.client.query(&sql, &[&left]).await.map_err(looking)?;
            left =
                rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(looking)?;
        }
        Ok(left)
    }
}

/// Flushes WAL by a commit, on a session of its own.
async fn flush(conninfo: &ConnInfo, application_name: &str) -> Result<(), SourceError> {
    let failed = |error| SourceError::query("flushing WAL", &error);
    let control = connect::control(conninfo, application_name).await?;
    // A commit that has written nothing else would not flush.
    let sql = "SET synchronous_commit = local;
               SELECT pg_catalog.pg_logical_emit_message(true, 'walpost.flush', '')";
    match control.client.batch_execute(sql).await {
        // A role that may not write messages lets the WAL writer flush such a commit, which it soon does.
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let sql = "SELECT pg_catalog.pg_current_xact_id()";
            control.client.batch_execute(sql).await.map_err(failed)
        }
        done => done.map_err(failed),
    }
}
