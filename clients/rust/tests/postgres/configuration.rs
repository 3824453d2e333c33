//! Tables, types, ids and logical messages other than the usual.

use diesel_async::AsyncConnection as _;
use sqlx::Connection as _;
use walpost_outbox::{ColumnType, Error, Event, Field, Headers, Ids, OnDuplicate, Outbox, Payload};

use crate::events::{CHANGE, Placed, changed};
use crate::server::Database;

/// Publishes an event alone, and two together, with every driver.
async fn publish_by_all<E: Event + Clone + Send + Sync>(
    database: &Database,
    outbox: &Outbox,
    event: &E,
) {
    let two = [event.clone(), event.clone()];
    let mut client = database.client().await;
    for count in [1, 2] {
        let mut transaction = outbox.begin(&mut client).await.expect("begun");
        for _ in 0..count {
            transaction.publish(event).expect("kept");
        }
        transaction.commit().await.expect("committed");
    }
    let mut connection = sqlx::PgConnection::connect(&database.url()).await.expect("a connection");
    let mut transaction = connection.begin().await.expect("begun");
    outbox.publish(&mut transaction, event).await.expect("inserted");
    outbox.publish_all(&mut transaction, &two).await.expect("inserted");
    transaction.commit().await.expect("committed");
    let connection = diesel_async::AsyncPgConnection::establish(&database.url()).await;
    let mut connection = connection.expect("a connection");
    walpost_outbox::diesel_async::transaction(&mut connection, async |mut transaction| {
        outbox.publish(&mut transaction, event).await?;
        outbox.publish_all(&mut transaction, &two).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })
    .await
    .expect("committed");
}

#[derive(Clone)]
struct Raw;

impl Event for Raw {
    const AGGREGATE_TYPE: &'static str = "big order";
    const EVENT_TYPE: &'static str = "it's";

    fn aggregate_id(&self) -> String {
        "-9".to_owned()
    }

    fn payload(&self) -> Result<Payload, serde_json::Error> {
        Ok(Payload::bytes([0, 255, b'\\']))
    }

    fn headers(&self) -> Headers {
        Headers::new().with("a", "\"'\\")
    }
}

#[tokio::test]
async fn a_table_of_ones_own_has_other_names_and_types() {
    let database = Database::new().await;
    database
        .execute(
            r#"CREATE SCHEMA "my""shop";
               CREATE TYPE "my""shop"."Kind" AS ENUM ('big order');
               CREATE TABLE "my""shop"."Events"" $1" (
                   "event id" text PRIMARY KEY,
                   kind "my""shop"."Kind" NOT NULL,
                   subject bigint NOT NULL,
                   type varchar(10) NOT NULL,
                   body bytea,
                   headers json
               )"#,
        )
        .await;
    let outbox = Outbox::new()
        .table("my\"shop", "Events\" $1")
        .column(Field::Id, "event id")
        .column_type(Field::Id, ColumnType::Text)
        .column(Field::AggregateType, "kind")
        .column_type(
            Field::AggregateType,
            ColumnType::Other { schema: "my\"shop".to_owned(), name: "Kind".to_owned() },
        )
        .column(Field::AggregateId, "subject")
        .column_type(Field::AggregateId, ColumnType::Bigint)
        .column(Field::EventType, "type")
        .column(Field::Payload, "body")
        .column_type(Field::Payload, ColumnType::Bytea)
        .column_type(Field::Headers, ColumnType::Json);
    publish_by_all(&database, &outbox, &Raw).await;
    let sql = r#"SELECT DISTINCT kind::text, subject, type, body, headers::text
                 FROM "my""shop"."Events"" $1""#;
    let row = ["big order", "-9", "it's", r"\x00ff5c", r#"{"a":"\"'\\"}"#];
    assert_eq!(database.row(sql).await, row.map(|text| Some(text.to_owned())));
    assert_eq!(database.number(r#"SELECT count(*) FROM "my""shop"."Events"" $1""#).await, 9);
}

#[tokio::test]
async fn a_table_can_lack_columns_and_have_those_of_the_trace() {
    let database = Database::new().await;
    database
        .execute(
            "DROP TABLE outbox;
             CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_id text, payload text,
                                  traceparent text, tracestate text)",
        )
        .await;
    let outbox = Outbox::new()
        .without_column(Field::AggregateType)
        .without_column(Field::EventType)
        .without_column(Field::Headers)
        .column_type(Field::Payload, ColumnType::Text)
        .trace_context(walpost_outbox::TraceContext::Columns);
    publish_by_all(&database, &outbox, &changed(1)).await;
    let row = database.row("SELECT DISTINCT aggregate_id, payload, traceparent FROM outbox").await;
    assert_eq!(row[..2], ["7", r#"{"order":7,"version":1}"#].map(|text| Some(text.to_owned())));
}

#[derive(Clone)]
struct Forgotten;

impl Event for Forgotten {
    const AGGREGATE_TYPE: &'static str = "order";
    const EVENT_TYPE: &'static str = "order_forgotten";

    fn aggregate_id(&self) -> String {
        "7".to_owned()
    }

    fn payload(&self) -> Result<Payload, serde_json::Error> {
        Ok(Payload::tombstone())
    }
}

#[tokio::test]
async fn a_tombstone_is_null() {
    let database = Database::new().await;
    publish_by_all(&database, &Outbox::new(), &Forgotten).await;
    let sql = "SELECT count(*) FROM outbox WHERE payload IS NULL AND headers IS NULL";
    assert_eq!(database.number(sql).await, 9);
}

#[tokio::test]
async fn a_logical_message_is_transactional_and_has_the_members() {
    let database = Database::new().await;
    let slot = format!("slot_{}", database.name());
    let make = format!("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')");
    database.rows(&make).await;
    let outbox = Outbox::new().logical_messages("out'box");
    let mut client = database.client().await;
    let mut transaction = outbox.begin(&mut client).await.expect("begun");
    transaction.publish(&changed(0)).expect("kept");
    transaction.flush().await.expect("emitted");
    transaction.rollback().await.expect("rolled back");
    let event = Placed { order: "A-7", note: "x", tenant: "acme" };
    let mut transaction = outbox.begin(&mut client).await.expect("begun");
    let id = transaction.publish(&event).expect("kept");
    transaction.commit().await.expect("committed");
    publish_by_all(&database, &outbox, &changed(1)).await;

    let changes = format!("SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL)");
    let changes = database.rows(&changes).await.concat();
    let messages: Vec<_> =
        changes.into_iter().flatten().filter(|text| text.starts_with("message:")).collect();
    let content = format!(
        r#"{{"id":"{id}","aggregate_type":"order","aggregate_id":"A-7","event_type":"order_placed","payload":{{"order":"A-7","note":"x"}},"headers":{{"tenant":"acme"}}}}"#
    );
    let size = content.len();
    let expected =
        format!("message: transactional: 1 prefix: out'box, sz: {size} content:{content}");
    assert_eq!(messages[0], expected);
    assert_eq!(messages.len(), 10);
    assert!(messages[9].ends_with(r#""payload":{"order":7,"version":1}}"#), "{}", messages[9]);
    database.rows(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
    assert_eq!(database.events().await, 0);
}

#[tokio::test]
async fn an_id_of_the_content_is_refused_the_second_time() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let outbox = Outbox::new().ids(Ids::FromContent(OnDuplicate::Fail));
    for is_first in [true, false] {
        let mut transaction = outbox.begin(&mut client).await.expect("begun");
        transaction.execute(CHANGE, &[]).await.expect("changed");
        transaction.publish(&changed(1)).expect("kept");
        let result = transaction.commit().await;
        if is_first {
            result.expect("committed");
        } else {
            let Err(Error::TokioPostgres { source, .. }) = result else { panic!("{result:?}") };
            assert_eq!(source.code(), Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION));
        }
    }
    assert_eq!((database.version().await, database.events().await), (1, 1));
}

#[tokio::test]
async fn an_id_of_the_content_can_be_ignored_the_second_time() {
    let database = Database::new().await;
    let outbox = Outbox::new().ids(Ids::FromContent(OnDuplicate::Ignore));
    publish_by_all(&database, &outbox, &changed(1)).await;
    publish_by_all(&database, &outbox, &changed(2)).await;
    let rows = database.rows("SELECT payload->>'version' FROM outbox ORDER BY seq").await;
    assert_eq!(rows.concat(), ["1", "2"].map(|text| Some(text.to_owned())));
}
