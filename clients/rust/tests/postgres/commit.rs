//! What a commit reports, and what it inserts.

use walpost_outbox::{Error, Outbox};

use crate::events::{CHANGE, Placed, changed};
use crate::server::Database;

#[tokio::test]
async fn an_event_becomes_a_row_of_walposts_table() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    let event = Placed { order: "A-7", note: "it's \"\\ \u{e9}", tenant: "acme" };
    let id = transaction.publish(&event).expect("kept");
    let other = transaction.publish(&changed(1)).expect("kept");
    transaction.commit().await.expect("committed");
    let columns = "SELECT id, aggregate_type, aggregate_id, event_type, payload, headers,
                   created_at IS NOT NULL FROM public.outbox ORDER BY seq";
    let id = id.to_string();
    let first = [
        id.as_str(),
        "order",
        "A-7",
        "order_placed",
        r#"{"note": "it's \"\\ é", "order": "A-7"}"#,
        r#"{"tenant": "acme"}"#,
        "t",
    ];
    let rows = database.rows(columns).await;
    assert_eq!(rows[0], first.map(|text| Some(text.to_owned())));
    assert_eq!(rows[1][0], Some(other.to_string()));
    assert_eq!(rows[1][4].as_deref(), Some(r#"{"order": 7, "version": 1}"#));
    assert_eq!(rows[1][5], None);
}

#[tokio::test]
async fn insert_on_the_outbox_is_the_only_privilege_needed() {
    let database = Database::new().await;
    let role = format!("app_{}", database.name());
    database
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT INSERT ON public.outbox TO {role};
             GRANT USAGE ON SEQUENCE public.outbox_seq_seq TO {role}"
        ))
        .await;
    let url = format!("postgres://{role}@127.0.0.1:{}/{}", database.port(), database.name());
    let mut client = crate::server::connect(&url).await;
    let ids = walpost_outbox::Ids::FromContent(walpost_outbox::OnDuplicate::Fail);
    for outbox in [Outbox::new(), Outbox::new().ids(ids), Outbox::new().logical_messages("outbox")]
    {
        let mut transaction = outbox.begin(&mut client).await.expect("begun");
        transaction.publish(&changed(1)).expect("kept");
        transaction.publish(&changed(2)).expect("kept");
        transaction.commit().await.expect("committed");
    }
    assert_eq!(database.events().await, 4);
}

#[tokio::test]
async fn a_failed_insert_fails_the_commit_and_names_the_reason() {
    let database = Database::new().await;
    database.execute("ALTER TABLE public.outbox ADD CHECK (payload->>'version' <> '2')").await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.execute(CHANGE, &[]).await.expect("changed");
    for version in 1..=3 {
        transaction.publish(&changed(version)).expect("kept");
    }
    let error = transaction.commit().await.expect_err("a row is refused");
    let text = error.to_string();
    assert!(text.starts_with("cannot insert events: ERROR: new row for relation"), "{text}");
    assert!(text.contains("outbox_payload_check"), "{text}");
    let Error::TokioPostgres { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.code(), Some(&tokio_postgres::error::SqlState::CHECK_VIOLATION));
    assert_eq!((database.version().await, database.events().await), (0, 0));
    // The client is outside the transaction.
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.publish(&changed(1)).expect("kept");
    transaction.commit().await.expect("committed");
    assert_eq!(database.events().await, 1);
}

#[tokio::test]
async fn an_outbox_that_does_not_exist_fails_the_commit() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let outbox = Outbox::new().table("public", "Outbox");
    let mut transaction = outbox.begin(&mut client).await.expect("begun");
    transaction.execute(CHANGE, &[]).await.expect("changed");
    transaction.publish(&changed(1)).expect("kept");
    let error = transaction.commit().await.expect_err("no such table").to_string();
    assert!(error.contains(r#"relation "public.Outbox" does not exist"#), "{error}");
    assert_eq!(database.version().await, 0);
}

#[tokio::test]
async fn a_statement_that_cannot_be_sent_rolls_back() {
    let database = Database::new().await;
    let mut client = database.client().await;
    // The protocol ends names at NUL, so tokio-postgres refuses the statement.
    let outbox = Outbox::new().table("public", "out\0box");
    let mut transaction = outbox.begin(&mut client).await.expect("begun");
    transaction.execute(CHANGE, &[]).await.expect("changed");
    transaction.publish(&changed(1)).expect("kept");
    let error = transaction.commit().await.expect_err("no such statement");
    assert!(matches!(error, Error::TokioPostgres { .. }), "{error}");
    client.batch_execute("SELECT 1").await.expect("the client can be used");
    assert_eq!(database.version().await, 0);
}

#[tokio::test]
async fn the_commit_of_a_failed_transaction_is_an_error() {
    let database = Database::new().await;
    let mut client = database.client().await;
    for events in [0, 1, 2] {
        let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
        transaction.execute(CHANGE, &[]).await.expect("changed");
        for version in 0..events {
            transaction.publish(&changed(version)).expect("kept");
        }
        transaction.batch_execute("SELECT 1 / 0").await.expect_err("a division by zero");
        let error = transaction.commit().await.expect_err("it had failed");
        assert!(matches!(error, Error::AlreadyFailed), "{events} events: {error}");
        assert_eq!((database.version().await, database.events().await), (0, 0));
    }
}

#[tokio::test]
async fn what_only_the_commit_finds_is_an_error() {
    let database = Database::new().await;
    let sql = "CREATE TABLE lines (of int REFERENCES orders DEFERRABLE INITIALLY DEFERRED)";
    database.execute(sql).await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.execute("INSERT INTO lines VALUES (99)", &[]).await.expect("deferred");
    transaction.publish(&changed(1)).expect("kept");
    let error = transaction.commit().await.expect_err("no order 99").to_string();
    assert!(error.starts_with("cannot commit: ERROR: insert or update"), "{error}");
    assert_eq!(database.events().await, 0);
}

#[tokio::test]
async fn a_transaction_with_settings_publishes_too() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let level = tokio_postgres::IsolationLevel::Serializable;
    let builder = client.build_transaction().isolation_level(level);
    let mut transaction = Outbox::new().begin_with(builder).await.expect("begun");
    let row = transaction.query_one("SHOW transaction_isolation", &[]).await.expect("a row");
    assert_eq!(row.get::<_, &str>(0), "serializable");
    transaction.publish(&changed(1)).expect("kept");
    transaction.commit().await.expect("committed");
    let builder = client.build_transaction().read_only(true);
    let mut transaction = Outbox::new().begin_with(builder).await.expect("begun");
    transaction.publish(&changed(2)).expect("kept");
    let error = transaction.commit().await.expect_err("read-only").to_string();
    assert!(error.contains("read-only transaction"), "{error}");
    assert_eq!(database.events().await, 1);
}

#[tokio::test]
async fn a_transaction_that_was_begun_elsewhere_inserts_at_once() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let outbox = Outbox::new();
    let mut transaction = client.transaction().await.expect("begun");
    outbox.publish(&mut transaction, &changed(1)).await.expect("inserted");
    let events = [changed(2), changed(3)];
    let ids = outbox.publish_all(&mut transaction, &events).await.expect("inserted");
    assert_eq!(ids.len(), 2);
    let row = transaction.query_one("SELECT count(*) FROM outbox", &[]).await.expect("a row");
    assert_eq!(row.get::<_, i64>(0), 3);
    transaction.commit().await.expect("committed");
    // Even if its error is ignored, an event that is no JSON cannot be left out.
    let mut transaction = client.transaction().await.expect("begun");
    transaction.execute(CHANGE, &[]).await.expect("changed");
    outbox.publish(&mut transaction, &crate::events::broken()).await.expect_err("no JSON");
    let _ = transaction.commit().await;
    assert_eq!((database.version().await, database.events().await), (0, 3));
}
