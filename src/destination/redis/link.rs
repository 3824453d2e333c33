//! A connection over which entries are added: batches follow each other, and are answered later.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use tokio::time::{sleep, timeout};

use super::batch::Batch;
use super::config::{RedisConfig, RedisSource};
use super::connection::{Connection, connect};
use super::entry_id::EntryId;
use super::script::{added, load, sync};
use crate::destination::parts::Failure;
use crate::destination::parts::claims::nonce;
use crate::destination::parts::link::{Ended, Link, Session};
use crate::sink::{Condition, Fault};

/// How many batches are sent before the first of them is answered: fewer than the client queues.
const WINDOW: usize = 32;

/// How long the oldest batch may wait for its answer. Then the connection is opened anew.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How often an idle connection is tried.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How long Redis waits for replicas before it answers.
const REPLICAS_TIMEOUT: Duration = Duration::from_secs(1);

/// What is there when a connection begins.
#[derive(Debug, Clone)]
pub(crate) struct Synced {
    pub(super) writer: String,
    pub(super) generation: u8,
    /// The id of the last event that was handled.
    pub(super) last: EntryId,
    /// The size of a value that the server accepts, in bytes, if the user may ask for it.
    pub(super) value_max: Option<u64>,
}

/// A connection over which entries can be added.
pub(crate) struct RedisLink {
    connection: Connection,
    config: RedisConfig,
}

/// A batch that was sent, with its outcome.
type Sent = Pin<Box<dyn Future<Output = (Batch, Result<(), Failure>)> + Send>>;

impl Link for RedisLink {
    const THREAD: &'static str = "walpost-redis";
    type Source = RedisSource;
    type Batch = Batch;
    type Synced = Synced;
    /// A batch is in the stream, and as durable as configured.
    type Done = Batch;

    async fn open(
        source: &RedisSource,
        claim: &str,
        report: &(dyn Fn(Condition) + Sync),
    ) -> Result<(Self, Synced), Failure> {
        open(source, claim, report).await
    }

    /// Sends batches until something ends that.
    async fn stream(&mut self, session: &mut Session<'_, Self>) -> Ended<Self> {
        let Self { connection, config } = self;
        let mut sent: FuturesOrdered<Sent> = FuturesOrdered::new();
        let mut waiting: VecDeque<Batch> = VecDeque::new();
        let mut progress = Instant::now();
        loop {
            while sent.len() < WINDOW
                && let Some(batch) = waiting.pop_front()
            {
                if sent.is_empty() {
                    progress = Instant::now();
                }
                sent.push_back(send(connection.client.clone(), batch, config));
            }
            tokio::select! {
                biased;
                Some((batch, outcome)) = sent.next(), if !sent.is_empty() => {
                    if let Err(failure) = outcome {
                        return Ended::Failed(of_batch(failure, &batch));
                    }
                    progress = Instant::now();
                    session.done(batch);
                }
                next = session.next() => match next {
                    Ok(batch) => waiting.push_back(batch),
                    Err(ended) => return ended,
                },
                () = sleep(ANSWER_TIMEOUT.saturating_sub(progress.elapsed())), if !sent.is_empty() => {
                    return Ended::Failed(unanswered(config));
                }
                // Found before the next batch, which would have to be produced again.
                () = connection.closed(), if sent.is_empty() => {
                    let address = config.url.address();
                    let reason = format!("{address} has closed the connection");
                    return Ended::Failed(Failure::Unreachable(reason));
                }
                () = sleep(PING_INTERVAL), if sent.is_empty() => {
                    if let Err(failure) = ping(&mut connection.client.clone(), config).await {
                        return Ended::Failed(failure);
                    }
                }
            }
        }
    }
}

/// Connects, and makes this connection the only one that may add entries.
async fn open(
    source: &RedisSource,
    claim: &str,
    report: &(dyn Fn(Condition) + Sync),
) -> Result<(RedisLink, Synced), Failure> {
    let config = source.read().map_err(Failure::Unusable)?;
    let connection = connect(&config).await?;
    let mut client = connection.client.clone();
    let writer = nonce();
    let synchronised = async {
        load(&mut client).await?;
        let (generation, last) = sync(&mut client, &config, claim, &writer).await?;
        Ok((generation, last, value_max(&mut client).await))
    };
    let (generation, last, value_max) = answered(&config, synchronised).await?;
    // What is there already counts as delivered only if the replicas have it too.
    await_replicas(&mut client, &config, Some(report)).await?;
    let synced = Synced { writer, generation, last, value_max };
    Ok((RedisLink { connection, config }, synced))
}

/// The size of a value that the server accepts, unless the user may not ask.
async fn value_max(client: &mut MultiplexedConnection) -> Option<u64> {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("proto-max-bulk-len");
    let answer: Result<Vec<String>, _> = command.query_async(client).await;
    answer.ok().and_then(|pair| pair.get(1)?.parse().ok())
}

/// Sends a batch; the answer comes in its turn.
fn send(mut client: MultiplexedConnection, batch: Batch, config: &RedisConfig) -> Sent {
    let (stream, config) = (config.stream.clone(), config.clone());
    Box::pin(async move {
        let answer = client.req_packed_command(&batch.command).await;
        let answer = match answer.and_then(redis::Value::extract_error) {
            Ok(answer) => added(&answer, batch.tally.seqs.len(), &stream),
            Err(error) => Err(Failure::from(error)),
        };
        let outcome = match answer {
            Ok(()) => await_replicas(&mut client, &config, None).await,
            Err(failure) => Err(failure),
        };
        (batch, outcome)
    })
}

/// The failure as the answer to this batch.
fn of_batch(failure: Failure, batch: &Batch) -> Failure {
    match failure {
        Failure::Record { number, is_known, reason, .. } => {
            let seq = batch.tally.seqs.get(number).copied();
            Failure::Record { number, seq, is_known, reason }
        }
        other => other.of_values(batch.largest),
    }
}

/// Waits until enough replicas have everything that this connection has written.
async fn await_replicas(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
    report: Option<&(dyn Fn(Condition) + Sync)>,
) -> Result<(), Failure> {
    let mut reported = false;
    while let Some(reason) = lacks_replicas(client, config).await? {
        if let Some(report) = report.filter(|_| !reported) {
            report(Condition::Stalled { reason, fault: Fault::Brokers });
            reported = true;
        }
    }
    if reported && let Some(report) = report {
        report(Condition::Flowing);
    }
    Ok(())
}

/// Why not enough replicas have everything that this connection has written, or have it soon.
pub(crate) async fn lacks_replicas(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
) -> Result<Option<String>, Failure> {
    let wanted = config.wait_replicas;
    if wanted == 0 {
        return Ok(None);
    }
    let mut command = redis::cmd("WAIT");
    command.arg(wanted).arg(REPLICAS_TIMEOUT.as_millis().to_string());
    let got = answered(config, async { Ok(command.query_async::<u32>(client).await?) }).await?;
    let reason = || {
        format!(
            "{got} of {wanted} replicas (redis.wait_replicas) have acknowledged: see to the replicas"
        )
    };
    Ok((got < wanted).then(reason))
}

/// Whether the server still answers.
pub(crate) async fn ping(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
) -> Result<(), Failure> {
    let command = redis::cmd("PING");
    answered(config, async { Ok(command.query_async::<String>(client).await?) }).await.map(drop)
}

/// The answer of the server, which may take [`ANSWER_TIMEOUT`].
pub(super) async fn answered<T>(
    config: &RedisConfig,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(unanswered(config)))
}

fn unanswered(config: &RedisConfig) -> Failure {
    let replicas = if config.wait_replicas > 0 { ", or not enough replicas have," } else { "" };
    Failure::Unreachable(format!(
        "{} has not answered{replicas} for {ANSWER_TIMEOUT:?}",
        config.url.address()
    ))
}
