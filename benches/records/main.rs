//! Cost per event from bytes to record, without a server: `make bench-records`.
//!
//! For each record format: the thread's CPU nanoseconds and allocations per event for decoding the
//! Insert message, reading the row and routing it. Also the nanoseconds including librdkafka's
//! produce call in the same run, and walpost's share of them. On a shared machine only the share is
//! meaningful.

use std::hint::black_box;
use std::time::Duration;
use walpost_core::position::EventPosition;

use bytes::Bytes;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};
use rustix::time::{ClockId, clock_gettime};
use walpost_core::Lsn;
use walpost_core::outbox::Outbox;
use walpost_core::pgoutput::{self, Message};
use walpost_core::record::debezium::Converters;
use walpost_core::record::{
    Known, Profile, Record, RecordConfig, Router, SchemaChoice, SchemaKind, SchemaRef,
    ValueEncoding, ValueFormat,
};

#[path = "../inputs/mod.rs"]
mod inputs;

use inputs::{COMMIT_TIME, debezium, outbox, own, row};

const EVENTS: u32 = 50_000;
const ROUNDS: u32 = 5;

fn main() {
    println!("{EVENTS} events a round, the best of {ROUNDS} rounds; a payload of 300 bytes");
    println!(
        "{:<22} {:>9} {:>9} {:>12} {:>7}",
        "record", "ns/event", "allocs", "and sent", "share"
    );
    let placed = || RecordConfig {
        place: vec!["event_type:header:type".parse().expect("a placement")],
        ..own()
    };
    for (name, profile) in [
        ("default", own().into()),
        ("a column as header", placed().into()),
        ("envelope", RecordConfig { value: ValueFormat::Envelope, ..own() }.into()),
        ("cloudevents", RecordConfig { value: ValueFormat::CloudEvents, ..own() }.into()),
        ("frame", framed().into()),
        ("debezium", debezium(Converters::String, &[])),
        ("debezium-json", debezium(Converters::Json, &[])),
        (
            "debezium-json, expand",
            debezium(Converters::Json, &[("table.expand.json.payload", "true")]),
        ),
    ] {
        measure(name, profile);
    }
}

/// With the prefix of a schema.
fn framed() -> RecordConfig {
    let subject = "{topic}-value".parse().expect("a template");
    let encoding = ValueEncoding::Frame(SchemaChoice::Version(subject, None));
    RecordConfig { encoding: Some(encoding), ..own() }
}

/// How long this thread has been on a processor.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it is not negative")
}

fn measure(name: &str, profile: Profile) {
    let outbox = outbox(&profile);
    let mut router = Router::new(profile);
    let subject = SchemaRef::Version("outbox.event.order-value".to_owned(), None);
    router.learn(subject, Some(Known::Schema { id: 7, kind: SchemaKind::Avro, has_rules: false }));
    let row = row();
    let (mut best, mut sent) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let begin = cpu_time();
        for ordinal in 0..EVENTS {
            let _ = route(&row, &outbox, &mut router, ordinal, |record| black_box(record).bytes());
        }
        best = best.min(cpu_time().saturating_sub(begin));
        sent = sent.min(taken(&row, &outbox, &mut router));
    }
    let counted = allocation_counter::measure(|| {
        for ordinal in 0..EVENTS {
            let _ = route(&row, &outbox, &mut router, ordinal, |record| black_box(record).bytes());
        }
    });
    #[allow(clippy::cast_precision_loss, reason = "the counts are small")]
    let allocations = counted.count_total as f64 / f64::from(EVENTS);
    let each = |all: Duration| all.as_secs_f64() * 1e9 / f64::from(EVENTS);
    println!(
        "{name:<22} {:>9.0} {allocations:>9.2} {:>9.0} ns {:>7.2}",
        each(best),
        each(sent),
        each(best) / each(sent)
    );
}

/// One event, from the bytes of its Insert message to its record.
fn route<T>(
    bytes: &Bytes,
    outbox: &Outbox,
    router: &mut Router,
    ordinal: u32,
    take: impl FnOnce(&Record<'_>) -> T,
) -> T {
    let Ok(Message::Insert(insert)) = pgoutput::decode(bytes) else { panic!("an Insert") };
    let position = EventPosition { commit_lsn: Lsn::new(0x16_B374_D848), ordinal };
    let event = outbox.event(&insert, position, COMMIT_TIME);
    let event = event.expect("an outbox").expect("a row that can be read");
    take(&router.route(&event).expect("a record"))
}

/// The same, and each record handed to a producer that has nobody to send it to.
fn taken(row: &Bytes, outbox: &Outbox, router: &mut Router) -> Duration {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", "127.0.0.1:1")
        .set("queue.buffering.max.messages", (2 * EVENTS).to_string())
        .set("log_level", "0")
        .create()
        .expect("a producer");
    let begin = cpu_time();
    for ordinal in 0..EVENTS {
        route(row, outbox, router, ordinal, |record| produce(&producer, record))
            .expect("it has room");
    }
    let elapsed = cpu_time().saturating_sub(begin);
    producer.purge(PurgeConfig::default().queue().inflight());
    elapsed
}

fn produce(producer: &BaseProducer, record: &Record<'_>) -> Result<(), KafkaError> {
    let empty = OwnedHeaders::new_with_capacity(record.headers.len());
    let headers = record.headers.iter().fold(empty, |headers, header| {
        headers.insert(KafkaHeader { key: &header.name, value: header.value.as_deref() })
    });
    let outgoing = BaseRecord::<[u8], [u8]> {
        topic: record.topic,
        partition: record.partition,
        payload: record.value,
        key: record.key,
        timestamp: record.timestamp_ms,
        headers: Some(headers),
        delivery_opaque: (),
    };
    producer.send(outgoing).map_err(|(error, _)| error)
}
