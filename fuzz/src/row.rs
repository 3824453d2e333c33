//! A relation and one of its rows: from the wire to a record.
//!
//! The input selects the columns and their values; this module assembles the bytes, so that most
//! inputs reach the record stage.

use bytes::{BufMut, Bytes, BytesMut};
use walpost::Lsn;
use walpost::outbox::{ColumnNames, Outbox, OutboxConfig, Role, TableName};
use walpost::pgoutput::{Column, Insert, Message, Oid, PgTimestamp, Relation, Value, decode};
use walpost::position::EventPosition;
use walpost::record::{RecordConfig, Router, TimestampSource, check_topic};

use super::input::Rng;

const TABLE: Oid = 0x4002;
const BYTEA: Oid = 17;

/// As many as PostgreSQL allows.
const COLUMNS_MAX: usize = 1600;

const TYPES: [Oid; 5] = [25, BYTEA, 114, 2950, 3802];

/// The names that mean something, and some that do not.
const NAMES: [&str; 16] = [
    "id",
    "aggregate_type",
    "aggregatetype",
    "aggregate_id",
    "aggregateid",
    "event_type",
    "type",
    "payload",
    "headers",
    "traceparent",
    "tracestate",
    "at",
    "region",
    "größe",
    "",
    "ID",
];

const TOPICS: [&str; 4] =
    ["t", "outbox.{aggregate_type}", "{aggregate_type|kebab}.{region|lower}", "{größe|snake}"];

/// Columns and values as the input says.
pub fn row(input: &[u8]) {
    let mut rng = Rng(input);
    let settings = Settings::of(&mut rng);
    let (relation, values) = relation_and_values(&mut rng);
    assert_eq!(decode(&relation_bytes(&relation)), Ok(Message::Relation(relation.clone())));
    let bytes = insert_bytes(&values);
    let Ok(Message::Insert(insert)) = decode(&bytes) else { panic!("{bytes:?}") };
    assert_eq!(insert.tuple.iter().collect::<Vec<_>>(), values);

    let mut outbox = settings.outbox();
    if let Err(error) = outbox.relation(&relation) {
        assert!(error.to_string().contains("has no column"), "{error}");
        assert!(!outbox.is_outbox(TABLE));
        return;
    }
    publish(&settings, &outbox, &relation, &insert);
}

fn publish(settings: &Settings, outbox: &Outbox, relation: &Relation, insert: &Insert) {
    let position = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };
    let event = outbox.event(insert, position, PgTimestamp::from_micros(i64::MIN));
    let event = match event.expect("it is an outbox") {
        Ok(event) => event,
        Err(error) => {
            assert!(error.to_string().contains(&position.to_string()), "{error}");
            return;
        }
    };
    assert_eq!(insert.tuple.len(), relation.columns.len());
    for role in Role::ALL {
        let column = settings
            .columns
            .looked_for(role)
            .find_map(|name| relation.columns.iter().position(|column| column.name == name));
        let is_bytea = column.is_some_and(|at| relation.columns[at].type_oid == BYTEA);
        let value = column.and_then(|at| insert.tuple.get(at));
        match (value, event.field(role).as_deref()) {
            (None | Some(Value::Null), None) => {}
            (Some(Value::Text(text)), Some(bytes)) if role == Role::Payload && is_bytea => {
                assert_eq!(text.len(), 2 + 2 * bytes.len());
            }
            (Some(Value::Text(text)), Some(field)) => assert_eq!(text, field),
            (value, field) => panic!("{}: {value:?} became {field:?}", role.name()),
        }
    }
    let mut routers = [settings.router(), settings.router()];
    let [once, again] = routers.each_mut().map(|router| router.route(&event));
    assert_eq!(once, again);
    match once {
        Ok(record) => {
            assert_eq!(check_topic(record.topic), Ok(()));
            assert!(record.key.is_some_and(|key| !key.is_empty()));
            assert_eq!(
                (record.key, record.value),
                (event.aggregate_id.as_deref(), event.payload.as_deref())
            );
            assert!(record.headers.iter().all(|header| !header.name.contains('\0')));
        }
        Err(poison) => assert!(poison.to_string().contains(&position.to_string())),
    }
}

struct Settings {
    columns: ColumnNames,
    topic: &'static str,
    timestamp: TimestampSource,
}

impl Settings {
    fn of(rng: &mut Rng<'_>) -> Self {
        let choices = rng.byte();
        let chosen = |bit: u8, name: &str| (choices >> bit & 1 == 1).then(|| name.to_owned());
        let columns = ColumnNames {
            id: chosen(0, "ID"),
            payload: chosen(1, "at"),
            headers: chosen(2, "headers"),
            timestamp: chosen(3, "at"),
            ..ColumnNames::default()
        };
        let timestamp = match columns.timestamp {
            Some(_) => TimestampSource::Column,
            None => TimestampSource::Commit,
        };
        Self { columns, topic: TOPICS[usize::from(choices >> 4) % TOPICS.len()], timestamp }
    }

    fn outbox(&self) -> Outbox {
        let topic: walpost::record::TopicTemplate = self.topic.parse().expect("a template");
        Outbox::new(OutboxConfig {
            tables: vec![TableName { schema: "public".to_owned(), name: "outbox".to_owned() }],
            columns: self.columns.clone(),
            placed: topic.placed().to_vec(),
            ..OutboxConfig::default()
        })
    }

    fn router(&self) -> Router {
        let topic = self.topic.parse().expect("a template");
        Router::new(RecordConfig { timestamp: self.timestamp, ..RecordConfig::to(topic) })
    }
}

/// One byte says which column, one what is in it; then comes the text.
fn relation_and_values<'a>(rng: &mut Rng<'a>) -> (Relation, Vec<Value<'a>>) {
    let (mut columns, mut values) = (Vec::new(), Vec::new());
    while !rng.is_empty() && columns.len().max(values.len()) < COLUMNS_MAX {
        let which = rng.byte();
        let what = rng.byte();
        let name = NAMES[usize::from(which) % NAMES.len()].to_owned();
        let type_oid = TYPES[usize::from(which / 16) % TYPES.len()];
        match what {
            // A column that the row has not, and a value without a column.
            0xFE => columns.push(Column { name, type_oid, type_modifier: -1 }),
            0xFF => values.push(Value::Null),
            _ => {
                columns.push(Column { name, type_oid, type_modifier: -1 });
                values.push(match what % 8 {
                    0 => Value::Null,
                    1 => Value::Unchanged,
                    2 => Value::Binary(rng.counted()),
                    _ => Value::Text(rng.counted()),
                });
            }
        }
    }
    let (schema, name) = ("public".to_owned(), "outbox".to_owned());
    (Relation { oid: TABLE, schema, name, columns }, values)
}

fn relation_bytes(relation: &Relation) -> Bytes {
    let mut out = BytesMut::from(&b"R"[..]);
    out.put_u32(relation.oid);
    out.put_slice(b"public\0outbox\0d");
    out.put_u16(u16::try_from(relation.columns.len()).expect("1600 at most"));
    for column in &relation.columns {
        out.put_u8(1);
        out.put_slice(column.name.as_bytes());
        out.put_u8(0);
        out.put_u32(column.type_oid);
        out.put_i32(column.type_modifier);
    }
    out.freeze()
}

fn insert_bytes(values: &[Value<'_>]) -> Bytes {
    let mut out = BytesMut::from(&b"I"[..]);
    out.put_u32(TABLE);
    out.put_u8(b'N');
    out.put_u16(u16::try_from(values.len()).expect("1600 at most"));
    for value in values {
        let (kind, bytes) = match value {
            Value::Null => (b'n', None),
            Value::Unchanged => (b'u', None),
            Value::Text(text) => (b't', Some(text)),
            Value::Binary(bytes) => (b'b', Some(bytes)),
        };
        out.put_u8(kind);
        if let Some(bytes) = bytes {
            out.put_u32(u32::try_from(bytes.len()).expect("a value has 255 bytes at most"));
            out.put_slice(bytes);
        }
    }
    out.freeze()
}
