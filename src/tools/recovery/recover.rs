//! Rows that the slot does not send: from before the slot, or from the time for which it was lost.
//!
//! The candidates are rows of one snapshot. Those that the slot will send are found by reading it
//! ahead; those that are published, by their ids. The rest is published before the slot is read, so
//! that events of a key keep their order. Meanwhile the record of the position says so, and `walpost run`
//! refuses to start; a run that is interrupted is continued by comparing again.

use std::sync::Arc;

use super::ahead::{Ahead, Streamed};
use super::comparison::{self, Compared, Comparing, Comparison, Listed, ReadFrom};
use super::error::RecoveryError;
use super::publication::{Publication, batches};
use crate::assembly;
use crate::config::{self, Config};
use crate::destination;
use crate::destination::parts::settings::layout;
use crate::destination::published::Published;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::outbox::{ColumnNames, FoundTable, Role};
use crate::relay::{StopHandle, Summary};
use crate::source::{
    APPLICATION_NAME, RowBound, RowChoice, RowPositions, RowSnapshot, log_if_slow,
};
use crate::state::{Bookmark, ChosenRows, Delivered, Layout, State, UnfinishedRows, unix_ms};
use crate::tools::setup::Positions;

/// Positions of rows from before the slot begin that many bytes before it.
const WINDOW: u64 = 1 << 30;

/// How far the clocks of walpost and of PostgreSQL may be apart, in milliseconds.
const CLOCKS_MS: u64 = 15 * 60_000;

/// Which rows are compared with what is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Since {
    /// Rows that may not be delivered, by the bookmark beside the position.
    Bookmark,
    /// Rows that were written at this time or later.
    Time(String),
    /// All.
    Everything,
}

/// What the rows are published for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The slot is new, and rows from before it are to be delivered too.
    Existing,
    /// Rows may not be published.
    Recover(Since),
    /// Rows that were written at this time or later are published again, where nobody can tell which of
    /// them are.
    Again(String),
}

impl Purpose {
    /// Fails where the destination cannot be read back, and that is needed; and the other way round.
    pub(crate) fn require_possible(&self, config: &Config) -> Result<(), RecoveryError> {
        let is_readable = destination::of(config).published(config)?.is_some();
        match (self, is_readable) {
            (Self::Again(_), true) => Err(RecoveryError::Readable(config.sink)),
            (Self::Existing | Self::Recover(_), false) => {
                Err(RecoveryError::NotReadable(config.sink))
            }
            _ => Ok(()),
        }
    }
}

/// Which rows are published, and how.
#[derive(Debug, Clone)]
pub(crate) struct RowWish {
    pub(crate) purpose: Purpose,
    /// The column by which the rows are ordered; `None`: by time.
    pub(crate) order_by: Option<String>,
    /// The column with the time at which a row was written; `None`: as configured.
    pub(crate) time_column: Option<String>,
    /// Topics to read besides those of the rows.
    pub(crate) topics: Vec<String>,
    /// Whether an event of the same id is the same one, whatever its key and value.
    pub(crate) ids_alone: bool,
}

/// Rows that the slot does not send, and what is published of them.
pub(crate) struct Recovery<'a> {
    config: &'a Config,
    /// Which rows were chosen.
    chosen: ChosenRows,
    positions: Positions,
    snapshot: RowSnapshot,
    /// The rows that the slot sends.
    streamed: Streamed,
    /// The position from which the slot is to be read afterwards.
    then: Lsn,
    comparison: Option<Comparison>,
    /// How many rows there are to publish, but for those that cannot be told.
    rows: u64,
    /// The point at which the server's history leaves that of the position, if it is on a newer
    /// timeline.
    fork: Option<Lsn>,
}

impl<'a> Recovery<'a> {
    /// Compares; changes nothing but the owner of the position. `positions` are those of a slot that
    /// nobody uses. Calls `list` for what is listed, and `note` for each step.
    pub(crate) async fn begin(
        config: &'a Config,
        positions: Positions,
        wish: RowWish,
        list: impl FnMut(Listed),
        mut note: impl FnMut(&str),
    ) -> Result<Self, RecoveryError> {
        let RowWish { purpose, order_by, time_column, topics, ids_alone } = wish;
        let conninfo = assembly::conninfo(config)?;
        let source = assembly::source(config)?;
        let profile = config::profile(config)?;
        let names = config::columns(config, &profile);
        let mut snapshot = RowSnapshot::open(&source, &conninfo, APPLICATION_NAME).await?;
        if purpose == Purpose::Existing {
            snapshot.require_sent()?;
        }
        let state = positions.state.clone();
        let ahead = if positions.has_slot() {
            note("reading ahead from the slot");
            let mut outbox = config::outbox_with_ids(config, &profile);
            let transaction = state.as_ref().and_then(|state| state.last);
            let sought = (transaction, positions.last_published());
            let ahead = Ahead::read(&snapshot, positions.client(), &source, &mut outbox, sought);
            let waiting = || {
                note(
                    "PostgreSQL still reads the slot's WAL, or waits for a standby server of \
                     synchronized_standby_slots that is down (walpost check names it)",
                );
            };
            log_if_slow(waiting, ahead).await?
        } else {
            Ahead::default()
        };
        let history = History { positions: &positions, snapshot: &snapshot, ahead: &ahead };
        let chosen = chosen(&purpose, &history)?;
        let (then, fork) = (history.then()?, history.fork());
        let streamed = ahead.from(then);
        let bound = match &chosen {
            ChosenRows::Since(time) => RowBound::Since(time.clone()),
            ChosenRows::Bookmark(bookmark) => RowBound::FromXid {
                xid: bookmark.below,
                since_ms: bookmark.at_ms.saturating_sub(CLOCKS_MS),
            },
            ChosenRows::Existing | ChosenRows::All => RowBound::All,
        };
        let choice = RowChoice { bound, time_column, order_by };
        snapshot.choose(&config.source.publication, &names, &choice).await?;
        for (part, rows) in snapshot.unsent().await? {
            note(&format!(
                "{part}, and PostgreSQL never sends its {rows} rows: they are compared too; {}",
                part.remedy()
            ));
        }
        if chosen == ChosenRows::Existing || matches!(purpose, Purpose::Again(_)) {
            require_ids(&snapshot).await?;
        }
        let began = state.and_then(|state| state.rows);
        let is_new = began.as_ref().is_none_or(|rows| rows.next.is_zero());
        let is_again = matches!(purpose, Purpose::Again(_));
        if !is_again {
            require_distinct_ids(&snapshot, &names)?;
        }
        let comparison = if is_again || chosen == ChosenRows::Existing && is_new {
            None
        } else {
            let from = match (&chosen, began) {
                // The times of records are not those of their production.
                _ if profile.needs().used.contains(Role::Timestamp) => ReadFrom::Beginning,
                (ChosenRows::Existing, Some(rows)) => ReadFrom::Time(rows.since_ms),
                (ChosenRows::Bookmark(bookmark), _) => ReadFrom::OldestRow(bookmark.at_ms),
                (ChosenRows::Since(_), _) => ReadFrom::OldestRow(unix_ms()),
                (ChosenRows::Existing | ChosenRows::All, _) => ReadFrom::Beginning,
            };
            let by_content = !ids_alone && !has_unique_ids(&snapshot, &names);
            let outbox = config::outbox_with_ids(config, &profile);
            let router = comparison::router(config, profile, by_content)?;
            let comparing = Comparing {
                snapshot: &snapshot,
                streamed: &streamed,
                topics: &topics,
                published: published(config)?,
                outbox,
                router,
                policies: &config.poison,
                from,
                by_content,
                ghosts: chosen != ChosenRows::Existing,
                samples: matches!(chosen, ChosenRows::Since(_) | ChosenRows::Bookmark(_)),
            };
            Some(Comparison::run(comparing, list, &mut note).await?)
        };
        let rows = match &comparison {
            Some(comparison) => comparison.counts().missing,
            None => count(&snapshot, &streamed).await?,
        };
        Ok(Self { config, chosen, positions, snapshot, streamed, then, comparison, rows, fork })
    }

    /// Requires a time if the histories cannot be distinguished. With a bookmark, and without a fork,
    /// ghosts may be those of a server that was restored, and has assigned the same transaction ids
    /// again. Where rows have times, those that were written since are compared anyway.
    pub(crate) fn require_history(&self) -> Result<(), RecoveryError> {
        if self.snapshot.has_times() {
            return Ok(());
        }
        let ghosts = self.compared().map_or(0, |compared| compared.ghosts);
        let is_by_xid = matches!(self.chosen, ChosenRows::Bookmark(_));
        if is_by_xid && self.fork.is_none() && ghosts > 0 {
            return Err(RecoveryError::Ghosts(ghosts));
        }
        Ok(())
    }

    /// The time since which rows are published again, without a comparison.
    pub(crate) fn again_since(&self) -> Option<&str> {
        match &self.chosen {
            ChosenRows::Since(time) if self.comparison.is_none() => Some(time),
            _ => None,
        }
    }

    /// What was compared; `None`: nothing needs to be.
    pub(crate) fn compared(&self) -> Option<Compared> {
        self.comparison.as_ref().map(Comparison::counts)
    }

    /// How many rows the slot sends, of the chosen ones and others.
    pub(crate) fn streamed(&self) -> u64 {
        self.streamed.len()
    }

    /// The position from which rows were compared.
    pub(crate) fn bookmark(&self) -> Option<Bookmark> {
        match &self.chosen {
            ChosenRows::Bookmark(bookmark) => Some(*bookmark),
            _ => None,
        }
    }

    /// Rows of older transactions than this one are from before the slot.
    pub(crate) fn from(&self) -> Option<u64> {
        let delivered = self.positions.state.as_ref()?.delivered.as_ref()?;
        (delivered.from > 0).then_some(delivered.from)
    }

    /// How many rows are to be published.
    pub(crate) fn rows(&self, with_undecided: bool) -> u64 {
        let undecided = self.compared().map_or(0, |compared| compared.undecided);
        self.rows + if with_undecided { undecided } else { 0 }
    }

    /// Publishes what is missing, and lets `walpost run` start. `started` gets what stops it, and its
    /// metrics.
    pub(crate) async fn publish(
        mut self,
        with_undecided: bool,
        started: impl FnOnce(StopHandle, Arc<Metrics>),
    ) -> Result<Option<Summary>, RecoveryError> {
        if !self.positions.has_slot() {
            return Err(RecoveryError::NoSlot(self.config.source.slot.clone()));
        }
        self.require_history()?;
        let (then, count) = (self.then, self.rows(with_undecided));
        let former = self.positions.state.clone();
        let accepted = self.accepted_publication(with_undecided);
        let is_further = then > self.positions.slot();
        let summary = if count > 0 {
            let positions = self.row_positions(count)?;
            let rows = UnfinishedRows {
                since_ms: self.began().unwrap_or_else(unix_ms),
                next: positions.end(),
                then,
                chosen: self.chosen.clone(),
            };
            let state = self.positions.publishing(positions.start, rows.clone());
            self.positions.begin(&state).await?;
            crate::crash_points::point!("rows_announced");
            let publication = Publication {
                config: self.config,
                snapshot: &self.snapshot,
                streamed: &self.streamed,
                comparison: self.comparison.as_ref(),
                with_undecided,
                positions,
                rows: rows.clone(),
            };
            let summary = publication.run(started).await?;
            self.positions.read_again().await?;
            // Another one may have begun, if the session with the lock was lost.
            let written = self.positions.state.as_ref();
            let is_own = written.is_some_and(|state| {
                state.rows.as_ref() == Some(&rows) && state.acked_upto >= positions.start
            });
            if !is_own || self.positions.client().is_closed() {
                return Err(RecoveryError::TakenOver);
            }
            Some(summary)
        } else {
            None
        };
        let is_there = |state: &State| {
            state.rows.is_none() && accepted.is_none() && state.acked_upto == then && is_further
        };
        let is_as_left = self.positions.published_beyond().is_none() && !self.positions.is_diverged;
        if count == 0 && is_as_left && former.as_ref().is_some_and(is_there) {
            // Nothing has changed.
            return Ok(summary);
        }
        let ending = former.as_ref().and_then(|state| state.ending).filter(|_| accepted.is_none());
        let last = former.and_then(|state| state.last);
        let last = last.filter(|last| is_further && last.commit_lsn < then);
        let delivered = self.delivered(with_undecided);
        let state = self.positions.at(then);
        let begun = accepted.or(state.begun);
        let state = State { last, delivered, begun, ending, ..state };
        self.positions.begin(&state).await?;
        Ok(summary)
    }

    fn began(&self) -> Option<u64> {
        Some(self.positions.state.as_ref()?.rows.as_ref()?.since_ms)
    }

    /// Positions for so many rows: after everything that is published, and before the slot's.
    fn row_positions(&self, rows: u64) -> Result<RowPositions, RecoveryError> {
        let slot = self.positions.slot();
        let window = Lsn::new(slot.as_u64() - WINDOW.min(slot.as_u64() / 2));
        let state = self.positions.state.as_ref();
        let used = state.map(|state| state.rows_upto).unwrap_or_default();
        let end = self.fork.unwrap_or(self.snapshot.end);
        let after = state.filter(|state| state.rows.is_none());
        let after = after.map(|state| state.acked_upto.min(end));
        let after = after.filter(|after| *after < slot).unwrap_or_default();
        let start = window.max(after).max(used);
        let positions = RowPositions::new(start, batches(rows, self.snapshot.tables.len()));
        if positions.end() > slot {
            return Err(RecoveryError::NoPositions(slot));
        }
        Ok(positions)
    }

    /// Whether all chosen rows are published afterwards.
    fn is_complete(&self, with_undecided: bool) -> bool {
        with_undecided || self.compared().is_none_or(|compared| compared.undecided == 0)
    }

    /// The layout of a publication that was changed while walpost worked with it, if the rows that were
    /// committed without it are published afterwards.
    fn accepted_publication(&self, with_undecided: bool) -> Option<Layout> {
        let is_all = matches!(self.chosen, ChosenRows::All | ChosenRows::Bookmark(_));
        let is_changed = self.positions.may_lack_rows();
        let now = layout(self.config).with(&self.snapshot.fingerprint);
        // Rows that are not sent may still be written until an operator has remedied that.
        let is_sent = self.snapshot.require_sent().is_ok();
        (is_all && is_changed && is_sent && self.is_complete(with_undecided)).then_some(now)
    }

    /// Whether `walpost run` stops at the publication afterwards.
    pub(crate) fn may_lack_rows(&self, with_undecided: bool) -> bool {
        self.positions.may_lack_rows() && self.accepted_publication(with_undecided).is_none()
    }

    /// Which rows are delivered afterwards, and once the slot is read.
    fn delivered(&self, with_undecided: bool) -> Option<Delivered> {
        match (&self.chosen, self.is_complete(with_undecided)) {
            (ChosenRows::Existing | ChosenRows::All, true) => Some(Delivered::new(0, 0)),
            (ChosenRows::Bookmark(bookmark), true) => {
                let former = self.positions.state.as_ref()?.delivered.clone()?;
                Some(Delivered { bookmarks: vec![*bookmark], ..former })
            }
            _ => Some(Delivered::new(self.snapshot.xmax, self.snapshot.at_ms)),
        }
    }
}

/// What reads back the records that are published.
pub(crate) fn published(config: &Config) -> Result<Box<dyn Published>, RecoveryError> {
    destination::of(config).published(config)?.ok_or(RecoveryError::NotReadable(config.sink))
}

/// How many rows there are that the slot does not send.
async fn count(snapshot: &RowSnapshot, streamed: &Streamed) -> Result<u64, RecoveryError> {
    let mut rows = 0;
    for (index, table) in snapshot.tables.iter().enumerate() {
        rows += snapshot.count(index, &streamed.ids(table.relation.oid)).await?;
    }
    Ok(rows)
}

/// The server's history beside that of the position.
struct History<'a> {
    positions: &'a Positions,
    snapshot: &'a RowSnapshot,
    ahead: &'a Ahead,
}

impl History<'_> {
    /// The point at which this server's history leaves that of the state, if it is on a newer
    /// timeline.
    fn fork(&self) -> Option<Lsn> {
        self.snapshot.end_of_timeline(self.positions.state.as_ref()?.timeline)
    }

    /// Whether the WAL is another one than that of the state, as far as that shows: it ends earlier, has not
    /// the last transaction with events, or has a slot that was made again.
    fn is_other(&self, state: &State) -> bool {
        let slot = self.positions.slot();
        let is_missing =
            state.last.is_some_and(|last| last.commit_lsn >= slot) && !self.ahead.has_last;
        let last_published = self.positions.last_published();
        let is_published_missing =
            last_published.is_some_and(|last| last >= slot) && !self.ahead.has_published;
        self.fork().is_none()
            && (state.timeline != self.positions.timeline
                || self.positions.end_of_published().is_some_and(|end| end > self.snapshot.end)
                || self.positions.has_slot() && (is_missing || is_published_missing)
                || state.is_unknown(slot))
    }

    /// The position from which the slot is to be read afterwards: further than it is confirmed, if
    /// more is known to be acknowledged.
    fn then(&self) -> Result<Lsn, RecoveryError> {
        let slot = self.positions.slot();
        let Some(state) = &self.positions.state else { return Ok(slot) };
        if let Some(rows) = &state.rows {
            return Ok(rows.then.max(slot));
        }
        if let Some(fork) = self.fork().filter(|fork| *fork < state.acked_upto) {
            // What both servers have is published.
            return Ok(slot.max(fork));
        }
        if state.acked_upto < slot || self.is_other(state) {
            return Ok(slot);
        }
        // What is published behind the fork was lost, and `run` does not publish the rest where it does not
        // start: it is published once more.
        let is_lost = |end: Lsn| self.fork().is_some_and(|fork| end > fork);
        let positions = self.positions;
        let runs = positions.has_slot() && !positions.may_lack_rows() && !positions.is_diverged;
        match positions.published_beyond() {
            Some(end) if runs && !is_lost(end) => Err(RecoveryError::PartlyPublished),
            _ => Ok(state.acked_upto),
        }
    }
}

/// Which rows to compare. What was begun is continued, unless all rows are to be compared.
fn chosen(purpose: &Purpose, history: &History<'_>) -> Result<ChosenRows, RecoveryError> {
    let begun = history.positions.state.as_ref().and_then(|state| state.rows.as_ref());
    let begun = begun.map(|rows| &rows.chosen);
    let is_diverged = history.positions.is_diverged;
    Ok(match (purpose, begun) {
        (Purpose::Existing, None | Some(ChosenRows::Existing)) => ChosenRows::Existing,
        (Purpose::Recover(Since::Everything), _)
        // Some of them may be published already, by this delivery or by another one.
        | (Purpose::Recover(Since::Bookmark), Some(ChosenRows::Existing)) => ChosenRows::All,
        // What is lost at the destination may lie before the bookmark.
        (Purpose::Recover(Since::Bookmark), Some(begun)) => match begun {
            ChosenRows::Bookmark(_) if is_diverged => ChosenRows::All,
            begun => begun.clone(),
        },
        (Purpose::Again(time), _) | (Purpose::Recover(Since::Time(time)), None) => {
            ChosenRows::Since(time.clone())
        }
        (Purpose::Recover(Since::Time(time)), Some(ChosenRows::Since(begun))) if time == begun => {
            ChosenRows::Since(time.clone())
        }
        (Purpose::Existing | Purpose::Recover(Since::Time(_)), Some(_)) => {
            return Err(RecoveryError::OtherChoice);
        }
        (Purpose::Recover(Since::Bookmark), None) => ChosenRows::Bookmark(bookmark(history)?),
    })
}

/// The newest bookmark that holds on this server.
fn bookmark(history: &History<'_>) -> Result<Bookmark, RecoveryError> {
    let none = |why: &str| RecoveryError::NoBookmark(why.to_owned());
    let state = history.positions.state.as_ref();
    let state = state.ok_or_else(|| none("no position of this slot and server is kept"))?;
    let delivered = state.delivered.as_ref();
    let delivered =
        delivered.ok_or_else(|| none("the position does not tell yet which rows are delivered"))?;
    if history.is_other(state) {
        return Err(none("this server's history is not that of the position"));
    }
    if history.positions.is_diverged {
        return Err(none("the stream is not as walpost has left it"));
    }
    let fork = history.fork();
    let holds = |bookmark: &&Bookmark| fork.is_none_or(|fork| bookmark.lsn <= fork);
    // A server that was started since may be a restored one, as far as its slot does not tell.
    let positions = history.positions;
    let is_restarted = state.server_started != history.snapshot.identity.postmaster_start;
    let kept = match (is_restarted && fork.is_none(), positions.has_slot()) {
        (true, true) => positions.slot(),
        (true, false) => Lsn::ZERO,
        // What the slot has confirmed was sent by the publication of then.
        (false, true) if positions.may_lack_rows() => positions.slot(),
        (false, false) if positions.may_lack_rows() => Lsn::ZERO,
        (false, _) => Lsn::new(u64::MAX),
    };
    let delivered = delivered.clone().of_restarted(kept, history.snapshot.xmax);
    let newest = delivered.bookmarks.iter().find(holds).copied();
    newest.ok_or_else(|| none("no bookmark beside the position holds on this server"))
}

/// Whether no two events have the same id: those of one table, as far as they are uuids. Others are
/// given again after a restore, or by the database of another producer.
fn has_unique_ids(snapshot: &RowSnapshot, names: &ColumnNames) -> bool {
    snapshot.tables.len() == 1 && are_uuids(snapshot, names)
}

fn are_uuids(snapshot: &RowSnapshot, names: &ColumnNames) -> bool {
    /// `pg_type.oid` of `uuid`.
    const UUID: u32 = 2950;
    let is_uuid = |table: &FoundTable| {
        let columns = &table.relation.columns;
        let mut names = names.looked_for(Role::Id);
        let id = names.find_map(|name| columns.iter().find(|column| column.name == name));
        id.is_some_and(|id| id.type_oid == UUID)
    };
    snapshot.tables.iter().all(is_uuid)
}

/// Ids are told apart without their tables.
fn require_distinct_ids(snapshot: &RowSnapshot, names: &ColumnNames) -> Result<(), RecoveryError> {
    if snapshot.tables.len() > 1 && !are_uuids(snapshot, names) {
        return Err(RecoveryError::SeveralTables);
    }
    Ok(())
}

/// Without ids, rows from before the slot could not be told from others after an interruption.
async fn require_ids(snapshot: &RowSnapshot) -> Result<(), RecoveryError> {
    match snapshot.table_without_ids().await? {
        Some(table) => Err(RecoveryError::RowsWithoutIds(table)),
        None => Ok(()),
    }
}

/// Fails where the rows of the tables cannot be published: this user may not read them, they have no
/// ids, or a column that is asked for is missing.
pub(crate) async fn require_readable(config: &Config, wish: &RowWish) -> Result<(), RecoveryError> {
    let conninfo = assembly::conninfo(config)?;
    let source = assembly::source(config)?;
    let names = config::columns(config, &config::profile(config)?);
    let mut snapshot = RowSnapshot::open(&source, &conninfo, APPLICATION_NAME).await?;
    let choice = RowChoice {
        bound: RowBound::All,
        time_column: wish.time_column.clone(),
        order_by: wish.order_by.clone(),
    };
    snapshot.require_sent()?;
    snapshot.choose(&config.source.publication, &names, &choice).await?;
    require_ids(&snapshot).await?;
    for table in 0..snapshot.tables.len() {
        snapshot.newest(table, 1, async |_| false).await?;
    }
    require_distinct_ids(&snapshot, &names)
}

/// Announces beside the position that rows from before the slot are to be published: before the slot
/// is made, so that it is not read too early. Nothing to do if that is announced already.
pub(crate) async fn announce(positions: &mut Positions, slot: &str) -> Result<(), RecoveryError> {
    match positions.state.as_ref().map(|state| state.rows.as_ref()) {
        Some(Some(rows)) if rows.chosen == ChosenRows::Existing => Ok(()),
        // A position of zero: that of a slot that never was.
        None if !positions.has_slot() => {
            let rows = UnfinishedRows {
                since_ms: unix_ms(),
                next: Lsn::ZERO,
                then: Lsn::ZERO,
                chosen: ChosenRows::Existing,
            };
            let state = positions.publishing(Lsn::ZERO, rows);
            Ok(positions.begin(&state).await?)
        }
        _ => Err(RecoveryError::Used(slot.to_owned())),
    }
}
