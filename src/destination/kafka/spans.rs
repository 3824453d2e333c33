//! A span for each batch of records, from the first record passed to the Kafka client to the last
//! acknowledgement, with a link to the trace of each record that has one.
//!
//! A batch is what is produced between two reads of delivery reports. Attributes: OpenTelemetry's
//! semantic conventions for messaging spans.

use std::collections::VecDeque;
use std::time::SystemTime;

use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::propagation::TraceContextPropagator;

use crate::ledger::Seq;
use crate::record::Record;
use crate::sink::{Outcome, Report};
use crate::traces;

/// Links of a span; OpenTelemetry's own limit.
const LINKS: usize = 128;

/// Maximum batches tracked at a time: what is produced after that many is one batch.
const BATCHES: usize = 4096;

/// The batches in flight.
#[derive(Default)]
pub(super) struct Spans {
    batches: VecDeque<Batch>,
    /// Whether the last batch accepts further records.
    open: bool,
    propagator: TraceContextPropagator,
}

struct Batch {
    first: Seq,
    begun: SystemTime,
    records: i64,
    waiting: i64,
    links: Vec<SpanContext>,
    failure: Option<String>,
}

/// A record's headers, from which the trace context is extracted.
struct Headers<'a, 'r>(&'a Record<'r>);

impl Extractor for Headers<'_, '_> {
    fn get(&self, key: &str) -> Option<&str> {
        let mut headers = self.0.headers.iter();
        let header = headers.find(|header| header.name.eq_ignore_ascii_case(key))?;
        std::str::from_utf8(header.value.as_deref()?).ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.headers.iter().map(|header| header.name.as_ref()).collect()
    }
}

impl Spans {
    pub(super) fn produced(&mut self, seq: Seq, record: &Record<'_>) {
        if !traces::are_sent() {
            return;
        }
        if !self.open && self.batches.len() < BATCHES {
            self.open = true;
            self.batches.push_back(Batch {
                first: seq,
                begun: SystemTime::now(),
                records: 0,
                waiting: 0,
                links: Vec::new(),
                failure: None,
            });
        }
        let Some(batch) = self.batches.back_mut() else { return };
        batch.records += 1;
        batch.waiting += 1;
        if batch.links.len() < LINKS {
            let context = self.propagator.extract(&Headers(record));
            let span = context.span().span_context().clone();
            batch.links.extend(Some(span).filter(SpanContext::is_valid));
        }
    }

    /// Records delivery reports; what is produced next is another batch.
    pub(super) fn reported(&mut self, reports: &[Report]) {
        self.open = false;
        for report in reports {
            let behind = self.batches.partition_point(|batch| batch.first <= report.seq);
            let Some(batch) = behind.checked_sub(1).and_then(|at| self.batches.get_mut(at)) else {
                continue;
            };
            batch.waiting -= 1;
            match &report.outcome {
                Outcome::Delivered => {}
                Outcome::Lost(reason) => batch.failure = Some(reason.clone()),
                Outcome::Refused(refusal) | Outcome::Suspect(refusal) => {
                    batch.failure = Some(refusal.reason.clone());
                }
                Outcome::Purged => batch.failure = Some("purged with its producer".to_owned()),
            }
        }
        // A batch that waits long does not delay the others.
        self.batches.retain(|batch| {
            let done = batch.waiting <= 0;
            if done {
                batch.end();
            }
            !done
        });
    }

    /// Ends all spans: the producer was replaced.
    pub(super) fn replaced(&mut self) {
        self.open = false;
        for mut batch in self.batches.drain(..) {
            batch.failure.get_or_insert_with(|| "the producer was replaced".to_owned());
            batch.end();
        }
    }
}

impl Batch {
    fn end(&self) {
        let tracer = global::tracer("walpost");
        let links = self.links.iter().map(|context| Link::with_context(context.clone())).collect();
        let builder = tracer
            .span_builder("send")
            .with_kind(SpanKind::Producer)
            .with_start_time(self.begun)
            .with_links(links)
            .with_attributes([
                KeyValue::new("messaging.system", "kafka"),
                KeyValue::new("messaging.operation.name", "send"),
                KeyValue::new("messaging.operation.type", "send"),
                KeyValue::new("messaging.batch.message_count", self.records),
            ]);
        let mut span = builder.start(&tracer);
        if let Some(failure) = &self.failure {
            span.set_status(Status::error(failure.clone()));
        }
        span.end();
    }
}
