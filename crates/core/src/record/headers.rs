//! Which headers a record has, and in which order.
//!
//! Headers cost CPU time, so the list is configurable. A row's own headers are parsed without
//! building a tree, and their values borrow from the row.
//!
//! A row must not forge walpost's own headers: a consumer that skips by `walpost.position` would
//! skip its partition forever after a row that claims the highest position. So a row's member is
//! dropped and counted if its name begins with `walpost.`, is the name of a header that walpost
//! itself writes to that record, has a meaning at the destination, or cannot be sent there. [`Names`]
//! decides that.

use std::borrow::Cow;
use std::collections::HashSet;

use smallvec::SmallVec;

use crate::outbox::{Event, Needs, Role, json};

use super::names::Names;
use super::poison::{Cause, Poison};
use super::types::{Header, Headers};

/// Maximum length of a dropped name in the log, in characters.
const NAME_SIGNS_SHOWN: usize = 100;

/// The header with the event's id, in each profile.
pub const ID_HEADER: &str = Role::Id.name();

/// The header with the event's position.
pub const POSITION_HEADER: &str = "walpost.position";

/// A header, or the headers from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BuiltinHeader {
    Id,
    EventType,
    Traceparent,
    Tracestate,
    /// The row's JSON object: one header per member.
    Row,
    EventPosition,
}

impl BuiltinHeader {
    const ALL: [Self; 6] = [
        Self::Id,
        Self::EventType,
        Self::Row,
        Self::Traceparent,
        Self::Tracestate,
        Self::EventPosition,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Id => Role::Id.name(),
            Self::EventType => Role::EventType.name(),
            Self::Row => Role::Headers.name(),
            Self::Traceparent => Role::Traceparent.name(),
            Self::Tracestate => Role::Tracestate.name(),
            Self::EventPosition => POSITION_HEADER,
        }
    }

    /// The header's value, if the event has it; `None` for a row's own headers.
    fn of<'a>(self, event: &'a Event<'_>, position: &'a str) -> Option<&'a [u8]> {
        match self {
            Self::Id => event.id.as_deref(),
            Self::EventType => event.event_type.as_deref(),
            Self::Traceparent => event.traceparent.as_deref(),
            Self::Tracestate => event.tracestate.as_deref(),
            Self::EventPosition => Some(position.as_bytes()),
            Self::Row => None,
        }
    }
}

/// The headers that are sent, in order; by default all of them.
///
/// `id`, `event_type`, `traceparent` and `tracestate` are sent if the event has them; `headers`
/// means the members of the row's JSON object; `walpost.position` is the event's position as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderSet(Vec<BuiltinHeader>);

impl Default for HeaderSet {
    fn default() -> Self {
        Self(BuiltinHeader::ALL.to_vec())
    }
}

/// An invalid list of headers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderSetError {
    /// An unknown name.
    #[error("there is no header `{name}` to send: choose from {}", HeaderSet::NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// A name occurs twice.
    #[error("header `{name}` is listed twice")]
    Twice {
        /// The name.
        name: String,
    },
}

impl HeaderSet {
    /// All valid names, in the default order.
    pub const NAMES: [&str; 6] = {
        let mut names = [""; BuiltinHeader::ALL.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = BuiltinHeader::ALL[index].name();
            index += 1;
        }
        names
    };

    /// The headers in this list, in order; an empty list sends none.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Self, HeaderSetError> {
        let mut sources = Vec::with_capacity(BuiltinHeader::ALL.len());
        for name in names.iter().map(AsRef::as_ref) {
            let source = BuiltinHeader::ALL
                .into_iter()
                .find(|source| source.name() == name)
                .ok_or_else(|| HeaderSetError::Unknown { name: name.to_owned() })?;
            if sources.contains(&source) {
                return Err(HeaderSetError::Twice { name: name.to_owned() });
            }
            sources.push(source);
        }
        Ok(Self(sources))
    }

    /// The names of the headers, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|source| source.name())
    }

    /// The roles that they contain. A listed `id` is required, because it identifies the event.
    pub(super) fn needs(&self, needs: Needs) -> Needs {
        let role = |source: &BuiltinHeader| match source {
            BuiltinHeader::Id => Some(Role::Id),
            BuiltinHeader::EventType => Some(Role::EventType),
            BuiltinHeader::Traceparent => Some(Role::Traceparent),
            BuiltinHeader::Tracestate => Some(Role::Tracestate),
            BuiltinHeader::Row => Some(Role::Headers),
            BuiltinHeader::EventPosition => None,
        };
        let needs = needs.using(self.0.iter().filter_map(role));
        needs.requiring(self.0.contains(&BuiltinHeader::Id).then_some(Role::Id))
    }

    pub(super) fn has_position(&self) -> bool {
        self.0.contains(&BuiltinHeader::EventPosition)
    }

    /// Appends the headers of `event`; `position` is its position as text. A member of the row's
    /// object is dropped if its name is reserved by `names`, already in `headers`, or in `placed`,
    /// the names of the headers that follow.
    pub(super) fn append_to<'a>(
        &self,
        headers: &mut Headers<'a>,
        event: &'a Event<'_>,
        position: &'a str,
        (names, placed): (&Names, &[String]),
    ) -> Result<Dropped, Poison> {
        headers.reserve(self.0.len());
        let mut dropped = Dropped::default();
        for source in &self.0 {
            if *source == BuiltinHeader::Row {
                dropped = self
                    .append_row(headers, event, (names, placed))
                    .map_err(|cause| Poison::new(cause, event))?;
            } else if let Some(value) = source.of(event, position) {
                let (name, value) = (Cow::Borrowed(source.name()), Some(Cow::Borrowed(value)));
                headers.push(Header { name, value });
            }
        }
        Ok(dropped)
    }

    /// Appends the members of a row's JSON object, in order, except those with reserved names
    /// and those that the destination cannot carry.
    fn append_row<'a>(
        &self,
        headers: &mut Headers<'a>,
        event: &'a Event<'_>,
        (names, placed): (&Names, &[String]),
    ) -> Result<Dropped, Cause> {
        let mut dropped = Dropped::default();
        let object = event.headers.as_deref().filter(|json| *json != b"null");
        let Some(object) = object else { return Ok(dropped) };
        let first = headers.len();
        let (mut bytes, mut exceeds) = (0, false);
        let later = self.0.iter().filter(|source| source.of(event, "").is_some());
        let later = later.map(|source| source.name()).chain(placed.iter().map(String::as_str));
        let later: SmallVec<[&str; 16]> = later.collect();
        json::members(object, |name, value| {
            let is = |own: &str| names.are_one(own, &name);
            let is_written = headers[..first].iter().any(|header| is(&header.name))
                || later.iter().any(|own| is(own));
            if is_written || names.is_reserved(&name) {
                dropped.add(&name);
                return Ok(());
            }
            let value = json::text(value)?;
            if value.as_ref().is_some_and(|value| !(names.value_can_be)(value)) {
                dropped.add(&name);
                return Ok(());
            }
            bytes += name.len() + value.as_ref().map_or(0, |value| value.len());
            // Members beyond the limits take no memory.
            let is_within = bytes <= ROW_BYTES && headers.len() - first < ROW_HEADERS;
            if is_within {
                headers.push(Header { name, value });
            }
            exceeds |= !is_within;
            Ok(())
        })
        .map_err(|fault| undecodable(fault.to_string()))?;
        if exceeds {
            return Err(undecodable(format!(
                "has more than {ROW_HEADERS} members or {ROW_BYTES} bytes of names and values"
            )));
        }
        if !names.may_repeat {
            drop_repeated(headers, first, names, &mut dropped);
        }
        Ok(dropped)
    }
}

/// Maximum number of headers from a row, and of bytes of their names and values: a client's memory
/// for a short header is a multiple of its size, and brokers accept one megabyte per record by
/// default.
const ROW_HEADERS: usize = 1000;
const ROW_BYTES: usize = 1 << 20;

/// Up to so many headers of a row are compared with each other without a table.
const ROW_HEADERS_FEW: usize = 16;

/// Drops those behind the first `first` headers whose name an earlier one of them has. Null values
/// are not sent where names cannot repeat, so they count neither way.
fn drop_repeated(headers: &mut Headers<'_>, first: usize, names: &Names, dropped: &mut Dropped) {
    let mut table = (headers.len() - first > ROW_HEADERS_FEW).then(HashSet::new);
    let mut kept = first;
    for index in first..headers.len() {
        let name = &headers[index].name;
        let is_repeated = headers[index].value.is_some()
            && match &mut table {
                Some(table) => !table.insert(names.folded(name)),
                None => headers[first..kept]
                    .iter()
                    .any(|header| header.value.is_some() && names.are_one(&header.name, name)),
            };
        if is_repeated {
            dropped.add(name);
        } else {
            headers.swap(kept, index);
            kept += 1;
        }
    }
    headers.truncate(kept);
}

fn undecodable(why: String) -> Cause {
    Cause::undecodable(Role::Headers.name(), why)
}

/// Members of a row's headers that were dropped because their names are reserved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The number of dropped headers.
    pub count: u64,
    /// The name of the first, shortened if it is long.
    pub name: String,
}

impl Dropped {
    fn add(&mut self, name: &str) {
        if self.count == 0 {
            self.name = name.chars().take(NAME_SIGNS_SHOWN).collect();
        }
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::route::tests::event;
    use proptest::prelude::*;

    fn headers<'a>(event: &'a Event<'_>, set: &HeaderSet) -> Result<Headers<'a>, Poison> {
        let mut headers = Headers::new();
        set.append_to(&mut headers, event, "P", (&Names::KAFKA, &[])).map(|_| headers)
    }

    #[test]
    fn a_row_adds_at_most_a_thousand_headers_and_a_megabyte() {
        let named = |count: usize| format!("{{{}}}", vec![r#""":"""#; count].join(","));
        assert_eq!(row_headers(&named(ROW_HEADERS)).map(|headers| headers.len()), Ok(ROW_HEADERS));
        assert!(row_headers(&named(ROW_HEADERS + 1)).is_err());
        let long = |bytes: usize| format!(r#"{{"n":"{}"}}"#, "v".repeat(bytes));
        assert!(row_headers(&long(ROW_BYTES - 1)).is_ok());
        let poison = row_headers(&long(ROW_BYTES)).expect_err("too long");
        assert!(poison.to_string().contains("1048576 bytes"), "{poison}");
    }

    #[test]
    fn each_header_beyond_the_first_three_counts_in_the_budget() {
        let record = |count: usize| crate::record::Record {
            topic: "t",
            partition: None,
            key: None,
            value: None,
            timestamp_ms: None,
            headers: vec![Header { name: Cow::Borrowed(""), value: None }; count].into(),
        };
        assert_eq!(record(3).bytes(), 1);
        assert_eq!(record(1003).bytes(), 1 + 80_000);
    }

    fn as_text(headers: &[Header<'_>]) -> Vec<String> {
        let value = |header: &Header<'_>| match &header.value {
            Some(value) => format!("{}={}", header.name, String::from_utf8_lossy(value)),
            None => format!("{}:null", header.name),
        };
        headers.iter().map(value).collect()
    }

    fn row_headers(json: &str) -> Result<Vec<String>, Poison> {
        let mut event = event();
        event.headers = Some(json.as_bytes().into());
        let set = HeaderSet::from_names(&["headers"]).expect("a list of headers");
        headers(&event, &set).map(|headers| as_text(&headers))
    }

    #[test]
    fn the_default_sends_all_headers() {
        let mut event = event();
        event.event_type = Some(b"OrderPlaced".as_slice().into());
        event.headers = Some(b"{\"a\": \"1\", \"b\": null}".as_slice().into());
        event.traceparent = Some(b"00-1".as_slice().into());
        let all = headers(&event, &HeaderSet::default()).expect("headers");
        let expected = [
            "id=42",
            "event_type=OrderPlaced",
            "a=1",
            "b:null",
            "traceparent=00-1",
            "walpost.position=P",
        ];
        assert_eq!(as_text(&all), expected);
    }

    #[test]
    fn a_list_selects_and_orders_headers() {
        let set = HeaderSet::from_names(&["walpost.position", "id"]).expect("a list of headers");
        assert_eq!(set.names().collect::<Vec<_>>(), ["walpost.position", "id"]);
        assert_eq!(
            as_text(&headers(&event(), &set).expect("headers")),
            ["walpost.position=P", "id=42"]
        );
        let none = HeaderSet::from_names::<&str>(&[]).expect("an empty list");
        assert!(headers(&event(), &none).expect("headers").is_empty() && !none.has_position());
    }

    #[test]
    fn a_field_that_is_null_is_not_sent() {
        let mut event = event();
        event.id = None;
        let all = headers(&event, &HeaderSet::default()).expect("headers");
        assert_eq!(as_text(&all), ["walpost.position=P"]);
    }

    #[test]
    fn an_invalid_list_names_the_valid_headers() {
        let unknown = HeaderSet::from_names(&["id", "ID"]).expect_err("no such header").to_string();
        assert!(unknown.contains("`ID`") && unknown.contains("walpost.position"), "{unknown}");
        let twice = HeaderSetError::Twice { name: "id".to_owned() };
        assert_eq!(HeaderSet::from_names(&["id", "id"]), Err(twice));
    }

    #[test]
    fn a_rows_headers_keep_their_order_and_text() {
        let json = r#"{"z": "caf\u00e9", "a": 1.50, "n": null, "t": true, "o": {"k": [1, "x"]}}"#;
        let expected = ["z=café", "a=1.50", "n:null", "t=true", r#"o={"k": [1, "x"]}"#];
        assert_eq!(row_headers(json).expect("headers"), expected);
        assert!(row_headers("{}").expect("no header").is_empty());
        assert!(row_headers("null").expect("no header").is_empty());
    }

    #[test]
    fn headers_that_are_not_an_object_are_poison() {
        for json in ["[]", "1", "\"a\"", "", "{", "{\"a\":1} x"] {
            let poison = row_headers(json).expect_err(json);
            assert_eq!(poison.cause.key(), "undecodable");
            assert!(poison.to_string().contains("`headers`"), "{poison}");
        }
    }

    #[test]
    fn a_row_cannot_forge_walposts_headers() {
        let mut event = event();
        event.headers = Some(
            br#"{"walpost.position": "F", "Walpost.Anything": "F", "id": "F", "ID": "F", "a\u0000": "F",
                "Tenant": "F", "traceparent": "T", "event_type": "E", "walposts": "own"}"#
                .as_slice()
                .into(),
        );
        let (mut headers, set) = (Headers::new(), HeaderSet::default());
        let placed = ["tenant".to_owned()];
        let names = &Names::KAFKA;
        let dropped = set.append_to(&mut headers, &event, "P", (names, &placed)).expect("headers");
        // A header that the event lacks may come from the row.
        let expected =
            ["id=42", "traceparent=T", "event_type=E", "walposts=own", "walpost.position=P"];
        assert_eq!(as_text(&headers), expected);
        assert_eq!((dropped.count, dropped.name.as_str()), (6, "walpost.position"));
        // So may a header that walpost does not write.
        let set = HeaderSet::from_names(&["headers"]).expect("a list of headers");
        let mut headers = Headers::new();
        let dropped = set.append_to(&mut headers, &event, "P", (names, &[])).expect("headers");
        let names: Vec<_> = headers.iter().map(|header| header.name.as_ref()).collect();
        assert_eq!(names, ["id", "ID", "Tenant", "traceparent", "event_type", "walposts"]);
        assert_eq!(dropped.count, 3);
    }

    #[test]
    fn repeated_names_are_dropped_where_a_destination_has_each_once() {
        use crate::record::names::Spelling;
        let names = Names { may_repeat: false, spelling: Spelling::Hyphens, ..Names::KAFKA };
        let mut event = event();
        let set = HeaderSet::from_names(&["headers"]).expect("a list of headers");
        let few = [("a.b", Some("1")), ("x", None), ("A_B", Some("2")), ("X", Some("3"))];
        for more in [0, 30] {
            let more: Vec<_> = (0..more).map(|number| format!("n{number}")).collect();
            let all = few.into_iter().chain(more.iter().map(|name| (name.as_str(), Some("4"))));
            let all: Vec<_> = all.map(|(name, value)| format!("{name:?}:{value:?}")).collect();
            let json = format!("{{{}}}", all.join(",").replace("Some(", "").replace(')', ""));
            event.headers = Some(json.replace("None", "null").into_bytes().into());
            let mut headers = Headers::new();
            let dropped = set.append_to(&mut headers, &event, "P", (&names, &[])).expect("headers");
            assert_eq!(as_text(&headers)[..3], ["a.b=1", "x:null", "X=3"]);
            assert_eq!((headers.len(), dropped.count), (3 + more.len(), 1));
            assert_eq!(dropped.name, "A_B");
        }
    }

    proptest! {
        #[test]
        fn a_header_is_unchanged(name in "[^\0]{0,10}", value: String) {
            prop_assume!(!Names::KAFKA.is_reserved(&name));
            let json = serde_json::json!({ name.as_str(): value.as_str() }).to_string();
            prop_assert_eq!(row_headers(&json).ok(), Some(vec![format!("{name}={value}")]));
        }
    }
}
