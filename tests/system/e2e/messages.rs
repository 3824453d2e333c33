//! Logical messages: events without a table.

use walpost_bed::oracle::Row;
use walpost_bed::{Kafka, Major, Postgres};

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, assert_in_log_order, insert, record_of, stop};

/// Emits a message with the content of a row.
fn emit(prefix: &str, id: &str, key: &str) -> String {
    format!(
        "SELECT pg_logical_emit_message(true, '{prefix}', jsonb_build_object('id', '{id}',
           'aggregate_type', 'order', 'aggregate_id', '{key}', 'event_type', 'told',
           'payload', jsonb_build_object('from', 'a message'), 'other', 1)::text)"
    )
}

async fn fixture() -> Fixture {
    let fixture = Fixture::empty().await.option("--message-prefix", "outbox");
    fixture.init(&[]).await;
    fixture
}

fn row(id: &str, key: &str) -> String {
    format!(
        "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type)
           VALUES (md5('{id}')::uuid, 'order', '{key}', 'placed')"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_and_messages_of_a_transaction_keep_their_order() {
    let fixture = fixture().await;
    let walpost = fixture.run().await;
    let mut expected = Vec::new();
    for turn in 0..20 {
        let [one, two, three, four] = [1, 2, 3, 4].map(|n| format!("{turn}-{n}"));
        let sql = format!(
            "BEGIN; {}; {}; {}; {}; COMMIT",
            row(&one, "k"),
            emit("outbox", &two, "k"),
            row(&three, "k"),
            emit("outbox", &four, "k")
        );
        fixture.postgres.execute(&sql).await;
        for (id, is_row) in [(one, true), (two, false), (three, true), (four, false)] {
            let query = format!("SELECT md5('{id}')::uuid");
            let id = if is_row { fixture.postgres.query_text(&query).await } else { Some(id) };
            expected.push(Row::new(id.expect("an id"), "k"));
        }
    }
    let records = fixture.assert_published(&expected, SHORT_TIMEOUT).await;
    assert_in_log_order(&records);
    let message = record_of(&records, "0-2");
    assert_eq!(message.topic, fixture.topic("order"));
    assert_eq!(message.value_text(), Some(r#"{"from": "a message"}"#));
    assert_eq!(message.header("event_type"), Some("told"));
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_with_other_prefixes_or_rolled_back_are_ignored() {
    let fixture = fixture().await;
    let walpost = fixture.run().await;
    let sql = format!(
        "BEGIN; {}; ROLLBACK;
         BEGIN; {}; SAVEPOINT s; {}; ROLLBACK TO s; {}; {}; COMMIT",
        emit("outbox", "rolled back", "k"),
        emit("outbox", "first", "k"),
        emit("outbox", "back to the savepoint", "k"),
        emit("Outbox", "another", "k"),
        emit("outbox", "last", "k")
    );
    fixture.postgres.execute(&sql).await;
    fixture.postgres.execute(&emit("outbo", "shorter", "k")).await;
    let expected = [Row::new("first", "k"), Row::new("last", "k")];
    fixture.assert_published(&expected, SHORT_TIMEOUT).await;
    let last = stop(walpost).await;
    assert_eq!(last["refused_messages"], 0, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_ignored_without_a_configured_prefix() {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&emit("outbox", "unasked", "k")).await;
    fixture.postgres.execute(&emit("", "unasked too", "k")).await;
    fixture.postgres.execute(&insert(1, 1)).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nontransactional_message_is_ignored_with_a_warning() {
    let fixture = fixture().await;
    let walpost = fixture.run().await;
    let outside = |prefix| emit(prefix, "outside", "k").replace("message(true", "message(false");
    // In a transaction that rolls back it is in the log anyway.
    fixture
        .postgres
        .execute(&format!("BEGIN; {}; {}; ROLLBACK", row("a", "k"), outside("outbox")))
        .await;
    fixture.postgres.execute(&outside("another")).await;
    fixture
        .postgres
        .execute(&format!("BEGIN; {}; {}; COMMIT", row("b", "k"), outside("outbox")))
        .await;
    let id = fixture.postgres.query_text("SELECT md5('b')::uuid").await.expect("an id");
    fixture.assert_published(&[Row::new(id, "k")], SHORT_TIMEOUT).await;
    walpost.await_line("rejected non-transactional logical messages", SHORT_TIMEOUT).await;
    let last = stop(walpost).await;
    assert_eq!(last["refused_messages"], 2, "{last}");
}

fn plain(kind: bool, prefix: &str, content: &str) -> String {
    format!("SELECT pg_logical_emit_message({kind}, '{prefix}', {content}::bytea)")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_message_has_type_and_key_in_its_prefix() {
    let fixture = Fixture::empty().await;
    let fixture =
        fixture.option("--message-prefix", "outbox").option("--plain-message-prefix", "outbox");
    fixture.init(&[]).await;
    let walpost = fixture.run().await;
    let sql = [
        row("a", "k"),
        plain(true, "outbox:order:k", "'\\xff00'"),
        emit("outbox", "json", "k"),
        plain(true, "outboxes:order:k", "'another'"),
        plain(true, "outbox:order:a:b", "''"),
    ];
    fixture.postgres.execute(&format!("BEGIN; {}; COMMIT", sql.join("; "))).await;
    fixture
        .postgres
        .execute(&format!("BEGIN; {}; ROLLBACK", plain(true, "outbox:order:k", "'x'")))
        .await;
    fixture.postgres.execute(&plain(false, "outbox:order:k", "'outside'")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    assert_in_log_order(&records);
    let mut of_k: Vec<_> = records.iter().filter(|one| one.key_text() == Some("k")).collect();
    of_k.sort_by_key(|one| one.header("walpost.position").map(str::to_owned));
    assert_eq!((records.len(), of_k.len()), (4, 3), "{records:?}");
    assert_eq!(of_k[1].value.as_deref(), Some(b"\xFF\x00".as_slice()));
    let names: Vec<_> = of_k[1].headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["walpost.position"]);
    assert_eq!(of_k[2].header("id"), Some("json"));
    let other =
        records.iter().find(|one| one.key_text() == Some("a:b")).expect("a key with a colon");
    assert_eq!(other.value.as_deref(), Some(b"".as_slice()), "no tombstone");
    walpost.await_line("rejected non-transactional logical messages", SHORT_TIMEOUT).await;
    let last = stop(walpost).await;
    assert_eq!(last["refused_messages"], 1, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_message_without_a_key_halts() {
    let fixture = Fixture::empty().await.option("--plain-message-prefix", "outbox");
    fixture.init(&[]).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&plain(true, "outbox:order", "'x'")).await;
    let (code, text) = walpost_bed::fixture::ended(&walpost).await;
    assert_eq!(code, Some(4), "{text}");
    for part in ["prefix `outbox:order`", "`aggregate_id` is NULL or empty"] {
        assert!(text.contains(part), "{text}");
    }
}

/// PostgreSQL converts the values of rows, and not the content of messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_of_a_database_that_is_not_utf8_is_published_in_utf8() {
    for (encoding, text) in
        [("LATIN1", "Ã© ½ Maß"), ("WIN1252", "MENÜ… 5 €"), ("EUC_JP", "楽しい表示")]
    {
        let postgres = Postgres::builder(Major::V15).encoding(encoding).start().await;
        let fixture = Fixture::bare(postgres, &Kafka::shared().await.bootstrap());
        let fixture =
            fixture.option("--message-prefix", "outbox").option("--plain-message-prefix", "bytes");
        fixture.init(&[]).await;
        let walpost = fixture.run().await;
        let json = format!(
            r#"{{"id": "m", "aggregate_type": "order", "aggregate_id": "{text}", "payload": {{"t": "{text}"}}}}"#
        );
        let row = format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
               VALUES ('order', '{text}', 'placed', '{{\"t\": \"{text}\"}}')"
        );
        let sql = [
            row,
            format!("SELECT pg_logical_emit_message(true, 'outbox', '{json}')"),
            "SELECT pg_logical_emit_message(true, 'bytes:order:b', '\\xc3a9'::bytea)".to_owned(),
            emit("outbox", "plain", "k"),
        ];
        fixture.postgres.execute(&sql.join("; ")).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
        stop(walpost).await;
        let records = fixture.records().await;
        assert_eq!(records.len(), 4, "{encoding}: {records:?}");
        let message = record_of(&records, "m");
        assert_eq!(message.key_text(), Some(text), "{encoding}");
        assert_eq!(message.value_text(), Some(format!(r#"{{"t": "{text}"}}"#).as_str()));
        // As a row of it.
        let same =
            records.iter().filter(|one| one.value == message.value && one.key == message.key);
        assert_eq!(same.count(), 2, "{encoding}");
        let bytes = records.iter().find(|one| one.key_text() == Some("b")).expect("bytes");
        assert_eq!(bytes.value.as_deref(), Some([0xc3, 0xa9].as_slice()));
    }
}
