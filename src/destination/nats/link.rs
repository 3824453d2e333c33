//! A connection over which messages are published: one behind the other, and acknowledged later.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::{Client, Subscriber};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{sleep, timeout};

use super::api::{StreamConfig, answered};
use super::batch::{Batch, Sent};
use super::config::{NatsConfig, NatsSource};
use super::connection::{Connection, connect};
use super::message::{Limits, Message};
use super::state_key::{Last, foreign, last_event, read, usable_stream};
use crate::destination::parts::Failure;
use crate::destination::parts::link::{Ended, Link, Session};
use crate::destination::parts::message_id::Writer;
use crate::sink::Condition;

/// How many messages, and bytes of them, are sent before the first of them is acknowledged. A round
/// trip of 20 ms then allows 100,000 messages per second. A server refuses messages above 10,000 of
/// a stream that are waiting to be stored.
const WINDOW_MESSAGES: usize = 2048;
const WINDOW_BYTES: usize = 8 << 20;

/// How long the oldest batch may wait for its acknowledgements. Then the connection is opened anew.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long the reason for a gap may take, which came before it over the same connection.
const DENIAL_TIMEOUT: Duration = Duration::from_millis(200);

/// What is there when a connection begins.
#[derive(Debug, Clone)]
pub(crate) struct Synced {
    pub(super) writer: Writer,
    /// The sequence number of the stream's last message.
    pub(super) end: u64,
    /// The last event in it; `None`: none of this generation.
    pub(super) last: Option<Last>,
    pub(super) limits: Limits,
}

/// A connection over which messages can be published.
pub(crate) struct NatsLink {
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

impl Link for NatsLink {
    const THREAD: &'static str = "walpost-nats";
    type Source = NatsSource;
    type Batch = Batch;
    type Synced = Synced;
    /// All messages of a batch are in the stream, or would be accepted.
    type Done = Sent;

    async fn open(
        source: &NatsSource,
        claim: &str,
        _report: &(dyn Fn(Condition) + Sync),
    ) -> Result<(Self, Synced), Failure> {
        open(source, claim).await
    }

    /// Publishes batches until something ends that.
    async fn stream(&mut self, session: &mut Session<'_, Self>) -> Ended<Self> {
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
                if let Err(failure) = publish(self, about.first, contents).await {
                    return Ended::Failed(failure);
                }
                let in_flight =
                    InFlight { sent: about, messages: count, bytes: size, missing: count };
                sent.push_back(in_flight);
            }
            tokio::select! {
                biased;
                ack = self.acks.next() => {
                    let Some(ack) = ack else { return Ended::Failed(self.connection.failed().await) };
                    let mut next = Some(ack);
                    while let Some(ack) = next {
                        if let Err(failure) = take(&ack, self, &mut sent) {
                            return Ended::Failed(self.cause_of(failure).await);
                        }
                        next = self.acks.next().now_or_never().flatten();
                    }
                    progress = Instant::now();
                    while sent.front().is_some_and(|batch| batch.missing == 0)
                        && let Some(batch) = sent.pop_front()
                    {
                        (messages, bytes) = (messages - batch.messages, bytes - batch.bytes);
                        session.done(batch.sent);
                    }
                }
                failure = self.connection.failed() => return Ended::Failed(failure),
                next = session.next() => match next {
                    Ok(batch) => waiting.push_back(batch),
                    Err(ended) => return ended,
                },
                () = sleep(ANSWER_TIMEOUT.saturating_sub(progress.elapsed())), if !sent.is_empty() => {
                    return Ended::Failed(unanswered(&self.address));
                }
            }
        }
    }
}

impl NatsLink {
    /// Why a message was not stored, if it is known only from the ones behind it: the server tells apart
    /// from its answers that the user may not publish to a subject.
    async fn cause_of(&self, failure: Failure) -> Failure {
        if !matches!(failure, Failure::Gap(_)) {
            return failure;
        }
        match timeout(DENIAL_TIMEOUT, self.connection.failed()).await {
            Ok(denied @ Failure::Denied(_)) => denied,
            Ok(_) | Err(_) => failure,
        }
    }
}

/// Connects, and reads what is there.
async fn open(source: &NatsSource, claim: &str) -> Result<(NatsLink, Synced), Failure> {
    let config = source.read().map_err(Failure::Unusable)?;
    let connection = connect(&config).await?;
    let client = connection.client.clone();
    let synchronised = async {
        let inbox = client.new_inbox();
        let acks = client.subscribe(format!("{inbox}.*")).await;
        let acks =
            acks.map_err(|error| Failure::Unreachable(format!("cannot subscribe: {error}")))?;
        let synced = sync(&client, &config, claim).await?;
        Ok((inbox, acks, synced))
    };
    let address = config.url.address();
    let synchronised = timeout(ANSWER_TIMEOUT, connection.or_failed(synchronised)).await;
    let (inbox, acks, synced) = synchronised.unwrap_or_else(|_| Err(unanswered(&address)))?;
    Ok((NatsLink { connection, acks, inbox, stream: config.stream, address }, synced))
}

/// What the stream has, if this claim is still the one of the state key.
async fn sync(client: &Client, config: &NatsConfig, claim: &str) -> Result<Synced, Failure> {
    let entry = read(client, config).await?.filter(|entry| entry.claim() == claim);
    let entry = entry.ok_or(Failure::Fenced)?;
    let stream = usable_stream(client, config).await?;
    let last = last_event(client, config, &entry, &stream).await?;
    let (end, limits) = (stream.state.last_seq, limits_of(client, stream.config));
    Ok(Synced { writer: entry.writer(), end, last, limits })
}

/// What a stream takes over this connection.
pub(super) fn limits_of(client: &Client, stream: StreamConfig) -> Limits {
    let payload = client.max_payload() as u64;
    let own = u64::try_from(stream.max_msg_size).ok().filter(|size| (1..payload).contains(size));
    let (bytes, from) = own.map_or((payload, "max_payload of the server"), |size| {
        (size, "max_msg_size of the stream")
    });
    Limits { bytes, from, subjects: stream.subjects, denied: Vec::new() }
}

/// Sends the messages of a batch; they are acknowledged later.
async fn publish(open: &NatsLink, first: u64, messages: Vec<Message>) -> Result<(), Failure> {
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
    open: &NatsLink,
    sent: &mut VecDeque<InFlight>,
) -> Result<(), Failure> {
    let number = ack.subject.rsplit('.').next().and_then(|number| number.parse::<u64>().ok());
    let of = |batch: &&mut InFlight| {
        number.is_some_and(|number| (batch.sent.first..=batch.sent.last.seq).contains(&number))
    };
    let Some((batch, number)) = sent.iter_mut().find(of).zip(number) else {
        return Err(Failure::Unusable("an acknowledgement of no message has arrived".to_owned()));
    };
    let stored = match answered(ack, &open.stream)? {
        Err(error) if batch.sent.only_asks && error.is_wrong_last() => {
            batch.missing = 0;
            return Ok(());
        }
        Ok(stored) if batch.sent.only_asks => return Err(foreign(&open.stream, stored.seq)),
        Ok(stored) => stored,
        Err(error) => {
            let number = usize::try_from(number - batch.sent.first).unwrap_or(usize::MAX);
            let seq = batch.sent.tally.seqs.get(number).copied();
            return Err(match error.of_message() {
                Some((reason, is_known)) => Failure::Record { number, seq, is_known, reason },
                None => error.into(),
            });
        }
    };
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
