//! Configured records, as a consumer sees them.

use serde_json::Value;
use tempfile::TempDir;
use walpost_bed::Consumed;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, stop};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The records of one event of a richer outbox, with that configuration.
async fn records(toml: &str) -> Vec<Consumed> {
    let fixture = Fixture::new().await;
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, toml).expect("it can be written");
    let add = "ALTER TABLE public.outbox ADD COLUMN tenant_id text, ADD COLUMN region text, \
               ADD COLUMN schema_version int, ADD COLUMN traceparent text";
    fixture.postgres.execute(add).await;
    let walpost = fixture.run_with(&["--config", file.to_str().expect("UTF-8")]).await;
    let insert = format!(
        "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload, tenant_id, \
         region, schema_version, traceparent) \
         VALUES (md5('1')::uuid, 'OrderLine', 'A-7', 'OrderPlaced', '{{\"total\": 1.50}}', 'Acme', NULL, \
         3, '{TRACE}')"
    );
    fixture.postgres.execute(&insert).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    stop(walpost).await;
    assert_eq!(records.len(), 1);
    records
}

fn json(record: &Consumed) -> Value {
    serde_json::from_str(record.value_text().expect("text")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_key_and_headers_use_configured_columns() {
    let toml = r#"
        [record]
        topic_regex = "(.*)\\.([A-Za-z]+)Line"
        topic_replacement = "$1.lines-of-$2"
        key = "{tenant_id|lower}/{aggregate_id}"
        headers = ["id"]
        place = ["tenant_id:header:tenant", "region:header"]
    "#;
    let [record] = &records(toml).await[..] else { panic!("one record") };
    assert!(record.topic.ends_with(".lines-of-Order"), "{}", record.topic);
    assert_eq!(record.key_text(), Some("acme/A-7"));
    assert_eq!(record.value_text(), Some(r#"{"total": 1.50}"#));
    let headers: Vec<_> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(headers, ["id", "tenant", "region"]);
    assert_eq!(record.header("tenant"), Some("Acme"));
    assert_eq!(record.headers[2].1, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_cannot_forge_position_or_id_headers() {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let insert = r#"INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, headers)
        VALUES (md5('1')::uuid, 'order', 'A-7', 'placed',
                '{"walpost.position": "FFFFFFFFFFFFFFFF/FFFFFFFF", "ID": "x", "event_type": "x", "own": "1"}')"#;
    fixture.postgres.execute(insert).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let [record] = &fixture.records().await[..] else { panic!("one record") };
    let names: Vec<_> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["id", "event_type", "own", "walpost.position"]);
    assert_eq!(record.header("id"), Some("c4ca4238-a0b9-2382-0dcc-509a6f75849b"));
    assert!(record.header("walpost.position").is_some_and(|it| it.starts_with("00000000")));
    assert!(walpost.said("dropped row headers with reserved names"), "{:?}", walpost.stderr());
    assert_eq!(stop(walpost).await["dropped_headers"], 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envelope_contains_the_payload_unchanged() {
    let toml = "[record]\nvalue = 'envelope'\nplace = ['tenant_id:envelope:tenant']\n";
    let [record] = &records(toml).await[..] else { panic!("one record") };
    let text = record.value_text().expect("text");
    assert!(text.ends_with(r#""tenant":"Acme","data":{"total": 1.50}}"#), "{text}");
    let envelope = json(record);
    assert_eq!(envelope["eventId"], "c4ca4238-a0b9-2382-0dcc-509a6f75849b");
    assert_eq!(envelope["eventType"], "OrderPlaced");
    assert_eq!(envelope["schemaVersion"], 3);
    assert_eq!(envelope["traceId"], "0af7651916cd43dd8448eb211c80319c");
    let occurred = envelope["occurredAt"].as_str().expect("a time");
    assert!(occurred.starts_with("20") && occurred.ends_with('Z'), "{occurred}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn type_and_key_can_be_merged_into_the_payload() {
    let [record] = &records("record.value = 'merged'").await[..] else { panic!("one record") };
    let text = record.value_text();
    let id = "c4ca4238-a0b9-2382-0dcc-509a6f75849b";
    let merged = format!(r#"{{"type":"OrderPlaced","idempotencyKey":"{id}","total": 1.50}}"#);
    assert_eq!(text, Some(merged.as_str()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_can_be_cloudevents_in_either_mode() {
    let toml = "[record]\nvalue = 'cloudevents'\ncloudevents_source = '/shop'\nheaders = []\n";
    let [record] = &records(toml).await[..] else { panic!("one record") };
    let content_type = "application/cloudevents+json; charset=UTF-8";
    assert_eq!(record.header("content-type"), Some(content_type));
    let event = json(record);
    for (name, value) in [
        ("specversion", "1.0"),
        ("source", "/shop"),
        ("type", "OrderPlaced"),
        ("subject", "A-7"),
        ("datacontenttype", "application/json"),
        ("traceparent", TRACE),
    ] {
        assert_eq!(event[name], value, "{name}");
    }
    assert_eq!(event["data"]["total"], 1.5);
    let toml = toml.replace("cloudevents'", "cloudevents-binary'");
    let [record] = &records(&toml).await[..] else { panic!("one record") };
    assert_eq!(record.value_text(), Some(r#"{"total": 1.50}"#));
    for (name, value) in [
        ("ce_specversion", "1.0"),
        ("ce_source", "/shop"),
        ("ce_type", "OrderPlaced"),
        ("ce_subject", "A-7"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(record.header(name), Some(value), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timestamps_default_to_the_delivery_time() {
    let fixture = Fixture::new().await;
    let dead = fixture.topic("dead");
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let file = file.to_str().expect("UTF-8");
    let row = |headers: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, headers) \
             VALUES ('order', 'k', 'placed', {headers}); "
        )
    };
    for (timestamp, is_delivery) in [("commit", false), ("none", true)] {
        let toml = format!(
            "record.timestamp = '{timestamp}'\n[poison]\nundecodable = 'dead_letter'\n\
             dead_letter_topic = '{dead}'\n"
        );
        std::fs::write(file, toml).expect("it can be written");
        fixture.postgres.execute(&format!("{}{}", row("NULL"), row("'[1]'"))).await;
        // Its own clock: servers and tests share a machine.
        let query = "SELECT ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 1";
        let committed: i64 =
            fixture.postgres.query_text(query).await.expect("a time").parse().expect("ms");
        let before = fixture.records().await.len();
        let walpost = fixture.run_with(&["--config", file]).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
        let records = fixture.records().await;
        assert_eq!(records.len(), before + 2);
        for topic in [fixture.topic("order"), dead.clone()] {
            let mut times = records.iter().filter(|it| it.topic == topic).map(|it| it.timestamp_ms);
            let last = times.next_back().flatten().expect("a timestamp");
            assert_eq!(last >= committed, is_delivery, "{timestamp}, {topic}: {last}, {committed}");
        }
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_key_is_sent_where_allowed() {
    let toml = "[record]\nnull_keys = 'allow'\nkey = '{region}'\n";
    let [record] = &records(toml).await[..] else { panic!("one record") };
    assert_eq!((record.key.as_deref(), record.value_text()), (None, Some(r#"{"total": 1.50}"#)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tracer_text_column_provides_the_trace_context() {
    let fixture = Fixture::new().await;
    let add =
        "ALTER TABLE public.outbox ADD COLUMN traceparent text, ADD COLUMN tracingspancontext text";
    fixture.postgres.execute(add).await;
    let walpost = fixture.run().await;
    let own = TRACE.replace("-01", "-00");
    let java = format!("#\n#Sat Nov 21 14:55:01 UTC 2026\ntraceparent={TRACE}\ntracestate=a\\=1\n");
    let comment = format!("traceparent=''{TRACE}'',tracestate=''b%3D2''");
    for (key, columns) in [
        ("java", format!("NULL, '{java}'")),
        ("comment", format!("NULL, '{comment}'")),
        ("own", format!("'{own}', '{java}'")),
        ("none", "NULL, 'x'".to_owned()),
    ] {
        let insert = format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, traceparent, \
             tracingspancontext) VALUES ('order', '{key}', 'placed', {columns})"
        );
        fixture.postgres.execute(&insert).await;
    }
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    let trace = |key: &str| {
        let record = records.iter().find(|one| one.key_text() == Some(key)).expect(key);
        (record.header("traceparent"), record.header("tracestate"))
    };
    assert_eq!(trace("java"), (Some(TRACE), Some("a=1")));
    assert_eq!(trace("comment"), (Some(TRACE), Some("b=2")));
    assert_eq!(trace("own"), (Some(own.as_str()), None));
    assert_eq!(trace("none"), (None, None));
    stop(walpost).await;
}
