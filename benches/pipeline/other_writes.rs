//! The WAL of a table that walpost does not publish, beside that of the outbox.
//!
//! How much of it a share takes is measured: the WAL of some rows of both tables, before a slot is
//! created.

use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};

use crate::backlog;
use crate::conditions::{Conditions, OtherWrites};
use crate::drain::rate;
use crate::fixture::Fixture;

/// Rows of each table whose WAL is measured.
const SAMPLE: u64 = 2000;

/// WAL of a large transaction.
const LUMP_BYTES: f64 = 250e6;

/// How often small transactions are written beside events at a steady rate.
const INTERVAL: Duration = Duration::from_millis(10);

/// What another table has to write for each event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OtherTable {
    pub(crate) how: OtherWrites,
    /// WAL of an event.
    pub(crate) event_bytes: f64,
    row_bytes: f64,
    rows_per_event: f64,
}

impl OtherTable {
    /// Creates the table and measures rows of both; nothing where the outbox is all of the WAL.
    /// The outbox is empty afterwards.
    pub(crate) async fn prepare(fixture: &Fixture, conditions: &Conditions) -> Option<Self> {
        let how = conditions.other_writes()?;
        fixture
            .execute("CREATE TABLE IF NOT EXISTS public.other (id int8 NOT NULL, text text)")
            .await;
        let begun = fixture.wal_position().await;
        backlog::write_events(fixture, conditions, None, (1, SAMPLE)).await;
        let event_bytes = fixture.wal_since(&begun).await / rate(SAMPLE);
        let begun = fixture.wal_position().await;
        fixture.execute(&insert(&SAMPLE.to_string())).await;
        let row_bytes = fixture.wal_since(&begun).await / rate(SAMPLE);
        fixture.execute("TRUNCATE public.outbox, public.other").await;
        let share = f64::from(conditions.outbox_share) / 100.0;
        let rows_per_event = event_bytes / row_bytes * (1.0 - share) / share;
        Some(Self { how, event_bytes, row_bytes, rows_per_event })
    }

    /// Rows beside so many events.
    pub(crate) fn rows(&self, events: u64) -> u64 {
        whole(self.rows_per_event * rate(events))
    }

    /// The transactions of 250 MB beside so many events: how many, and the rows of each. Where it
    /// is less in all, one smaller transaction.
    pub(crate) fn lumps(&self, events: u64) -> (u64, u64) {
        let rows = self.rows(events);
        let lumps = whole(rate(rows) * self.row_bytes / LUMP_BYTES).max(1);
        (lumps, rows / lumps)
    }

    /// PL/pgSQL that writes what belongs to the event `i`, after that has been committed.
    pub(crate) fn after_event(&self) -> String {
        let per_event = self.rows_per_event;
        let rows = format!("floor(i * {per_event})::int8 - floor((i - 1) * {per_event})::int8");
        format!("{}; COMMIT; ", insert(&rows))
    }

    /// Writes so many rows in transactions of about as many as belong to one event.
    pub(crate) async fn write_small(&self, fixture: &Fixture, rows: u64) {
        let at_once = whole(self.rows_per_event).max(1);
        let insert = insert(&at_once.to_string());
        fixture
            .execute(&format!(
                "DO $$ BEGIN SET synchronous_commit = off; \
                 FOR turn IN 1..{} LOOP {insert}; COMMIT; END LOOP; END $$",
                rows / at_once
            ))
            .await;
    }

    /// Writes all that belongs to so many events in transactions of 250 MB.
    pub(crate) async fn write_lumps(&self, fixture: &Fixture, events: u64) {
        let (lumps, rows) = self.lumps(events);
        for _ in 0..lumps {
            self.write_lump(fixture, rows).await;
        }
    }

    /// Writes so many rows in one transaction.
    pub(crate) async fn write_lump(&self, fixture: &Fixture, rows: u64) {
        fixture.execute(&insert(&rows.to_string())).await;
    }

    /// Writes beside so many events per second until it is dropped: small transactions from the
    /// first of the two times on, large ones from the second.
    pub(crate) async fn write_beside(
        &self,
        fixture: &Fixture,
        events: u32,
        (begun, warm): (Instant, Instant),
    ) {
        let from = if self.how == OtherWrites::Interleaved { begun } else { warm };
        let client = fixture.servers.client().await;
        client.batch_execute("SET synchronous_commit = off").await.expect("a setting");
        let per_second = self.rows_per_event * f64::from(events);
        let lump = whole(LUMP_BYTES / self.row_bytes);
        sleep_until(from.into()).await;
        let mut written = 0;
        loop {
            let due = whole(per_second * from.elapsed().as_secs_f64());
            let rows = match self.how {
                OtherWrites::Interleaved => due.saturating_sub(written),
                OtherWrites::Lumps | OtherWrites::LumpsFirst if due >= written => lump,
                OtherWrites::Lumps | OtherWrites::LumpsFirst => 0,
            };
            if rows > 0 {
                client.batch_execute(&insert(&rows.to_string())).await.expect("rows");
                written += rows;
            }
            sleep(INTERVAL).await;
        }
    }
}

/// Writes that many rows, of about 1 KB: too small for compression.
fn insert(rows: &str) -> String {
    format!(
        "INSERT INTO public.other SELECT n, repeat('y', 1000) FROM generate_series(1, {rows}) AS n"
    )
}

fn whole(number: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of rows")]
    let whole = number.round() as u64;
    whole
}
