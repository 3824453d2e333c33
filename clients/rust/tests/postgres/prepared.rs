//! An outbox whose statement is prepared on the connection.

use walpost_outbox::tokio_postgres::Prepared;
use walpost_outbox::{Error, Ids, OnDuplicate, Outbox};

use crate::events::{CHANGE, changed};
use crate::server::Database;

#[tokio::test]
async fn one_event_is_inserted_by_the_prepared_statement() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let ids = Ids::FromContent(OnDuplicate::Ignore);
    let outboxes =
        [Outbox::new(), Outbox::new().ids(ids), Outbox::new().logical_messages("outbox")];
    for (number, outbox) in (1..).zip(outboxes) {
        let prepared = outbox.prepare(&client).await.expect("prepared");
        for events in [0, 1, 3, 1] {
            let mut transaction = prepared.begin(&mut client).await.expect("begun");
            transaction.execute(CHANGE, &[]).await.expect("changed");
            for event in 0..events {
                transaction.publish(&changed(number * 10 + event)).expect("kept");
            }
            transaction.commit().await.expect("committed");
        }
        let used = "SELECT generic_plans + custom_plans FROM pg_prepared_statements
                     WHERE statement ~ '^INSERT INTO|^SELECT pg_catalog.count'";
        let used: i64 = client.query_one(used, &[]).await.expect("it is prepared").get(0);
        assert_eq!(used, 2, "two of the transactions had one event");
    }
    // Of the second outbox, the last event was a duplicate of one before.
    assert_eq!(database.events().await, 5 + 3);
    assert_eq!(database.version().await, 12);
}

/// Such as one of another connection, or after `DISCARD ALL`.
#[tokio::test]
async fn a_statement_that_is_not_there_fails_the_commit() {
    let database = Database::new().await;
    let (mut client, other) = (database.client().await, database.client().await);
    let outbox = Outbox::new();
    let prepared = outbox.prepare(&other).await.expect("prepared");
    let (sql, types) = outbox.statement();
    let statement = client.prepare_typed(sql, &types).await.expect("prepared");
    let by_hand = Prepared::new(outbox.clone(), statement);
    for (prepared, is_there) in [(&by_hand, true), (&prepared, false)] {
        let mut transaction = prepared.begin(&mut client).await.expect("begun");
        transaction.execute(CHANGE, &[]).await.expect("changed");
        transaction.publish(&changed(1)).expect("kept");
        let committed = transaction.commit().await;
        assert_eq!(committed.is_ok(), is_there, "{committed:?}");
        if let Err(error) = committed {
            assert!(matches!(error, Error::TokioPostgres { .. }), "{error:?}");
            assert!(error.to_string().contains("prepared statement"), "{error}");
        }
    }
    assert_eq!((database.events().await, database.version().await), (1, 1));
}
