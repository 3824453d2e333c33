//! The order of events.

use walpost_outbox::Outbox;

use crate::events::Changed;
use crate::server::Database;

const WRITERS: usize = 4;
const CHANGES: usize = 25;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_one_aggregate_publish_in_the_order_of_their_commits() {
    let database = Database::new().await;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let mut client = database.client().await;
        writers.push(tokio::spawn(async move {
            let outbox = Outbox::new();
            for _ in 0..CHANGES {
                let mut transaction = outbox.begin(&mut client).await.expect("begun");
                // The lock of the row orders the writers until they have committed.
                let sql = "UPDATE orders SET version = version + 2 WHERE id = 7 RETURNING version";
                let row = transaction.query_one(sql, &[]).await.expect("changed");
                let version: i32 = row.get(0);
                for version in [version - 1, version] {
                    transaction.publish(&Changed { order: 7, version }).expect("kept");
                }
                transaction.commit().await.expect("committed");
            }
        }));
    }
    for writer in writers {
        writer.await.expect("a writer does not panic");
    }
    let rows = database.rows("SELECT payload->>'version' FROM outbox ORDER BY seq").await;
    let versions: Vec<i32> = rows
        .iter()
        .filter_map(|row| row[0].as_deref().and_then(|text| text.parse().ok()))
        .collect();
    let expected: Vec<i32> = (1..).take(WRITERS * CHANGES * 2).collect();
    assert_eq!(versions, expected);
}

#[tokio::test]
async fn events_of_a_transaction_keep_their_order_over_several_statements() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let mut transaction = Outbox::new().begin(&mut client).await.expect("begun");
    for version in 0..2500 {
        transaction.publish(&Changed { order: 7, version }).expect("kept");
        if version == 700 {
            transaction.flush().await.expect("inserted");
        }
    }
    transaction.commit().await.expect("committed");
    let sql = "SELECT count(*) FROM outbox WHERE (payload->>'version')::int = seq - 1";
    assert_eq!(database.number(sql).await, 2500);
}
