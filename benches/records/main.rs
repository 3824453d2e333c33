//! What an event costs on its way from bytes to record, without any server:
//! `make bench-records`.
//!
//! For each look of a record: the thread's nanoseconds on a processor and its allocations an
//! event, for decoding the Insert message, reading the row and routing it; beside it the
//! nanoseconds with handing the record to librdkafka, in the same run, and walpost's share of
//! them. On a shared machine only the share means anything.

use std::hint::black_box;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};
use rustix::time::{ClockId, clock_gettime};
use walpost::Lsn;
use walpost::outbox::{DataType, FoundTable, Outbox, OutboxConfig, Position, TableName};
use walpost::pgoutput::{self, Column, Message, PgTimestamp, Relation};
use walpost::record::debezium::{Converters, Debezium};
use walpost::record::{Profile, Record, RecordConfig, Router, ValueFormat};

const EVENTS: u32 = 50_000;
const ROUNDS: u32 = 5;
const TABLE: u32 = 16_500;

/// The default outbox, as `walpost init` makes it, in walpost's names and in Debezium's.
const COLUMNS: [(&str, &str, u32); 6] = [
    ("id", "id", 2950),
    ("aggregate_type", "aggregatetype", 25),
    ("aggregate_id", "aggregateid", 25),
    ("event_type", "type", 25),
    ("payload", "payload", 3802),
    ("headers", "headers", 3802),
];

fn main() {
    println!("{EVENTS} events a round, the best of {ROUNDS} rounds; a payload of 300 bytes");
    println!(
        "{:<22} {:>9} {:>9} {:>12} {:>7}",
        "record", "ns/event", "allocs", "and sent", "share"
    );
    let own = || RecordConfig::to("outbox.event.{aggregate_type}".parse().expect("a template"));
    let placed = || RecordConfig {
        place: vec!["event_type:header:type".parse().expect("a placement")],
        ..own()
    };
    let debezium = |converters, options: &[(&'static str, &'static str)]| {
        Profile::from(Debezium::new(converters, options.iter().copied()).expect("options"))
    };
    let placement = ("table.fields.additional.placement", "type:header:eventType");
    for (name, profile) in [
        ("default", own().into()),
        ("a column as header", placed().into()),
        ("envelope", RecordConfig { value: ValueFormat::Envelope, ..own() }.into()),
        ("cloudevents", RecordConfig { value: ValueFormat::CloudEvents, ..own() }.into()),
        ("debezium", debezium(Converters::String, &[placement])),
        ("debezium-json", debezium(Converters::Json, &[placement])),
        (
            "debezium-json, expand",
            debezium(Converters::Json, &[placement, ("table.expand.json.payload", "true")]),
        ),
    ] {
        measure(name, profile);
    }
}

/// How long this thread has been on a processor.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it is not negative")
}

fn measure(name: &str, profile: Profile) {
    let is_debezium = matches!(profile, Profile::Debezium(_));
    let outbox = outbox(&profile, is_debezium);
    let mut router = Router::new(profile);
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
    let position = Position { commit_lsn: Lsn::new(0x16_B374_D848), ordinal };
    let event = outbox.event(&insert, position, PgTimestamp::from_micros(800_000_000_000_000));
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
        timestamp: Some(record.timestamp_ms),
        headers: Some(headers),
        delivery_opaque: (),
    };
    producer.send(outgoing).map_err(|(error, _)| error)
}

fn outbox(profile: &Profile, is_debezium: bool) -> Outbox {
    let table = TableName { schema: "public".to_owned(), name: "outbox".to_owned() };
    let columns = match profile {
        Profile::Debezium(debezium) => debezium.columns(),
        Profile::Walpost(_) => walpost::outbox::ColumnNames::default(),
    };
    let relation = Relation {
        oid: TABLE,
        schema: table.schema.clone(),
        name: table.name.clone(),
        columns: COLUMNS
            .map(|(own, debeziums, type_oid)| Column {
                name: if is_debezium { debeziums } else { own }.to_owned(),
                type_oid,
                type_modifier: -1,
            })
            .to_vec(),
    };
    let placed = profile.placed();
    let config = OutboxConfig { tables: vec![table], columns, placed, ..OutboxConfig::default() };
    let mut outbox = Outbox::new(config);
    let types = vec![(TABLE, DataType::Text)];
    outbox.expect(&FoundTable { relation, types }).expect("the columns are there");
    outbox
}

/// The bytes of a row's Insert message.
fn row() -> Bytes {
    let payload =
        format!("{{\"total\": 12.50, \"lines\": [1, 2, 3], \"note\": \"{}\"}}", "x".repeat(250));
    let values = [
        Some("c4ca4238-a0b9-2382-0dcc-509a6f75849b"),
        Some("order"),
        Some("A-1234567"),
        Some("OrderPlaced"),
        Some(payload.as_str()),
        Some("{\"source\": \"shop\", \"tenant\": \"acme\"}"),
    ];
    let mut out = BytesMut::from(&b"I"[..]);
    out.put_u32(TABLE);
    out.put_u8(b'N');
    out.put_u16(u16::try_from(values.len()).expect("few columns"));
    for value in values {
        let text = value.expect("no NULL");
        out.put_u8(b't');
        out.put_u32(u32::try_from(text.len()).expect("short values"));
        out.put_slice(text.as_bytes());
    }
    out.freeze()
}
