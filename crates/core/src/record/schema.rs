//! Schemas of a registry: the prefix by which readers find the schema of a value.
//!
//! Confluent's wire format: a zero byte, the schema's id as four bytes in network order, and the encoded
//! value; of Protobuf the indexes of the message stand between them
//! (<https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format>).
//!
//! What a registry has is asked for elsewhere, and handed in: [`Encoder::learn`].

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;
use crate::outbox::{Event, Role};

use super::poison::Cause;
use super::template::{Template, TemplateError};

/// The first byte of a value in the wire format.
const MAGIC: u8 = 0;

/// The length of the prefix, in bytes.
const PREFIX: usize = 5;

/// The indexes of a schema's first message.
const FIRST_MESSAGE: u8 = 0;

/// Maximum number of subjects, and of ids, that are kept.
const KNOWN_MAX: usize = 1000;

/// Maximum length of a subject, in bytes.
const SUBJECT_MAX: usize = 1000;

/// A schema, as a registry is asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SchemaRef {
    /// A version of a subject; `None`: the latest one.
    Version(String, Option<u32>),
    /// A schema by its id.
    Id(u32),
}

impl fmt::Display for SchemaRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(subject, None) => {
                write!(f, "the latest schema of subject `{}`", excerpt(subject))
            }
            Self::Version(subject, Some(version)) => {
                write!(f, "version {version} of subject `{}`", excerpt(subject))
            }
            Self::Id(id) => write!(f, "the schema with id {id}"),
        }
    }
}

/// The language of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaKind {
    /// Apache Avro.
    Avro,
    /// JSON Schema.
    Json,
    /// Protocol Buffers.
    Protobuf,
    /// One that walpost does not know.
    Other,
}

/// What a registry has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// A schema.
    Schema {
        /// Its id: from 1 to 2³¹ − 1.
        id: u32,
        /// Its language.
        kind: SchemaKind,
        /// Whether it has rules for writers, such as the encryption of a field.
        has_rules: bool,
    },
    /// It has none, for this reason.
    Missing(String),
    /// One that cannot be used, for this reason.
    Unusable(String),
}

/// How values get the prefix.
#[derive(Debug, Clone)]
pub enum ValueEncoding {
    /// They have it: only that the registry has the schema is checked.
    Check,
    /// They are serialized, and it is put before them.
    Frame(SchemaChoice),
}

/// Which schema a value has.
#[derive(Debug, Clone)]
pub enum SchemaChoice {
    /// A version of a subject; `None`: the latest one.
    Version(SubjectTemplate, Option<u32>),
    /// A schema by its id.
    Id(u32),
}

impl ValueEncoding {
    fn subject(&self) -> Option<&SubjectTemplate> {
        match self {
            Self::Frame(SchemaChoice::Version(subject, _)) => Some(subject),
            Self::Check | Self::Frame(SchemaChoice::Id(_)) => None,
        }
    }

    /// The additional columns that it names.
    pub(super) fn placed(&self) -> &[String] {
        self.subject().map_or(&[], |subject| &subject.columns)
    }

    /// The roles that it names.
    pub(super) fn roles(&self) -> impl Iterator<Item = Role> {
        self.subject().into_iter().flat_map(SubjectTemplate::roles)
    }

    pub(super) fn place(&mut self, all: &[String]) {
        if let Self::Frame(SchemaChoice::Version(subject, _)) = self {
            subject.place(all);
        }
    }
}

/// A subject with placeholders: `{topic}` for the record's topic, and those of a topic's template.
#[derive(Debug, Clone)]
pub struct SubjectTemplate {
    text: String,
    pieces: Vec<Piece>,
    columns: Vec<String>,
}

#[derive(Debug, Clone)]
enum Piece {
    Topic,
    Of(Template),
}

/// The placeholder of the record's topic.
const TOPIC: &str = "{topic}";

impl SubjectTemplate {
    fn roles(&self) -> impl Iterator<Item = Role> {
        self.pieces.iter().flat_map(|piece| match piece {
            Piece::Topic => Vec::new(),
            Piece::Of(template) => template.roles().collect(),
        })
    }

    fn place(&mut self, all: &[String]) {
        for piece in &mut self.pieces {
            if let Piece::Of(template) = piece {
                template.place(all);
            }
        }
    }

    /// The subject of all events, if it names neither topic nor field.
    pub fn of_all(&self) -> Option<&str> {
        let is_static = |piece: &Piece| match piece {
            Piece::Topic => false,
            Piece::Of(template) => template.has_no_placeholder(),
        };
        self.pieces.iter().all(is_static).then_some(&self.text)
    }

    fn render(&self, topic: &str, event: &Event<'_>, out: &mut String) -> Result<(), Cause> {
        out.clear();
        for piece in &self.pieces {
            match piece {
                Piece::Topic => out.push_str(topic),
                Piece::Of(template) => {
                    if template.first_longer_field(SUBJECT_MAX, event).is_some() {
                        return Err(too_long());
                    }
                    template.render(event, out)?;
                }
            }
        }
        match out.as_str() {
            long if long.len() > SUBJECT_MAX => Err(too_long()),
            "." | ".." => Err(mismatch("its subject is only dots, which no request can name")),
            text if text.contains(char::is_control) => {
                Err(mismatch("its subject has a control character"))
            }
            _ => Ok(()),
        }
    }
}

fn too_long() -> Cause {
    mismatch(format!("its subject is longer than {SUBJECT_MAX} bytes"))
}

fn mismatch(why: impl Into<String>) -> Cause {
    Cause::SchemaMismatch { why: why.into() }
}

impl FromStr for SubjectTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let error = |why: &str| {
            Err(TemplateError { template: text.to_owned(), sign: 0, why: why.to_owned() })
        };
        if text.is_empty() {
            return error("it is empty");
        }
        let (mut pieces, mut columns) = (Vec::new(), Vec::<String>::new());
        if text.contains("{topic|") {
            return error("{topic} has no modifiers");
        }
        for (number, part) in text.split(TOPIC).enumerate() {
            if number > 0 {
                pieces.push(Piece::Topic);
            }
            if part.is_empty() {
                continue;
            }
            let template = Template::parse(part, |text| match text.find(char::is_control) {
                Some(at) => Err((at, "it has a control character".to_owned())),
                None => Ok(()),
            })?;
            let more = template.columns().iter().filter(|column| !columns.contains(column));
            let more: Vec<_> = more.cloned().collect();
            columns.extend(more);
            pieces.push(Piece::Of(template));
        }
        Ok(Self { text: text.to_owned(), pieces, columns })
    }
}

impl fmt::Display for SubjectTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a value is not encoded.
#[derive(Debug)]
pub(super) enum Unencoded {
    /// The event is undeliverable.
    Undeliverable(Cause),
    /// A schema has to be learned first.
    Needs(SchemaRef),
}

impl From<Cause> for Unencoded {
    fn from(cause: Cause) -> Self {
        Self::Undeliverable(cause)
    }
}

/// Encodes values, one at a time, with what it has learned of a registry.
#[derive(Debug)]
pub(super) struct Encoder {
    encoding: ValueEncoding,
    ids: HashMap<u32, Known>,
    subjects: HashMap<String, Known>,
    subject: String,
    framed: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(encoding: ValueEncoding) -> Self {
        Self {
            encoding,
            ids: HashMap::new(),
            subjects: HashMap::new(),
            subject: String::new(),
            framed: Vec::new(),
        }
    }

    /// Learns what the registry has; `None`: it is to be asked again.
    pub(super) fn learn(&mut self, schema: SchemaRef, known: Option<Known>) {
        match schema {
            SchemaRef::Version(subject, _) => keep(&mut self.subjects, subject, known),
            SchemaRef::Id(id) => keep(&mut self.ids, id, known),
        }
    }

    /// How many schemas are known.
    pub(super) fn len(&self) -> usize {
        self.ids.len() + self.subjects.len()
    }

    /// The value in the wire format.
    pub(super) fn encode<'a>(
        &'a mut self,
        value: &'a [u8],
        topic: &str,
        event: &Event<'_>,
    ) -> Result<&'a [u8], Unencoded> {
        let choice = match &self.encoding {
            ValueEncoding::Check => {
                let id = id_of(value).map_err(mismatch)?;
                // Who has put the id there has applied its rules.
                schema(&self.ids, &id, || SchemaRef::Id(id))?;
                return Ok(value);
            }
            ValueEncoding::Frame(choice) => choice,
        };
        let (id, kind) = match choice {
            SchemaChoice::Id(id) => framing(&self.ids, id, || SchemaRef::Id(*id))?,
            SchemaChoice::Version(subject, version) => {
                subject.render(topic, event, &mut self.subject)?;
                let wanted = || SchemaRef::Version(self.subject.clone(), *version);
                framing(&self.subjects, self.subject.as_str(), wanted)?
            }
        };
        self.framed.clear();
        self.framed.push(MAGIC);
        self.framed.extend_from_slice(&id.to_be_bytes());
        if kind == SchemaKind::Protobuf {
            self.framed.push(FIRST_MESSAGE);
        }
        self.framed.extend_from_slice(value);
        Ok(&self.framed)
    }
}

/// Keeps what is known. All is forgotten if it is too much, and asked for again when it is needed.
fn keep<K: std::hash::Hash + Eq>(all: &mut HashMap<K, Known>, key: K, known: Option<Known>) {
    match known {
        Some(known) => {
            if all.len() >= KNOWN_MAX && !all.contains_key(&key) {
                all.clear();
            }
            all.insert(key, known);
        }
        None => {
            all.remove(&key);
        }
    }
}

/// The id and the language of a schema by which walpost frames values.
fn framing<K, Q>(
    known: &HashMap<K, Known>,
    key: &Q,
    wanted: impl Fn() -> SchemaRef,
) -> Result<(u32, SchemaKind), Unencoded>
where
    K: std::borrow::Borrow<Q> + std::hash::Hash + Eq,
    Q: std::hash::Hash + Eq + ?Sized,
{
    let why = match schema(known, key, &wanted)? {
        (_, SchemaKind::Other, _) => "its language is none that walpost knows",
        (_, _, true) => {
            "it has rules, such as the encryption of fields, which walpost does not apply"
        }
        (id, kind, false) => return Ok((id, kind)),
    };
    Err(mismatch(format!("{}: {why}", wanted())).into())
}

/// The id and the language of a schema, and whether it has rules.
fn schema<K, Q>(
    known: &HashMap<K, Known>,
    key: &Q,
    wanted: impl Fn() -> SchemaRef,
) -> Result<(u32, SchemaKind, bool), Unencoded>
where
    K: std::borrow::Borrow<Q> + std::hash::Hash + Eq,
    Q: std::hash::Hash + Eq + ?Sized,
{
    match known.get(key) {
        Some(Known::Schema { id, kind, has_rules }) => Ok((*id, *kind, *has_rules)),
        Some(Known::Missing(why)) => {
            let (schema, why) = (wanted().to_string(), why.clone());
            Err(Cause::MissingSchema { schema, why }.into())
        }
        Some(Known::Unusable(why)) => Err(mismatch(format!("{}: {why}", wanted())).into()),
        None => Err(Unencoded::Needs(wanted())),
    }
}

/// The schema's id in a value's prefix.
fn id_of(value: &[u8]) -> Result<u32, String> {
    let wrong = |what: &str| {
        format!(
            "its payload {what}, so it is not in the wire format of schema registries (a zero byte, the \
             schema's id in four bytes, the encoded value); with record.value_encoding = \"frame\" walpost \
             puts that prefix before it"
        )
    };
    let prefix: Option<&[u8; PREFIX]> = value.first_chunk();
    let Some([first, id @ ..]) = prefix else {
        return Err(wrong("has fewer than five bytes"));
    };
    if *first != MAGIC {
        return Err(wrong(&format!("begins with byte {first}")));
    }
    let id = i32::from_be_bytes(*id);
    u32::try_from(id).ok().filter(|id| *id > 0).ok_or_else(|| wrong(&format!("has id {id}")))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::record::route::tests::event;

    fn avro(id: u32) -> Known {
        Known::Schema { id, kind: SchemaKind::Avro, has_rules: false }
    }

    fn frame(subject: &str) -> Encoder {
        let subject = subject.parse().expect("a template");
        Encoder::new(ValueEncoding::Frame(SchemaChoice::Version(subject, None)))
    }

    fn cause(result: Result<&[u8], Unencoded>) -> Cause {
        match result {
            Err(Unencoded::Undeliverable(cause)) => cause,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn prefix_has_the_id_of_the_subject_that_topic_and_fields_name() {
        let mut encoder = frame("{topic}-{aggregate_type|lower}");
        let wanted = SchemaRef::Version("t-order".to_owned(), None);
        match encoder.encode(b"xyz", "t", &event()) {
            Err(Unencoded::Needs(needed)) => assert_eq!(needed, wanted),
            other => panic!("{other:?}"),
        }
        encoder.learn(wanted.clone(), Some(avro(0x0102_0304)));
        let framed = encoder.encode(b"xyz", "t", &event()).expect("a schema");
        assert_eq!(framed, b"\0\x01\x02\x03\x04xyz");
        let (kind, has_rules) = (SchemaKind::Protobuf, false);
        encoder.learn(wanted.clone(), Some(Known::Schema { id: 7, kind, has_rules }));
        let framed = encoder.encode(b"", "t", &event()).expect("a schema");
        assert_eq!(framed, b"\0\0\0\0\x07\0");
        encoder.learn(wanted, None);
        assert!(matches!(encoder.encode(b"", "t", &event()), Err(Unencoded::Needs(_))));
    }

    #[test]
    fn value_with_a_prefix_is_passed_on_if_the_registry_has_its_schema() {
        let mut encoder = Encoder::new(ValueEncoding::Check);
        let value = b"\0\0\0\0\x07abc";
        match encoder.encode(value, "t", &event()) {
            Err(Unencoded::Needs(needed)) => assert_eq!(needed, SchemaRef::Id(7)),
            other => panic!("{other:?}"),
        }
        encoder.learn(SchemaRef::Id(7), Some(avro(7)));
        assert_eq!(encoder.encode(value, "t", &event()).expect("known"), value);
        for bare in [&b"{\"a\": 1}"[..], b"", b"\0\0\0\0", b"\0\xff\0\0\x01a", b"\0\0\0\0\0a"] {
            let cause = cause(encoder.encode(bare, "t", &event()));
            assert_eq!(cause.key(), "schema_mismatch", "{cause}");
        }
    }

    #[test]
    fn schema_that_is_missing_or_unusable_makes_the_event_undeliverable() {
        let mut encoder = frame("s");
        let wanted = SchemaRef::Version("s".to_owned(), None);
        encoder.learn(wanted.clone(), Some(Known::Missing("not found".to_owned())));
        let text = cause(encoder.encode(b"", "t", &event())).to_string();
        assert!(text.contains("latest schema of subject `s`: not found"), "{text}");
        encoder.learn(wanted, Some(Known::Unusable("has rules".to_owned())));
        let cause = cause(encoder.encode(b"", "t", &event()));
        assert!(cause.key() == "schema_mismatch" && cause.to_string().contains("has rules"));
    }

    #[test]
    fn schema_with_rules_is_for_those_who_apply_them() {
        let with = |kind, has_rules| Some(Known::Schema { id: 7, kind, has_rules });
        for (kind, has_rules) in [(SchemaKind::Avro, true), (SchemaKind::Other, false)] {
            for choice in
                [SchemaChoice::Id(7), SchemaChoice::Version("s".parse().expect("s"), None)]
            {
                let mut framing = Encoder::new(ValueEncoding::Frame(choice));
                framing.learn(SchemaRef::Id(7), with(kind, has_rules));
                framing.learn(SchemaRef::Version("s".to_owned(), None), with(kind, has_rules));
                let cause = cause(framing.encode(b"x", "t", &event()));
                assert_eq!(cause.key(), "schema_mismatch", "{cause}");
            }
            let mut check = Encoder::new(ValueEncoding::Check);
            check.learn(SchemaRef::Id(7), with(kind, has_rules));
            assert!(check.encode(b"\0\0\0\0\x07", "t", &event()).is_ok());
        }
    }

    #[test]
    fn what_is_known_and_a_subject_are_bounded() {
        let mut encoder = frame("{aggregate_type}");
        for number in 0..3_000 {
            encoder.learn(SchemaRef::Version(format!("s{number}"), None), Some(avro(1)));
            assert!(encoder.len() <= KNOWN_MAX);
        }
        for length in [SUBJECT_MAX + 1, 1 << 20] {
            let mut event = event();
            event.aggregate_type = Some(Cow::Owned(vec![b'x'; length]));
            let cause = cause(encoder.encode(b"", "t", &event));
            assert!(cause.to_string().contains("longer than"), "{cause}");
        }
    }

    #[test]
    fn templates_of_subjects_are_checked() {
        for (text, of_all) in [("orders-value", Some("orders-value")), ("{topic}-value", None)] {
            let template: SubjectTemplate = text.parse().expect("a template");
            assert_eq!((template.of_all(), template.to_string().as_str()), (of_all, text));
        }
        for (odd, part) in [("..", "dots"), ("a\nb", "control")] {
            let mut event = event();
            event.aggregate_type = Some(Cow::Borrowed(odd.as_bytes()));
            let cause = cause(frame("{aggregate_type}").encode(b"", "t", &event));
            assert!(cause.key() == "schema_mismatch" && cause.to_string().contains(part));
        }
        for wrong in ["", "{topic", "{topic|lower}", "a\tb"] {
            assert!(wrong.parse::<SubjectTemplate>().is_err(), "{wrong}");
        }
    }
}
