//! A connection over which messages are published, and confirmed later.

use std::time::{Duration, Instant};

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, connection};
use amq_protocol::types::AMQPValue;
use tokio::time::sleep_until;

use super::config::RabbitSource;
use super::connection::{Channel, closed, open};
use super::flow::{Confirmed, Flow};
use super::message::{CHANNEL, Message};
use crate::destination::parts::Failure;
use crate::destination::parts::link::{Ended, Link, Session, Tally};
use crate::ledger::Seq;
use crate::outlet::{Ground, Refusal};
use crate::position::EventPosition;
use crate::record::POSITION_HEADER;
use crate::sink::{Condition, Fault};

/// How long the broker may be silent: it sends heartbeats twice in ten seconds. Then the connection
/// is opened anew.
const SILENCE: Duration = Duration::from_secs(15);

/// How often the broker is sent something.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// How long a confirmation may take before that is reported.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(15);

/// How many bytes are given to the connection at once.
const PENDING_MAX: usize = 256 << 10;

/// What is there when a connection begins.
#[derive(Debug)]
pub(crate) struct Synced {
    /// The size of a frame that the broker accepts, in bytes.
    pub(super) frame_max: usize,
}

/// Messages in their order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(super) messages: Vec<Message>,
    pub(super) bytes: usize,
}

/// What became of messages.
#[derive(Debug)]
pub(crate) enum Done {
    /// Queues have them.
    Delivered(Tally),
    /// No queue takes it, or the broker has closed the channel, perhaps because of it.
    Suspect { seq: Seq, topic: String, refusal: Refusal },
    /// The broker has refused it for now, or no queue takes the dead letter.
    Retried { topic: String },
}

pub(crate) struct RabbitLink {
    channel: Channel,
    address: String,
    exchange: String,
    flow: Flow,
    /// The broker's reason for a returned message whose properties have not arrived yet.
    returning: Option<String>,
    /// Why the broker has stopped to read from publishers.
    blocked: Option<String>,
    /// Why messages are sent again.
    refused: Option<String>,
    /// What was reported last.
    reported: Option<String>,
    /// When it has begun to read from publishers, or to do so again.
    reading_since: Instant,
}

impl Link for RabbitLink {
    const THREAD: &'static str = "walpost-rabbit";
    type Source = RabbitSource;
    type Batch = Batch;
    type Synced = Synced;
    type Done = Done;

    async fn open(
        source: &RabbitSource,
        _claim: &str,
        _report: &(dyn Fn(Condition) + Sync),
    ) -> Result<(Self, Synced), Failure> {
        let config = source.read().map_err(Failure::Unusable)?;
        let channel = open(&config).await?;
        let synced = Synced { frame_max: channel.frame_max };
        let link = Self {
            channel,
            address: config.url.address(),
            exchange: config.exchange,
            flow: Flow::default(),
            returning: None,
            blocked: None,
            refused: None,
            reported: None,
            reading_since: Instant::now(),
        };
        Ok((link, synced))
    }

    async fn stream(&mut self, session: &mut Session<'_, Self>) -> Ended<Self> {
        // What an earlier connection has reported is over.
        session.report(Condition::Flowing);
        let ended = self.publish(session).await;
        self.channel.close().await;
        // This is the reason from here on.
        if let Ended::Failed(failure) = &ended
            && self.reported.is_some()
        {
            let reason = failure.to_string();
            session.report(Condition::Stalled { reason, fault: Fault::OutOfReach });
        }
        ended
    }
}

impl RabbitLink {
    async fn publish(&mut self, session: &mut Session<'_, Self>) -> Ended<Self> {
        loop {
            if let Err(failure) = self.take_frames(session).and_then(|()| self.tick()) {
                return Ended::Failed(failure);
            }
            self.send();
            self.report(session);
            let next = self.next_tick();
            tokio::select! {
                advanced = self.channel.wire.advance() => {
                    if let Err(failure) = advanced {
                        return Ended::Failed(failure);
                    }
                }
                batch = session.next() => match batch {
                    Ok(batch) => {
                        for one in batch.messages {
                            self.flow.offer(one);
                        }
                    }
                    Err(ended) => return ended,
                },
                () = sleep_until(next.into()) => {}
            }
        }
    }

    /// Gives the connection what may be sent now. A broker that reads nothing gets nothing.
    fn send(&mut self) {
        while self.blocked.is_none() && self.channel.wire.pending() < PENDING_MAX {
            match self.flow.send(Instant::now()) {
                Some(frames) => self.channel.wire.push(frames),
                None => return,
            }
        }
    }

    /// What is due by now.
    fn tick(&mut self) -> Result<(), Failure> {
        let wire = &mut self.channel.wire;
        if wire.heard.elapsed() >= SILENCE {
            let address = &self.address;
            let reason = format!("{address} has not answered for {SILENCE:?}");
            return Err(Failure::Unreachable(reason));
        }
        // While it reads nothing, what was written before is enough.
        if wire.spoke.elapsed() >= HEARTBEAT_INTERVAL && wire.pending() == 0 {
            wire.push_frame(&AMQPFrame::Heartbeat)?;
        }
        self.flow.retry(Instant::now());
        Ok(())
    }

    /// When [`RabbitLink::tick`] has something to do again.
    fn next_tick(&self) -> Instant {
        let wire = &self.channel.wire;
        let mut next = wire.heard + SILENCE;
        if wire.pending() == 0 {
            next = next.min(wire.spoke + HEARTBEAT_INTERVAL);
        }
        // What is late already is no reason to wake.
        if let Some(late) = self.late_from().filter(|late| *late > Instant::now()) {
            next = next.min(late);
        }
        self.flow.next_retry().map_or(next, |at| next.min(at))
    }

    /// The time from which the oldest unconfirmed message is late.
    fn late_from(&self) -> Option<Instant> {
        self.flow.oldest().map(|sent| sent.max(self.reading_since) + CONFIRM_TIMEOUT)
    }

    fn take_frames(&mut self, session: &Session<'_, Self>) -> Result<(), Failure> {
        let mut stored = Vec::new();
        let taken = self.take_confirmations(session, &mut stored);
        // What was confirmed before the failure is delivered.
        if let Some(since) = stored.iter().map(|message| message.since).min() {
            let mut tally = Tally::new(since);
            for message in &stored {
                tally.add(message.seq, &message.topic, message.bytes);
            }
            session.done(Done::Delivered(tally));
        }
        taken
    }

    fn take_confirmations(
        &mut self,
        session: &Session<'_, Self>,
        stored: &mut Vec<Message>,
    ) -> Result<(), Failure> {
        while let Some(frame) = self.channel.wire.frame()? {
            if let Some(failure) = closed(&frame) {
                self.suspect(&failure, session);
                return Err(failure);
            }
            match frame {
                AMQPFrame::Method(_, AMQPClass::Basic(method)) => {
                    let became = match method {
                        basic::AMQPMethod::Ack(ack) => {
                            self.flow.confirmed(ack.delivery_tag, ack.multiple, true)
                        }
                        basic::AMQPMethod::Nack(nack) => {
                            self.flow.confirmed(nack.delivery_tag, nack.multiple, false)
                        }
                        basic::AMQPMethod::Return(returned) => {
                            let text = crate::excerpt::excerpt(returned.reply_text.as_str());
                            self.returning = Some(text);
                            continue;
                        }
                        _ => continue,
                    };
                    for one in became {
                        self.became(one, session, stored);
                    }
                }
                AMQPFrame::Header(CHANNEL, header) => self.returned(&header.properties)?,
                AMQPFrame::Method(0, AMQPClass::Connection(method)) => match method {
                    connection::AMQPMethod::Blocked(blocked) => {
                        self.blocked = Some(crate::excerpt::excerpt(blocked.reason.as_str()));
                    }
                    connection::AMQPMethod::Unblocked(_) => {
                        (self.blocked, self.reading_since) = (None, Instant::now());
                    }
                    _ => {}
                },
                // Bodies of returned messages, heartbeats.
                _ => {}
            }
        }
        Ok(())
    }

    /// A message may have made the broker close the channel, by a routing key that walpost's user may not
    /// write to, or by its properties. The broker does not say which: its text is a hint, and otherwise
    /// it is one of those that are unconfirmed. The first one is tried alone.
    fn suspect(&self, failure: &Failure, session: &Session<'_, Self>) {
        let ground = match failure {
            Failure::Unauthorized(_) => Ground::MissingTopic,
            Failure::Unusable(_) => Ground::Other,
            _ => return,
        };
        let reason = failure.to_string();
        let is_named = |one: &&Message| reason.contains(&format!("'{}'", one.routing_key));
        let first = |one: &&Message| one.position;
        let named = self.flow.unconfirmed().filter(is_named).min_by_key(first);
        let Some(one) = named.or_else(|| self.flow.unconfirmed().min_by_key(first)) else { return };
        let (seq, topic) = (one.seq, one.topic.clone());
        let refusal = Refusal { ground, may_pass: false, reason };
        session.done(Done::Suspect { seq, topic, refusal });
    }

    /// The properties of a returned message: which one it is.
    fn returned(&mut self, properties: &BasicProperties) -> Result<(), Failure> {
        let Some(reason) = self.returning.take() else { return Ok(()) };
        let headers = properties.headers().as_ref();
        let position = match headers.and_then(|headers| headers.inner().get(POSITION_HEADER)) {
            Some(AMQPValue::LongString(text)) => EventPosition::from_text(&text.to_string()),
            _ => None,
        };
        if position.is_some_and(|position| self.flow.returned(position, reason)) {
            return Ok(());
        }
        // Which one has no queue is not known: none may count as delivered.
        Err(Failure::Unusable(format!("{} has returned an unknown message", self.address)))
    }

    fn became(&mut self, one: Confirmed, session: &Session<'_, Self>, stored: &mut Vec<Message>) {
        match one {
            Confirmed::Stored(message) => {
                self.flow.release(&message, Instant::now());
                stored.push(message);
            }
            Confirmed::Returned(message, reason) if message.is_letter => {
                let queue = &message.topic;
                let text = format!(
                    "{reason}: the queue of dead letters {queue} does not exist; declare it, or \
                     correct poison.dead_letter_topic"
                );
                self.retry(message, text, session);
            }
            Confirmed::Returned(message, reason) => {
                self.flow.close(&message, Instant::now());
                let Message { seq, topic, routing_key, .. } = message;
                let reason = format!(
                    "{reason}: no queue takes messages with the routing key `{routing_key}` from the \
                     exchange `{}`; bind one to it",
                    self.exchange
                );
                let refusal = Refusal { ground: Ground::MissingTopic, may_pass: false, reason };
                session.done(Done::Suspect { seq, topic, refusal });
            }
            Confirmed::Refused(message) => {
                let text = "RabbitMQ refuses messages (basic.nack): a queue is full (max-length with \
                            reject-publish), or it has failed; see to the queues behind the exchange";
                self.retry(message, text.to_owned(), session);
            }
        }
    }

    fn retry(&mut self, message: Message, reason: String, session: &Session<'_, Self>) {
        session.done(Done::Retried { topic: message.topic.clone() });
        self.flow.put_back(message, Instant::now());
        self.refused = Some(reason);
    }

    /// Reports what keeps messages from being delivered, once, and when it is over.
    fn report(&mut self, session: &Session<'_, Self>) {
        if self.refused.is_some() && !self.flow.is_retrying() {
            self.refused = None;
        }
        let is_late = self.late_from().is_some_and(|late| late <= Instant::now());
        let (trouble, fault) = match (&self.blocked, &self.refused) {
            (Some(reason), _) => (
                Some(format!(
                    "RabbitMQ has blocked publishers: {reason}; give it memory or disk, or let \
                     consumers catch up"
                )),
                Fault::OutOfReach,
            ),
            // Whether or not others are refused.
            (None, refused) if is_late => {
                let also = refused.as_ref().map_or(String::new(), |reason| format!("; {reason}"));
                (
                    Some(format!(
                        "RabbitMQ answers, and has not confirmed a message for {CONFIRM_TIMEOUT:?}: \
                         see whether a majority of each quorum queue's members is up{also}"
                    )),
                    Fault::Brokers,
                )
            }
            (None, Some(reason)) => (Some(reason.clone()), Fault::OutOfReach),
            (None, None) => (None, Fault::Unknown),
        };
        if trouble == self.reported {
            return;
        }
        session.report(match trouble.clone() {
            Some(reason) => Condition::Stalled { reason, fault },
            None => Condition::Flowing,
        });
        self.reported = trouble;
    }
}
