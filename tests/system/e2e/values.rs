//! A row's values in its record: payloads of each type, headers, topics, timestamps.

use walpost_bed::{Major, Postgres};

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert, record_of, stop};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_payload_type_is_published_as_stored() {
    let table = |kind: &str| {
        format!(
            "CREATE TABLE public.{kind} (id text PRIMARY KEY, aggregate_type text, aggregate_id text,
               event_type text, payload {kind})"
        )
    };
    let kinds = ["json", "jsonb", "text", "bytea"];
    let fixture = kinds.iter().fold(Fixture::empty().await, |fixture, kind| {
        fixture.option("--table", &format!("public.{kind}"))
    });
    let fixture = fixture.over(&kinds.map(table).join(";")).await;
    let walpost = fixture.run().await;
    let row = |kind: &str, id: &str, payload: &str| {
        format!(
            "INSERT INTO public.{kind} VALUES ('{kind} {id}', 'order', '{kind}', 'e', {payload})"
        )
    };
    let all_bytes = "decode((SELECT string_agg(lpad(to_hex(i), 2, '0'), '' ORDER BY i)
                               FROM generate_series(0, 255) AS i), 'hex')";
    let written = r#"{"b" :  null,"a":1.50, "a":"\u00fc"}"#;
    let statements = [
        row("json", "object", &format!("'{written}'")),
        row("json", "string", r#"'"x"'"#),
        row("jsonb", "object", &format!("'{written}'")),
        row("jsonb", "null", "'null'"),
        row("text", "words", "E'two\\nlines and a \\\\ ü 🦀'"),
        row("text", "empty", "''"),
        row("bytea", "all", all_bytes),
        row("bytea", "empty", "''"),
        row("json", "none", "NULL"),
        row("jsonb", "none", "NULL"),
        row("text", "none", "NULL"),
        row("bytea", "none", "NULL"),
    ];
    fixture.postgres.execute(&statements.join(";")).await;
    let query = kinds.map(|kind| format!("SELECT id, aggregate_id FROM public.{kind}"));
    let rows = fixture.rows(&format!("{} ORDER BY 1", query.join(" UNION ALL "))).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records.len(), rows.len());
    let value = |id: &str| record_of(&records, id).value.as_deref();
    assert_eq!(value("json object"), Some(written.as_bytes()));
    assert_eq!(value("json string"), Some(b"\"x\"".as_slice()));
    assert_eq!(value("jsonb object"), Some("{\"a\": \"ü\", \"b\": null}".as_bytes()));
    assert_eq!(value("jsonb null"), Some(b"null".as_slice()));
    assert_eq!(value("text words"), Some("two\nlines and a \\ ü 🦀".as_bytes()));
    assert_eq!(value("text empty"), Some(b"".as_slice()));
    assert_eq!(value("bytea all"), Some((0..=255).collect::<Vec<u8>>().as_slice()));
    assert_eq!(value("bytea empty"), Some(b"".as_slice()));
    for kind in kinds {
        assert_eq!(value(&format!("{kind} none")), None, "a tombstone");
    }
    stop(walpost).await;
}

/// The stream tells what the type was when a row was written, also if the catalogs do not any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payload_of_a_domain_over_bytea_is_published_as_bytes_whenever_it_was_one() {
    let table = "CREATE DOMAIN public.blob AS bytea; CREATE DOMAIN public.image AS public.blob;
                 CREATE TABLE public.outbox (id text PRIMARY KEY, aggregate_type text,
                   aggregate_id text, event_type text, payload public.image)";
    let fixture = Fixture::empty().await.over(table).await;
    let row = |id: &str| {
        format!("INSERT INTO public.outbox VALUES ('{id}', 'order', 'k', 'e', '\\x00ff10')")
    };
    let become_a = |kind: &str| format!("ALTER TABLE public.outbox ALTER payload TYPE {kind}");
    // In the slot, and a domain that is gone once walpost starts.
    let before = [row("1"), become_a("bytea"), "DROP DOMAIN public.image".into(), row("2")];
    fixture.postgres.execute(&before.join(";")).await;
    let walpost = fixture.run().await;
    // Made and used while it streams.
    let anew = ["CREATE DOMAIN public.photo AS public.blob".into(), become_a("public.photo")];
    fixture.postgres.execute(&anew.join(";")).await;
    fixture.postgres.execute(&row("3")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
    // It is one at the start.
    let walpost = fixture.run().await;
    fixture.postgres.execute(&row("4")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
    let records = fixture.records().await;
    let values: Vec<_> = records.iter().map(|record| record.value.as_deref()).collect();
    assert_eq!(values, [Some([0, 0xff, 0x10].as_slice()); 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_column_becomes_record_headers() {
    let fixture = Fixture::new().await;
    let columns = "ADD COLUMN traceparent text, ADD COLUMN tracestate text";
    fixture.postgres.execute(&format!("ALTER TABLE public.outbox {columns}")).await;
    let walpost = fixture.run().await;
    let row = |headers: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, headers, traceparent)
               VALUES ('order', 'k', 'placed', {headers}, '00-4bf92f-00f067-01')"
        )
    };
    let object = r#"{"tenant": "acme", "n": 1.50, "no": null, "deep": {"k": [1, "x"]}, "ü": "\u00df", "yes": true}"#;
    let sql = format!("{}; {}; {}", row(&format!("'{object}'")), row("NULL"), row("'{}'"));
    fixture.postgres.execute(&sql).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    let full = &records[0];
    for (name, value) in [
        ("tenant", "acme"),
        ("n", "1.50"),
        ("deep", r#"{"k": [1, "x"]}"#),
        ("ü", "ß"),
        ("yes", "true"),
        ("traceparent", "00-4bf92f-00f067-01"),
    ] {
        assert_eq!(full.header(name), Some(value), "{name}");
    }
    assert!(full.headers.contains(&("no".to_owned(), None)), "{:?}", full.headers);
    for bare in &records[1..] {
        let names: Vec<_> = bare.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["id", "event_type", "traceparent", "walpost.position"]);
    }
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_template_uses_columns_and_modifiers() {
    let fixture =
        Fixture::empty().await.template("{region|lower}.{aggregate_type|kebab}.{event_type|snake}");
    let fixture = fixture
        .over(
            "CREATE TABLE public.outbox (region text, id int PRIMARY KEY, aggregate_type text,
               aggregate_id text, event_type text, payload text)",
        )
        .await;
    let walpost = fixture.run().await;
    fixture
        .postgres
        .execute(
            "INSERT INTO public.outbox VALUES
               ('EU-West', 1, 'OrderLine', 'k', 'LinePlaced', 'one'),
               ('us', 2, 'order_line', 'k', 'line-placed', 'two'),
               ('US', 3, 'Order', 'k', 'HTTPCalled', 'three')",
        )
        .await;
    let rows = fixture.rows("SELECT id, aggregate_id FROM public.outbox ORDER BY id").await;
    let records = fixture.assert_published(&rows, SHORT_TIMEOUT).await;
    for (id, topic) in [
        ("1", "eu-west.order-line.line_placed"),
        ("2", "us.order-line.line_placed"),
        ("3", "us.order.http_called"),
    ] {
        assert_eq!(record_of(&records, id).topic, fixture.topic(topic));
    }
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_timestamp_is_the_commit_time() {
    let builder = Postgres::builder(Major::V15).setting("track_commit_timestamp", "on");
    let fixture = Fixture::with(builder).await;
    let walpost = fixture.run().await;
    for count in [1, 10, 1] {
        // What the row itself says of the time is another matter.
        fixture.postgres.execute(&insert(count, 3)).await;
        fixture
            .postgres
            .execute(&format!("BEGIN; {}; SELECT pg_sleep(0.05); COMMIT", insert(1, 1)))
            .await;
    }
    fixture.assert_exact(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    let query =
        "SELECT id, floor(extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000)::bigint
                   FROM public.outbox";
    for row in fixture.postgres.query_rows(query).await {
        let [Some(id), Some(millis)] = row.as_slice() else { panic!("a NULL in {row:?}") };
        let record = record_of(&records, id);
        assert_eq!(record.timestamp_ms.map(|time| time.to_string()).as_ref(), Some(millis));
    }
    stop(walpost).await;
}
