//! Publishing with sqlx.

use sqlx::Connection as _;
use walpost_outbox::{Error, Ids, OnDuplicate, Outbox};

use crate::events::{CHANGE, Placed, broken, changed};
use crate::server::Database;

async fn connect(database: &Database) -> sqlx::PgConnection {
    sqlx::PgConnection::connect(&database.url()).await.expect("a connection")
}

#[tokio::test]
async fn change_and_events_are_committed_together() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let outbox = Outbox::new();
    let mut transaction = connection.begin().await.expect("begun");
    sqlx::query(CHANGE).execute(&mut *transaction).await.expect("changed");
    let event = Placed { order: "A-7", note: "x", tenant: "acme" };
    let id = outbox.publish(&mut transaction, &event).await.expect("inserted");
    let events = [changed(1), changed(2)];
    outbox.publish_all(&mut transaction, &events).await.expect("inserted");
    transaction.commit().await.expect("committed");
    let rows = database.rows("SELECT id, payload, headers FROM outbox ORDER BY seq").await;
    let first = [&id.to_string(), r#"{"note": "x", "order": "A-7"}"#, r#"{"tenant": "acme"}"#];
    assert_eq!(rows[0], first.map(|text| Some(text.to_owned())));
    assert_eq!(rows[2][1..], [Some(r#"{"order": 7, "version": 2}"#.to_owned()), None]);
    assert_eq!(database.version().await, 1);
}

#[tokio::test]
async fn a_rollback_leaves_nothing() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let outbox = Outbox::new();
    for is_explicit in [true, false] {
        let mut transaction = connection.begin().await.expect("begun");
        sqlx::query(CHANGE).execute(&mut *transaction).await.expect("changed");
        outbox.publish(&mut transaction, &changed(1)).await.expect("inserted");
        // A savepoint alone.
        let mut savepoint = transaction.begin().await.expect("begun");
        outbox.publish(&mut savepoint, &changed(2)).await.expect("inserted");
        savepoint.commit().await.expect("released");
        if is_explicit {
            transaction.rollback().await.expect("rolled back");
        }
    }
    connection.ping().await.expect("a connection");
    assert_eq!((database.version().await, database.events().await), (0, 0));
}

#[tokio::test]
async fn an_event_that_cannot_be_serialized_fails_the_transaction() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let mut transaction = connection.begin().await.expect("begun");
    sqlx::query(CHANGE).execute(&mut *transaction).await.expect("changed");
    let error = Outbox::new().publish(&mut transaction, &broken()).await.expect_err("no JSON");
    assert!(matches!(error, Error::Serialize { .. }), "{error}");
    sqlx::query(CHANGE).execute(&mut *transaction).await.expect_err("the transaction has failed");
    let _ = transaction.commit().await;
    assert_eq!((database.version().await, database.events().await), (0, 0));
}

#[tokio::test]
async fn a_failed_insert_names_the_reason() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let outbox = Outbox::new().ids(Ids::FromContent(OnDuplicate::Fail));
    let mut transaction = connection.begin().await.expect("begun");
    outbox.publish(&mut transaction, &changed(1)).await.expect("inserted");
    let error = outbox.publish(&mut transaction, &changed(1)).await.expect_err("a duplicate");
    assert!(error.to_string().contains("duplicate key value"), "{error}");
    drop(transaction);
    connection.ping().await.expect("a connection");
    assert_eq!(database.events().await, 0);
}

#[tokio::test]
async fn a_session_that_is_killed_leaves_nothing() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let mut transaction = connection.begin().await.expect("begun");
    let sql = "SELECT pg_backend_pid()";
    let pid: i32 = sqlx::query_scalar(sql).fetch_one(&mut *transaction).await.expect("a pid");
    sqlx::query(CHANGE).execute(&mut *transaction).await.expect("changed");
    database.terminate(pid).await;
    Outbox::new().publish(&mut transaction, &changed(1)).await.expect_err("no session");
    transaction.commit().await.expect_err("no session");
    assert_eq!((database.version().await, database.events().await), (0, 0));
}

#[tokio::test]
async fn publishing_can_be_spawned() {
    let database = Database::new().await;
    let pool = sqlx::PgPool::connect(&database.url()).await.expect("a pool");
    let task = tokio::spawn(async move {
        let mut transaction = pool.begin().await.expect("begun");
        let outbox = Outbox::new();
        outbox.publish(&mut transaction, &changed(1)).await.expect("inserted");
        outbox.publish_all(&mut transaction, &[changed(2)]).await.expect("inserted");
        transaction.commit().await.expect("committed");
    });
    task.await.expect("no panic");
    assert_eq!(database.events().await, 2);
}
