//! The change and its event are committed together, or not at all.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};

use walpost_outbox::{Error, Outbox};

use crate::events::{CHANGE, broken, changed};
use crate::proxy::{Mode, Proxy};
use crate::server::{Database, connect, pid};

#[tokio::test]
async fn a_rollback_leaves_nothing() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let outbox = Outbox::new();
    for is_explicit in [true, false] {
        let mut transaction = outbox.begin(&mut client).await.expect("begun");
        transaction.execute(CHANGE, &[]).await.expect("changed");
        transaction.publish(&changed(1)).expect("kept");
        transaction.flush().await.expect("inserted");
        transaction.publish(&changed(2)).expect("kept");
        if is_explicit {
            transaction.rollback().await.expect("rolled back");
        }
    }
    // Behind the rollback of the dropped transaction.
    client.batch_execute("SELECT 1").await.expect("no transaction");
    assert_eq!((database.version().await, database.events().await), (0, 0));
}

#[tokio::test]
async fn a_session_that_is_killed_before_the_commit_leaves_nothing() {
    let database = Database::new().await;
    for is_flushed in [true, false] {
        let mut client = database.client().await;
        let session = pid(&client).await;
        let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
        transaction.execute(CHANGE, &[]).await.expect("changed");
        transaction.publish(&changed(1)).expect("kept");
        if is_flushed {
            transaction.flush().await.expect("inserted");
            transaction.publish(&changed(2)).expect("kept");
        }
        database.terminate(session).await;
        let error = transaction.commit().await.expect_err("no session");
        assert!(!matches!(error, Error::AlreadyFailed | Error::EarlierFailure), "{error}");
        assert_eq!((database.version().await, database.events().await), (0, 0));
    }
}

/// The connection is cut after each number of bytes that the commit sends.
#[tokio::test]
async fn a_connection_that_is_cut_within_the_commit_leaves_both_or_neither() {
    let database = Database::new().await;
    let proxy = Proxy::new(database.port()).await;
    let url = database.url_by(proxy.port());
    let outbox = Outbox::new();
    let mut total = usize::MAX;
    let (mut cut, mut committed) = (0, 0);
    let mut is_first = true;
    while is_first || cut <= total {
        proxy.begin(Mode::Pass);
        let mut client = connect(&url).await;
        let session = pid(&client).await;
        let mut transaction = outbox.begin(&mut client).await.expect("begun");
        // Not prepared: closing a statement would send more, sooner or later.
        transaction.batch_execute(CHANGE).await.expect("changed");
        transaction.publish(&changed(1)).expect("kept");
        proxy.begin(if is_first { Mode::Pass } else { Mode::CutAfter(cut) });
        let error = transaction.commit().await.err();
        if is_first {
            assert!(error.is_none(), "{error:?}");
            total = proxy.sent().len();
            drop(client);
        }
        database.ended(session).await;
        let (version, events) = (database.version().await, database.events().await);
        assert_eq!(version, events, "after {cut} of {total} bytes");
        if !is_first {
            let error = error.expect("the connection is cut");
            let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
            assert!(is_unknown || version == committed, "{cut} of {total}: {error}");
            cut = if cut == total { total + 1 } else { total.min(cut + 8) };
        }
        committed = version;
        is_first = false;
    }
    assert_eq!(committed, 2, "only the whole commit commits");
}

#[tokio::test]
async fn an_event_that_cannot_be_serialized_fails_the_transaction() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.execute(CHANGE, &[]).await.expect("changed");
    transaction.publish(&changed(1)).expect("kept");
    let error = transaction.publish(&broken()).expect_err("no JSON").to_string();
    assert_eq!(error, "cannot serialize the payload of event order_broken: key must be a string");
    transaction.publish(&changed(2)).expect("kept");
    let error = transaction.commit().await.expect_err("an event is missing");
    assert!(matches!(error, Error::EarlierFailure), "{error}");
    assert_eq!((database.version().await, database.events().await), (0, 0));
    // The client can be used again.
    let transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.commit().await.expect("committed");
}

#[tokio::test]
async fn a_commit_that_is_cancelled_leaves_both_or_neither() {
    let database = Database::new().await;
    let mut client = database.client().await;
    for (polls, expected) in [(0, 0), (1, 1)] {
        let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
        transaction.execute(CHANGE, &[]).await.expect("changed");
        transaction.publish(&changed(1)).expect("kept");
        {
            let mut commit = pin!(transaction.commit());
            for _ in 0..polls {
                let poll = commit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(poll.is_pending());
            }
        }
        client.batch_execute("SELECT 1").await.expect("the client can be used");
        assert_eq!((database.version().await, database.events().await), (expected, expected));
    }
}

#[tokio::test]
async fn a_flush_that_is_cancelled_fails_the_commit() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    transaction.publish(&changed(1)).expect("kept");
    {
        let mut flush = pin!(transaction.flush());
        let _ = flush.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    let error = transaction.commit().await.expect_err("the flush was cancelled");
    assert!(matches!(error, Error::EarlierFailure), "{error}");
    assert_eq!(database.events().await, 0);
}
