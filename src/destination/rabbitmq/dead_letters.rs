//! The queue of dead letters. A letter is taken without acknowledging it, and acknowledged once RabbitMQ has
//! confirmed the message of its event. The queue gets those that are kept back, in their places, when the
//! connection is closed (<https://www.rabbitmq.com/docs/queues#behaviour>).

use std::sync::Arc;
use std::time::Duration;

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::{AMQPValue, FieldTable};
use tokio::time::timeout;

use super::config::RabbitConfig;
use super::connection::{Channel, closed, open_queue, queue_exists, short};
use super::message::{CHANNEL, KEY, TOMBSTONE};
use super::settings::rabbit_config;
use super::sink::RabbitSink;
use crate::config::Config;
use crate::destination::dead_letters::{
    LetterStore, LettersAt, LettersError, OneAtATime, PutBack, Restored, StoredLetter,
};
use crate::destination::parts::Failure;
use crate::destination::parts::settings::reread;

/// How long the broker may send nothing while it is to send a letter.
const SILENCE: Duration = Duration::from_secs(15);

/// The letters that the queue had at the start.
pub(super) struct LettersOfQueue {
    config: RabbitConfig,
    channel: Channel,
    producer: OneAtATime,
    /// How many are left of them.
    left: u32,
    /// The delivery tag of what was taken last.
    last: u64,
}

impl LettersOfQueue {
    /// The letters in the configured queue, or in `at`.
    pub(super) async fn open(config: &Config, at: &LettersAt) -> Result<Self, LettersError> {
        let mut rabbitmq = rabbit_config(config)?;
        let source = reread(config, rabbit_config);
        let sink = RabbitSink::new(&rabbitmq, source, Arc::default())?;
        if let Some(from) = &at.from {
            rabbitmq.dead_letters.clone_from(from);
        }
        let (channel, left) = open_queue(&rabbitmq).await.map_err(|failure| match failure {
            Failure::Missing(reason) if reason.contains("no queue") => {
                LettersError::Nowhere(format!("queue {}", rabbitmq.dead_letters))
            }
            failure => failure.into(),
        })?;
        let producer = OneAtATime::new(sink);
        Ok(Self { config: rabbitmq, channel, producer, left, last: 0 })
    }

    /// Asks for the next letter.
    async fn get(&mut self) -> Result<Option<StoredLetter>, Failure> {
        let get = basic::Get { queue: short(&self.config.dead_letters)?, no_ack: false };
        let wire = &mut self.channel.wire;
        wire.push_method(CHANNEL, AMQPClass::Basic(basic::AMQPMethod::Get(get)))?;
        let mut found: Option<(u64, Option<AMQPContentHeader>, Vec<u8>)> = None;
        loop {
            while let Some(frame) = wire.frame()? {
                if let Some(failure) = closed(&frame) {
                    return Err(failure);
                }
                match frame {
                    AMQPFrame::Method(CHANNEL, AMQPClass::Basic(method)) => match method {
                        basic::AMQPMethod::GetEmpty(_) => return Ok(None),
                        basic::AMQPMethod::GetOk(ok) => {
                            found = Some((ok.delivery_tag, None, Vec::new()));
                        }
                        _ => {}
                    },
                    AMQPFrame::Header(CHANNEL, header) => {
                        if let Some((_, place, _)) = &mut found {
                            *place = Some(header);
                        }
                    }
                    AMQPFrame::Body(CHANNEL, part) => {
                        if let Some((_, _, body)) = &mut found {
                            body.extend(part);
                        }
                    }
                    _ => {}
                }
                if let Some((tag, Some(header), body)) = &mut found
                    && header.body_size == body.len() as u64
                {
                    self.last = *tag;
                    return Ok(Some(letter(*tag, header, std::mem::take(body))));
                }
            }
            let silent = || {
                let address = self.config.url.address();
                Failure::Unreachable(format!("{address} has sent nothing for {SILENCE:?}"))
            };
            timeout(SILENCE, wire.advance()).await.unwrap_or_else(|_| Err(silent()))?;
        }
    }

    /// Removes what was taken last.
    async fn remove(&mut self) -> Result<(), Failure> {
        let ack = basic::Ack { delivery_tag: self.last, multiple: false };
        let wire = &mut self.channel.wire;
        wire.push_method(CHANNEL, AMQPClass::Basic(basic::AMQPMethod::Ack(ack)))?;
        // What the broker says is read with the next answer.
        while wire.pending() > 0 {
            wire.advance().await?;
        }
        Ok(())
    }
}

impl LetterStore for LettersOfQueue {
    const KEEPS_LETTERS: bool = false;

    async fn take(&mut self) -> Result<Option<StoredLetter>, LettersError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        Ok(self.get().await?)
    }

    async fn put_back(&mut self, restored: Restored<'_, '_>) -> Result<PutBack, LettersError> {
        let put_back = self.producer.deliver(restored).await?;
        if matches!(put_back, PutBack::Published) {
            self.remove().await?;
        }
        Ok(put_back)
    }

    async fn processed(&mut self) -> Result<(), LettersError> {
        Ok(self.remove().await?)
    }

    async fn give_back(&mut self) -> Result<(), LettersError> {
        // Its answer follows what the broker says of acknowledgements.
        queue_exists(&mut self.channel.wire, CHANNEL, &self.config.dead_letters).await?;
        self.channel.close().await;
        Ok(())
    }
}

/// The letter in a message.
fn letter(tag: u64, header: &AMQPContentHeader, body: Vec<u8>) -> StoredLetter {
    let table = header.properties.headers().iter().flat_map(FieldTable::inner);
    let headers: Vec<_> = table
        .filter_map(|(name, value)| match value {
            AMQPValue::LongString(text) => Some((name.to_string(), text.as_bytes().to_vec())),
            _ => None,
        })
        .collect();
    let id = header.properties.message_id().as_ref();
    let place = id.map_or_else(|| tag.to_string(), ToString::to_string);
    let mut letter = StoredLetter { place, headers, ..StoredLetter::default() };
    letter.key = letter.header(KEY).map(<[u8]>::to_vec);
    letter.value = letter.header(TOMBSTONE).is_none().then_some(body);
    letter
}
