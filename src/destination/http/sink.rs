//! The sink itself: it gives records to the lanes.

use std::future::ready;
use std::sync::Arc;

use hyper::header::{HeaderName, HeaderValue};

use super::config::{HttpConfig, HttpSource};
use super::lane::{Failing, Lane};
use super::queue::{Queue, Queued};
use super::request::Outgoing;
use crate::destination::parts::attempts::{Taken, order, order_at};
use crate::destination::parts::worker;
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Ground, Outlet, ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{BoxFuture, Condition, Peer, Report, Sink, SinkError};

/// An HTTP endpoint.
pub(super) const ENDPOINT: Peer = Peer {
    name: "the HTTP endpoint",
    label: "http",
    unreachable: "see whether the server of http.url runs and can be reached from here",
    credentials: "http.authorization and http.secret",
    has_lanes: true,
};

/// How large the headers of a request may be, in bytes: more than common servers accept.
const HEADERS_MAX: usize = 64 << 10;

/// An HTTP endpoint.
pub(crate) struct HttpSink {
    queue: Arc<Queue>,
    taken: Taken<Failing>,
    /// The topic of dead letters.
    dead_letters: String,
    /// Whether each topic has a URL of its own.
    names_topic: bool,
}

impl HttpSink {
    /// A sink that connects at once. A server that cannot be reached is no error here.
    pub(crate) fn new(
        config: &HttpConfig,
        source: &HttpSource,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SinkError> {
        metrics.sink_producers.set(1);
        let taken = Taken::new(metrics);
        let (queue, suspects) = (Arc::new(Queue::new(config.lanes)), Arc::default());
        let lanes: Vec<_> = (0..config.lanes)
            .map(|number| {
                let (source, attempts) = (source.clone(), taken.attempts());
                let (queue, suspects) = (Arc::clone(&queue), Arc::clone(&suspects));
                Lane::new((number, source), taken.epochs(), (queue, attempts), suspects).run()
            })
            .collect();
        let work = async || drop(futures_util::future::join_all(lanes).await);
        worker::start("walpost-http", work)?;
        let dead_letters = config.dead_letters.clone();
        let names_topic = config.url.names_topic();
        Ok(Self { queue, taken, dead_letters, names_topic })
    }
}

/// Why a request with these headers cannot be sent.
fn too_large(headers: &[(HeaderName, HeaderValue)]) -> Option<Refusal> {
    // With `: ` and the end of the line.
    let lines = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let bytes: usize = lines.sum();
    (bytes > HEADERS_MAX).then(|| Refusal {
        ground: Ground::Size,
        may_pass: false,
        reason: format!(
            "its headers have {bytes} bytes, and walpost sends at most {HEADERS_MAX}: publish smaller \
             ones, or leave headers of rows out by record.headers"
        ),
    })
}

impl Outlet for HttpSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        let delivery =
            Outgoing::new((self.taken.epoch(), seq), position, record, &self.dead_letters)
                .and_then(|delivery| too_large(&delivery.headers).map_or(Ok(delivery), Err));
        let delivery = delivery.map_err(|refusal| {
            self.taken.refused(record.topic);
            ProduceError::Refused(refusal)
        })?;
        if !self.taken.has_workers() {
            return Err(ProduceError::Broken("the thread of the requests has ended".to_owned()));
        }
        let order = order_at(record, position);
        self.queue.push(Queued { position, order, delivery, delays: None });
        crate::crash_points::point!("produced");
        Ok(())
    }

    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        Some(order(record))
    }

    fn has_place_for_each_topic(&self) -> bool {
        self.names_topic
    }

    fn outlives_refusals(&self) -> bool {
        true
    }
}

impl Sink for HttpSink {
    fn peer(&self) -> &'static Peer {
        &ENDPOINT
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        self.taken.reports(into);
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        self.taken.conditions()
    }

    fn is_connected(&self) -> Option<bool> {
        self.taken.is_connected()
    }

    fn wait_for_events(&self, eager: bool) -> BoxFuture<'_, ()> {
        Box::pin(self.taken.wait_for_events(eager))
    }

    fn replace_producer(&mut self) -> BoxFuture<'_, Result<(), SinkError>> {
        // First: what fails for the former producer is forgotten with it.
        self.queue.replace(self.taken.epoch() + 1);
        self.taken.replace();
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_limited_in_their_number_and_size() {
        let of = |count: usize, bytes: usize| {
            let value = HeaderValue::from_bytes(&vec![b'x'; bytes]).expect("valid");
            too_large(&vec![(HeaderName::from_static("h"), value); count])
        };
        assert_eq!(of(1, HEADERS_MAX - 5), None);
        let refusal = of(1, HEADERS_MAX - 4).expect("too large");
        assert!(refusal.ground == Ground::Size && refusal.reason.contains("65537 bytes"));
        // hyper takes no more than 32768.
        assert!(of(HEADERS_MAX / 5, 0).is_none() && of(HEADERS_MAX / 5 + 1, 0).is_some());
    }
}
