//! Reads the slot's metrics every few seconds, on the session's own control connection: one small
//! query on in-memory views. And the size of the outbox and the instances that stand by once a minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::crash_points;
use crate::excerpt::excerpt;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::source::SourceError;
use crate::source::catalog::outbox_size::{self, TableSize};
use crate::source::connection::connect::SqlClient;
use crate::source::instances::halt_notice;

/// The replication slot, as PostgreSQL reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotMetrics {
    /// When the server reported it.
    pub observed: SystemTime,
    /// Current WAL position.
    pub wal_end: Lsn,
    /// Current WAL position minus `confirmed_flush_lsn`, in bytes.
    pub lag_bytes: u64,
    /// Current WAL position minus `restart_lsn`, in bytes.
    pub retained_bytes: u64,
    /// `safe_wal_size`, in bytes; negative once the limit is exceeded.
    pub safe_bytes: Option<i64>,
    /// `max_slot_wal_keep_size`, in bytes; `None` means no limit.
    pub limit_bytes: Option<u64>,
    /// `wal_status`.
    pub wal_status: Option<String>,
    /// `spill_bytes` of `pg_stat_replication_slots`.
    pub spilled_bytes: u64,
    /// `None` on a standby, whose WAL position trails what its rows show.
    pub horizon: Option<Horizon>,
}

/// The transactions that have ended, and a position behind their commits, taken in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// `pg_snapshot_xmin`: every transaction with a lower id has ended.
    pub xmin: u64,
    /// `pg_snapshot_xmax`: no transaction with this id or a higher one had begun.
    pub xmax: u64,
    /// `pg_current_wal_insert_lsn()`.
    pub lsn: Lsn,
    /// The server's time after that, in milliseconds since 1970.
    pub at_ms: u64,
}

/// How often the metrics are read.
const INTERVAL: Duration = Duration::from_secs(5);

/// How long the server may take to respond.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The query of the metrics. On a standby the end of WAL is the replay position: WAL after it
/// cannot be decoded yet.
const SLOT_QUERY: &str = "
    SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                 ELSE pg_catalog.pg_current_wal_lsn() END)::pg_catalog.text,
           s.confirmed_flush_lsn::pg_catalog.text, s.restart_lsn::pg_catalog.text, s.safe_wal_size, s.wal_status,
           (SELECT CASE WHEN setting::pg_catalog.int8 < 0 THEN NULL
                        ELSE setting::pg_catalog.int8 * 1048576 END
              FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
           coalesce(t.spill_bytes, 0), s.active,
           -- The snapshot is that of the query, so it is older than the position.
           pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.text,
           pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text,
           CASE WHEN NOT pg_catalog.pg_is_in_recovery()
                THEN pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text END,
           (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::pg_catalog.int8
      FROM pg_catalog.pg_replication_slots s
      LEFT JOIN pg_catalog.pg_stat_replication_slots t USING (slot_name)
     WHERE s.slot_name::pg_catalog.text = $1";

/// What is read once a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MinuteMetrics {
    /// The outbox tables; `None`: they could not be read.
    pub tables: Option<Vec<TableSize>>,
    /// Instances that stand by for this one; `None`: not known.
    pub standbys: Option<u64>,
}

/// Reads the metrics until it is dropped or the connection ends.
pub(in crate::source) struct Observer {
    latest: watch::Receiver<Option<SlotMetrics>>,
    minute: Arc<Mutex<Option<MinuteMetrics>>>,
    task: JoinHandle<()>,
}

impl Observer {
    pub(in crate::source) fn start(
        client: Arc<SqlClient>,
        slot: String,
        tables: Vec<TableName>,
    ) -> Self {
        let (sender, latest) = watch::channel(None);
        let minute = Arc::<Mutex<Option<MinuteMetrics>>>::default();
        let read_minute = Arc::clone(&minute);
        let task = tokio::spawn(async move {
            let is_frequent = crash_points::is_armed("frequent_bookmarks");
            let divisor = if is_frequent { 25 } else { 1 };
            let mut ticks = interval(INTERVAL / divisor);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let (mut slot_fails, mut size_fails) = (false, false);
            let mut sizes_due = Instant::now();
            loop {
                ticks.tick().await;
                let read = read_slot_metrics(&client, &slot).await;
                // The session itself notices that its connection has ended.
                if read.is_err() && client.is_closed() {
                    return;
                }
                match change(&mut slot_fails, &read) {
                    Some(Change::Fails(error)) => tracing::warn!(
                        %error,
                        "cannot read the slot's metrics; keeping the last values"
                    ),
                    Some(Change::Succeeds) => {
                        tracing::info!("reading the slot's metrics again");
                    }
                    None => {}
                }
                if let Ok(figures) = read
                    && sender.send(figures.map(|(figures, _)| figures)).is_err()
                {
                    return;
                }
                if Instant::now() < sizes_due {
                    continue;
                }
                sizes_due = Instant::now() + outbox_size::INTERVAL / divisor;
                let read = outbox_size::read(&client, &tables).await;
                if read.is_err() && client.is_closed() {
                    return;
                }
                match change(&mut size_fails, &read) {
                    Some(Change::Fails(error)) => tracing::warn!(
                        %error,
                        "cannot read the size of the outbox; keeping the last value"
                    ),
                    Some(Change::Succeeds) => {
                        tracing::info!("reading the size of the outbox again");
                    }
                    None => {}
                }
                let standbys = halt_notice::standby_instances(&client, &slot).await.ok();
                let read = MinuteMetrics { tables: read.ok(), standbys };
                *read_minute.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
            }
        });
        Self { latest, minute, task }
    }

    /// What is read once a minute, if it was read since the last call.
    pub(in crate::source) fn take_minute(&self) -> Option<MinuteMetrics> {
        self.minute.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The metrics, if they were read since the last call.
    pub(in crate::source) fn changed(&mut self) -> Option<SlotMetrics> {
        if !self.latest.has_changed().unwrap_or(false) {
            return None;
        }
        self.latest.borrow_and_update().clone()
    }
}

/// What is different from the reading before.
enum Change<'a> {
    Fails(&'a SourceError),
    Succeeds,
}

fn change<'a, T>(is_failing: &mut bool, read: &'a Result<T, SourceError>) -> Option<Change<'a>> {
    match (std::mem::replace(is_failing, read.is_err()), read) {
        (false, Err(error)) => Some(Change::Fails(error)),
        (true, Ok(_)) => Some(Change::Succeeds),
        _ => None,
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The slot's current metrics, and whether a client uses it; `None` if there is no such slot.
pub(crate) async fn read_slot_metrics(
    client: &Client,
    slot: &str,
) -> Result<Option<(SlotMetrics, bool)>, SourceError> {
    const WHAT: &str = "querying the slot's metrics";
    let failed = |error| SourceError::query(WHAT, &error);
    let parameters: [&(dyn ToSql + Sync); 1] = [&slot];
    let answer = timeout(ANSWER_LIMIT, client.query_opt(SLOT_QUERY, &parameters)).await;
    let answer = answer.map_err(|_| {
        SourceError::Lost(format!("{WHAT}: PostgreSQL did not answer within {ANSWER_LIMIT:?}"))
    })?;
    let Some(row) = answer.map_err(failed)? else {
        return Ok(None);
    };
    let lsn = |column: usize| -> Result<Option<Lsn>, SourceError> {
        let text: Option<String> = row.try_get(column).map_err(failed)?;
        Ok(text.and_then(|text| text.parse().ok()))
    };
    let xid = |column: usize| -> Result<Option<u64>, SourceError> {
        let text: Option<String> = row.try_get(column).map_err(failed)?;
        Ok(text.and_then(|text| text.parse().ok()))
    };
    let horizon = xid(8)?.zip(xid(9)?).zip(lsn(10)?);
    let at_ms: i64 = row.try_get(11).map_err(failed)?;
    let at_ms = u64::try_from(at_ms).unwrap_or_default();
    let end = lsn(0)?.unwrap_or_default();
    let behind = |lsn: Option<Lsn>| lsn.map_or(0, |lsn| end.bytes_since(lsn));
    let limit: Option<i64> = row.try_get(5).map_err(failed)?;
    let spilled: i64 = row.try_get(6).map_err(failed)?;
    let wal_status: Option<String> = row.try_get(4).map_err(failed)?;
    let figures = SlotMetrics {
        observed: SystemTime::now(),
        wal_end: end,
        lag_bytes: behind(lsn(1)?),
        retained_bytes: behind(lsn(2)?),
        safe_bytes: row.try_get(3).map_err(failed)?,
        limit_bytes: limit.and_then(|limit| u64::try_from(limit).ok()),
        wal_status: wal_status.as_deref().map(excerpt),
        spilled_bytes: u64::try_from(spilled).unwrap_or_default(),
        horizon: horizon.map(|((xmin, xmax), lsn)| Horizon { xmin, xmax, lsn, at_ms }),
    };
    Ok(Some((figures, row.try_get(7).map_err(failed)?)))
}
