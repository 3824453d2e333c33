//! The consumer: reads the topic and notes when each record arrived.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::message::{Headers as _, Message as _};
use walpost_bed::{Tail, within};

/// A record, and when it came.
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) at: Instant,
    /// Milliseconds between the record's timestamp, the commit, and its coming.
    pub(crate) age_ms: i64,
}

impl Arrival {
    /// Topic, partition and offset.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}@{}", self.topic, self.partition, self.offset)
    }
}

/// Follows a topic from its beginning.
pub(crate) struct Consumer {
    seen: Arc<Mutex<Vec<Arrival>>>,
    _tail: Tail,
}

impl Consumer {
    pub(crate) fn start(bootstrap: &str, topic: &str) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let tail = Tail::start(bootstrap, topic, move |message| {
            let at = Instant::now();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
            let text = |bytes: Option<&[u8]>| {
                String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
            };
            let id =
                message.headers().and_then(|headers| headers.iter().find(|one| one.key == "id"));
            let arrival = Arrival {
                id: text(id.and_then(|header| header.value)),
                topic: message.topic().to_owned(),
                partition: message.partition(),
                offset: message.offset(),
                key: text(message.key()),
                value: text(message.payload()),
                at,
                age_ms: message.timestamp().to_millis().map_or(0, |then| now_ms - then),
            };
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
        });
        Self { seen, _tail: tail }
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
