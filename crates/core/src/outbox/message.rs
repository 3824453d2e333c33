//! A logical message as an event: a JSON object with a table's column names.
//!
//! `pg_logical_emit_message(true, 'outbox', '{"id": …}')` is equivalent to an insert into an outbox
//! table, but needs no table. Other members are ignored.

use crate::position::EventPosition;
use serde_json::value::RawValue;

use crate::pgoutput::PgTimestamp;

use super::columns::FieldTarget;
use super::columns::{ColumnNames, Role};
use super::event::Event;
use super::json::{self, JsonFault};
use super::trace;

/// The event in a message's content. A missing member is treated as null: routing checks what an
/// event needs.
pub(super) fn event<'a>(
    content: &'a [u8],
    names: &ColumnNames,
    placed: &[String],
    position: EventPosition,
    commit_time: PgTimestamp,
) -> Result<Event<'a>, MessageFault> {
    let mut found: [Option<Found<'a>>; Role::ALL.len()] = [None; Role::ALL.len()];
    let mut event = Event::empty(position, commit_time, placed.len());
    let mut trace = None;
    json::members(content, |name, value| {
        for (role, found) in Role::ALL.into_iter().zip(&mut found) {
            let rank = names.looked_for(role).position(|wanted| wanted == name);
            if let Some(rank) = rank.filter(|&rank| found.is_none_or(|best| rank <= best.rank)) {
                *found = Some(Found { rank, value });
            }
        }
        if name == trace::COLUMN {
            trace = json::text(value)?;
        }
        for (index, _) in placed.iter().enumerate().filter(|&(_, wanted)| *wanted == name) {
            event.put(FieldTarget::Placed(index), json::text(value)?);
        }
        Ok(())
    })
    .map_err(|why| MessageFault { member: None, why })?;
    for (role, found) in Role::ALL.into_iter().zip(found) {
        let Some(Found { value, .. }) = found else {
            continue;
        };
        let field = match role {
            Role::Payload | Role::Headers => json::as_is(value),
            _ => {
                json::text(value).map_err(|why| MessageFault { member: Some(role.name()), why })?
            }
        };
        event.put(FieldTarget::Role(role), field);
    }
    event.trace_by(&trace);
    Ok(event)
}

/// The best member for a role so far: the preferred name wins, and of two members with the same
/// name the later one, as in `jsonb`.
#[derive(Clone, Copy)]
struct Found<'a> {
    rank: usize,
    value: &'a RawValue,
}

/// A logical message that cannot be read as an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {why}", member.map_or("its content".to_owned(), |member| format!("member `{member}`")))]
pub struct MessageFault {
    /// The invalid member; `None` if the content as a whole is invalid.
    pub member: Option<&'static str>,
    /// Why it is invalid.
    pub why: JsonFault,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    const POSITION: EventPosition = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };

    fn read<'a>(content: &'a str, placed: &[&str]) -> Result<Event<'a>, MessageFault> {
        let placed: Vec<_> = placed.iter().copied().map(str::to_owned).collect();
        let commit_time = PgTimestamp::from_micros(0);
        event(content.as_bytes(), &ColumnNames::default(), &placed, POSITION, commit_time)
    }

    fn field<'e>(field: &'e super::super::Field<'_>) -> Option<&'e str> {
        field.as_deref().map(|text| std::str::from_utf8(text).expect("JSON is UTF-8"))
    }

    #[test]
    fn members_become_fields() {
        let content = r#"{"id": 42, "aggregate_type": "Or\u0064er", "aggregate_id": "7",
            "event_type": null, "payload": {"a":  1.50}, "headers": {"h": 1}, "traceparent": "00-1",
            "region": "eu", "other": []}"#;
        let event = read(content, &["region", "tenant"]).expect("an event");
        assert_eq!(field(&event.id), Some("42"));
        assert_eq!(field(&event.aggregate_type), Some("Order"));
        assert_eq!(field(&event.aggregate_id), Some("7"));
        assert_eq!(field(&event.event_type), None);
        assert_eq!(field(&event.payload), Some(r#"{"a":  1.50}"#));
        assert_eq!(field(&event.headers), Some(r#"{"h": 1}"#));
        assert_eq!(field(&event.traceparent), Some("00-1"));
        assert_eq!(event.placed, [Some(b"eu".as_slice().into()), None]);
        assert_eq!(event.position, POSITION);
    }

    #[test]
    fn a_tracers_trace_is_used_if_there_is_no_other() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let text = format!("#\\ntraceparent={trace}\\n");
        let content = format!(r#"{{"tracingspancontext":"{text}"}}"#);
        let event = read(&content, &["tracingspancontext"]).expect("an event");
        assert_eq!(field(&event.traceparent), Some(trace));
        assert!(event.placed[0].is_some());
        let content = format!(r#"{{"tracingspancontext":"{text}","traceparent":"00-own"}}"#);
        assert_eq!(field(&read(&content, &[]).expect("an event").traceparent), Some("00-own"));
    }

    #[test]
    fn debeziums_names_are_accepted_and_walposts_take_precedence() {
        let event = read(r#"{"aggregatetype": "a", "aggregateid": true, "type": "t"}"#, &[])
            .expect("an event");
        assert_eq!(field(&event.aggregate_type), Some("a"));
        assert_eq!(field(&event.aggregate_id), Some("true"));
        assert_eq!(field(&event.event_type), Some("t"));
        for content in
            [r#"{"event_type":"ours","type":"t"}"#, r#"{"type":"t","event_type":"ours"}"#]
        {
            assert_eq!(field(&read(content, &[]).expect("an event").event_type), Some("ours"));
        }
    }

    #[test]
    fn a_string_payload_keeps_its_quotes_and_a_null_one_is_none() {
        assert_eq!(
            field(&read(r#"{"payload":"x"}"#, &[]).expect("an event").payload),
            Some("\"x\"")
        );
        assert_eq!(field(&read(r#"{"payload":null}"#, &[]).expect("an event").payload), None);
        assert_eq!(field(&read("{}", &[]).expect("an event").payload), None);
    }

    #[test]
    fn anything_but_a_json_object_is_rejected() {
        for content in ["", "[]", "{", "{\"id\":\"\\ud800\"}"] {
            read(content, &[]).expect_err(content);
        }
        let fault = read("{\"id\":\"\\ud800\"}", &[]).expect_err("half a surrogate pair");
        assert!(fault.to_string().starts_with("member `id` is not JSON"), "{fault}");
    }
}
