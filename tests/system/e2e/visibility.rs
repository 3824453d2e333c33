//! `delivery.wait_until_visible`: a transaction is published only once other sessions see it, which
//! a synchronous standby can delay. A consumer here reads the row of each event as it arrives.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;
use walpost_bed::fixture::{AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{
    ExactlyOnce, Kafka, Major, Postgres, PostgresBuilder, Tail, WalpostBuilder, eventually,
};

use super::catch_up::{IN_BATCHES, STREAMING, one_by_one};
use super::endpoints::Answering;
use super::state_topic::topic;

/// The option, which has no flag.
pub(crate) const WAITS: &str = "WALPOST_DELIVERY_WAIT_UNTIL_VISIBLE";

pub(crate) const WAIT_SECONDS: &str = "walpost_visibility_wait_seconds_total";

/// A primary whose commits wait for a standby.
struct Pair {
    fixture: Fixture,
    standby: Postgres,
}

impl Pair {
    async fn new(major: Major) -> Self {
        Self::with(Postgres::builder(major), Postgres::builder(major)).await
    }

    async fn with(primary: PostgresBuilder, standby: PostgresBuilder) -> Self {
        let postgres = primary.own_identity().start().await;
        let standby = postgres.start_standby(standby, false).await;
        let fixture = Fixture::over_server(postgres, &Kafka::shared().await.bootstrap(), &[]).await;
        fixture.postgres.wait_for_standby().await;
        Self { fixture, standby }
    }

    fn command(&self) -> WalpostBuilder {
        self.fixture.command("run").env(WAITS, "true")
    }

    /// Runs a statement whose commit waits for the standby; returns once that waits.
    async fn hung(&self, sql: &str) -> JoinHandle<()> {
        let before = self.hanging().await;
        let (client, sql) = (self.fixture.postgres.client().await, sql.to_owned());
        let committed = tokio::spawn(async move {
            client.batch_execute(&sql).await.expect("it commits in the end");
        });
        eventually(SHORT_TIMEOUT, "the commit waits for the standby", async || {
            self.hanging().await > before
        })
        .await;
        committed
    }

    /// How many commits wait for the standby.
    async fn hanging(&self) -> u64 {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        let count = self.fixture.postgres.query_text(query).await.expect("a count");
        count.parse().expect("a number")
    }

    /// Awaits that walpost has held transactions back for so long in total.
    async fn held_back(&self, answering: &Answering, seconds: f64) {
        eventually(SHORT_TIMEOUT, "transactions are held back", async || {
            let waited = answering.scrape().await.of(WAIT_SECONDS);
            if waited >= seconds { Ok(()) } else { Err(waited) }
        })
        .await;
    }
}

/// A consumer that reads the row of each event from the primary when the event arrives.
struct RowReader {
    _tail: Tail,
    _reader: JoinHandle<()>,
    /// The events whose rows were looked for.
    read: Arc<AtomicUsize>,
    /// The ids of those whose rows were not visible.
    missed: Arc<Mutex<Vec<String>>>,
}

impl RowReader {
    async fn start(fixture: &Fixture) -> Self {
        let (sender, mut ids) = unbounded_channel();
        let tail = Tail::start(&fixture.bootstrap, fixture.topics(), move |message| {
            use rdkafka::message::{Headers as _, Message as _};
            let headers = message.headers().expect("headers");
            let id = headers.iter().find(|header| header.key == "id").and_then(|id| id.value);
            let id = String::from_utf8(id.expect("an id").to_vec()).expect("text");
            let _ = sender.send(id);
        });
        let client = fixture.postgres.client().await;
        let query = "SELECT FROM public.outbox WHERE id::text = $1";
        let query = client.prepare(query).await.expect("it is prepared");
        let (read, missed) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (counted, noted) = (Arc::clone(&read), Arc::clone(&missed));
        let reader = tokio::spawn(async move {
            while let Some(id) = ids.recv().await {
                let row = client.query_opt(&query, &[&id]).await.expect("an answer");
                if row.is_none() {
                    noted.lock().expect("whole").push(id);
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { _tail: tail, _reader: reader, read, missed }
    }

    fn missed_so_far(&self) -> usize {
        self.missed.lock().expect("whole").len()
    }

    /// The ids of the events whose rows were not visible, once `count` events have been read.
    async fn missed(&self, count: usize) -> Vec<String> {
        eventually(LONG_TIMEOUT, "the consumer reads everything", async || {
            let read = self.read.load(Ordering::Relaxed);
            if read >= count { Ok(()) } else { Err(read) }
        })
        .await;
        assert_eq!(self.read.load(Ordering::Relaxed), count, "events that are no rows");
        self.missed.lock().expect("whole").clone()
    }
}

/// Writers whose commits wait for the standby, which is away again and again. Returns the ids of
/// the rows that the consumer did not find.
async fn read_rows(pair: &Pair, answering: &Answering, holds: bool) -> Vec<String> {
    let fixture = &pair.fixture;
    answering.await_ready(200).await;
    let reader = RowReader::start(fixture).await;
    let writers: Vec<_> = ["order", "invoice", "customer"]
        .into_iter()
        .map(|kind| Writer::start_with(&fixture.postgres, kind, 200))
        .collect();
    for round in 1..=8 {
        for writer in &writers {
            writer.commits(20).await;
        }
        let before = answering.scrape().await.of(WAIT_SECONDS);
        let missed = reader.missed_so_far();
        let paused = pair.standby.pause_wal_receiver().await;
        eventually(SHORT_TIMEOUT, "all writers wait", async || pair.hanging().await == 3).await;
        if holds {
            pair.held_back(answering, before + 0.1 * f64::from(round)).await;
        } else {
            eventually(SHORT_TIMEOUT, "a row is missed", async || reader.missed_so_far() > missed)
                .await;
        }
        drop(paused);
    }
    let mut rolled_back = Vec::new();
    for writer in writers {
        rolled_back.extend(writer.stop().await);
    }
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&rolled_back).await.assert_exact();
    let count = fixture.committed().await.len();
    assert!(count > 480, "{count} rows");
    reader.missed(count).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_finds_the_row_of_each_event() {
    let pair = Pair::new(Major::V15).await;
    let answering = Answering::over(pair.command()).await;
    assert_eq!(read_rows(&pair, &answering, true).await, Vec::<String>::new());
    stop(answering.walpost).await;
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_finds_the_row_of_each_event_of_exactly_once_delivery() {
    let Pair { fixture, standby } = Pair::new(Major::V18).await;
    let state_topic = topic(&fixture).await;
    let ExactlyOnce { fixture, state_topic } = ExactlyOnce::adopted(fixture, state_topic).await;
    let pair = Pair { fixture, standby };
    let arguments = ["--delivery", "exactly-once", "--state-topic", &state_topic];
    let answering = Answering::over(pair.command().args(arguments)).await;
    answering.walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    assert_eq!(read_rows(&pair, &answering, true).await, Vec::<String>::new());
    stop(answering.walpost).await;
}

/// What the option is for: without it the consumer is earlier than the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_misses_rows_without_the_option() {
    let pair = Pair::new(Major::V15).await;
    let answering = Answering::over(pair.fixture.command("run")).await;
    let missed = read_rows(&pair, &answering, false).await;
    // Those of eight rounds, at least.
    assert!(missed.len() >= 8, "{} rows were missed", missed.len());
    assert_eq!(answering.scrape().await.of(WAIT_SECONDS).to_bits(), 0);
    stop(answering.walpost).await;
}

/// Longer than `wal_sender_timeout`: the session lasts, and the wait is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_wait_keeps_the_session_and_is_reported() {
    let timeout = Duration::from_secs(1);
    let primary = Postgres::builder(Major::V15).wal_sender_timeout(timeout);
    let pair = Pair::with(primary, Postgres::builder(Major::V15)).await;
    let fixture = &pair.fixture;
    let answering = Answering::over(pair.command()).await;
    answering.await_ready(200).await;
    let session = async || {
        let pid = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'walpost'";
        fixture.postgres.query_text(pid).await.expect("a session")
    };
    let before = session().await;
    let paused = pair.standby.pause_wal_receiver().await;
    let committed = pair.hung(&insert(1, 1)).await;
    let hung = fixture.postgres.wal_end().await;
    // Committed behind it, and visible at once: the order is kept.
    let visible = format!("SET synchronous_commit = local; {}", insert(5, 1));
    fixture.postgres.execute(&visible).await;
    let line = answering.walpost.await_line("holding back a transaction", SHORT_TIMEOUT).await;
    assert!(line.contains("synchronous_standby_names") && line.contains("\"xid\":"), "{line}");
    let reason = answering.await_ready(503).await;
    assert!(reason.contains("other sessions do not see it yet"), "{reason}");
    let scrape = answering.scrape().await;
    assert!(scrape.of(WAIT_SECONDS) >= 10.0);
    assert!(scrape.of("walpost_oldest_unconfirmed_commit_timestamp_seconds") > 0.0);
    assert_eq!(session().await, before, "the session was lost");
    fixture.assert_unconfirmed(&hung).await;
    assert_eq!(fixture.records().await.len(), 0, "it was published");
    drop(paused);
    committed.await.expect("no panic");
    answering.walpost.await_line("other sessions see the transaction now", SHORT_TIMEOUT).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    answering.await_ready(200).await;
    assert_eq!(session().await, before);
    stop(answering.walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_during_a_wait_is_prompt_and_loses_nothing() {
    let pair = Pair::new(Major::V15).await;
    let fixture = &pair.fixture;
    let answering = Answering::over(pair.command()).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    let paused = pair.standby.pause_wal_receiver().await;
    let committed = pair.hung(&insert(5, 3)).await;
    let before = answering.scrape().await.of(WAIT_SECONDS);
    pair.held_back(&answering, before + 0.2).await;
    let asked = Instant::now();
    let last = stop(answering.walpost).await;
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    assert_eq!(last["delivered"].as_u64(), Some(10), "{last}");
    // A killed one leaves nothing behind either, and the next one holds it back again.
    let answering = Answering::over(pair.command()).await;
    pair.held_back(&answering, 0.2).await;
    answering.walpost.kill9().await;
    assert_eq!(fixture.records().await.len(), 10, "it was published");
    let answering = Answering::over(pair.command()).await;
    pair.held_back(&answering, 0.2).await;
    drop(paused);
    committed.await.expect("no panic");
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(answering.walpost).await;
}

/// The server restarts while a commit waits: the transaction is visible after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_ends_with_the_session_and_continues_in_the_next() {
    let pair = Pair::new(Major::V15).await;
    let fixture = &pair.fixture;
    let answering = Answering::over(pair.command()).await;
    let paused = pair.standby.pause_wal_receiver().await;
    let client = fixture.postgres.client().await;
    let committed = tokio::spawn(async move { client.batch_execute(&insert(5, 3)).await });
    pair.held_back(&answering, 0.2).await;
    fixture.postgres.kill9().await;
    committed.await.expect("no panic").expect_err("the server is gone");
    fixture.postgres.start_again().await;
    drop(paused);
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge().await.assert_exact();
    assert_eq!(fixture.committed().await.len(), 5);
    stop(answering.walpost).await;
}

/// Whatever writes the event: a prepared transaction, a savepoint, a logical message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_transactions_savepoints_and_messages_are_held_back() {
    let mut pair = Pair::new(Major::V18).await;
    pair.fixture = pair.fixture.option("--message-prefix", "outbox");
    let fixture = &pair.fixture;
    let answering = Answering::over(pair.command()).await;
    answering.await_ready(200).await;
    fixture.postgres.execute(&format!("BEGIN; {}; PREPARE TRANSACTION 'p'", insert(2, 1))).await;
    let savepoint = format!("BEGIN; SAVEPOINT s; {}; RELEASE s; COMMIT", insert(3, 1));
    let message = "SELECT pg_logical_emit_message(true, 'outbox', \
                   '{\"id\": 1, \"aggregate_type\": \"order\", \"aggregate_id\": \"1\", \
                     \"event_type\": \"placed\", \"payload\": {}}')";
    let mut published = 0;
    for (sql, events) in [("COMMIT PREPARED 'p'", 2), (savepoint.as_str(), 3), (message, 1)] {
        let paused = pair.standby.pause_wal_receiver().await;
        let before = answering.scrape().await.of(WAIT_SECONDS);
        let committed = pair.hung(sql).await;
        // In no transaction: walpost refuses it, and it waits for nothing.
        let outside = "SELECT pg_logical_emit_message(false, 'outbox', '{}')";
        fixture.postgres.execute(outside).await;
        pair.held_back(&answering, before + 0.2).await;
        assert_eq!(fixture.records().await.len(), published, "{sql} was published");
        drop(paused);
        committed.await.expect("no panic");
        published += events;
        eventually(SHORT_TIMEOUT, "its events are published", async || {
            fixture.records().await.len() == published
        })
        .await;
    }
    stop(answering.walpost).await;
}

/// PostgreSQL 14 sends the Begin and Commit of transactions that have written other tables only: there
/// is nothing to wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_transactions_are_not_held_back() {
    let pair = Pair::new(Major::V14).await;
    let fixture = &pair.fixture;
    fixture.postgres.execute("CREATE TABLE public.other (n int)").await;
    let answering = Answering::over(pair.command()).await;
    answering.await_ready(200).await;
    fixture.postgres.execute(&insert(3, 1)).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    let before = answering.scrape().await.of(WAIT_SECONDS);
    let paused = pair.standby.pause_wal_receiver().await;
    let committed = pair.hung("INSERT INTO public.other VALUES (1)").await;
    let visible = format!("SET synchronous_commit = local; {}", insert(5, 1));
    fixture.postgres.execute(&visible).await;
    eventually(SHORT_TIMEOUT, "what is visible is published", async || {
        fixture.records().await.len() == 8
    })
    .await;
    assert_eq!(pair.hanging().await, 1, "the other transaction still waits");
    let waited = answering.scrape().await.of(WAIT_SECONDS) - before;
    assert!(waited < 0.1, "it held something back for {waited} s");
    drop(paused);
    committed.await.expect("no panic");
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(answering.walpost).await;
}

/// A catch-up decodes what is flushed, as a stream does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_holds_back_what_is_not_visible() {
    let pair = Pair::new(Major::V15).await;
    let fixture = &pair.fixture;
    one_by_one(fixture, 200).await;
    let paused = pair.standby.pause_wal_receiver().await;
    let committed = pair.hung(&insert(3, 1)).await;
    let behind = "SET synchronous_commit = local; ";
    for _ in 0..20 {
        fixture.postgres.execute(&format!("{behind}{}", insert(500, 5))).await;
    }
    let command = pair.command().env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB");
    let answering = Answering::over(command).await;
    answering.walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    pair.held_back(&answering, 0.5).await;
    assert_eq!(fixture.records().await.len(), 200, "only what is visible and before it");
    assert!(!answering.walpost.said(STREAMING), "the catch-up is not over");
    // A catch-up that nobody reads yields to a stream, which holds the same transaction back.
    answering.walpost.await_line(STREAMING, SHORT_TIMEOUT).await;
    let before = answering.scrape().await.of(WAIT_SECONDS);
    pair.held_back(&answering, before + 0.2).await;
    assert_eq!(fixture.records().await.len(), 200);
    drop(paused);
    committed.await.expect("no panic");
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(answering.walpost).await;
}
