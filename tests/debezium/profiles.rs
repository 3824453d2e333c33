//! Reproduces the golden records of the real Debezium.
//!
//! `tests/corpus/debezium/README.md` describes the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use walpost::position::EventPosition;

use serde_json::Value as Json;

use bytes::{BufMut, Bytes, BytesMut};
use walpost::Lsn;
use walpost::outbox::{DataType, FoundTable, Outbox, OutboxConfig, TableName};
use walpost::pgoutput::{self, Column, Insert, Message, Oid, PgTimestamp, Relation};
use walpost::record::Router;
use walpost::record::debezium::{Converters, Debezium, OptionError};

const TABLE: Oid = 1;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/debezium")
}

fn golden_files() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![corpus()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the corpus is there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "jsonl") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// What became of a row.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Record(Box<Golden>),
    Poison(String),
}

#[derive(Debug, PartialEq, Eq)]
struct Golden {
    topic: String,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    timestamp: Option<i64>,
    /// Here only where a column chose it; a key's choice is the sink's.
    partition: Option<i32>,
}

fn bytes(json: &Json) -> Option<Vec<u8>> {
    match json {
        Json::Null => None,
        Json::String(text) => Some(text.clone().into_bytes()),
        hex => {
            let (digits, _) = hex["hex"].as_str().expect("hex").as_bytes().as_chunks::<2>();
            let byte = |pair: &[u8; 2]| {
                let pair = std::str::from_utf8(pair).expect("hex");
                u8::from_str_radix(pair, 16).expect("hex")
            };
            Some(digits.iter().map(byte).collect())
        }
    }
}

impl Golden {
    fn read(json: &Json) -> Self {
        let headers = json["headers"].as_array().expect("headers").iter();
        Self {
            topic: json["topic"].as_str().expect("a topic").to_owned(),
            key: bytes(&json["key"]),
            value: bytes(&json["value"]),
            headers: headers
                .map(|pair| (pair[0].as_str().expect("a name").to_owned(), bytes(&pair[1])))
                .collect(),
            timestamp: json["timestamp"].as_i64(),
            partition: json["partition"].as_i64().and_then(|it| i32::try_from(it).ok()),
        }
    }
}

/// The types of the corpus that are not PostgreSQL's own, as the catalogs have them.
fn type_of(name: &str) -> Option<DataType> {
    let numeric_12_2 = ((12 << 16) | 2) + 4;
    let (oid, modifier) = match name {
        "amount" | "price" => (1700, numeric_12_2),
        "anything" => (1700, -1),
        "positive" => (23, -1),
        "short" | "shorter" => (1043, 13),
        "tags" => (1009, -1),
        "zoned_millis" => (1184, 3),
        "millis" => (1114, 3),
        "micros" => (1114, -1),
        "clock" => (1083, 3),
        "flag" => (1560, 1),
        "flags" => (1560, 9),
        "document" => (3802, -1),
        "event_id" => (2950, -1),
        "blob" => (17, -1),
        "truth" => (16, -1),
        "code" => (1042, 7),
        "day" => (1082, -1),
        "big" => (20, -1),
        "ratio" => (701, -1),
        "span" => (1186, -1),
        "cash" => (790, -1),
        "host" => (869, -1),
        "zoned" => (1266, -1),
        "citext" | "feeling" | "isbn" | "ltree" | "mail" | "mood" => return Some(DataType::Text),
        "hstore" | "pairs" => return Some(DataType::Hstore),
        "amount[]" | "cube" | "cube[]" | "floats" | "lquery" | "pair" | "pair[]" | "seg"
        | "twin" => return Some(DataType::Composite),
        "citext[]" | "isbn[]" | "ltree[]" => return Some(DataType::TextArray),
        "hstore[]" => return Some(DataType::HstoreArray),
        "mood[]" => return Some(DataType::EnumArray),
        _ => return None,
    };
    Some(DataType::Builtin { oid, modifier })
}

/// An outbox and a router for a golden file's scenario.
fn stage(head: &Json) -> Result<(Outbox, Router), OptionError> {
    let profile = head["profile"].as_str().expect("a profile");
    let converters = Converters::NAMES.into_iter().find(|(name, _)| *name == profile);
    let (_, converters) = converters.expect("a known profile");
    let given = |key: &str| {
        let options = head[key].as_object().expect("options").iter();
        options
            .map(|(name, value)| (name.clone(), value.as_str().expect("a text").to_owned()))
            .filter(|(name, _)| !name.contains("converter") && !name.starts_with("include."))
            .collect::<Vec<_>>()
    };
    let options = [given("router"), given("connector")].concat();
    let options = options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let config = Debezium::new(converters, options)?;
    let mut types = Vec::new();
    let columns = head["columns"].as_array().expect("columns").iter().enumerate();
    let columns = columns.map(|(index, column)| {
        let type_name = column["type"].as_str().expect("a type");
        let own = u32::try_from(20_000 + index).expect("few columns");
        if let Some(data_type) = type_of(type_name).filter(|_| column["oid"].is_null()) {
            types.push((own, data_type));
        }
        Column {
            name: column["name"].as_str().expect("a name").to_owned(),
            type_oid: column["oid"].as_u64().map_or(own, |oid| u32::try_from(oid).expect("an oid")),
            type_modifier: column["modifier"]
                .as_i64()
                .map_or(-1, |it| i32::try_from(it).expect("one")),
        }
    });
    let table = TableName { schema: "public".into(), name: "outbox".into() };
    let relation = Relation {
        oid: TABLE,
        schema: table.schema.clone(),
        name: table.name.clone(),
        columns: columns.collect(),
    };
    let mut outbox = Outbox::new(OutboxConfig {
        tables: vec![table],
        columns: config.columns(),
        placed: config.placed(),
        placed_optional: config.placed_optional(),
        typed: true,
        ..OutboxConfig::default()
    });
    outbox
        .expect(&FoundTable { relation, types })
        .map_err(|error| OptionError { name: "the table".to_owned(), why: error.to_string() })?;
    Ok((outbox, Router::new(config)))
}

/// A row as PostgreSQL sends it.
fn insert(row: &Json) -> Insert {
    let values = row.as_array().expect("a row");
    let mut out = BytesMut::from(&b"I"[..]);
    out.put_u32(TABLE);
    out.put_u8(b'N');
    out.put_u16(u16::try_from(values.len()).expect("few columns"));
    for value in values {
        let Some(text) = value.as_str() else {
            out.put_u8(b'n');
            continue;
        };
        out.put_u8(b't');
        out.put_u32(u32::try_from(text.len()).expect("short values"));
        out.put_slice(text.as_bytes());
    }
    let bytes: Bytes = out.freeze();
    match pgoutput::decode(&bytes) {
        Ok(Message::Insert(insert)) => insert,
        other => panic!("{other:?}"),
    }
}

fn fate(outbox: &Outbox, router: &mut Router, row: &Json) -> Fate {
    let insert = insert(row);
    let position = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };
    let event = outbox
        .event(&insert, position, PgTimestamp::from_micros(0))
        .expect("it is an outbox")
        .expect("a row that can be read");
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    match router.route(&event) {
        Ok(record) => Fate::Record(Box::new(Golden {
            topic: record.topic.to_owned(),
            key: owned(record.key),
            value: owned(record.value),
            headers: record
                .headers
                .iter()
                .map(|header| (header.name.to_string(), owned(header.value.as_deref())))
                .collect(),
            timestamp: record.timestamp_ms,
            partition: record.partition,
        })),
        Err(unrouted) => {
            let poison = unrouted.poison().expect("it needs no schema");
            Fate::Poison(poison.cause.to_string())
        }
    }
}

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Outcome {
    Same,
    /// Debezium silently produced no record.
    Nothing,
    /// Debezium's task failed; here the event is poison, or the settings are refused.
    Refused,
    /// The broker rejected the record; walpost builds it too.
    RefusedByTheBroker,
    /// Debezium wrote the identity of a Java object, or the length of a buffer.
    Address,
    /// Settings that Debezium accepts and walpost refuses, with the reason.
    Setting,
    /// Half a surrogate pair, which is not valid text: the payload is not expanded.
    LoneSurrogate,
    /// A timestamp outside the range of nanoseconds: poison here.
    Nanoseconds,
    /// NULL in a column that has a default, which Debezium writes in its place.
    Default,
    /// Debezium's task failed at a correct row.
    GoesOn,
    /// A `timestamp[]` from before 1582-10-15, which Debezium reads in the Julian calendar.
    Julian,
    /// A type of geometry other than a point, which Debezium writes since 3.7: poison here.
    Shape,
    Different,
}

fn outcome(name: &str, line: &Json, index: usize, ours: &Result<Fate, OptionError>) -> Outcome {
    let Some(golden) = line["records"].as_array() else {
        let broker = line["dies"].as_str().is_some_and(|why| why.contains("InvalidTimestamp"));
        // A partition that the topic does not have.
        let broker = broker || line["hangs"] == true;
        // An interval of more hours than an int4 has.
        let goes_on = line["dies"].as_str().is_some_and(|why| why.contains("NumberFormat"));
        return match ours {
            Ok(Fate::Record(_)) if goes_on => Outcome::GoesOn,
            Err(_) | Ok(Fate::Poison(_)) => Outcome::Refused,
            Ok(Fate::Record(_)) if broker => Outcome::RefusedByTheBroker,
            Ok(Fate::Record(_)) => Outcome::Different,
        };
    };
    let Some(golden) = golden.get(index) else { return Outcome::Nothing };
    let ours = match ours {
        Err(error) if SETTINGS.contains(&error.name.as_str()) => return Outcome::Setting,
        Ok(Fate::Poison(why)) if why.contains("nanoseconds") => return Outcome::Nanoseconds,
        Ok(Fate::Poison(_)) if SHAPES.iter().any(|one| name.ends_with(one)) => {
            return Outcome::Shape;
        }
        Ok(Fate::Record(ours)) => ours,
        Err(_) | Ok(Fate::Poison(_)) => return Outcome::Different,
    };
    let wanted = Golden::read(golden);
    if wanted.is_like(ours, false) {
        Outcome::Same
    } else if has_address(golden) && wanted.is_like(ours, true) {
        Outcome::Address
    } else if name == "debezium-json/expand/text" && golden["value"] == r#"{"lone":"\uD83D"}"# {
        Outcome::LoneSurrogate
    } else if name.contains("/default/") && line["rows"][index].to_string().contains("null") {
        Outcome::Default
    } else if name.ends_with("/rare/timestamp_array_far") {
        Outcome::Julian
    } else {
        Outcome::Different
    }
}

/// Options with values that walpost refuses and Debezium accepts.
const SETTINGS: [&str; 4] = [
    // Look-around and back-references.
    "route.topic.regex",
    // As `java.util.Date` prints itself.
    "time.precision.mode",
    // In the iteration order of a Java map.
    "hstore.handling.mode",
    "table.op.invalid.behavior",
];

/// Geometry other than points.
const SHAPES: [&str; 6] =
    ["rare/box", "rare/circle", "rare/line", "rare/lseg", "rare/path", "rare/polygon"];

fn has_address(golden: &Json) -> bool {
    let text = golden.to_string();
    ["[B@?", "[Ljava", "java.nio.HeapByteBuffer"].iter().any(|it| text.contains(it))
}

impl Golden {
    fn is_like(&self, other: &Self, but_for_addresses: bool) -> bool {
        let is_address = |bytes: &Option<Vec<u8>>| {
            let text = String::from_utf8_lossy(bytes.as_deref().unwrap_or_default());
            but_for_addresses && has_address(&Json::String(text.into_owned()))
        };
        let same = |mine: &Option<Vec<u8>>, other| is_address(mine) || mine == other;
        let headers = self.headers.iter().zip(&other.headers);
        self.topic == other.topic
            && same(&self.key, &other.key)
            && same(&self.value, &other.value)
            && self.headers.len() == other.headers.len()
            && headers.clone().all(|(mine, other)| mine.0 == other.0 && same(&mine.1, &other.1))
            && self.timestamp.is_none_or(|timestamp| Some(timestamp) == other.timestamp)
            && (other.partition.is_none() || other.partition == self.partition)
    }
}

#[test]
fn golden_records_are_equal_or_a_documented_difference() {
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    let mut different = Vec::new();
    for path in golden_files() {
        let text = std::fs::read_to_string(&path).expect("a golden file");
        let mut lines = text.lines().map(|line| serde_json::from_str::<Json>(line).expect("JSON"));
        let head = lines.next().expect("a scenario");
        let name = head["scenario"].as_str().expect("a name").to_owned();
        let mut stage = stage(&head);
        for line in lines {
            for (index, row) in line["rows"].as_array().expect("rows").iter().enumerate() {
                let ours = match &mut stage {
                    Err(error) => Err(error.clone()),
                    Ok((outbox, router)) => Ok(fate(outbox, router, row)),
                };
                let outcome = outcome(&name, &line, index, &ours);
                *outcomes.entry(outcome).or_default() += 1;
                if outcome == Outcome::Different {
                    different.push(format!("{name}: {line}\n  ours: {ours:?}"));
                }
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    // The table in docs/from-debezium.md.
    let expected = [
        (Outcome::Same, 2766),
        (Outcome::Refused, 391),
        (Outcome::RefusedByTheBroker, 5),
        (Outcome::Address, 95),
        (Outcome::Setting, 22),
        (Outcome::LoneSurrogate, 1),
        (Outcome::Nanoseconds, 6),
        (Outcome::Default, 50),
        (Outcome::GoesOn, 2),
        (Outcome::Julian, 2),
        (Outcome::Shape, 24),
    ];
    assert_eq!(outcomes, BTreeMap::from(expected));
}

#[test]
fn java_object_addresses_are_replaced_by_the_header_value() {
    let head = |profile: &str, placement: &str| {
        serde_json::json!({
            "profile": profile,
            "router": {"table.fields.additional.placement": placement},
            "connector": {},
            "columns": [
                {"name": "id", "type": "text", "oid": 25},
                {"name": "aggregatetype", "type": "text", "oid": 25},
                {"name": "aggregateid", "type": "bytea", "oid": 17},
                {"name": "payload", "type": "bytea", "oid": 17},
                {"name": "n", "type": "numeric", "oid": 1700, "modifier": -1},
            ],
        })
    };
    let row = serde_json::json!(["1", "order", "\\xfbff", "\\xdeadbeef", "1.50"]);
    for (placement, value) in [
        ("", "3q2+7w=="),
        ("n:envelope", r#"Struct{payload=3q2+7w==,n={"scale":1,"value":"Dw=="}}"#),
    ] {
        let (outbox, mut router) = stage(&head("debezium", placement)).expect("a scenario");
        let Fate::Record(record) = fate(&outbox, &mut router, &row) else { panic!("poison") };
        assert_eq!(record.key.as_deref(), Some(b"+/8=".as_slice()));
        assert_eq!(record.value.as_deref(), Some(value.as_bytes()));
    }
}

#[test]
fn unknown_type_is_named_with_its_column() {
    let head = |id: Option<u32>| {
        serde_json::json!({
            "profile": "debezium", "router": {}, "connector": {},
            "columns": [
                {"name": "id", "type": "unheard of", "oid": id},
                {"name": "aggregatetype", "type": "text", "oid": 25},
                {"name": "aggregateid", "type": "int2vector", "oid": 22},
                {"name": "payload", "type": "text", "oid": 25},
            ],
        })
    };
    let error = stage(&head(None)).expect_err("an unknown type").why;
    assert!(error.contains("`id`") && error.contains("start walpost again"), "{error}");
    let (outbox, mut router) = stage(&head(Some(25))).expect("a scenario");
    let row = serde_json::json!(["1", "order", "1 2", "{}"]);
    let Fate::Poison(why) = fate(&outbox, &mut router, &row) else { panic!("a record") };
    assert!(why.contains("`aggregate_id`") && why.contains("cast it to text"), "{why}");
}

#[test]
fn payload_expansion_takes_linear_time() {
    let head = serde_json::json!({
        "profile": "debezium-json", "connector": {},
        "router": {"table.expand.json.payload": "true"},
        "columns": [
            {"name": "id", "type": "text", "oid": 25},
            {"name": "aggregatetype", "type": "text", "oid": 25},
            {"name": "aggregateid", "type": "text", "oid": 25},
            {"name": "payload", "type": "text", "oid": 25},
        ],
    });
    let (outbox, mut router) = stage(&head).expect("a scenario");
    let payload = |count: u32| {
        let members: Vec<_> = (0..count).map(|number| format!("\"k{number}\":1")).collect();
        format!("{{{}}}", members.join(","))
    };
    let began = Instant::now();
    let row = serde_json::json!(["1", "order", "7", payload(200_000)]);
    let Fate::Record(record) = fate(&outbox, &mut router, &row) else { panic!("poison") };
    assert_eq!(record.value, Some(payload(200_000).into_bytes()));
    // With each name looked for among all before it 100 s in such a build, where this takes less
    // than one.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let row = serde_json::json!(["1", "order", "7", payload(300_000)]);
    let Fate::Poison(why) = fate(&outbox, &mut router, &row) else { panic!("a record") };
    assert!(why.contains("250,000 members"), "{why}");
}

proptest::proptest! {
    #[test]
    fn any_row_gives_a_record_or_poison(
        file: proptest::sample::Index,
        fields in proptest::collection::vec(proptest::option::of("[ -~äß\u{1F600}]{0,20}"), 24),
    ) {
        let files = golden_files();
        let text = std::fs::read_to_string(file.get(&files)).expect("a golden file");
        let head: Json = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
        if let Ok((outbox, mut router)) = stage(&head) {
            let columns = head["columns"].as_array().expect("columns").len();
            let row = Json::from(fields[..columns].to_vec());
            let insert = insert(&row);
            let position = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };
            let event = outbox.event(&insert, position, PgTimestamp::from_micros(0)).expect("ours");
            if let Ok(event) = event {
                let _ = router.route(&event);
            }
        }
    }
}
