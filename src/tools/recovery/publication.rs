//! Publishes rows that no slot sends, through a relay of their own.

use std::sync::Arc;

use tokio::sync::mpsc::{Sender, channel};

use super::ahead::Streamed;
use super::comparison::Comparison;
use super::error::RecoveryError;
use crate::assembly;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::pgoutput::{PgTimestamp, Relation, Tuple};
use crate::relay::{RelayError, StopHandle, Summary};
use crate::source::{RowBatch, RowPositions, RowSession, RowSnapshot, RowSource};
use crate::state::{UnfinishedRows, unix_ms};

/// Rows, and bytes of rows, of one transaction.
const BATCH_ROWS: usize = 1_000;
const BATCH_BYTES: usize = 4 << 20;

/// Batches that are read ahead.
const AHEAD: usize = 2;

/// How many batches there may be at least: large rows make more of them.
const BATCHES_LEAST: u64 = 1 << 12;

/// How many batches so many rows may make.
pub(super) fn batches(rows: u64, tables: usize) -> u64 {
    rows.div_ceil(BATCH_ROWS as u64) + tables as u64 + rows.min(BATCHES_LEAST)
}

/// Rows that are ready to be published.
pub(crate) struct Publication<'a> {
    pub(super) config: &'a Config,
    pub(super) snapshot: &'a RowSnapshot,
    /// The rows that the slot sends, which are left out.
    pub(super) streamed: &'a Streamed,
    /// Which of the rows are wanted; `None`: all.
    pub(super) comparison: Option<&'a Comparison>,
    /// Whether those that cannot be told are wanted.
    pub(super) with_undecided: bool,
    pub(super) positions: RowPositions,
    /// What the state topic has about them.
    pub(super) rows: UnfinishedRows,
}

impl Publication<'_> {
    /// Publishes them, and waits for the acknowledgements. `started` gets what stops it, and its
    /// metrics.
    pub(super) async fn run(
        self,
        started: impl FnOnce(StopHandle, Arc<Metrics>),
    ) -> Result<Summary, RecoveryError> {
        let Self { config, snapshot, positions, .. } = self;
        let session = RowSession {
            slot: config.source.slot.clone(),
            identity: snapshot.identity.clone(),
            fingerprint: snapshot.fingerprint.clone(),
            database_oid: snapshot.database_oid(),
            tables: snapshot.tables.clone(),
            host: snapshot.host(),
            security: snapshot.security(),
            commit_time: now(),
            positions,
        };
        let (sender, receiver) = channel(AHEAD);
        let source = RowSource::new(session, receiver);
        let (relay, stop) = assembly::row_relay(source, self.rows.clone(), config)?;
        started(stop, relay.metrics());
        let reading = async {
            if let Err(error) = self.read(&sender).await {
                // The relay may have ended already.
                let _ = sender.send(Err(error.to_string())).await;
            }
            drop(sender);
        };
        let (published, ()) = tokio::join!(Box::pin(relay.run()), reading);
        published.map_err(|error| match error {
            RelayError::Halt { halt, .. } => RecoveryError::Halted(halt),
            error => RecoveryError::Relay(Box::new(error)),
        })
    }

    async fn read(&self, sender: &Sender<Result<RowBatch, String>>) -> Result<(), RecoveryError> {
        let mut at = 0;
        for (index, table) in self.snapshot.tables.iter().enumerate() {
            let mut next = NextTransaction::new(&table.relation);
            // A comparison tells them apart.
            let without = match self.comparison {
                Some(_) => Vec::new(),
                None => self.streamed.ids(table.relation.oid),
            };
            self.snapshot
                .rows(index, &without, async |rows| {
                    for row in rows {
                        let is_wanted = self
                            .comparison
                            .is_none_or(|comparison| comparison.is_wanted(at, self.with_undecided));
                        at += 1;
                        if is_wanted && next.add(row.tuple) && !next.send(sender).await {
                            return false;
                        }
                    }
                    true
                })
                .await?;
            if !next.send(sender).await {
                break;
            }
        }
        Ok(())
    }
}

/// The rows of the next transaction.
struct NextTransaction<'a> {
    relation: &'a Relation,
    rows: Vec<Tuple>,
    bytes: usize,
}

impl<'a> NextTransaction<'a> {
    fn new(relation: &'a Relation) -> Self {
        Self { relation, rows: Vec::new(), bytes: 0 }
    }

    /// Returns whether it is full.
    fn add(&mut self, row: Tuple) -> bool {
        self.bytes += row.size();
        self.rows.push(row);
        self.rows.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    /// Returns false if nobody takes it.
    async fn send(&mut self, sender: &Sender<Result<RowBatch, String>>) -> bool {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        crate::crash_points::point!("row_batch");
        rows.is_empty()
            || sender.send(Ok(RowBatch { relation: self.relation.clone(), rows })).await.is_ok()
    }
}

fn now() -> PgTimestamp {
    PgTimestamp::from_unix_micros(i64::try_from(unix_ms()).unwrap_or_default() * 1000)
}
