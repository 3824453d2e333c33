//! An application that writes to the outbox at a known rate until it is stopped: transactions of
//! one to five rows on several keys, some of them rolled back. It survives restarts of the server.
//!
//! What was committed is read from the table, even if the server went down during a COMMIT. The
//! writer remembers the rolled-back rows, and the end of WAL when each COMMIT returned: a position
//! confirmed beyond that implies that the transaction was published.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::consumer::Consumed;
use crate::eventually::eventually;
use crate::fixture::{Fixture, SHORT_TIMEOUT};
use crate::postgres::Postgres;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

/// How often a lost server is tried.
const RETRY: Duration = Duration::from_millis(50);

/// A running writer. Dropped, it ends.
pub struct Writer {
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop_requested: AtomicBool,
    is_paused: AtomicBool,
    committed: AtomicU64,
    written: Mutex<Written>,
}

/// What the writer knows of its rows, by their ids.
#[derive(Clone, Debug, Default)]
struct Written {
    rolled_back: Vec<String>,
    /// With the end of the log after the COMMIT: its record lies before that.
    committed: Vec<(String, u64)>,
}

impl Shared {
    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An LSN in PostgreSQL's text form, as a number.
pub fn lsn(text: &str) -> u64 {
    let number = |half| u64::from_str_radix(half, 16);
    let (high, low) = text.split_once('/').expect("an LSN has two halves");
    (number(high).expect("hexadecimal") << 32) | number(low).expect("hexadecimal")
}

impl Writer {
    /// Begins to write so many transactions a second.
    pub fn start(postgres: &Postgres, per_second: u32) -> Self {
        Self::start_with(postgres, "order", per_second)
    }

    /// The same with another aggregate type.
    pub fn start_with(postgres: &Postgres, aggregate_type: &str, per_second: u32) -> Self {
        Self::begin(postgres, "postgres", aggregate_type, per_second)
    }

    /// The same under that role, which need not always be allowed to write.
    pub fn start_as(postgres: &Postgres, role: &str, per_second: u32) -> Self {
        Self::begin(postgres, role, "order", per_second)
    }

    fn begin(postgres: &Postgres, role: &str, aggregate_type: &str, per_second: u32) -> Self {
        let mut config = Config::new();
        config.host_path(postgres.socket_dir()).port(postgres.port());
        config.user(role).dbname("postgres");
        Self::connecting(config, aggregate_type, per_second)
    }

    /// The same with given addresses, such as those of several servers.
    pub fn connecting(mut config: Config, aggregate_type: &str, per_second: u32) -> Self {
        config.application_name("writer");
        let shared = Arc::new(Shared::default());
        let interval = Duration::from_secs(1) / per_second;
        let writing = write(config, aggregate_type.to_owned(), interval, Arc::clone(&shared));
        Self { shared, task: Some(tokio::spawn(writing)) }
    }

    /// How many transactions were committed so far.
    pub fn committed(&self) -> u64 {
        self.shared.committed.load(Ordering::Relaxed)
    }

    /// Awaits so many further committed transactions.
    pub async fn commits(&self, further: u64) {
        let goal = self.committed() + further;
        eventually(SHORT_TIMEOUT, "the writer commits", async || {
            let count = self.committed();
            if count >= goal { Ok(()) } else { Err(count) }
        })
        .await;
    }

    /// The ids of the rows whose COMMIT has returned.
    pub fn acknowledged(&self) -> Vec<String> {
        self.shared.written().committed.iter().map(|(id, _)| id.clone()).collect()
    }

    /// The ids of the rows that were rolled back so far.
    pub fn rolled_back(&self) -> Vec<String> {
        self.shared.written().rolled_back.clone()
    }

    /// The ids of rows that the slot has confirmed and no record shows. One is one
    /// too many: it would not be sent again.
    pub async fn unpublished_ids(&self, fixture: &Fixture) -> Vec<String> {
        // In this order: what is confirmed now is published already.
        let confirmed = lsn(&fixture.confirmed_flush().await.expect("the slot"));
        self.unpublished(confirmed, &fixture.records().await)
    }

    /// The ids of rows whose commits lie before `confirmed` and that no record shows.
    pub fn unpublished(&self, confirmed: u64, records: &[Consumed]) -> Vec<String> {
        let published: HashSet<_> = records.iter().filter_map(|one| one.header("id")).collect();
        let written = self.shared.written();
        let covered = written.committed.iter().filter(|(_, end)| *end <= confirmed);
        let lost = covered.filter(|(id, _)| !published.contains(id.as_str()));
        lost.map(|(id, _)| id.clone()).collect()
    }

    /// Begins no further transaction until [`Writer::resume`].
    pub fn pause(&self) {
        self.shared.is_paused.store(true, Ordering::Relaxed);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.shared.is_paused.store(false, Ordering::Relaxed);
    }

    /// Ends the writing between two transactions; the ids of the rows that were rolled back.
    pub async fn stop(mut self) -> Vec<String> {
        self.shared.stop_requested.store(true, Ordering::Relaxed);
        let task = self.task.take().expect("stopped once");
        task.await.expect("the writer does not panic");
        self.rolled_back()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn write(config: Config, aggregate_type: String, interval: Duration, shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut client: Option<Client> = None;
    let mut number = 0_u64;
    while !shared.stop_requested.load(Ordering::Relaxed) {
        ticks.tick().await;
        if shared.is_paused.load(Ordering::Relaxed) {
            continue;
        }
        let Some(connected) = &client else {
            match config.connect(NoTls).await {
                Ok((new, connection)) => {
                    tokio::spawn(connection);
                    client = Some(new);
                }
                Err(_) => tokio::time::sleep(RETRY).await,
            }
            continue;
        };
        number += 1;
        match transaction(connected, &aggregate_type, number).await {
            Ok((ids, Some(end))) => {
                shared.written().committed.extend(ids.into_iter().map(|id| (id, end)));
                shared.committed.fetch_add(1, Ordering::Relaxed);
            }
            Ok((ids, None)) => shared.written().rolled_back.extend(ids),
            // Where this was a COMMIT, the table says what became of it.
            Err(_) => client = None,
        }
    }
}

/// One transaction; the ids of its rows and, where it was committed, the end of
/// the log then.
async fn transaction(
    client: &Client,
    aggregate_type: &str,
    number: u64,
) -> Result<(Vec<String>, Option<u64>), Error> {
    let rows = 1 + number % 5;
    let insert = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT '{aggregate_type}', 'w' || (i + {number}) % 8, 'placed', \
                jsonb_build_object('n', {number}) \
           FROM generate_series(1, {rows}) AS i RETURNING id"
    );
    client.batch_execute("BEGIN").await?;
    let ids = first_column(&client.simple_query(&insert).await?);
    if number % 7 == 3 {
        client.batch_execute("ROLLBACK").await?;
        return Ok((ids, None));
    }
    let end = client.simple_query("COMMIT; SELECT pg_current_wal_insert_lsn()").await?;
    Ok((ids, first_column(&end).first().map(|end| lsn(end))))
}

fn first_column(messages: &[SimpleQueryMessage]) -> Vec<String> {
    let value = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    messages.iter().filter_map(value).collect()
}
