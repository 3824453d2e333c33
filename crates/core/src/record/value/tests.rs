//! The value of an event in each format.

use super::*;
use crate::record::route::tests::event;
use crate::record::{RecordConfig, Router};

fn router(format: ValueFormat, place: &[&str]) -> Router {
    let topic = "t".parse().expect("a topic");
    let place = place.iter().map(|text| text.parse().expect("a placement")).collect();
    Router::new(RecordConfig { value: format, place, ..RecordConfig::to(topic) })
}

/// The value and the headers, as text, of an event with that payload.
fn made(
    format: ValueFormat,
    change: impl FnOnce(&mut Event<'static>),
) -> Result<(Option<String>, Vec<String>), String> {
    let mut event = event();
    event.event_type = Some(b"OrderPlaced".as_slice().into());
    change(&mut event);
    let mut router = router(format, &[]);
    let record = router.route(&event).map_err(|poison| poison.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let headers = record.headers.iter().map(|header| {
        format!("{}={}", header.name, text(header.value.as_deref().unwrap_or_default()))
    });
    Ok((record.value.map(text), headers.collect()))
}

fn value(format: ValueFormat, payload: &'static str) -> Result<Option<String>, String> {
    made(format, |event| event.payload = Some(payload.as_bytes().into())).map(|(value, _)| value)
}

#[test]
fn stored_json_is_inserted_byte_for_byte() {
    let payload = "{\"a\":  1.50, \"a\":[ ]}";
    for format in [ValueFormat::Envelope, ValueFormat::CloudEvents] {
        let value = value(format, payload).expect("a record").expect("a value");
        assert!(value.ends_with(&format!("\"data\":{payload}}}")), "{value}");
        serde_json::from_str::<serde_json::Value>(&value).expect("JSON");
    }
    assert_eq!(value(ValueFormat::Payload, payload), Ok(Some(payload.to_owned())));
}

#[test]
fn an_envelope_always_has_all_its_members() {
    let (bare, _) = made(ValueFormat::Envelope, |_| ()).expect("a record");
    assert_eq!(
        bare.as_deref(),
        Some(
            "{\"eventId\":\"42\",\"eventType\":\"OrderPlaced\",\"schemaVersion\":null,\
             \"occurredAt\":\"2000-01-01T00:00:00.001Z\",\"traceId\":null,\"data\":{\"a\":  1}}"
        )
    );
    let (full, _) = made(ValueFormat::Envelope, |event| {
        event.schema_version = Some(b"3".as_slice().into());
        let trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        event.traceparent = Some(trace.as_slice().into());
    })
    .expect("a record");
    let full = full.expect("a value");
    assert!(full.contains("\"schemaVersion\":3,"), "{full}");
    assert!(full.contains("\"traceId\":\"0af7651916cd43dd8448eb211c80319c\""), "{full}");
    let (of_row, _) = made(ValueFormat::Envelope, |event| {
        let headers =
            br#"{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;
        event.headers = Some(headers.as_slice().into());
        event.schema_version = Some(b"v1 \"x\"".as_slice().into());
    })
    .expect("a record");
    let of_row = of_row.expect("a value");
    assert!(of_row.contains("\"traceId\":\"0af7651916cd43dd8448eb211c80319c\""), "{of_row}");
    assert!(of_row.contains(r#""schemaVersion":"v1 \"x\"""#), "{of_row}");
}

#[test]
fn merging_adds_two_members_before_the_payloads() {
    let merged = |payload| value(ValueFormat::Merged, payload);
    let head = "{\"type\":\"OrderPlaced\",\"idempotencyKey\":\"42\"";
    assert_eq!(merged(" { \"a\": 1 }"), Ok(Some(format!("{head},\"a\": 1 }}"))));
    assert_eq!(merged("{}"), Ok(Some(format!("{head}}}"))));
    assert_eq!(merged("{ } "), Ok(Some(format!("{head}}} "))));
    for payload in ["[]", "1", "{", "", "{\"a\":1}}"] {
        assert!(merged(payload).expect_err(payload).contains("`payload`"), "{payload}");
    }
}

#[test]
fn a_cloud_event_follows_its_binding() {
    let (value, headers) = made(ValueFormat::CloudEvents, |_| ()).expect("a record");
    assert_eq!(
        value.as_deref(),
        Some(
            "{\"specversion\":\"1.0\",\"id\":\"42\",\"source\":\"walpost\",\"type\":\"OrderPlaced\",\
             \"time\":\"2000-01-01T00:00:00.001Z\",\"subject\":\"7\",\
             \"datacontenttype\":\"application/json\",\"data\":{\"a\":  1}}"
        )
    );
    assert_eq!(headers[0], "content-type=application/cloudevents+json; charset=UTF-8");
    let (value, headers) = made(ValueFormat::CloudEventsBinary, |_| ()).expect("a record");
    assert_eq!(value.as_deref(), Some("{\"a\":  1}"));
    assert_eq!(
        headers[..7],
        [
            "ce_specversion=1.0",
            "ce_id=42",
            "ce_source=walpost",
            "ce_type=OrderPlaced",
            "ce_time=2000-01-01T00:00:00.001Z",
            "ce_subject=7",
            "content-type=application/json"
        ]
    );
}

#[test]
fn a_payload_that_is_not_json_fits_a_cloud_event_but_no_envelope() {
    let payload = "no json";
    let structured = value(ValueFormat::CloudEvents, payload).expect("a record").expect("a value");
    assert!(structured.ends_with("\"data_base64\":\"bm8ganNvbg==\"}"), "{structured}");
    let not_json = |event: &mut Event<'static>| event.payload = Some(payload.as_bytes().into());
    let (_, headers) = made(ValueFormat::CloudEventsBinary, not_json).expect("a record");
    assert!(headers.contains(&"content-type=application/octet-stream".to_owned()), "{headers:?}");
    let poison = value(ValueFormat::Envelope, payload).expect_err("not JSON");
    assert!(poison.contains("`payload` is not JSON"), "{poison}");
}

#[test]
fn a_cloud_event_needs_a_type_and_an_id() {
    for format in [ValueFormat::CloudEvents, ValueFormat::CloudEventsBinary] {
        for (field, change) in [
            ("event_type", (|event: &mut Event<'static>| event.event_type = None) as fn(&mut _)),
            ("id", |event: &mut Event<'static>| event.id = None),
        ] {
            let poison = made(format, change).expect_err("it lacks something");
            assert!(poison.contains(&format!("`{field}` is NULL or empty")), "{poison}");
        }
    }
}

#[test]
fn a_null_payload_is_a_tombstone_in_every_format() {
    for (_, format) in ValueFormat::NAMES {
        let (value, _) = made(format, |event| event.payload = None).expect("a record");
        assert_eq!(value, None, "{format:?}");
    }
}

#[test]
fn placed_columns_are_headers_and_members() {
    let place = ["tenant:header", "region:envelope:zone", "region:header:r"];
    let mut router = router(ValueFormat::Envelope, &place);
    let mut event = event();
    event.placed = vec![None, Some(b"e\"u".as_slice().into())];
    let record = router.route(&event).expect("a record");
    let headers: Vec<_> = record.headers.iter().rev().take(2).rev().collect();
    assert_eq!((headers[0].name.as_ref(), headers[0].value.as_deref()), ("tenant", None));
    let expected = ("r", Some(b"e\"u".as_slice()));
    assert_eq!((headers[1].name.as_ref(), headers[1].value.as_deref()), expected);
    let value = String::from_utf8_lossy(record.value.expect("a value")).into_owned();
    assert!(value.contains(r#","zone":"e\"u","data":"#), "{value}");
}

#[test]
fn headers_of_a_cloud_event_are_all_listed() {
    let full = event();
    let full = crate::outbox::Event {
        event_type: full.id.clone(),
        traceparent: full.id.clone(),
        tracestate: full.id.clone(),
        ..full
    };
    let attributes = super::Attributes { event: &full, timestamp_ms: 0, source: "s", placed: &[] };
    for (_, format) in ValueFormat::NAMES {
        let mut headers = crate::record::Headers::new();
        attributes.append_headers(format, &mut headers).expect("headers");
        let names: Vec<_> = headers.iter().map(|header| header.name.as_ref()).collect();
        assert_eq!(names, format.header_names().collect::<Vec<_>>(), "{format:?}");
    }
}
