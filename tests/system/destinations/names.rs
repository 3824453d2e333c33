//! A row's names and values at each destination's real server, as a client of the protocol reads
//! them: what the row is about is given back, and no header of it says anything else.

use serde_json::Value;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::{Consumed, Nginx, SinkFixture};

use crate::http::fixture::HttpFixture;
use crate::promise::{Destination, cases};

cases! {
    client_reads_what_the_row_is_about(new): [redis nats rabbitmq sqs];
}

const KEY: &str = "Köln 7.a%b";

/// Members of the row's headers: what means something to a destination, or is walpost's own.
const HEADERS: &[(&str, &str)] = &[
    ("tenant", "50% \"é\""),
    ("Status", "100"),
    ("Description", "Idle Heartbeat"),
    ("Nats-Rollup", "all"),
    ("CC", "other"),
    ("x-death", "often"),
    ("Host", "evil"),
    ("cookie", "a=b"),
    ("ce-id", "forged"),
    ("event-type", "forged"),
    ("Event_Type", "forged"),
    ("content_type", "text/html"),
    ("X-Forwarded-For", "1.2.3.4"),
    ("webhook_id", "forged"),
    ("walpost-topic", "forged"),
    ("Walpost.Key", "forged"),
    ("JMS_SQSMessageType", "object"),
];

/// Inserts the row and awaits its delivery; `dropped` are the names that it may not set there.
async fn deliver(fixture: &SinkFixture, dropped: &[&str]) {
    let members = HEADERS.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
    let headers = Value::Object(members.collect()).to_string();
    let sql = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
         VALUES ('order', '{KEY}', 'placed', '{{\"a\": 1}}', '{headers}')"
    );
    fixture.inner.postgres.execute(&sql).await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let line = walpost.await_line("dropped row headers", LONG_TIMEOUT).await;
    let line: Value = serde_json::from_str(&line).expect("a JSON line");
    assert_eq!(line["count"], dropped.len(), "{line}");
    stop(walpost).await;
}

/// The only record has topic, key, id and type of the row, and its headers except `dropped`.
async fn assert_honest(fixture: &SinkFixture, records: &[Consumed], dropped: &[&str]) {
    let [record] = records else { panic!("{records:?}") };
    let id = "SELECT id::text FROM public.outbox";
    let id = fixture.inner.postgres.query_text(id).await.expect("a row");
    assert_eq!(record.topic, "outbox.event.order");
    assert_eq!(record.key.as_deref(), Some(KEY.as_bytes()));
    let named = |name: &str| -> Vec<_> {
        let headers = record.headers.iter().filter(|(one, _)| one == name);
        headers.map(|(_, value)| value.clone().unwrap_or_default()).collect()
    };
    assert_eq!(named("id"), [id.as_bytes()], "{record:?}");
    for (name, value) in HEADERS {
        let is_dropped = dropped.contains(name);
        let found = named(name);
        let is_there = found.iter().any(|found| *found == value.as_bytes());
        assert_eq!(is_there, !is_dropped, "{name} in {record:?}");
        assert!(found.len() <= 1, "{name} in {record:?}");
    }
}

async fn client_reads_what_the_row_is_about<D: Destination>(fixture: &D) {
    let own: &[&str] = match fixture.kind() {
        "nats" => &["Status", "Description", "Nats-Rollup"],
        "rabbitmq" => &["CC", "x-death"],
        "sqs" => &["JMS_SQSMessageType"],
        _ => &[],
    };
    let dropped = [own, &["Event_Type", "Walpost.Key"]].concat();
    deliver(fixture, &dropped).await;
    let records = fixture.records().await;
    assert_honest(fixture, &records, &dropped).await;
    assert_eq!(records[0].header("event_type"), Some("placed"));
}

/// Behind nginx, which drops headers with dots and underscores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_receiver_behind_nginx_reads_what_the_row_is_about() {
    let mut fixture = HttpFixture::new().await;
    let nginx = Nginx::before(fixture.receiver.port()).await;
    fixture.url = format!("http://127.0.0.1:{}/events", nginx.port());
    let kept = ["tenant", "Status", "Description", "Nats-Rollup", "CC", "JMS_SQSMessageType"];
    let dropped = HEADERS.iter().map(|(name, _)| *name).filter(|name| !kept.contains(name));
    let dropped: Vec<_> = dropped.collect();
    deliver(&fixture, &dropped).await;
    let requests = fixture.receiver.accepted();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    // What is not of HTTP itself is percent-encoded.
    let decoded = |name: &str| request.header(name).map(percent_decoded);
    let id = "SELECT id::text FROM public.outbox";
    let id = fixture.inner.postgres.query_text(id).await;
    for (name, value) in [
        ("walpost-topic", Some("outbox.event.order".to_owned())),
        ("walpost-key", Some(KEY.to_owned())),
        ("webhook-id", id.clone()),
        ("id", id),
        ("event-type", Some("placed".to_owned())),
        ("content-type", Some("application/json".to_owned())),
        ("ce-id", None),
        ("cookie", None),
        ("x-forwarded-for", None),
    ] {
        assert_eq!(decoded(name), value, "{name} in {request:?}");
    }
    assert!(decoded("walpost-position").is_some(), "{request:?}");
    for (name, value) in HEADERS.iter().filter(|(name, _)| kept.contains(name)) {
        let name = name.replace(['_', '.'], "-");
        assert_eq!(decoded(&name).as_deref(), Some(*value), "{name} in {request:?}");
    }
    let names = request.headers.keys().map(hyper::header::HeaderName::as_str);
    for name in names {
        assert_eq!(request.headers.get_all(name).iter().count(), 1, "{name} in {request:?}");
    }
}

fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend(before.as_bytes());
        bytes.push(u8::from_str_radix(&after[..2], 16).expect("a code"));
        rest = &after[2..];
    }
    bytes.extend(rest.as_bytes());
    String::from_utf8(bytes).expect("text")
}
