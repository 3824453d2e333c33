//! The thread that owns the connection: it connects, synchronises, publishes messages one behind the
//! other, and reports what became of them. It decides nothing about records.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::{Client, Subscriber};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use super::api::acknowledged;
use super::batch::{Batch, Sent};
use super::config::{NatsConfig, NatsSource};
use super::connection::{Connection, connect};
use super::failure::Failure;
use super::message::{Limits, Message};
use super::shared::{Event, Shared, Synced};
use super::state_key::{foreign, last_event, read, usable_stream};
use crate::sink::Condition;
use crate::sink::delays::delays;

/// How many messages, and bytes of them, are sent before the first of them is acknowledged. A round
/// trip of 20 ms then allows 100,000 messages per second. A server refuses messages above 10,000 of
/// a stream that are waiting to be stored.
const WINDOW_MESSAGES: usize = 2048;
const WINDOW_BYTES: usize = 8 << 20;

/// How long the oldest batch may wait for its acknowledgements. Then the connection is opened anew.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Minimum and maximum delay between two attempts to connect.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// An order of the sink.
#[derive(Debug)]
pub(super) enum Order {
    /// Connect, under this claim of the state key. What was ordered before is given up.
    Sync { epoch: u64, claim: String },
    /// Publish these messages, over the connection of this epoch.
    Publish { epoch: u64, batch: Batch },
    /// Close the connection.
    Close,
}

pub(super) struct Worker {
    pub(super) source: NatsSource,
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

/// A connection over which messages can be published.
struct Open {
    connection: Connection,
    /// Acknowledgements: their subjects end in the sequence number of the message.
    acks: Subscriber,
    inbox: String,
    stream: String,
    address: String,
}

/// A batch in flight.
struct InFlight {
    sent: Sent,
    messages: usize,
    bytes: usize,
    /// How many acknowledgements are missing.
    missing: usize,
}

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
            // Messages of a connection that has failed are produced again.
            let Order::Sync { epoch, claim } = order else { continue };
            match self.serve(epoch, &claim).await {
                Ended::Order(order) => next = Some(order),
                Ended::Gone => return,
                Ended::Failed(failure) => self.shared.push(Event::Failed { epoch, failure }),
            }
        }
    }

    async fn serve(&mut self, epoch: u64, claim: &str) -> Ended {
        let mut open = match self.connect(epoch, claim).await {
            Ok(open) => open,
            Err(ended) => return ended,
        };
        self.shared.set_connected(true);
        let ended = self.stream(epoch, &mut open).await;
        if let Ended::Failed(_) = &ended {
            self.shared.set_connected(false);
        }
        ended
    }

    /// Connects and synchronises, however long it takes.
    async fn connect(&mut self, epoch: u64, claim: &str) -> Result<Open, Ended> {
        let mut delays = delays(RETRY_DELAYS);
        let mut reported: Option<Failure> = None;
        loop {
            let attempt = open(&self.source, epoch, claim);
            let failure = tokio::select! {
                biased;
                order = self.orders.recv() => return Err(order.map_or(Ended::Gone, Ended::Order)),
                opened = attempt => match opened {
                    Ok((open, synced)) => {
                        if reported.is_some() {
                            self.shared.push(Event::Condition(Condition::Flowing));
                        }
                        self.shared.push(Event::Synced(synced));
                        return Ok(open);
                    }
                    Err(Failure::Fenced) => return Err(Ended::Failed(Failure::Fenced)),
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

    /// Publishes batches until something ends that.
    async fn stream(&mut self, epoch: u64, open: &mut Open) -> Ended {
        let mut sent: VecDeque<InFlight> = VecDeque::new();
        let mut waiting: VecDeque<Batch> = VecDeque::new();
        let (mut messages, mut bytes) = (0, 0);
        let mut progress = Instant::now();
        loop {
            while (messages < WINDOW_MESSAGES && bytes < WINDOW_BYTES)
                && let Some(batch) = waiting.pop_front()
            {
                if sent.is_empty() {
                    progress = Instant::now();
                }
                let Batch { messages: contents, bytes: size, sent: about } = batch;
                let count = contents.len();
                (messages, bytes) = (messages + count, bytes + size);
                if let Err(failure) = publish(open, about.first, contents).await {
                    return Ended::Failed(failure);
                }
                let in_flight =
                    InFlight { sent: about, messages: count, bytes: size, missing: count };
                sent.push_back(in_flight);
            }
            tokio::select! {
                biased;
                ack = open.acks.next() => {
                    let Some(ack) = ack else { return Ended::Failed(open.connection.failed().await) };
                    let mut next = Some(ack);
                    while let Some(ack) = next {
                        if let Err(failure) = take(&ack, open, &mut sent) {
                            return Ended::Failed(failure);
                        }
                        next = open.acks.next().now_or_never().flatten();
                    }
                    progress = Instant::now();
                    while sent.front().is_some_and(|batch| batch.missing == 0)
                        && let Some(batch) = sent.pop_front()
                    {
                        (messages, bytes) = (messages - batch.messages, bytes - batch.bytes);
                        let batch = batch.sent;
                        self.shared.push(Event::Stored { epoch, batch, at: progress });
                    }
                }
                failure = open.connection.failed() => return Ended::Failed(failure),
                order = self.orders.recv() => match order {
                    Some(Order::Publish { epoch: of, batch }) if of == epoch => waiting.push_back(batch),
                    Some(Order::Publish { .. }) => {}
                    Some(order) => return Ended::Order(order),
                    None => return Ended::Gone,
                },
                () = sleep(ANSWER_TIMEOUT.saturating_sub(progress.elapsed())), if !sent.is_empty() => {
                    return Ended::Failed(unanswered(&open.address));
                }
            }
        }
    }
}

/// Connects, and reads what is there.
async fn open(source: &NatsSource, epoch: u64, claim: &str) -> Result<(Open, Synced), Failure> {
    let config = source.read().map_err(Failure::Unusable)?;
    let connection = connect(&config).await?;
    let client = connection.client.clone();
    let synchronised = async {
        let inbox = client.new_inbox();
        let acks = client.subscribe(format!("{inbox}.*")).await;
        let acks =
            acks.map_err(|error| Failure::Unreachable(format!("cannot subscribe: {error}")))?;
        let synced = sync(&client, &config, epoch, claim).await?;
        Ok((inbox, acks, synced))
    };
    let address = config.url.address();
    let synchronised = timeout(ANSWER_TIMEOUT, connection.or_failed(synchronised)).await;
    let (inbox, acks, synced) = synchronised.unwrap_or_else(|_| Err(unanswered(&address)))?;
    Ok((Open { connection, acks, inbox, stream: config.stream, address }, synced))
}

/// What the stream has, if this claim is still the one of the state key.
async fn sync(
    client: &Client,
    config: &NatsConfig,
    epoch: u64,
    claim: &str,
) -> Result<Synced, Failure> {
    let entry = read(client, config).await?.filter(|entry| entry.claim() == claim);
    let entry = entry.ok_or(Failure::Fenced)?;
    let stream = usable_stream(client, config).await?;
    let last = last_event(client, config, &entry, &stream).await?;
    let payload = client.max_payload() as u64;
    let own =
        u64::try_from(stream.config.max_msg_size).ok().filter(|size| (1..payload).contains(size));
    let (bytes, from) = own.map_or((payload, "max_payload of the server"), |size| {
        (size, "max_msg_size of the stream")
    });
    let limits = Limits { bytes, from, subjects: stream.config.subjects };
    Ok(Synced { epoch, writer: entry.writer(), end: stream.state.last_seq, last, limits })
}

/// Sends the messages of a batch; they are acknowledged later.
async fn publish(open: &Open, first: u64, messages: Vec<Message>) -> Result<(), Failure> {
    let sending = async {
        for (number, message) in (first..).zip(messages) {
            let Message { subject, headers, payload, .. } = message;
            let reply = format!("{}.{number}", open.inbox);
            let client = &open.connection.client;
            let sent =
                client.publish_with_reply_and_headers(subject, reply, headers, payload).await;
            sent.map_err(|error| Failure::Unreachable(format!("cannot publish: {error}")))?;
        }
        Ok(())
    };
    timeout(ANSWER_TIMEOUT, sending).await.unwrap_or_else(|_| Err(unanswered(&open.address)))
}

/// Counts an acknowledgement.
fn take(
    ack: &async_nats::Message,
    open: &Open,
    sent: &mut VecDeque<InFlight>,
) -> Result<(), Failure> {
    let number = ack.subject.rsplit('.').next().and_then(|number| number.parse::<u64>().ok());
    let of = |batch: &&mut InFlight| {
        number.is_some_and(|number| (batch.sent.first..=batch.sent.last.seq).contains(&number))
    };
    let Some((batch, number)) = sent.iter_mut().find(of).zip(number) else {
        return Err(Failure::Unusable("an acknowledgement of no message has arrived".to_owned()));
    };
    let stored = acknowledged(ack, &open.stream)?;
    // A duplicate counts: it is there, by an earlier connection of the same walpost.
    if stored.stream != open.stream || stored.seq != number {
        return Err(foreign(&open.stream, stored.seq));
    }
    batch.missing = batch.missing.saturating_sub(1);
    Ok(())
}

fn unanswered(address: &str) -> Failure {
    Failure::Unreachable(format!("{address} has not answered for {ANSWER_TIMEOUT:?}"))
}

/// A text that nobody else uses.
pub(crate) fn nonce() -> String {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}-{:x}", elapsed.as_nanos(), std::process::id(), next())
}

fn next() -> u64 {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
