//! The sink itself: it gives each record to the lane of its key.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::thread;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::config::{HttpConfig, HttpSource};
use super::lane::Lane;
use super::request::Delivery;
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Outlet, ProduceError};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::attempts::Taken;
use crate::sink::{Condition, Peer, Report, Sink, SinkError};

/// An HTTP endpoint.
const ENDPOINT: Peer = Peer {
    name: "the HTTP endpoint",
    label: "http",
    unreachable: "see whether the server of http.url runs and can be reached from here",
    credentials: "http.authorization and http.secret",
    has_lanes: true,
};

/// An HTTP endpoint.
pub struct HttpSink {
    lanes: Vec<UnboundedSender<Delivery>>,
    /// The lane of the next record without a key.
    next: usize,
    /// Rises with each replaced producer: lanes drop what is older.
    epoch: watch::Sender<u64>,
    taken: Taken<u16>,
    /// The topic of dead letters.
    dead_letters: String,
}

impl HttpSink {
    /// A sink that connects at once. A server that cannot be reached is no error here.
    pub(crate) fn new(
        config: &HttpConfig,
        source: &HttpSource,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SinkError> {
        metrics.sink_producers.set(1);
        let (epoch, taken) = (watch::Sender::new(0), Taken::new(metrics));
        let (lanes, workers): (Vec<_>, Vec<_>) = (0..config.lanes)
            .map(|number| {
                let (sender, deliveries) = unbounded_channel();
                let (source, attempts) = (source.clone(), taken.attempts());
                let lane = Lane::new(number, source, epoch.subscribe(), attempts);
                (sender, lane.run(deliveries))
            })
            .unzip();
        let failed = |error: std::io::Error| SinkError::Thread(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let thread = thread::Builder::new().name("walpost-http".to_owned());
        let work = move || {
            runtime.block_on(futures_util::future::join_all(workers));
            // Does not wait for a pending DNS lookup.
            runtime.shutdown_background();
        };
        thread.spawn(work).map_err(failed)?;
        let dead_letters = config.dead_letters.clone();
        Ok(Self { lanes, next: 0, epoch, taken, dead_letters })
    }

    fn lane(&mut self, key: Option<&[u8]>) -> usize {
        let Some(key) = key else {
            self.next = (self.next + 1) % self.lanes.len();
            return self.next;
        };
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let lanes = self.lanes.len() as u64;
        usize::try_from(hasher.finish() % lanes).unwrap_or_default()
    }
}

impl Outlet for HttpSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        let epoch = *self.epoch.borrow();
        let delivery = Delivery::new((epoch, seq), position, record, &self.dead_letters);
        let delivery = delivery.map_err(|refusal| {
            self.taken.refused(record.topic);
            ProduceError::Refused(refusal)
        })?;
        let lane = self.lane(record.key);
        if self.lanes[lane].send(delivery).is_err() {
            return Err(ProduceError::Broken("the thread of the requests has ended".to_owned()));
        }
        crate::crash_points::point!("produced");
        Ok(())
    }
}

impl Sink for HttpSink {
    fn peer(&self) -> &'static Peer {
        &ENDPOINT
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        self.taken.reports(*self.epoch.borrow(), into);
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        self.taken.conditions(*self.epoch.borrow())
    }

    fn is_connected(&self) -> Option<bool> {
        self.taken.is_connected()
    }

    async fn wait_for_events(&self, eager: bool) {
        self.taken.wait_for_events(eager).await;
    }

    async fn replace_producer(&mut self) -> Result<(), SinkError> {
        let before = *self.epoch.borrow();
        self.epoch.send_modify(|epoch| *epoch += 1);
        self.taken.replaced(before);
        Ok(())
    }
}
