//! Inputs of the per-event benches: the default outbox, the bytes of a row, and record formats.

use bytes::{BufMut, Bytes, BytesMut};
use walpost_core::outbox::{ColumnNames, DataType, FoundTable, Outbox, OutboxConfig, TableName};
use walpost_core::pgoutput::{Column, PgTimestamp, Relation};
use walpost_core::record::debezium::{Converters, Debezium};
use walpost_core::record::{Profile, RecordConfig};

/// When all transactions commit.
pub(crate) const COMMIT_TIME: PgTimestamp = PgTimestamp::from_micros(800_000_000_000_000);

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

/// Records as they are by default.
pub(crate) fn own() -> RecordConfig {
    RecordConfig::to("outbox.event.{aggregate_type}".parse().expect("a template"))
}

/// Records as Debezium makes them, with the event's type as a header and these options.
pub(crate) fn debezium(
    converters: Converters,
    options: &[(&'static str, &'static str)],
) -> Profile {
    let placement = ("table.fields.additional.placement", "type:header:eventType");
    let options = [placement].into_iter().chain(options.iter().copied());
    Debezium::new(converters, options).expect("options").into()
}

/// The outbox for records of that look, which has seen its table.
pub(crate) fn outbox(profile: &Profile) -> Outbox {
    let is_debezium = matches!(profile, Profile::Debezium(_));
    let table = TableName { schema: "public".to_owned(), name: "outbox".to_owned() };
    let columns = match profile {
        Profile::Debezium(debezium) => debezium.columns(),
        Profile::Walpost(_) => ColumnNames::default(),
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

/// The bytes of a row's Insert message; its payload has some 300.
pub(crate) fn row() -> Bytes {
    let payload =
        format!("{{\"total\": 12.50, \"lines\": [1, 2, 3], \"note\": \"{}\"}}", "x".repeat(250));
    let values = [
        "c4ca4238-a0b9-2382-0dcc-509a6f75849b",
        "order",
        "A-1234567",
        "OrderPlaced",
        payload.as_str(),
        "{\"source\": \"shop\", \"tenant\": \"acme\"}",
    ];
    let mut out = BytesMut::from(&b"I"[..]);
    out.put_u32(TABLE);
    out.put_u8(b'N');
    out.put_u16(u16::try_from(values.len()).expect("few columns"));
    for text in values {
        out.put_u8(b't');
        out.put_u32(u32::try_from(text.len()).expect("short values"));
        out.put_slice(text.as_bytes());
    }
    out.freeze()
}
