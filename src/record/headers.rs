//! Which headers a record carries, and in which order.
//!
//! Headers cost time, so which are sent is configurable. A row's own headers
//! are read without building a tree, and their values borrow from the row.

use std::borrow::Cow;

use crate::outbox::{Event, Field, Role, json};

use super::poison::{Cause, Poison};
use super::types::{Header, Headers};

/// The header that names the event's place in the log.
const POSITION: &str = "walpost.position";

/// One or more headers of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Id,
    EventType,
    Traceparent,
    Tracestate,
    /// The row's JSON object, one header a key.
    Row,
    Position,
}

impl Source {
    const ALL: [Self; 6] =
        [Self::Id, Self::EventType, Self::Row, Self::Traceparent, Self::Tracestate, Self::Position];

    const fn name(self) -> &'static str {
        match self {
            Self::Id => Role::Id.name(),
            Self::EventType => Role::EventType.name(),
            Self::Row => Role::Headers.name(),
            Self::Traceparent => Role::Traceparent.name(),
            Self::Tracestate => Role::Tracestate.name(),
            Self::Position => POSITION,
        }
    }
}

/// The headers that are sent, in order; by default all that there are.
///
/// `id`, `event_type`, `traceparent` and `tracestate` are sent where the event
/// has them; `headers` stands for the members of the row's JSON object;
/// `walpost.position` is the event's position as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderSet(Vec<Source>);

impl Default for HeaderSet {
    fn default() -> Self {
        Self(Source::ALL.to_vec())
    }
}

/// A list of headers that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderSetError {
    /// A name that stands for nothing.
    #[error("there is no header `{name}` to send: choose from {}", HeaderSet::NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// A name stands twice in the list.
    #[error("header `{name}` is listed twice")]
    Twice {
        /// The name.
        name: String,
    },
}

impl HeaderSet {
    /// All the names that a list may have, in the default order.
    pub const NAMES: [&str; 6] = {
        let mut names = [""; Source::ALL.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = Source::ALL[index].name();
            index += 1;
        }
        names
    };

    /// The headers of that list, in its order; an empty list sends none.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Self, HeaderSetError> {
        let mut sources = Vec::with_capacity(Source::ALL.len());
        for name in names.iter().map(AsRef::as_ref) {
            let source = Source::ALL
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

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|source| source.name())
    }

    pub(super) fn has_position(&self) -> bool {
        self.0.contains(&Source::Position)
    }

    /// Appends the headers of `event`; `position` is the text of its position.
    pub(super) fn append_to<'a>(
        &self,
        headers: &mut Headers<'a>,
        event: &'a Event<'_>,
        position: &'a str,
    ) -> Result<(), Poison> {
        headers.reserve(self.0.len());
        for source in &self.0 {
            let field: Option<&'a [u8]> = match source {
                Source::Id => event.id.as_deref(),
                Source::EventType => event.event_type.as_deref(),
                Source::Traceparent => event.traceparent.as_deref(),
                Source::Tracestate => event.tracestate.as_deref(),
                Source::Position => Some(position.as_bytes()),
                Source::Row => {
                    append(headers, &event.headers).map_err(|cause| Poison::new(cause, event))?;
                    continue;
                }
            };
            if let Some(value) = field {
                let (name, value) = (Cow::Borrowed(source.name()), Some(Cow::Borrowed(value)));
                headers.push(Header { name, value });
            }
        }
        Ok(())
    }
}

/// Appends the members of a row's JSON object, in their order.
fn append<'a>(headers: &mut Headers<'a>, object: &'a Field<'_>) -> Result<(), Cause> {
    let undecodable = |why: String| Cause::undecodable(Role::Headers.name(), why);
    let Some(object) = object.as_deref().filter(|json| *json != b"null") else { return Ok(()) };
    let first = headers.len();
    json::members(object, |name, value| {
        headers.push(Header { name, value: json::text(value)? });
        Ok(())
    })
    .map_err(|fault| undecodable(fault.to_string()))?;
    // Names go to Kafka's client as C strings.
    match headers[first..].iter().find(|header| header.name.contains('\0')) {
        Some(header) => Err(undecodable(format!("has a zero byte in the name {:?}", header.name))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::route::tests::event;
    use proptest::prelude::*;

    fn headers<'a>(event: &'a Event<'_>, set: &HeaderSet) -> Result<Headers<'a>, Poison> {
        let mut headers = Headers::new();
        set.append_to(&mut headers, event, "P").map(|()| headers)
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
    fn the_default_sends_all_that_there_are() {
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
    fn a_list_chooses_and_orders_them() {
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
    fn a_wrong_list_says_what_there_is() {
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
    fn headers_that_are_no_object_are_poison() {
        for json in ["[]", "1", "\"a\"", "", "{", "{\"a\":1} x", r#"{"a\u0000b": 1}"#] {
            let poison = row_headers(json).expect_err(json);
            assert_eq!(poison.cause.key(), "undecodable");
            assert!(poison.to_string().contains("`headers`"), "{poison}");
        }
    }

    proptest! {
        #[test]
        fn a_header_comes_out_as_it_was_written(name in "[^\0]{0,10}", value: String) {
            let json = serde_json::json!({ name.as_str(): value.as_str() }).to_string();
            prop_assert_eq!(row_headers(&json).ok(), Some(vec![format!("{name}={value}")]));
        }
    }
}
