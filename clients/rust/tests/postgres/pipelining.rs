//! A commit with events takes one round trip.

use std::time::Duration;

use walpost_outbox::Outbox;

use crate::events::{CHANGE, changed};
use crate::proxy::{Mode, Proxy};
use crate::server::{Database, connect};

/// More than a commit can take, unless it waits for an answer that is held back.
const DEADLINE: Duration = Duration::from_secs(60);

/// The proxy holds every answer back until it has seen `COMMIT`: a commit that waited for an insert
/// would never end.
#[tokio::test]
async fn inserts_and_commit_are_sent_before_the_first_answer() {
    let database = Database::new().await;
    let proxy = Proxy::new(database.port()).await;
    let mut client = connect(&database.url_by(proxy.port())).await;
    let mut expected = 0;
    for outbox in [Outbox::new(), Outbox::new().logical_messages("outbox")] {
        let is_row = expected == 0;
        let prepared = outbox.prepare(&client).await.expect("prepared");
        for events in [0, 1, 2, 2500] {
            let begun = if events == 1 {
                prepared.begin(&mut client).await
            } else {
                outbox.begin(&mut client).await
            };
            let mut transaction = begun.expect("begun");
            transaction.execute(CHANGE, &[]).await.expect("changed");
            for version in 0..events {
                transaction.publish(&changed(version)).expect("kept");
            }
            proxy.begin(Mode::HoldAnswers);
            let commit = tokio::time::timeout(DEADLINE, transaction.commit()).await;
            proxy.begin(Mode::Pass);
            commit.expect("one round trip").expect("committed");
            expected += if is_row { i64::from(events) } else { 0 };
            assert_eq!(database.events().await, expected);
        }
    }
    assert_eq!(database.version().await, 8);
}

/// The test above would notice it.
#[tokio::test]
async fn the_proxy_stops_a_commit_that_waits_for_an_insert() {
    let database = Database::new().await;
    let proxy = Proxy::new(database.port()).await;
    let mut client = connect(&database.url_by(proxy.port())).await;
    let mut transaction = client.transaction().await.expect("begun");
    proxy.begin(Mode::HoldAnswers);
    let publish = Outbox::new();
    let publish = publish.publish(&mut transaction, &changed(1));
    tokio::time::timeout(Duration::from_millis(500), publish).await.expect_err("an answer");
    proxy.begin(Mode::Pass);
}
