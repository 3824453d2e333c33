//! Savepoints roll events back along with the changes.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};

use walpost_outbox::{Error, Outbox};

use crate::events::{CHANGE, broken, changed};
use crate::server::Database;

/// The versions in the outbox, in their order.
async fn published(database: &Database) -> Vec<String> {
    let rows = database.rows("SELECT payload->>'version' FROM outbox ORDER BY seq").await;
    rows.into_iter().filter_map(|mut row| row.remove(0)).collect()
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_forgets_its_events() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.publish(&changed(1)).expect("kept");

    let mut savepoint = transaction.savepoint().await.expect("begun");
    savepoint.execute(CHANGE, &[]).await.expect("changed");
    savepoint.publish(&changed(2)).expect("kept");
    savepoint.rollback().await.expect("rolled back");

    let mut savepoint = transaction.savepoint().await.expect("begun");
    savepoint.execute(CHANGE, &[]).await.expect("changed");
    savepoint.publish(&changed(3)).expect("kept");
    drop(savepoint);

    let mut savepoint = transaction.savepoint().await.expect("begun");
    savepoint.execute(CHANGE, &[]).await.expect("changed");
    savepoint.publish(&changed(4)).expect("kept");
    let mut inner = savepoint.savepoint().await.expect("begun");
    inner.publish(&changed(5)).expect("kept");
    inner.rollback().await.expect("rolled back");
    let mut inner = savepoint.savepoint().await.expect("begun");
    inner.publish(&changed(6)).expect("kept");
    inner.commit().await.expect("released");
    savepoint.commit().await.expect("released");

    transaction.publish(&changed(7)).expect("kept");
    transaction.commit().await.expect("committed");
    assert_eq!(published(&database).await, ["1", "4", "6", "7"]);
    assert_eq!(database.version().await, 1);
}

#[tokio::test]
async fn an_outer_savepoint_takes_back_what_an_inner_one_has_released() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    let mut outer = transaction.savepoint().await.expect("begun");
    let mut inner = outer.savepoint().await.expect("begun");
    inner.execute(CHANGE, &[]).await.expect("changed");
    inner.publish(&changed(1)).expect("kept");
    inner.commit().await.expect("released");
    outer.rollback().await.expect("rolled back");
    transaction.commit().await.expect("committed");
    assert_eq!((database.version().await, database.events().await), (0, 0));
}

#[tokio::test]
async fn a_failed_event_fails_its_savepoint_alone() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.publish(&changed(1)).expect("kept");
    let mut savepoint = transaction.savepoint().await.expect("begun");
    savepoint.execute(CHANGE, &[]).await.expect("changed");
    savepoint.publish(&broken()).expect_err("no JSON");
    let error = savepoint.commit().await.expect_err("an event is missing");
    assert!(matches!(error, Error::EarlierFailure), "{error}");
    transaction.commit().await.expect("committed");
    assert_eq!((database.version().await, database.events().await), (0, 1));
}

#[tokio::test]
async fn a_statement_that_fails_in_a_savepoint_can_be_rolled_back() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.publish(&changed(1)).expect("kept");
    let mut savepoint = transaction.savepoint().await.expect("begun");
    savepoint.publish(&changed(2)).expect("kept");
    savepoint.batch_execute("SELECT 1 / 0").await.expect_err("a division by zero");
    savepoint.rollback().await.expect("rolled back");
    transaction.commit().await.expect("committed");
    assert_eq!(published(&database).await, ["1"]);

    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    let savepoint = transaction.savepoint().await.expect("begun");
    savepoint.batch_execute("SELECT 1 / 0").await.expect_err("a division by zero");
    savepoint.commit().await.expect_err("it had failed");
    let error = transaction.commit().await.expect_err("it had failed");
    assert!(matches!(error, Error::AlreadyFailed), "{error}");
}

#[tokio::test]
async fn a_release_that_is_cancelled_keeps_change_and_event_together() {
    let database = Database::new().await;
    let mut client = database.client().await;
    for (polls, expected) in [(0, 0), (1, 1)] {
        let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
        let mut savepoint = transaction.savepoint().await.expect("begun");
        savepoint.execute(CHANGE, &[]).await.expect("changed");
        savepoint.publish(&changed(1)).expect("kept");
        {
            let mut release = pin!(savepoint.commit());
            for _ in 0..polls {
                let poll = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(poll.is_pending());
            }
        }
        transaction.commit().await.expect("committed");
        assert_eq!((database.version().await, database.events().await), (expected, expected));
    }
}
