//! A logical message as an event without JSON: its prefix names the aggregate, and its content is
//! the payload, byte for byte.
//!
//! `pg_logical_emit_message(true, 'outbox:order:A-7', …)`: the configured prefix is followed by the
//! aggregate's type and, after the next colon, its id, which may itself contain colons.

use crate::position::EventPosition;
use std::borrow::Cow;

use crate::pgoutput::PgTimestamp;

use super::columns::FieldTarget;
use super::columns::Role;
use super::event::{Event, Field};

/// The part after the configured prefix and a colon; `None` for any other prefix. A prefix that
/// ends before the colon names nothing, but matches.
pub(super) fn named_by<'a>(prefix: &'a str, configured: &str) -> Option<&'a str> {
    let rest = prefix.strip_prefix(configured)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(':') }
}

/// The event of a message whose prefix ends in `named`, such as `order:A-7`. Missing parts are
/// NULL: routing checks what an event needs.
pub(super) fn event<'a>(
    named: &'a str,
    content: &'a [u8],
    placed: usize,
    position: EventPosition,
    commit_time: PgTimestamp,
) -> Event<'a> {
    let (aggregate_type, aggregate_id) = named.split_once(':').unwrap_or((named, ""));
    let field = |text: &'a str| -> Field<'a> {
        (!text.is_empty()).then_some(Cow::Borrowed(text.as_bytes()))
    };
    let mut event = Event::empty(position, commit_time, placed);
    event.put(FieldTarget::Role(Role::AggregateType), field(aggregate_type));
    event.put(FieldTarget::Role(Role::AggregateId), field(aggregate_id));
    event.put(FieldTarget::Role(Role::Payload), Some(Cow::Borrowed(content)));
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    #[test]
    fn only_the_prefix_itself_or_followed_by_a_colon_matches() {
        for (prefix, named) in [
            ("outbox:order:A-7", Some("order:A-7")),
            ("outbox:", Some("")),
            ("outbox", Some("")),
            ("outboxes:order:1", None),
            ("Outbox:order:1", None),
            ("outbo", None),
            ("", None),
        ] {
            assert_eq!(named_by(prefix, "outbox"), named, "{prefix}");
        }
        assert_eq!(named_by("a:b:order:1", "a:b"), Some("order:1"));
    }

    #[test]
    fn the_first_colon_separates_type_and_id() {
        let position = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };
        for (named, kind, id) in [
            ("order:A-7", Some("order"), Some("A-7")),
            ("order:a:b:", Some("order"), Some("a:b:")),
            ("order:", Some("order"), None),
            ("order", Some("order"), None),
            (":A-7", None, Some("A-7")),
            ("", None, None),
        ] {
            let event = event(named, b"\xFF", 1, position, PgTimestamp::from_micros(0));
            let text = |field: &Field<'_>| {
                field.as_deref().map(|bytes| String::from_utf8(bytes.to_vec()).expect("text"))
            };
            assert_eq!(text(&event.aggregate_type).as_deref(), kind, "{named}");
            assert_eq!(text(&event.aggregate_id).as_deref(), id, "{named}");
            assert_eq!(event.payload.as_deref(), Some(b"\xFF".as_slice()));
            assert_eq!((event.id, event.placed), (None, vec![None]));
        }
    }
}
