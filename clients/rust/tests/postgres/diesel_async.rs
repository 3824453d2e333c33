//! Publishing with diesel-async.

use diesel::QueryableByName;
use diesel::sql_types::Integer;
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
use walpost_outbox::diesel_async::transaction;
use walpost_outbox::{Ids, OnDuplicate, Outbox};

use crate::events::{CHANGE, Placed, broken, changed};
use crate::server::Database;

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connect(database: &Database) -> AsyncPgConnection {
    AsyncPgConnection::establish(&database.url()).await.expect("a connection")
}

#[tokio::test]
async fn change_and_events_are_committed_together() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let outbox = Outbox::new();
    let id = transaction(&mut connection, async |mut transaction| {
        diesel::sql_query(CHANGE).execute(transaction.connection()).await?;
        let event = Placed { order: "A-7", note: "x", tenant: "acme" };
        let id = outbox.publish(&mut transaction, &event).await?;
        outbox.publish_all(&mut transaction, &[changed(1), changed(2)]).await?;
        Ok::<_, Failure>(id)
    })
    .await
    .expect("committed");
    let rows = database.rows("SELECT id, payload, headers FROM outbox ORDER BY seq").await;
    let first = [&id.to_string(), r#"{"note": "x", "order": "A-7"}"#, r#"{"tenant": "acme"}"#];
    assert_eq!(rows[0], first.map(|text| Some(text.to_owned())));
    assert_eq!(rows[2][1..], [Some(r#"{"order": 7, "version": 2}"#.to_owned()), None]);
    assert_eq!(database.version().await, 1);
}

#[tokio::test]
async fn an_error_of_the_closure_leaves_nothing() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let outbox = Outbox::new();
    let error = transaction(&mut connection, async |mut transaction| {
        diesel::sql_query(CHANGE).execute(transaction.connection()).await?;
        outbox.publish(&mut transaction, &changed(1)).await?;
        Err::<(), Failure>("no".into())
    })
    .await
    .expect_err("the closure's");
    assert_eq!(error.to_string(), "no");
    assert_eq!((database.version().await, database.events().await), (0, 0));
}

#[tokio::test]
async fn an_event_that_cannot_be_published_fails_the_transaction() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let unserializable = transaction(&mut connection, async |mut transaction| {
        diesel::sql_query(CHANGE).execute(transaction.connection()).await?;
        // The error is ignored.
        let _ = Outbox::new().publish(&mut transaction, &broken()).await;
        Ok::<_, Failure>(())
    });
    let error = unserializable.await.expect_err("an event is missing").to_string();
    assert!(error.contains("an earlier event in it could not be published"), "{error}");
    let duplicate = transaction(&mut connection, async |mut transaction| {
        let outbox = Outbox::new().ids(Ids::FromContent(OnDuplicate::Fail));
        diesel::sql_query(CHANGE).execute(transaction.connection()).await?;
        outbox.publish(&mut transaction, &changed(1)).await?;
        outbox.publish(&mut transaction, &changed(1)).await?;
        Ok::<_, Failure>(())
    });
    let error = duplicate.await.expect_err("a duplicate").to_string();
    assert!(error.contains("duplicate key value"), "{error}");
    assert_eq!((database.version().await, database.events().await), (0, 0));
}

#[tokio::test]
async fn a_savepoint_rolls_back_its_events() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let outbox = Outbox::new();
    transaction(&mut connection, async |mut transaction| {
        outbox.publish(&mut transaction, &changed(1)).await?;
        let rolled_back = transaction.savepoint(async |mut savepoint| {
            outbox.publish(&mut savepoint, &changed(2)).await?;
            Err::<(), Failure>("no".into())
        });
        rolled_back.await.expect_err("the closure's");
        let kept = transaction.savepoint(async |mut savepoint| {
            outbox.publish(&mut savepoint, &changed(3)).await?;
            Ok::<_, Failure>(())
        });
        kept.await
    })
    .await
    .expect("committed");
    let rows = database.rows("SELECT payload->>'version' FROM outbox ORDER BY seq").await;
    assert_eq!(rows.concat(), ["1", "3"].map(|text| Some(text.to_owned())));
}

#[derive(QueryableByName)]
struct Pid {
    #[diesel(sql_type = Integer)]
    pid: i32,
}

#[tokio::test]
async fn a_session_that_is_killed_leaves_nothing() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    transaction(&mut connection, async |mut transaction| {
        let pid = diesel::sql_query("SELECT pg_backend_pid() AS pid");
        let pid: Pid = pid.get_result(transaction.connection()).await?;
        diesel::sql_query(CHANGE).execute(transaction.connection()).await?;
        database.terminate(pid.pid).await;
        Outbox::new().publish(&mut transaction, &changed(1)).await?;
        Ok::<_, Failure>(())
    })
    .await
    .expect_err("no session");
    assert_eq!((database.version().await, database.events().await), (0, 0));
}

#[tokio::test]
async fn publishing_can_be_spawned() {
    let database = Database::new().await;
    let mut connection = connect(&database).await;
    let task = tokio::spawn(async move {
        let outbox = Outbox::new();
        transaction(&mut connection, async |mut transaction| {
            outbox.publish(&mut transaction, &changed(1)).await?;
            outbox.publish_all(&mut transaction, &[changed(2)]).await?;
            Ok::<_, Failure>(())
        })
        .await
    });
    task.await.expect("no panic").expect("committed");
    assert_eq!(database.events().await, 2);
}
