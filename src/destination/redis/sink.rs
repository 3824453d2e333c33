//! The sink itself: it makes batches of records, and reports what became of them.

use std::sync::Arc;
use std::time::Instant;

use super::batch::{Batch, Keys, VALUE_MAX, refusal};
use super::config::{RedisConfig, RedisSource, owner_key};
use super::entry_id::EntryId;
use super::link::{RedisLink, Synced};
use crate::destination::parts::Failure;
use crate::destination::parts::claims::Claims;
use crate::destination::parts::link::{Event, Producer};
use crate::destination::parts::linked::{Linked, Publisher};
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Outlet, ProduceError};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{Condition, Peer, SinkError};

/// Redis.
pub(super) const REDIS: Peer = Peer {
    name: "Redis",
    label: "redis",
    unreachable: "see whether Redis runs and can be reached from here",
    credentials: "user and password in redis.url",
    has_lanes: false,
};

/// A stream on a Redis server.
pub(crate) struct RedisSink {
    keys: Keys,
    publisher: Publisher<RedisLink, EntryId, Chain>,
    /// The size of a value that the server accepts, as far as known, in bytes.
    value_max: u64,
}

/// What is there, and what was sent, over the current connection.
pub(crate) struct Chain {
    synced: Synced,
    /// The id of the last event that was sent.
    tail: EntryId,
}

impl RedisSink {
    /// A sink that connects once the state key is open. A server that cannot be reached is no error
    /// here.
    pub(crate) fn new(
        config: &RedisConfig,
        source: RedisSource,
        claims: Claims<EntryId>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SinkError> {
        let keys = Keys {
            stream: config.stream.clone(),
            state: owner_key(&config.stream),
            dead_letters: config.dead_letters.clone(),
            maxlen: config.maxlen.map_or_else(String::new, |maxlen| maxlen.to_string()),
        };
        Ok(Self::over(keys, claims, Producer::new(source, metrics)?))
    }

    fn over(keys: Keys, claims: Claims<EntryId>, producer: Producer<RedisLink>) -> Self {
        Self { keys, publisher: Publisher::new(claims, producer), value_max: VALUE_MAX }
    }

    fn synced(&mut self, synced: Synced) {
        let acknowledged = self.publisher.claims.last();
        if synced.last < acknowledged {
            self.publisher.producer.conditions.push(Condition::Regressed(format!(
                "the last event in stream {} has id {}, and Redis has acknowledged {acknowledged}",
                self.keys.stream, synced.last
            )));
            return;
        }
        if let Some(value_max) = synced.value_max {
            self.value_max = value_max.min(VALUE_MAX);
        }
        self.publisher.begin(synced.last, Chain { tail: synced.last, synced });
    }

    fn added(&mut self, batch: &Batch, at: Instant) {
        self.publisher.claims.set_last(batch.last);
        self.publisher.producer.delivered(&batch.tally, at);
    }

    /// The connection is of no use any more.
    fn failed(&mut self, failure: &Failure) {
        if let Failure::TooLarge { max, .. } = failure {
            self.value_max = self.value_max.min(*max);
        }
        self.publisher.failed(failure, &self.keys.stream);
    }
}

impl Outlet for RedisSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.publisher.connect();
        let Some(chain) = self.publisher.open() else { return Err(ProduceError::Full) };
        let Some(id) = EntryId::of(chain.synced.generation, position) else {
            return Err(ProduceError::Broken(format!("{position} is too high for an entry's id")));
        };
        let at = Instant::now();
        if id <= chain.synced.last {
            self.publisher.is_there(seq, at);
            return Ok(());
        }
        if id <= chain.tail {
            return Err(ProduceError::Broken(format!("{position} came after a later event")));
        }
        if let Some(refusal) = refusal(record, self.value_max) {
            let refusal = self.publisher.producer.refused(record.topic, refusal);
            return Err(ProduceError::Refused(refusal));
        }
        let keys = &self.keys;
        self.publisher.add(|chain, batch| {
            let new = || Batch::new(keys, &chain.synced.writer, chain.tail, at);
            let batch = batch.get_or_insert_with(new);
            batch.push(seq, id, record, record.topic == keys.dead_letters);
            chain.tail = id;
            batch.is_full()
        })
    }

    /// One order for all: an entry that is added before an earlier one makes that one count as added.
    fn lane(&self, _record: &Record<'_>) -> Option<u64> {
        None
    }
}

impl Linked for RedisSink {
    type Link = RedisLink;
    type Last = EntryId;
    type Open = Chain;

    const PEER: &'static Peer = &REDIS;

    const IS_FENCED_BY_STATE: bool = true;

    fn publisher(&self) -> &Publisher<RedisLink, EntryId, Chain> {
        &self.publisher
    }

    fn publisher_mut(&mut self) -> &mut Publisher<RedisLink, EntryId, Chain> {
        &mut self.publisher
    }

    fn happened(&mut self, event: Event<RedisLink>) {
        match event {
            Event::Synced(synced) => self.synced(synced),
            Event::Done(batch, at) => self.added(&batch, at),
            Event::Failed(failure) => self.failed(&failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;
    use crate::destination::parts::link::Order;
    use crate::destination::parts::linked::tests::{Tried, at, cases};

    impl Tried for RedisSink {
        const KEEPS_LAST: bool = true;

        fn made() -> (Self, UnboundedReceiver<Order<RedisLink>>) {
            let (producer, received) = Producer::without_thread(Arc::default());
            let text = |text: &str| text.to_owned();
            let keys = Keys {
                stream: text("s"),
                state: text("walpost:{s}"),
                dead_letters: text("dead"),
                maxlen: String::new(),
            };
            (Self::over(keys, Claims::default(), producer), received)
        }

        fn synced(last: Option<u64>) -> Synced {
            let last = last.map(|lsn| EntryId::of(1, at(lsn)).expect("an id"));
            let last = last.unwrap_or_default();
            Synced { writer: "w".into(), generation: 1, last, value_max: None }
        }

        fn seqs(batch: Batch) -> Vec<Seq> {
            batch.tally.seqs
        }
    }

    cases! {
        RedisSink:
        nothing_is_sent_behind_lost_records_until_they_are_produced_again
        record_that_is_refused_for_an_unknown_reason_is_a_suspect
        records_that_were_acknowledged_and_are_gone_are_reported
        claim_that_was_set_since_outlives_a_fenced_connection
        connection_of_a_former_claim_is_left_when_nothing_is_in_flight
    }
}
