//! Rows that the slot does not send: from before the slot, or from the time for which it was lost.
//!
//! The candidates are rows of one snapshot. Those that the slot will send are found by reading it
//! ahead; those that are in Kafka, by their ids. The rest is published before the slot is read, so
//! that events of a key keep their order. Meanwhile the state topic says so, and `walpost run`
//! refuses to start; a run that is interrupted is continued by comparing again.

use std::sync::Arc;

use super::comparison::{Compared, Comparing, Comparison, Listed, ReadFrom, expect};
use super::error::RecoveryError;
use super::publication::{Publication, batches};
use crate::assembly;
use crate::config::{Config, Environment};
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::outbox::{Outbox, Role};
use crate::pgoutput::Message;
use crate::record::TimestampSource;
use crate::relay::{StopHandle, Summary};
use crate::setup::{Positions, Wanted};
use crate::source::{APPLICATION_NAME, RowBound, RowChoice, RowPositions, RowSnapshot};
use crate::state::{Bookmark, Delivered, State, UnfinishedRows, unix_ms};

/// Positions of rows from before the slot begin that many bytes before it.
const WINDOW: u64 = 1 << 30;

/// Which rows are compared with Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Since {
    /// Those that may not be delivered, as the state topic has it.
    Bookmark,
    /// Those that were written at this time or later.
    Time(String),
    /// All.
    Everything,
}

/// What the rows are published for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The slot is new, and rows from before it are to be delivered too.
    Existing,
    /// Rows may be missing in Kafka.
    Recover(Since),
}

/// Which rows are published, and how.
#[derive(Debug, Clone)]
pub(crate) struct RowWish {
    pub(crate) purpose: Purpose,
    /// The column by which the rows are ordered; `None`: by time and id.
    pub(crate) order_by: Option<String>,
    /// The column with the time at which a row was written; `None`: as configured.
    pub(crate) time_column: Option<String>,
    /// Topics to read besides those of the rows.
    pub(crate) topics: Vec<String>,
}

/// Rows that the slot does not send, and what is in Kafka of them.
pub(crate) struct Recovery<'a> {
    config: &'a Config,
    environment: &'a Environment,
    purpose: Purpose,
    positions: Positions,
    snapshot: RowSnapshot,
    /// The ids of rows that the slot sends.
    streamed: Vec<String>,
    comparison: Option<Comparison>,
    /// How many rows there are to publish, but for those that cannot be told.
    rows: u64,
    /// From which transaction on the rows were compared.
    bookmark: Option<Bookmark>,
}

impl<'a> Recovery<'a> {
    /// Compares; changes nothing but the state topic's owner. `positions` are those of a slot that
    /// nobody uses. Calls `list` for what is listed, and `note` for each step.
    pub(crate) async fn begin(
        config: &'a Config,
        environment: &'a Environment,
        positions: Positions,
        wish: RowWish,
        list: impl FnMut(Listed),
        mut note: impl FnMut(&str),
    ) -> Result<Self, RecoveryError> {
        let RowWish { purpose, order_by, time_column, topics } = wish;
        let conninfo = assembly::conninfo(config, environment)?;
        let source = assembly::source(config, environment)?;
        let profile = assembly::profile(config)?;
        let names = assembly::columns(config, &profile);
        let mut snapshot = RowSnapshot::open(&source, &conninfo, APPLICATION_NAME).await?;
        let bookmark = match &purpose {
            Purpose::Recover(Since::Bookmark) => Some(bookmark(&positions, &snapshot)?),
            _ => None,
        };
        let bound = match (&purpose, &bookmark) {
            (Purpose::Recover(Since::Time(time)), _) => RowBound::Since(time.clone()),
            (_, Some(bookmark)) => RowBound::FromXid(bookmark.below),
            _ => RowBound::All,
        };
        let choice = RowChoice { bound, time_column, order_by };
        snapshot.choose(&config.source.publication, &names, &choice).await?;
        let streamed = if positions.has_slot() {
            note("reading ahead from the slot");
            let mut outbox = assembly::outbox_with_ids(config, &profile);
            streamed(&snapshot, &positions, &source, &mut outbox).await?
        } else {
            Vec::new()
        };
        let began = positions.state.as_ref().and_then(|state| state.rows);
        let is_compared =
            purpose != Purpose::Existing || began.is_some_and(|rows| !rows.next.is_zero());
        let comparison = if is_compared {
            require_distinct_ids(&snapshot, &names)?;
            let has_own_times = config.record.profile.is_none()
                && config.record.timestamp == TimestampSource::Column;
            let from = match (&purpose, began) {
                _ if has_own_times => ReadFrom::Beginning,
                (Purpose::Existing, Some(rows)) => ReadFrom::Time(rows.since_ms),
                _ => ReadFrom::OldestRow(bookmark.map_or_else(unix_ms, |bookmark| bookmark.at_ms)),
            };
            let comparing = Comparing {
                snapshot: &snapshot,
                streamed: &streamed,
                topics: &topics,
                kafka: &assembly::kafka(config),
                outbox: assembly::outbox_with_ids(config, &profile),
                router: assembly::router(config, profile)?,
                policies: &config.poison,
                from,
                ghosts: purpose != Purpose::Existing,
            };
            Some(Comparison::run(comparing, list, &mut note).await?)
        } else {
            None
        };
        let rows = match &comparison {
            Some(comparison) => comparison.counts().missing,
            None => snapshot.count().await?.saturating_sub(streamed.len() as u64),
        };
        Ok(Self {
            config,
            environment,
            purpose,
            positions,
            snapshot,
            streamed,
            comparison,
            rows,
            bookmark,
        })
    }

    /// What was compared; `None`: nothing needs to be.
    pub(crate) fn compared(&self) -> Option<Compared> {
        self.comparison.as_ref().map(Comparison::counts)
    }

    /// How many rows the slot sends, of the chosen ones and others.
    pub(crate) fn streamed(&self) -> u64 {
        self.streamed.len() as u64
    }

    /// From where on rows were compared.
    pub(crate) fn bookmark(&self) -> Option<Bookmark> {
        self.bookmark
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
        let then = self.then()?;
        let rows = self.rows(with_undecided);
        let summary = if rows > 0 {
            let positions = self.row_positions(rows)?;
            let rows = UnfinishedRows {
                since_ms: self.began().unwrap_or_else(unix_ms),
                next: positions.end(),
                then,
                existing: self.purpose == Purpose::Existing,
            };
            let state = self.positions.publishing(positions.start, rows);
            self.positions.write(&state).await?;
            crate::crash_points::point!("rows_announced");
            let publication = Publication {
                config: self.config,
                environment: self.environment,
                snapshot: &self.snapshot,
                streamed: &self.streamed,
                comparison: self.comparison.as_ref(),
                with_undecided,
                positions,
            };
            let summary = publication.run(started).await?;
            self.positions.read_again().await?;
            Some(summary)
        } else {
            None
        };
        let state = State { delivered: self.delivered(with_undecided), ..self.positions.at(then) };
        self.positions.write(&state).await?;
        Ok(summary)
    }

    fn began(&self) -> Option<u64> {
        Some(self.positions.state.as_ref()?.rows?.since_ms)
    }

    /// Where the slot is to be read from afterwards: further than it is confirmed, if more is known to
    /// be acknowledged.
    fn then(&self) -> Result<Lsn, RecoveryError> {
        let slot = self.positions.slot();
        let Some(state) = &self.positions.state else { return Ok(slot) };
        if let Some(rows) = state.rows {
            return Ok(rows.then.max(slot));
        }
        if let Some(fork) = self.snapshot.end_of_timeline(state.timeline)
            && fork < state.acked_upto
        {
            // What both servers have is published.
            return Ok(slot.max(fork));
        }
        if state.acked_upto < slot || self.lost_from(state).is_some() {
            return Ok(slot);
        }
        if state.partial.is_some() {
            return Err(RecoveryError::PartlyPublished);
        }
        Ok(state.acked_upto)
    }

    /// Where the server's history leaves that of the state, if that is before the state's position.
    fn lost_from(&self, state: &State) -> Option<Lsn> {
        let end = self.snapshot.end_of_timeline(state.timeline).unwrap_or(self.snapshot.end);
        (end < state.acked_upto).then_some(end)
    }

    /// Positions for so many rows: after everything that is published, and before the slot's.
    fn row_positions(&self, rows: u64) -> Result<RowPositions, RecoveryError> {
        let slot = self.positions.slot();
        let window = Lsn::new(slot.as_u64() - WINDOW.min(slot.as_u64() / 2));
        let state = self.positions.state.as_ref();
        let after = state.map(|state| match state.rows {
            Some(rows) => rows.next,
            None => self.lost_from(state).unwrap_or(state.acked_upto),
        });
        let start = after.filter(|after| *after < slot).map_or(window, |after| after.max(window));
        let positions = RowPositions::new(start, batches(rows, self.snapshot.tables.len()));
        if positions.end() > slot {
            return Err(RecoveryError::NoPositions(slot));
        }
        Ok(positions)
    }

    /// Which rows are delivered afterwards, and once the slot is read.
    fn delivered(&self, with_undecided: bool) -> Option<Delivered> {
        let undecided = self.compared().map_or(0, |compared| compared.undecided);
        let is_complete = undecided == 0 || with_undecided;
        match (&self.purpose, is_complete) {
            (Purpose::Existing | Purpose::Recover(Since::Everything), true) => {
                Some(Delivered::new(0))
            }
            (Purpose::Recover(Since::Bookmark), true) => {
                let former = self.positions.state.as_ref()?.delivered.clone()?;
                Some(Delivered { bookmarks: self.bookmark.into_iter().collect(), ..former })
            }
            _ => Some(Delivered::new(self.snapshot.xmax)),
        }
    }
}

/// The newest bookmark that holds on this server.
fn bookmark(positions: &Positions, snapshot: &RowSnapshot) -> Result<Bookmark, RecoveryError> {
    let none = |why: &str| RecoveryError::NoBookmark(why.to_owned());
    let state = positions.state.as_ref();
    let state =
        state.ok_or_else(|| none("the state topic has no position of this slot and server"))?;
    let delivered = state.delivered.as_ref();
    let delivered = delivered
        .ok_or_else(|| none("the state topic does not tell yet which rows are delivered"))?;
    let fork = snapshot.end_of_timeline(state.timeline);
    if fork.is_none() && (state.timeline != positions.timeline || state.acked_upto > snapshot.end) {
        return Err(none("this server's history is not that of the state topic"));
    }
    let holds = |bookmark: &&Bookmark| fork.is_none_or(|fork| bookmark.lsn <= fork);
    let newest = delivered.bookmarks.iter().find(holds).copied();
    newest.ok_or_else(|| none("the state topic has no bookmark that holds on this server"))
}

/// The ids of the rows that the slot will send, of those in the snapshot and others.
async fn streamed(
    snapshot: &RowSnapshot,
    positions: &Positions,
    source: &crate::source::SourceConfig,
    outbox: &mut Outbox,
) -> Result<Vec<String>, RecoveryError> {
    for table in &snapshot.tables {
        expect(outbox, table)?;
    }
    let (mut ids, mut failed) = (Vec::new(), None);
    let each = |message| match message {
        Message::Relation(relation) => {
            if let Err(error) = outbox.relation(&relation) {
                failed = Some(error.to_string());
            }
        }
        Message::Insert(insert) => {
            let position = crate::position::EventPosition { commit_lsn: Lsn::ZERO, ordinal: 0 };
            let time = crate::pgoutput::PgTimestamp::from_micros(0);
            let Some(Ok(event)) = outbox.event(&insert, position, time) else { return };
            ids.extend(event.id.and_then(|id| String::from_utf8(id.into_owned()).ok()));
        }
        _ => {}
    };
    snapshot.streamed(positions.client(), source, each).await?;
    match failed {
        Some(why) => Err(RecoveryError::Source(crate::source::SourceError::Setup(why))),
        None => Ok(ids),
    }
}

/// Ids are told apart without their tables.
fn require_distinct_ids(
    snapshot: &RowSnapshot,
    names: &crate::outbox::ColumnNames,
) -> Result<(), RecoveryError> {
    const UUID: u32 = 2950;
    let is_uuid = |table: &crate::outbox::FoundTable| {
        let columns = &table.relation.columns;
        let mut names = names.looked_for(Role::Id);
        let id = names.find_map(|name| columns.iter().find(|column| column.name == name));
        id.is_some_and(|id| id.type_oid == UUID)
    };
    if snapshot.tables.len() > 1 && !snapshot.tables.iter().all(is_uuid) {
        return Err(RecoveryError::SeveralTables);
    }
    Ok(())
}

/// What to read of slot and state topic for this.
pub(crate) fn wanted(creates: bool) -> Wanted<'static> {
    Wanted { command: APPLICATION_NAME, create: creates, may_lack_slot: true }
}

/// Announces in the state topic that rows from before the slot are to be published: before the slot
/// is made, so that it is not read too early. Nothing to do if that is announced already.
pub(crate) async fn announce(positions: &mut Positions, slot: &str) -> Result<(), RecoveryError> {
    match positions.state.as_ref().map(|state| state.rows) {
        Some(Some(rows)) if rows.existing => Ok(()),
        // A position of zero: that of a slot that never was.
        None if !positions.has_slot() => {
            let rows = UnfinishedRows {
                since_ms: unix_ms(),
                next: Lsn::ZERO,
                then: Lsn::ZERO,
                existing: true,
            };
            let state = positions.publishing(Lsn::ZERO, rows);
            Ok(positions.write(&state).await?)
        }
        _ => Err(RecoveryError::Used(slot.to_owned())),
    }
}
