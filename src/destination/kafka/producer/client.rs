//! One librdkafka producer: its callbacks, and what is sent with it.

use std::borrow::Cow;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{
    DeliveryResult, Header as KafkaHeader, Headers as _, Message, OwnedHeaders,
};
use rdkafka::producer::{BaseProducer, BaseRecord, ProducerContext};

use crate::crash_points;
use crate::destination::kafka::delivery_reports::Reports;
use crate::destination::kafka::error::{self, TopicAt};
use crate::destination::kafka::first_batch_gate::{Counts, KeyPartitioner};
use crate::destination::kafka::metadata::ConnectionFailure;
use crate::destination::kafka::{oauth_token, statistics};
use crate::excerpt::excerpt;
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Ground, ProduceError, Refusal};
use crate::record::{ID_HEADER, Record};
use crate::sink::{Condition, Outcome, Report};

/// Events of librdkafka's that are taken in a row: what is left waits for the next time.
const POLLS_MAX: usize = 64;

/// The client below a sink.
pub(super) type Producer = BaseProducer<Context, KeyPartitioner>;

/// The opaque of a record that is walpost's own, and not an event: its state.
pub(super) const OWN_RECORD: usize = usize::MAX;

/// librdkafka's callbacks.
pub(super) struct Context {
    reports: Arc<Reports>,
    metrics: Arc<Metrics>,
    partitioner: KeyPartitioner,
    /// `bootstrap.servers`, for commands in messages.
    servers: String,
    /// What became of walpost's own record.
    own_record: Mutex<Option<Result<(), KafkaError>>>,
}

/// Has librdkafka call back for this producer; whether it did.
pub(super) fn poll(producer: &Producer, reports: &Reports) -> bool {
    let called_back = || {
        let before = (reports.events(), reports.delivered());
        // One event of librdkafka's, which reports a batch as one.
        producer.poll(Duration::ZERO);
        if reports.delivered() != before.1 {
            reports.note_batch();
        }
        reports.events() != before.0
    };
    (0..POLLS_MAX).take_while(|_| called_back()).count() > 0
}

impl Context {
    fn new(
        config: &ClientConfig,
        reports: &Arc<Reports>,
        counts: &Arc<Counts>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            reports: Arc::clone(reports),
            metrics: Arc::clone(metrics),
            partitioner: KeyPartitioner::new(Arc::clone(counts)),
            servers: config.get("bootstrap.servers").unwrap_or_default().to_owned(),
            own_record: Mutex::default(),
        }
    }

    /// What became of walpost's own record, if it was reported since the last call.
    pub(super) fn take_own_record(&self) -> Option<Result<(), KafkaError>> {
        self.own_record.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.reports.event();
        oauth_token::token(config)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.reports.event();
        let message = excerpt(message);
        // Changes of state are reported once, by the relay; this is the detail.
        match level {
            // A fatal error of the producer's is a condition, and reported as such.
            _ if facility == "FATAL" => {
                tracing::debug!(target: "librdkafka", facility, "{message}");
            }
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(target: "librdkafka", facility, "{message}");
            }
            _ => tracing::debug!(target: "librdkafka", facility, "{message}"),
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.reports.event();
        self.reports.update_statistics(statistics::read(statistics));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.reports.event();
        let reason = excerpt(reason);
        match error::event_code(&error, &reason) {
            // Not every build of librdkafka says so: see `Reports::update_connection`.
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                if !crash_points::is_armed("all_brokers_down") {
                    self.reports.unreachable(reason);
                }
            }
            Some(RDKafkaErrorCode::Authentication) => {
                self.reports.set_connected(false);
                self.reports.condition(Condition::Unauthenticated(reason));
            }
            Some(RDKafkaErrorCode::Fatal) => {
                self.reports.condition(Condition::Broken(error::fatal_reason(&reason)));
            }
            // Every other error is retried by librdkafka: only why a connection failed is kept.
            code => {
                tracing::debug!(target: "librdkafka", %error, "{reason}");
                if let Some(code) = code.filter(|code| error::is_connection_error(*code)) {
                    // Once it has connected, the addresses and the protocol are right.
                    let is_new = !self.reports.has_id();
                    let reason = if is_new {
                        ConnectionFailure::of(code, &reason).into_advice()
                    } else {
                        reason
                    };
                    self.reports.connection(reason);
                }
            }
        }
    }
}

impl ProducerContext<KeyPartitioner> for Context {
    type DeliveryOpaque = usize;

    fn get_custom_partitioner(&self) -> Option<&KeyPartitioner> {
        Some(&self.partitioner)
    }

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        self.reports.event();
        if opaque == OWN_RECORD {
            let outcome = result.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
            *self.own_record.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            return;
        }
        crash_points::point!("callback");
        let (outcome, published) = match result {
            Ok(message) => {
                let len = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
                let bytes = len(message.key()) + len(message.payload());
                (Outcome::Delivered, Some((message.topic(), bytes as u64)))
            }
            Err((error, message)) => {
                let at = TopicAt { topic: message.topic(), servers: &self.servers };
                let mut outcome = error::outcome(error, at);
                // Other reasons are not the event's: one line is enough for all events.
                if error.rdkafka_error_code().is_some_and(error::is_missing_topic)
                    && let Outcome::Lost(reason) = &mut outcome
                    && let Some(id) = id_of(message)
                {
                    *reason = format!("{reason} (event id {})", excerpt(&id));
                }
                if error.rdkafka_error_code().is_some_and(error::is_record_error) {
                    self.reports.refused();
                }
                if outcome != Outcome::Purged {
                    self.metrics.publish_error(message.topic(), &error::code_name(error));
                }
                (outcome, None)
            }
        };
        if !crash_points::is_armed("unacknowledged") {
            self.reports.report(Report::new(Seq::new(opaque as u64), outcome), published);
        }
    }
}

/// The id of a record's event, if it has the header.
fn id_of(message: &impl Message) -> Option<Cow<'_, str>> {
    let id = message.headers()?.iter().find(|header| header.key == ID_HEADER)?;
    id.value.map(String::from_utf8_lossy)
}

/// Makes a producer that connects in the background.
pub(super) fn make_producer(
    config: &ClientConfig,
    reports: &Arc<Reports>,
    counts: &Arc<Counts>,
    metrics: &Arc<Metrics>,
) -> Result<Producer, KafkaError> {
    config.create_with_context(Context::new(config, reports, counts, metrics))
}

/// Queues a record as that production, for that partition or for the one that the partitioner
/// chooses.
pub(super) fn send(
    producer: &Producer,
    record: &Record<'_>,
    partition: Option<i32>,
    opaque: usize,
) -> Result<(), KafkaError> {
    let outgoing = BaseRecord::<[u8], [u8], usize> {
        topic: record.topic,
        partition,
        payload: record.value,
        key: record.key,
        // To librdkafka 0 is the time of the call, another at each replay.
        timestamp: record.timestamp_ms.map(|millis| millis.max(1)),
        headers: headers(record),
        delivery_opaque: opaque,
    };
    producer.send(outgoing).map_err(|(error, _)| error)
}

fn headers(record: &Record<'_>) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let empty = OwnedHeaders::new_with_capacity(record.headers.len());
    Some(record.headers.iter().fold(empty, |headers, header| {
        headers.insert(KafkaHeader { key: &header.name, value: header.value.as_deref() })
    }))
}

/// What a record that was not queued means; `fatal` is why the producer is of no use, where it is of
/// none.
pub(super) fn produce_error(
    error: &KafkaError,
    fatal: Option<&(RDKafkaErrorCode, String)>,
    at: TopicAt<'_>,
) -> ProduceError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::QueueFull) => ProduceError::Full,
        Some(RDKafkaErrorCode::Fatal) => match fatal {
            // The record that is the cause is about to be reported, with its reason.
            Some((RDKafkaErrorCode::GaplessGuarantee, _)) => ProduceError::Full,
            Some((code, _)) => ProduceError::Broken(error::reason(*code, at)),
            None => ProduceError::Broken(error.to_string()),
        },
        // In this order: what is about the record alone makes it poison. Every other code replaces the
        // producer and produces the record again, which loses nothing.
        Some(code) => match error::client_outcome(code, at) {
            Outcome::Refused(refusal) => ProduceError::Refused(refusal),
            Outcome::Suspect(refusal) => ProduceError::Suspect(refusal),
            _ => ProduceError::Broken(error::reason(code, at)),
        },
        // An error without a code is of the arguments, such as a NUL in the topic's name.
        None => ProduceError::Refused(Refusal {
            ground: Ground::Other,
            may_pass: false,
            reason: error.to_string(),
        }),
    }
}
