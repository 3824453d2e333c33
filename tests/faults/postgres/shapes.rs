//! Every shape of transaction that is more than an insert and a COMMIT (48, 49,
//! 50, 54, 56).

use walpost_bed::scene::{LATER, SOON, Scene, assert_in_log_order, copy, insert, stop};
use walpost_bed::{Stop, eventually};

use super::{covers, end_of_log};
use crate::case::{Account, Case};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(48, "of_a_savepoint_that_is_rolled_back_only_the_rest_is_published", savepoints),
        Case::new(
            49,
            "of_hundreds_of_subtransactions_those_that_failed_leave_nothing",
            |account| subtransactions(account, 150),
        ),
        Case::new(49, "of_100_000_subtransactions_those_that_failed_leave_nothing", |account| {
            subtransactions(account, 50_000)
        })
        .long(),
        Case::new(50, "a_prepared_transaction_is_published_when_it_commits", prepared),
        Case::new(50, "a_slot_that_sends_prepared_transactions_is_refused", two_phase),
        Case::new(54, "copied_rows_and_those_of_one_insert_come_in_their_order", many_at_once),
        Case::new(56, "what_commits_beside_a_long_transaction_is_published", long_open),
    ]
}

async fn savepoints(account: Account) {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    let (many, few) = (insert(500, 3), insert(5, 3));
    let sql = format!(
        "BEGIN; SAVEPOINT s; {many}; ROLLBACK TO s; {few}; COMMIT;
         BEGIN; {many}; SAVEPOINT s; {few}; ROLLBACK TO s; COMMIT;
         BEGIN; SAVEPOINT s; {few}; RELEASE s; SAVEPOINT t; {few}; SAVEPOINT u; {few};
         RELEASE u; ROLLBACK TO t; {few}; COMMIT"
    );
    scene.postgres.execute(&sql).await;
    scene.confirmed(SOON).await;
    let records = scene.records().await;
    assert_eq!(records.len(), 5 + 500 + 10);
    assert_in_log_order(&records);
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

/// Each turn has a subtransaction in a subtransaction; every third inner one
/// fails, every fifth outer one fails with what its inner one had done.
async fn subtransactions(account: Account, turns: usize) {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    let row = |key: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
             VALUES ('order', {key}, 'placed')"
        )
    };
    let sql = format!(
        "DO $$ BEGIN
           {outside};
           FOR i IN 1..{turns} LOOP
             BEGIN
               {outer};
               BEGIN
                 {inner};
                 IF i % 3 = 0 THEN RAISE EXCEPTION 'inner'; END IF;
               EXCEPTION WHEN raise_exception THEN NULL; END;
               IF i % 5 = 0 THEN RAISE EXCEPTION 'outer'; END IF;
             EXCEPTION WHEN raise_exception THEN NULL; END;
           END LOOP;
         END $$",
        outside = row("'before'"),
        outer = row("(i % 7)::text"),
        inner = row("(i % 7)::text"),
    );
    scene.postgres.execute(&sql).await;
    scene.confirmed(LATER).await;
    let records = scene.records().await;
    let outer = turns - turns / 5;
    let inner = outer - (turns / 3 - turns / 15);
    assert_eq!(records.len(), 1 + outer + inner);
    assert_in_log_order(&records);
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

/// With a restart of the server, and one of walpost, before it commits.
async fn prepared(account: Account) {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    let prepare = |name: &str, key: &str| {
        let row = insert(3, 1).replace("(i % 1)::text", &format!("'{key}'"));
        format!("BEGIN; {row}; PREPARE TRANSACTION '{name}'")
    };
    scene.postgres.execute(&prepare("kept", "kept")).await;
    scene.postgres.execute(&prepare("dropped", "dropped")).await;
    scene.postgres.execute(&insert(4, 2)).await;
    scene.confirmed(SOON).await;
    assert_eq!(scene.records().await.len(), 4, "what is only prepared is not published");
    let mark = walpost.mark();
    scene.postgres.restart(Stop::Fast).await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", SOON).await;
    stop(walpost).await;

    let walpost = scene.run().await;
    scene.postgres.execute("COMMIT PREPARED 'kept'").await;
    scene.postgres.execute("ROLLBACK PREPARED 'dropped'").await;
    scene.confirmed(SOON).await;
    let records = scene.records().await;
    assert_eq!(records.len(), 7);
    assert!(records.iter().all(|record| record.key_text() != Some("dropped")));
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

/// The error tells how to replace the slot, and with its copy nothing is missing.
async fn two_phase(account: Account) {
    let scene = Scene::new().await;
    scene
        .postgres
        .execute(
            "SELECT pg_drop_replication_slot('walpost');
             SELECT pg_create_logical_replication_slot('walpost', 'pgoutput', false, true)",
        )
        .await;
    scene.postgres.execute(&insert(4, 2)).await;
    scene.postgres.execute(&format!("BEGIN; {}; PREPARE TRANSACTION 'one'", insert(3, 1))).await;
    let text = account.ends(&scene.command("run").start(), 3).await;
    assert!(text.contains("two_phase"), "{text}");
    let (_, sql) = text.split_once("the same position: ").expect("what to do");
    let (sql, _) = sql.split_once('"').expect("the end of the message");
    // Each by itself, as psql sends them.
    for statement in sql.split_inclusive(';') {
        scene.postgres.execute(statement).await;
    }
    let walpost = scene.run().await;
    scene.postgres.execute("COMMIT PREPARED 'one'").await;
    scene.postgres.execute(&insert(4, 2)).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

async fn many_at_once(account: Account) {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    let client = scene.postgres.client().await;
    for _ in 0..20 {
        client.batch_execute(&insert(1, 3)).await.expect("a row");
    }
    client.batch_execute(&insert(200, 3)).await.expect("rows");
    client.batch_execute(&copy(&scene, 1000, 3)).await.expect("copied rows");
    scene.confirmed(SOON).await;
    let records = scene.records().await;
    assert_eq!(records.len(), 1220);
    assert_in_log_order(&records);
    account.exact(&scene.judge().await);
    account.goes_on(&walpost);
}

async fn long_open(account: Account) {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    let row = |key: &str| insert(50, 1).replace("(i % 1)::text", &format!("'{key}'"));
    let client = scene.postgres.client().await;
    client.batch_execute(&format!("BEGIN; {}", row("long"))).await.expect("begun");
    for turn in 0..20 {
        scene.postgres.execute(&row("beside")).await;
        if turn % 5 == 0 {
            client.batch_execute(&row("long")).await.expect("more of it");
            // So that nobody holds what it has done in memory alone.
            scene.postgres.execute("CHECKPOINT").await;
        }
    }
    scene.confirmed(SOON).await;
    assert_eq!(scene.records().await.len(), 20 * 50);
    // Its rows are read from the log's past, by another session too.
    let mark = walpost.mark();
    scene
        .postgres
        .query_text("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        .await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", SOON).await;
    let before = end_of_log(&scene).await;
    client.batch_execute("COMMIT").await.expect("committed");
    eventually(SOON, "it is published", async || covers(&scene, &before).await).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    assert_in_log_order(&scene.records().await);
    account.goes_on(&walpost);
}
