use super::*;
use crate::{Headers, OnDuplicate};

struct Placed {
    order: String,
    payload: Payload,
    headers: Headers,
}

impl Event for Placed {
    const AGGREGATE_TYPE: &'static str = "order";
    const EVENT_TYPE: &'static str = "order_placed";

    fn aggregate_id(&self) -> String {
        self.order.clone()
    }

    fn payload(&self) -> Result<Payload, serde_json::Error> {
        Ok(self.payload.clone())
    }

    fn headers(&self) -> Headers {
        self.headers.clone()
    }
}

fn placed(payload: Payload) -> Placed {
    Placed { order: "A-7".to_owned(), payload, headers: Headers::new() }
}

fn json(text: &str) -> Payload {
    Payload::json(&RawValue::from_string(text.to_owned()).expect("JSON")).expect("serializes")
}

fn values(outbox: &Outbox, event: &Placed) -> Vec<Option<String>> {
    let outbox = outbox.clone().trace_context(TraceContext::Off);
    outbox.record(event).expect("a valid event").values
}

#[test]
fn a_row_has_the_columns_in_order() {
    let event = Placed {
        headers: Headers::new().with("tenant", "acme"),
        ..placed(json(r#"{"a":  1.50}"#))
    };
    let values = values(&Outbox::new(), &event);
    let after_id = ["order", "A-7", "order_placed", r#"{"a":  1.50}"#, r#"{"tenant":"acme"}"#];
    assert_eq!(values[1..], after_id.map(|it| Some(it.to_owned())));
}

#[test]
fn a_payload_of_null_is_a_tombstone() {
    for payload in [Payload::tombstone(), json("null"), Payload::json(&()).expect("null")] {
        assert_eq!(values(&Outbox::new(), &placed(payload))[4..], [None, None]);
    }
}

#[test]
fn bytea_takes_bytes_and_json_as_hexadecimal_digits() {
    let outbox = Outbox::new().column_type(Field::Payload, ColumnType::Bytea);
    let of = |payload| values(&outbox, &placed(payload))[4].clone();
    assert_eq!(of(Payload::bytes([0, 255])).as_deref(), Some("00ff"));
    assert_eq!(of(json(r#""\\""#)).as_deref(), Some("225c5c22"));
}

#[test]
fn a_message_is_an_object_with_the_columns_names() {
    let outbox = Outbox::new().logical_messages("outbox").column(Field::EventType, "type");
    let event =
        Placed { headers: Headers::new().with("t", "\""), ..placed(json(r#"{"a": "\u0000"}"#)) };
    let record = outbox.clone().trace_context(TraceContext::Off).record(&event).expect("valid");
    let content = format!(
        r#"{{"id":"{}","aggregate_type":"order","aggregate_id":"A-7","type":"order_placed","payload":{{"a": "\u0000"}},"headers":{{"t":"\""}}}}"#,
        record.id
    );
    assert_eq!(record.values, [Some("outbox".to_owned()), Some(content)]);
    let tombstone = values(&outbox, &placed(Payload::tombstone()))[1].clone().expect("a content");
    assert!(tombstone.ends_with(r#""type":"order_placed"}"#), "{tombstone}");
}

#[test]
fn ids_of_content_repeat_and_random_ones_ascend() {
    let outbox = Outbox::new().ids(Ids::FromContent(OnDuplicate::Ignore));
    let id = |outbox: &Outbox, text| outbox.record(&placed(json(text))).expect("valid").id;
    assert_eq!(id(&outbox, "1"), id(&outbox, "1"));
    assert_ne!(id(&outbox, "1"), id(&outbox, "2"));
    let random = Outbox::new();
    assert!(id(&random, "1") < id(&random, "1"));
    assert_eq!(id(&random, "1").get_version_num(), 7);
}

#[test]
fn what_could_never_be_delivered_is_refused() {
    let outbox = Outbox::new();
    let named = |order: &str| Placed { order: order.to_owned(), ..placed(json("1")) };
    let tenant = Headers::new().with("tenant", "acme");
    let header = |name: &'static str| Placed {
        headers: Headers::new().with(name, "1"),
        ..placed(json("1"))
    };
    for (outbox, event, expected) in [
        (outbox.clone(), named(""), "aggregate id is empty"),
        (outbox.clone(), named("A\0"), "NUL"),
        (outbox.clone(), header("walpost.position"), "reserved"),
        (outbox.clone(), placed(Payload::bytes([1])), "type bytea"),
        (outbox.clone().logical_messages("x"), placed(Payload::bytes([1])), "type bytea"),
        (
            outbox.without_column(Field::Headers),
            Placed { headers: tenant, ..placed(json("1")) },
            "no column",
        ),
    ] {
        let error = outbox.record(&event).expect_err(expected).to_string();
        assert!(error.starts_with("cannot publish event order_placed: "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[cfg(feature = "opentelemetry")]
mod traced {
    use super::*;
    use opentelemetry::trace::{SpanContext, TraceContextExt as _, TraceFlags, TraceState};

    const TRACEPARENT: &str = "00-00000000000000000000000000000007-0000000000000009-01";

    fn enter() -> opentelemetry::ContextGuard {
        let state = TraceState::from_key_value([("a", "1")]).expect("a valid state");
        let span = SpanContext::new(7.into(), 9.into(), TraceFlags::SAMPLED, true, state);
        opentelemetry::Context::new().with_remote_span_context(span).attach()
    }

    fn of(outbox: &Outbox, event: &Placed) -> Vec<Option<String>> {
        outbox.record(event).expect("valid").values.split_off(5)
    }

    #[test]
    fn the_trace_goes_where_the_configuration_says() {
        let _span = enter();
        let event = placed(json("1"));
        let headers = format!(r#"{{"traceparent":"{TRACEPARENT}","tracestate":"a=1"}}"#);
        assert_eq!(of(&Outbox::new(), &event), [Some(headers)]);
        let columns = Outbox::new().trace_context(TraceContext::Columns);
        assert_eq!(
            of(&columns, &event),
            [None, Some(TRACEPARENT.to_owned()), Some("a=1".to_owned())]
        );
        let off = columns.trace_context(TraceContext::Off);
        assert_eq!(of(&off, &event), [None]);
        assert!(of(&Outbox::new().without_column(Field::Headers), &event).is_empty());
    }

    #[test]
    fn an_events_own_trace_is_kept() {
        let _span = enter();
        let event =
            Placed { headers: Headers::new().with("traceparent", "own"), ..placed(json("1")) };
        assert_eq!(of(&Outbox::new(), &event), [Some(r#"{"traceparent":"own"}"#.to_owned())]);
    }
}
