//! Encodes the metrics in Prometheus's exposition format, with the client library's encoder.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::histogram::Histogram;
use super::names::{self, Kind, Metric};
use super::{Figure, Metrics, lock, seconds, unix_micros};

/// The values of `wal_status`.
const WAL_STATUSES: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];

/// Encodes metrics one by one.
pub(crate) struct Page<'a>(pub(crate) DescriptorEncoder<'a>);

impl Page<'_> {
    fn begin(&mut self, metric: &Metric) -> Result<MetricEncoder<'_>, fmt::Error> {
        let kind = match metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        // The encoder adds the suffix again.
        let name = metric.name.strip_suffix("_total").filter(|_| metric.kind == Kind::Counter);
        self.0.encode_descriptor(name.unwrap_or(metric.name), metric.help, None, kind)
    }

    pub(crate) fn gauge(&mut self, metric: &Metric, value: &impl EncodeGaugeValue) -> fmt::Result {
        self.begin(metric)?.encode_gauge(value)
    }

    pub(crate) fn counter(&mut self, metric: &Metric, value: f64) -> fmt::Result {
        self.begin(metric)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn count(&mut self, metric: &Metric, value: u64) -> fmt::Result {
        self.begin(metric)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn counts<'v, const N: usize>(
        &mut self,
        metric: &Metric,
        values: impl IntoIterator<Item = ([&'v str; N], u64)>,
    ) -> fmt::Result {
        self.family(metric, values, |mut one, value| {
            one.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }

    fn gauges<'v, const N: usize>(
        &mut self,
        metric: &Metric,
        values: impl IntoIterator<Item = ([&'v str; N], u64)>,
    ) -> fmt::Result {
        self.family(metric, values, |mut one, value| one.encode_gauge(&value))
    }

    fn family<'v, const N: usize>(
        &mut self,
        metric: &Metric,
        values: impl IntoIterator<Item = ([&'v str; N], u64)>,
        encode: impl Fn(MetricEncoder<'_>, u64) -> fmt::Result,
    ) -> fmt::Result {
        let mut encoder = self.begin(metric)?;
        for (labels, value) in values {
            let labels = labelled(metric, labels);
            encode(encoder.encode_family(&labels)?, value)?;
        }
        Ok(())
    }

    fn histogram(&mut self, metric: &Metric, histogram: &Histogram) -> fmt::Result {
        let held = histogram.held();
        let mut encoder = self.begin(metric)?;
        encoder.encode_histogram::<NoLabelSet>(held.sum, held.count, &held.buckets, None)
    }
}

/// Each label with its value.
fn labelled<'v, const N: usize>(
    metric: &Metric,
    values: [&'v str; N],
) -> Vec<(&'static str, &'v str)> {
    debug_assert_eq!(metric.labels.len(), N, "{}", metric.name);
    metric.labels.iter().copied().zip(values).collect()
}

/// The metrics as a collector for a registry.
#[derive(Debug)]
struct Figures(Arc<Metrics>);

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let figures = &*self.0;
        peers(figures, &mut page)?;
        slot(figures, &mut page)?;
        progress(figures, &mut page)?;
        by_label(figures, &mut page)
    }
}

fn peers(figures: &Metrics, page: &mut Page<'_>) -> fmt::Result {
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    page.gauges(&names::BUILD_INFO, [([env!("CARGO_PKG_VERSION"), librdkafka.as_str()], 1)])?;
    let streaming = figures.phase().0.reads();
    page.gauge(&names::SOURCE_CONNECTED, &u64::from(streaming))?;
    page.gauge(&names::SINK_CONNECTED, &u64::from(figures.is_sink_connected() == Some(true)))?;
    page.gauge(&names::SINK_PRODUCERS, &figures.sink_producers.get())?;
    figures.standbys().map_or(Ok(()), |count| page.gauge(&names::STANDBY_INSTANCES, &count))
}

fn slot(figures: &Metrics, page: &mut Page<'_>) -> fmt::Result {
    let Some(slot) = figures.slot_metrics() else {
        return page.gauge(&names::SLOT_OBSERVED_TIMESTAMP, &0.0);
    };
    page.gauge(&names::SLOT_OBSERVED_TIMESTAMP, &seconds(unix_micros(slot.observed)))?;
    page.gauge(&names::SLOT_LAG_BYTES, &slot.lag_bytes)?;
    page.gauge(&names::SLOT_RETAINED_WAL_BYTES, &slot.retained_bytes)?;
    if let Some(limit) = slot.limit_bytes {
        page.gauge(&names::SLOT_WAL_LIMIT_BYTES, &limit)?;
    }
    if let Some(safe) = slot.safe_bytes {
        page.gauge(&names::SLOT_SAFE_WAL_BYTES, &safe)?;
    }
    let status = slot.wal_status.as_deref();
    let statuses = WAL_STATUSES.map(|one| ([one], u64::from(Some(one) == status)));
    page.gauges(&names::SLOT_WAL_STATUS, statuses)?;
    page.count(&names::SLOT_SPILLED_BYTES, slot.spilled_bytes)
}

fn progress(figures: &Metrics, page: &mut Page<'_>) -> fmt::Result {
    page.gauge(&names::RECEIVED_LSN, &figures.received_lsn.get())?;
    page.gauge(&names::CONFIRMED_LSN, &figures.confirmed_lsn.get())?;
    page.count(&names::TRANSACTIONS, figures.transactions.get())?;
    page.count(&names::EVENTS_RECEIVED, figures.events_received.get())?;
    page.count(&names::NEW_EVENTS, figures.new_events.get())?;
    page.count(&names::RECEIVED_BYTES, figures.received_bytes.get())?;
    page.count(&names::DROPPED_HEADERS, figures.dropped_headers.get())?;
    page.histogram(&names::COMMIT_TO_ACK, &figures.commit_to_ack)?;
    page.histogram(&names::BROKER_ACK, &figures.broker_ack)?;
    page.gauge(&names::OLDEST_UNCONFIRMED, &figures.oldest_unconfirmed.seconds())?;
    page.gauge(&names::LAST_RECEIVED_TIMESTAMP, &figures.last_received.seconds())?;
    page.gauge(&names::LAST_CONFIRMED_TIMESTAMP, &figures.last_confirmed.seconds())?;
    page.gauge(&names::IN_FLIGHT_EVENTS, &figures.in_flight_events.get())?;
    page.gauge(&names::IN_FLIGHT_BYTES, &figures.in_flight_bytes.get())?;
    page.gauge(&names::IN_FLIGHT_LIMIT_BYTES, &figures.in_flight_limit_bytes.get())?;
    page.gauge(&names::STATE_LSN, &figures.state_lsn.get())?;
    page.gauge(&names::STATE_WRITTEN_TIMESTAMP, &figures.state_written.seconds())?;
    page.count(&names::STATE_FAILURES, figures.state_failures.get())?;
    page.count(&names::SPLIT_TRANSACTIONS, figures.split_transactions.get())?;
    let duration = |micros: &Figure| seconds(i64::try_from(micros.get()).unwrap_or(i64::MAX));
    page.gauge(&names::REGISTRY_SCHEMAS, &figures.schemas.known.get())?;
    page.counter(&names::REGISTRY_WAIT_SECONDS, duration(&figures.schemas.wait_micros))?;
    page.counter(&names::BACKPRESSURE_SECONDS, duration(&figures.backpressure_micros))?;
    page.counter(&names::VISIBILITY_WAIT_SECONDS, duration(&figures.visibility_wait_micros))
}

fn by_label(figures: &Metrics, page: &mut Page<'_>) -> fmt::Result {
    let tables = figures.outbox();
    let sizes = tables.iter().map(|(table, it)| ([table.as_str()], it.bytes));
    page.gauges(&names::OUTBOX_SIZE_BYTES, sizes)?;
    let requests = lock(&figures.schemas.requests).clone();
    page.counts(
        &names::REGISTRY_REQUESTS,
        requests.iter().map(|(result, count)| ([*result], *count)),
    )?;
    let topics = lock(&figures.topics).clone();
    let events = topics.iter().map(|(topic, it)| ([topic.as_str()], it.events));
    page.counts(&names::EVENTS_PUBLISHED, events)?;
    let bytes = topics.iter().map(|(topic, it)| ([topic.as_str()], it.bytes));
    page.counts(&names::PUBLISHED_BYTES, bytes)?;
    let errors = lock(&figures.publish_errors).clone();
    let errors =
        errors.iter().map(|((topic, code), count)| ([topic.as_str(), code.as_str()], *count));
    page.counts(&names::PUBLISH_ERRORS, errors)?;
    let pairs =
        |(labels, count): ((&'static str, &'static str), u64)| ([labels.0, labels.1], count);
    let poison = figures.poison().into_iter().map(|(labels, it)| (labels, it.count));
    page.counts(&names::POISON_EVENTS, poison.map(pairs))?;
    page.counts(&names::RECONNECTS, lock(&figures.reconnects).clone().into_iter().map(pairs))
}

impl Metrics {
    /// Registers the metrics with Prometheus's client library, with the names of database and slot as
    /// labels.
    pub fn register(self: &Arc<Self>, registry: &mut Registry, database: &str, slot: &str) {
        let label = |name: &'static str, value: &str| (name.into(), value.to_owned().into());
        registry
            .sub_registry_with_label(label("database", database))
            .sub_registry_with_label(label("slot", slot))
            .register_collector(Box::new(Figures(Arc::clone(self))));
    }
}
