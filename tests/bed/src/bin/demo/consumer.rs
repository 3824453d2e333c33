//! The consumer: reads the topic or the stream and notes when each record arrived.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::message::{Headers as _, Message as _};
use walpost_bed::{Consumed, Destination, Tail, within};

/// A record, and when it came.
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) id: String,
    topic: String,
    /// Of Kafka.
    partition: Option<i32>,
    offset: i64,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) at: Instant,
    /// Milliseconds between the record's timestamp, the commit, and its coming.
    pub(crate) age_ms: i64,
}

impl Arrival {
    /// Topic, partition and offset; of another destination than Kafka topic and number.
    pub(crate) fn place(&self) -> String {
        let Self { topic, partition, offset, .. } = self;
        match partition {
            Some(partition) => format!("{topic}/{partition}@{offset}"),
            None => format!("{topic}@{offset}"),
        }
    }
}

/// Follows a topic or a stream from its beginning.
pub(crate) struct Consumer {
    seen: Arc<Mutex<Vec<Arrival>>>,
    _tail: Option<Tail>,
}

impl Consumer {
    pub(crate) fn start(bootstrap: &str, topic: &str) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let tail = Tail::start(bootstrap, topic, move |message| {
            let text = |bytes: Option<&[u8]>| {
                String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
            };
            let id =
                message.headers().and_then(|headers| headers.iter().find(|one| one.key == "id"));
            let arrival = Arrival {
                id: text(id.and_then(|header| header.value)),
                topic: message.topic().to_owned(),
                partition: Some(message.partition()),
                offset: message.offset(),
                key: text(message.key()),
                value: text(message.payload()),
                at: Instant::now(),
                age_ms: message.timestamp().to_millis().map_or(0, age_ms),
            };
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
        });
        Self { seen, _tail: Some(tail) }
    }

    /// The same of another destination than Kafka.
    pub(crate) async fn of(destination: &Destination) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let mut records = destination.follow().await;
        tokio::spawn(async move {
            while let Some(record) = records.recv().await {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(arrival(&record));
            }
        });
        Self { seen, _tail: None }
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that came, from the given count on.
    pub(crate) fn after(&self, count: usize) -> Vec<Arrival> {
        self.seen().iter().skip(count).cloned().collect()
    }

    /// Awaits the first record of that id.
    pub(crate) async fn first(&self, id: &str, deadline: Duration) -> Result<Arrival, String> {
        let found = within(deadline, async || self.seen().iter().find(|one| one.id == id).cloned());
        found.await.map_err(|_| format!("the event {id} did not arrive within {deadline:?}"))
    }
}

fn arrival(record: &Consumed) -> Arrival {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    Arrival {
        id: text(record.header("id")),
        topic: record.topic.clone(),
        partition: None,
        offset: record.offset,
        key: text(record.key_text()),
        value: text(record.value_text()),
        at: Instant::now(),
        age_ms: record.timestamp_ms.map_or(0, age_ms),
    }
}

/// The milliseconds since then.
fn age_ms(then: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX) - then
}
