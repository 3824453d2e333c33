//! The thread that owns the connection: it connects, synchronises, sends batches one behind the
//! other, and reports what became of them. It decides nothing about records.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use super::batch::Batch;
use super::claims::nonce;
use super::config::{RedisConfig, RedisSource};
use super::connection::{Connection, connect};
use super::failure::Failure;
use super::script::{added, load, sync};
use super::shared::{Event, Shared, Synced};
use crate::sink::delays::delays;
use crate::sink::{Condition, Fault};

/// How many batches are sent before the first of them is answered: fewer than the client queues.
const WINDOW: usize = 32;

/// How long the oldest batch may wait for its answer. Then the connection is opened anew.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How often an idle connection is tried.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How long Redis waits for replicas before it answers.
const REPLICAS_TIMEOUT: Duration = Duration::from_secs(1);

/// Minimum and maximum delay between two attempts to connect.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// An order of the sink.
#[derive(Debug)]
pub(super) enum Order {
    /// Connect, under this claim of the state key. What was ordered before is given up.
    Sync { epoch: u64, claim: String },
    /// Add these entries, over the connection of this epoch.
    Add { epoch: u64, batch: Batch },
    /// Close the connection.
    Close,
}

pub(super) struct Worker {
    pub(super) source: RedisSource,
    pub(super) orders: UnboundedReceiver<Order>,
    pub(super) shared: Arc<Shared>,
}

/// What ends a connection, or the attempt to open one.
enum Ended {
    /// Another order.
    Order(Order),
    /// The sink is gone.
    Gone,
    Failed(Failure),
}

/// A batch that was sent, with its outcome.
type Sent = Pin<Box<dyn Future<Output = (Batch, Result<(), Failure>)> + Send>>;

impl Worker {
    /// Works until the sink is gone.
    pub(super) async fn run(mut self) {
        let mut next = None;
        loop {
            let order = match next.take() {
                Some(order) => order,
                None => match self.orders.recv().await {
                    Some(order) => order,
                    None => return,
                },
            };
            // Entries of a connection that has failed are produced again.
            let Order::Sync { epoch, claim } = order else { continue };
            match self.serve(epoch, &claim).await {
                Ended::Order(order) => next = Some(order),
                Ended::Gone => return,
                Ended::Failed(failure) => self.shared.push(Event::Failed { epoch, failure }),
            }
        }
    }

    async fn serve(&mut self, epoch: u64, claim: &str) -> Ended {
        let (mut connection, config) = match self.connect(epoch, claim).await {
            Ok(connected) => connected,
            Err(ended) => return ended,
        };
        self.shared.set_connected(true);
        let ended = self.stream(epoch, &mut connection, &config).await;
        if let Ended::Failed(_) = &ended {
            self.shared.set_connected(false);
        }
        ended
    }

    /// Connects and synchronises, however long it takes.
    async fn connect(
        &mut self,
        epoch: u64,
        claim: &str,
    ) -> Result<(Connection, RedisConfig), Ended> {
        let mut delays = delays(RETRY_DELAYS);
        let mut reported: Option<Failure> = None;
        loop {
            let attempt = open(&self.source, epoch, claim, &self.shared);
            let failure = tokio::select! {
                biased;
                order = self.orders.recv() => return Err(order.map_or(Ended::Gone, Ended::Order)),
                opened = attempt => match opened {
                    Ok((connection, config, synced)) => {
                        if reported.is_some() {
                            self.shared.push(Event::Condition(Condition::Flowing));
                        }
                        self.shared.push(Event::Synced(synced));
                        return Ok((connection, config));
                    }
                    // Only a new session finds out what is to be done.
                    Err(
                        failure @ (Failure::Fenced | Failure::Superseded | Failure::Stream(_)),
                    ) => return Err(Ended::Failed(failure)),
                    Err(failure) => failure,
                },
            };
            self.shared.set_connected(false);
            if reported.as_ref() != Some(&failure) {
                if let Some(condition) = failure.clone().condition() {
                    self.shared.push(Event::Condition(condition));
                }
                reported = Some(failure);
            }
            let delay = delays.next().unwrap_or(RETRY_DELAYS[1]);
            tokio::select! {
                biased;
                order = self.orders.recv() => return Err(order.map_or(Ended::Gone, Ended::Order)),
                () = sleep(delay) => {}
            }
        }
    }

    /// Sends batches until something ends that.
    async fn stream(
        &mut self,
        epoch: u64,
        connection: &mut Connection,
        config: &RedisConfig,
    ) -> Ended {
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
                        if failure.is_of_size() {
                            let bytes = batch.largest;
                            self.shared.push(Event::TooLarge { epoch, bytes });
                        }
                        return Ended::Failed(failure);
                    }
                    progress = Instant::now();
                    self.shared.push(Event::Added { epoch, batch, at: progress });
                }
                order = self.orders.recv() => match order {
                    Some(Order::Add { epoch: of, batch }) if of == epoch => waiting.push_back(batch),
                    Some(Order::Add { .. }) => {}
                    Some(order) => return Ended::Order(order),
                    None => return Ended::Gone,
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
    epoch: u64,
    claim: &str,
    shared: &Shared,
) -> Result<(Connection, RedisConfig, Synced), Failure> {
    let config = source.read().map_err(Failure::Unusable)?;
    let connection = connect(&config).await?;
    let mut client = connection.client.clone();
    let writer = nonce();
    let synchronised = async {
        load(&mut client).await?;
        let (generation, last) = sync(&mut client, &config, claim, &writer).await?;
        Ok((generation, last, value_max(&mut client).await))
    };
    let synchronised = timeout(ANSWER_TIMEOUT, synchronised).await;
    let (generation, last, value_max) =
        synchronised.unwrap_or_else(|_| Err(unanswered(&config)))?;
    // What is there already counts as delivered only if the replicas have it too.
    let report = |condition| shared.push(Event::Condition(condition));
    await_replicas(&mut client, &config, Some(&report)).await?;
    let synced = Synced { epoch, writer, generation, last, value_max };
    Ok((connection, config, synced))
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
            Ok(answer) => added(&answer, batch.seqs.len(), &stream),
            Err(error) => Err(Failure::from(error)),
        };
        let outcome = match answer {
            Ok(()) => await_replicas(&mut client, &config, None).await,
            Err(failure) => Err(failure),
        };
        (batch, outcome)
    })
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
    let answered = timeout(ANSWER_TIMEOUT, command.query_async::<u32>(client)).await;
    let got = answered.map_err(|_| unanswered(config))??;
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
    let answered = timeout(ANSWER_TIMEOUT, command.query_async::<String>(client)).await;
    answered.map_err(|_| unanswered(config))??;
    Ok(())
}

fn unanswered(config: &RedisConfig) -> Failure {
    let replicas = if config.wait_replicas > 0 { ", or not enough replicas have," } else { "" };
    Failure::Unreachable(format!(
        "{} has not answered{replicas} for {ANSWER_TIMEOUT:?}",
        config.url.address()
    ))
}
