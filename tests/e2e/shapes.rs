//! Every way in which transactions bring rows into an outbox: one at a time,
//! many at once, by COPY, under savepoints, prepared, and not at all.

use walpost_bed::scene::{SOON, Scene, assert_in_log_order, insert, stop};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_row_becomes_a_record_keyed_by_its_aggregate_id() {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(1, 5)).await;
    scene.assert_exact(SOON).await;
    let records = scene.records().await;
    assert_eq!(records[0].key_text(), Some("1"));
    assert_eq!(records[0].value_text(), Some(r#"{"i": 1}"#));
    assert_eq!(records[0].topic, scene.topic("order"));
    assert_eq!(records[0].header("event_type"), Some("placed"));
    assert!(records[0].header("walpost.position").is_some());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_multi_row_and_copied_inserts_come_in_their_order() {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    let client = scene.postgres.client().await;
    for _ in 0..20 {
        client.batch_execute(&insert(1, 3)).await.expect("a row");
    }
    client.batch_execute(&insert(200, 3)).await.expect("rows");
    client.batch_execute(&copy(&scene, 1000, 3)).await.expect("copied rows");
    scene.assert_exact(SOON).await;
    let records = scene.records().await;
    assert_eq!(records.len(), 1220);
    assert_in_log_order(&records);
    let last = stop(walpost).await;
    assert_eq!((&last["delivered"], &last["undrained"]), (&1220.into(), &0.into()), "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_rolls_back_leaves_nothing() {
    let scene = Scene::new().await;
    let _walpost = scene.run().await;
    let sql = format!(
        "BEGIN; {}; ROLLBACK; BEGIN; {}; COMMIT; BEGIN; {}; ROLLBACK",
        insert(500, 5),
        insert(7, 5),
        insert(1, 5)
    );
    scene.postgres.execute(&sql).await;
    scene.assert_exact(SOON).await;
    assert_eq!(scene.records().await.len(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_savepoint_that_is_rolled_back_only_the_rest_is_published() {
    let scene = Scene::new().await;
    let _walpost = scene.run().await;
    let (many, few) = (insert(500, 3), insert(5, 3));
    let sql = format!(
        "BEGIN; SAVEPOINT s; {many}; ROLLBACK TO s; {few}; COMMIT;
         BEGIN; {many}; SAVEPOINT s; {few}; ROLLBACK TO s; COMMIT;
         BEGIN; SAVEPOINT s; {few}; RELEASE s; SAVEPOINT t; {few}; SAVEPOINT u; {few};
         RELEASE u; ROLLBACK TO t; {few}; COMMIT"
    );
    scene.postgres.execute(&sql).await;
    scene.assert_exact(SOON).await;
    let records = scene.records().await;
    assert_eq!(records.len(), 5 + 500 + 10);
    assert_in_log_order(&records);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_hundreds_of_subtransactions_those_that_failed_leave_nothing() {
    let scene = Scene::new().await;
    let _walpost = scene.run().await;
    let row = |key: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
             VALUES ('order', {key}, 'placed')"
        )
    };
    // Each turn has a subtransaction in a subtransaction; every third inner
    // one fails, every fifth outer one fails with what its inner one had done.
    let sql = format!(
        "DO $$ BEGIN
           {outside};
           FOR i IN 1..150 LOOP
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
    scene.assert_exact(SOON).await;
    let records = scene.records().await;
    // 120 outer rows stay, and with them the 80 inner rows that did not fail.
    assert_eq!(records.len(), 1 + 120 + 80);
    assert_in_log_order(&records);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_is_published_when_it_commits_also_after_a_restart() {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    let prepare = |name: &str, key: &str| {
        let row = insert(3, 1).replace("(i % 1)::text", &format!("'{key}'"));
        format!("BEGIN; {row}; PREPARE TRANSACTION '{name}'")
    };
    scene.postgres.execute(&prepare("kept", "kept")).await;
    scene.postgres.execute(&prepare("dropped", "dropped")).await;
    scene.postgres.execute(&insert(4, 2)).await;
    scene.assert_exact(SOON).await;
    assert_eq!(scene.records().await.len(), 4, "what is only prepared is not published");
    stop(walpost).await;

    let walpost = scene.run().await;
    scene.postgres.execute("COMMIT PREPARED 'kept'").await;
    scene.postgres.execute("ROLLBACK PREPARED 'dropped'").await;
    scene.assert_exact(SOON).await;
    let records = scene.records().await;
    assert_eq!(records.len(), 7);
    assert!(records.iter().all(|record| record.key_text() != Some("dropped")));
    let last = stop(walpost).await;
    assert_eq!(last["delivered"], 3, "a clean restart repeats nothing: {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_published_though_its_own_transaction_deletes_it() {
    let scene = Scene::new().await;
    let _walpost = scene.run().await;
    scene
        .postgres
        .execute(
            "BEGIN;
             INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type)
               SELECT md5('gone ' || i)::uuid, 'order', (i % 3)::text, 'placed'
                 FROM generate_series(1, 20) AS i;
             DELETE FROM public.outbox;
             COMMIT",
        )
        .await;
    let query = "SELECT md5('gone ' || i)::uuid, i % 3 FROM generate_series(1, 20) AS i";
    let rows = scene.rows(query).await;
    scene.assert_published(&rows, SOON).await;
    assert!(scene.committed().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_may_come_and_go_in_the_middle_of_a_stream() {
    let scene = Scene::new().await;
    let _walpost = scene.run().await;
    // Of these, a volatile default and a new type write the whole table anew.
    let changes = [
        "ADD COLUMN region text",
        "ADD COLUMN note text DEFAULT md5(random()::text)",
        "DROP COLUMN headers",
        "ALTER COLUMN payload TYPE text",
        "DROP COLUMN region",
    ];
    let row = insert(10, 2);
    for change in changes {
        let sql = format!("BEGIN; {row}; ALTER TABLE public.outbox {change}; {row}; COMMIT");
        scene.postgres.execute(&sql).await;
        scene.postgres.execute(&row).await;
    }
    scene.assert_exact(SOON).await;
    assert_eq!(scene.records().await.len(), changes.len() * 30);
}

/// Copies `count` rows with keys from `keys` into the outbox, by way of a file.
pub fn copy(scene: &Scene, count: u32, keys: u32) -> String {
    let file = scene.postgres.data_dir().join("copied");
    let file = file.display();
    let columns = "id, aggregate_type, aggregate_id, event_type, payload";
    format!(
        "COPY (SELECT gen_random_uuid(), 'order', i % {keys}, 'copied', jsonb_build_object('i', i) \
                 FROM generate_series(1, {count}) AS i) TO '{file}'; \
         COPY public.outbox ({columns}) FROM '{file}'"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_larger_than_the_whole_budget_is_refused_in_words_and_not_offered_for_ever() {
    let scene = Scene::new().await;
    scene.postgres.execute(&insert(3, 5)).await;
    let large = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('order', '1', 'placed', to_jsonb(repeat('x', 5000000)))";
    scene.postgres.execute(large).await;
    let run = scene.command("run").args(["--in-flight-bytes", "64KiB"]);
    let walpost = run.args(["-X", "message.max.bytes=100000000"]).start();
    let status = walpost.wait(SOON).await.expect("it halts");
    assert_eq!(status.code(), Some(4), "{:?}", walpost.stderr());
    assert!(walpost.said("table public.outbox"), "{:?}", walpost.stderr());
    assert_eq!(scene.records().await.len(), 3, "what comes before it is delivered");
}
