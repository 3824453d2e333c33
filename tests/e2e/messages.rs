//! Logical messages: events without a table.

use walpost_bed::oracle::Row;

use walpost_bed::scene::{SOON, Scene, assert_in_log_order, insert, record_of, stop};

/// Emits a message that says what a row would.
fn emit(prefix: &str, id: &str, key: &str) -> String {
    format!(
        "SELECT pg_logical_emit_message(true, '{prefix}', jsonb_build_object('id', '{id}',
           'aggregate_type', 'order', 'aggregate_id', '{key}', 'event_type', 'told',
           'payload', jsonb_build_object('from', 'a message'), 'other', 1)::text)"
    )
}

async fn scene() -> Scene {
    let scene = Scene::empty().await.option("--message-prefix", "outbox");
    scene.init(&[]).await;
    scene
}

fn row(id: &str, key: &str) -> String {
    format!(
        "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type)
           VALUES (md5('{id}')::uuid, 'order', '{key}', 'placed')"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_and_messages_of_a_transaction_keep_their_order() {
    let scene = scene().await;
    let walpost = scene.run().await;
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
        scene.postgres.execute(&sql).await;
        for (id, is_row) in [(one, true), (two, false), (three, true), (four, false)] {
            let query = format!("SELECT md5('{id}')::uuid");
            let id = if is_row { scene.postgres.query_text(&query).await } else { Some(id) };
            expected.push(Row::new(id.expect("an id"), "k"));
        }
    }
    let records = scene.assert_published(&expected, SOON).await;
    assert_in_log_order(&records);
    let message = record_of(&records, "0-2");
    assert_eq!(message.topic, scene.topic("order"));
    assert_eq!(message.value_text(), Some(r#"{"from": "a message"}"#));
    assert_eq!(message.header("event_type"), Some("told"));
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_another_prefix_or_rolled_back_is_nothing() {
    let scene = scene().await;
    let walpost = scene.run().await;
    let sql = format!(
        "BEGIN; {}; ROLLBACK;
         BEGIN; {}; SAVEPOINT s; {}; ROLLBACK TO s; {}; {}; COMMIT",
        emit("outbox", "rolled back", "k"),
        emit("outbox", "first", "k"),
        emit("outbox", "back to the savepoint", "k"),
        emit("Outbox", "another", "k"),
        emit("outbox", "last", "k")
    );
    scene.postgres.execute(&sql).await;
    scene.postgres.execute(&emit("outbo", "shorter", "k")).await;
    let expected = [Row::new("first", "k"), Row::new("last", "k")];
    scene.assert_published(&expected, SOON).await;
    let last = stop(walpost).await;
    assert_eq!(last["refused_messages"], 0, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_nothing_where_no_prefix_is_configured() {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    scene.postgres.execute(&emit("outbox", "unasked", "k")).await;
    scene.postgres.execute(&emit("", "unasked too", "k")).await;
    scene.postgres.execute(&insert(1, 1)).await;
    scene.assert_exact(SOON).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_outside_a_transaction_is_refused_and_warned_of() {
    let scene = scene().await;
    let walpost = scene.run().await;
    let outside = |prefix| emit(prefix, "outside", "k").replace("message(true", "message(false");
    // In a transaction that rolls back it is in the log all the same.
    scene
        .postgres
        .execute(&format!("BEGIN; {}; {}; ROLLBACK", row("a", "k"), outside("outbox")))
        .await;
    scene.postgres.execute(&outside("another")).await;
    scene
        .postgres
        .execute(&format!("BEGIN; {}; {}; COMMIT", row("b", "k"), outside("outbox")))
        .await;
    let id = scene.postgres.query_text("SELECT md5('b')::uuid").await.expect("an id");
    scene.assert_published(&[Row::new(id, "k")], SOON).await;
    walpost.await_line("refused logical messages", SOON).await;
    let last = stop(walpost).await;
    assert_eq!(last["refused_messages"], 2, "{last}");
}
