//! JSON from an application: a row's headers, and the content of a logical message.

use bytes::Bytes;
use serde::de::IgnoredAny;
use walpost::Lsn;
use walpost::outbox::{ColumnNames, EventError, Outbox, OutboxConfig};
use walpost::pgoutput::{LogicalMessage, PgTimestamp};
use walpost::position::EventPosition;
use walpost::record::{HeaderSet, RecordConfig, Router};

use super::input::an_event;

/// The input as a row's headers and as a logical message.
pub fn json(input: &[u8]) {
    let is_json = serde_json::from_slice::<IgnoredAny>(input).is_ok();
    headers(input, is_json);
    message(input, is_json);
}

fn headers(input: &[u8], is_json: bool) {
    let mut event = an_event();
    event.headers = Some(input.into());
    let config = RecordConfig {
        headers: HeaderSet::from_names(&["headers"]).expect("there are such"),
        ..RecordConfig::to("t".parse().expect("a template"))
    };
    let mut router = Router::new(config);
    let record = match router.route(&event) {
        Ok(record) => record,
        Err(unrouted) => {
            let poison = unrouted.poison().expect("it needs no schema");
            assert_eq!(poison.cause.key(), "undecodable", "{poison}");
            return;
        }
    };
    assert!(is_json, "headers of what is not JSON: {:?}", record.headers);
    // Unescaped, a text has fewer bytes than it had.
    let header = |header: &walpost::record::Header<'_>| {
        header.name.len() + header.value.as_ref().map_or(0, |value| value.len())
    };
    assert!(record.headers.iter().map(header).sum::<usize>() <= input.len(), "{record:?}");
    for header in &record.headers {
        assert!(!header.name.contains('\0'), "{:?}", header.name);
        if let Some(value) = &header.value {
            std::str::from_utf8(value).expect("what comes of JSON is UTF-8");
        }
    }
}

fn message(input: &[u8], is_json: bool) {
    let outbox = Outbox::new(OutboxConfig {
        tables: Vec::new(),
        columns: ColumnNames::default(),
        message_prefix: Some("outbox".to_owned()),
        plain_message_prefix: None,
        placed: vec!["region".to_owned()],
        ..OutboxConfig::default()
    });
    let message = LogicalMessage {
        transactional: true,
        lsn: Lsn::new(1),
        prefix: "outbox".to_owned(),
        content: Bytes::copy_from_slice(input),
    };
    let position = EventPosition { commit_lsn: Lsn::new(2), ordinal: 0 };
    let event = outbox.message_event(&message, position, PgTimestamp::default());
    match event.expect("its prefix is the configured one") {
        Ok(event) => {
            assert!(is_json, "an event of what is not JSON: {event:?}");
            let topic = "{aggregate_type}.{region}".parse().expect("a template");
            let config = RecordConfig::to(topic);
            if let Ok(record) = Router::new(config).route(&event) {
                assert_eq!(record.value, event.payload.as_deref());
            }
        }
        Err(EventError::Message { fault, .. }) => assert!(!fault.to_string().is_empty()),
        Err(error @ EventError::Row { .. }) => panic!("{error}"),
    }
}
