//! An application that writes to the outbox for as long as a test wants, at a
//! known rate: transactions of one to five rows on several keys, some of them
//! rolled back. It outlives restarts of the server.
//!
//! What was committed is for the table to say, also where the server went
//! away in the middle of a COMMIT. What was rolled back the writer remembers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::eventually::eventually;
use crate::postgres::Postgres;
use crate::scene::SOON;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

/// How often a lost server is tried.
const RETRY: Duration = Duration::from_millis(50);

/// A running writer. Dropped, it ends.
pub struct Writer {
    told_to_stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    task: Option<JoinHandle<Vec<String>>>,
}

impl Writer {
    /// Begins to write so many transactions a second.
    pub fn start(postgres: &Postgres, per_second: u32) -> Self {
        let mut config = Config::new();
        config.host_path(postgres.socket_dir()).port(postgres.port());
        config.user("postgres").dbname("postgres").application_name("writer");
        let told_to_stop = Arc::new(AtomicBool::new(false));
        let committed = Arc::new(AtomicU64::new(0));
        let writing = write(
            config,
            Duration::from_secs(1) / per_second,
            Arc::clone(&told_to_stop),
            Arc::clone(&committed),
        );
        Self { told_to_stop, committed, task: Some(tokio::spawn(writing)) }
    }

    /// How many transactions were committed so far.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Awaits so many further committed transactions.
    pub async fn commits(&self, further: u64) {
        let goal = self.committed() + further;
        eventually(SOON, "the writer commits", async || {
            let count = self.committed();
            if count >= goal { Ok(()) } else { Err(count) }
        })
        .await;
    }

    /// Ends the writing between two transactions; the ids of the rows that were rolled back.
    pub async fn stop(mut self) -> Vec<String> {
        self.told_to_stop.store(true, Ordering::Relaxed);
        let task = self.task.take().expect("stopped once");
        task.await.expect("the writer does not panic")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn write(
    config: Config,
    interval: Duration,
    told_to_stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
) -> Vec<String> {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rolled_back = Vec::new();
    let mut client: Option<Client> = None;
    let mut number = 0_u64;
    while !told_to_stop.load(Ordering::Relaxed) {
        ticks.tick().await;
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
        let commits = number % 7 != 3;
        match transaction(connected, number, commits).await {
            Ok(_) if commits => {
                committed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(ids) => rolled_back.extend(ids),
            // Where this was a COMMIT, the table says what became of it.
            Err(_) => client = None,
        }
    }
    rolled_back
}

/// One transaction; the ids of its rows.
async fn transaction(client: &Client, number: u64, commits: bool) -> Result<Vec<String>, Error> {
    let (rows, end) = (1 + number % 5, if commits { "COMMIT" } else { "ROLLBACK" });
    let insert = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', 'w' || (i + {number}) % 8, 'placed', jsonb_build_object('n', {number}) \
           FROM generate_series(1, {rows}) AS i RETURNING id"
    );
    client.batch_execute("BEGIN").await?;
    let inserted = client.simple_query(&insert).await?;
    client.batch_execute(end).await?;
    let ids = inserted.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    Ok(ids.collect())
}
