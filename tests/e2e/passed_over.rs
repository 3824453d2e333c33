//! What is no event: updates, deletes, truncates, and other tables' traffic. It
//! is counted or not even noticed, and never keeps the slot from moving on.

use walpost_bed::scene::{LATER, SOON, Scene, insert, stop};

const EVERYTHING: &str =
    "ALTER PUBLICATION walpost SET (publish = 'insert, update, delete, truncate')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_and_deletes_of_outbox_rows_are_counted_and_not_published() {
    let scene = Scene::new().await;
    scene.postgres.execute(EVERYTHING).await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 2)).await;
    let rows = scene.committed().await;
    let update = "UPDATE public.outbox SET event_type = 'changed' WHERE n";
    // One of them in place, one with a new key, and the rest beside each other.
    scene.postgres.execute(&format!("{update} <= 2; {update} = 3")).await;
    scene.postgres.execute("UPDATE public.outbox SET id = gen_random_uuid() WHERE n = 4").await;
    scene.postgres.execute("DELETE FROM public.outbox WHERE n > 7").await;
    let records = scene.assert_published(&rows, SOON).await;
    assert!(records.iter().all(|record| record.header("event_type") == Some("placed")));
    let last = stop(walpost).await;
    assert_eq!((&last["ignored_updates"], &last["ignored_deletes"]), (&4.into(), &3.into()));
    assert_eq!(last["delivered"], 10, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_outbox_loses_no_record_and_goes_on() {
    let scene = Scene::new().await;
    scene.postgres.execute(EVERYTHING).await;
    scene.postgres.execute("CREATE TABLE public.bystander (id int)").await;
    scene.postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.bystander").await;
    let walpost = scene.run().await;
    let rows = |from: u32, to: u32| {
        format!(
            "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type)
               SELECT md5(i::text)::uuid, 'order', 'k', 'placed' FROM generate_series({from}, {to}) AS i"
        )
    };
    // Rows before it, and on both sides of it in the transaction that truncates.
    let truncate = "TRUNCATE public.outbox, public.bystander";
    let sql = format!(
        "{}; BEGIN; {}; {truncate}; {}; COMMIT; TRUNCATE public.bystander",
        rows(1, 5),
        rows(6, 10),
        rows(11, 13)
    );
    scene.postgres.execute(&sql).await;
    let rows = scene.rows("SELECT md5(i::text)::uuid, 'k' FROM generate_series(1, 13) AS i").await;
    scene.assert_published(&rows, SOON).await;
    assert_eq!(scene.committed().await.len(), 3);
    let last = stop(walpost).await;
    assert_eq!(last["ignored_truncates"], 1, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_of_other_tables_alone_moves_the_slot_to_the_end() {
    let scene = Scene::new().await;
    scene.postgres.execute("CREATE TABLE public.other (id int, t text)").await;
    let walpost = scene.run().await;
    let client = scene.postgres.client().await;
    for turn in 0..50 {
        let sql =
            "INSERT INTO public.other SELECT i, repeat('x', 500) FROM generate_series(1, 100) AS i";
        client.batch_execute(sql).await.expect("rows");
        client
            .batch_execute(&format!("DELETE FROM public.other WHERE id = {turn}"))
            .await
            .expect("fewer");
    }
    scene.confirmed(SOON).await;
    assert!(scene.records().await.is_empty());
    let last = stop(walpost).await;
    assert_eq!(last["delivered"], 0, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_of_all_tables_shows_the_outbox_among_heavy_traffic() {
    let scene = Scene::empty()
        .await
        .over(
            "CREATE TABLE public.other (id int, t text);
             ALTER TABLE public.other REPLICA IDENTITY FULL;
             CREATE SCHEMA aside;
             CREATE TABLE aside.outbox (id int, aggregate_type text, aggregate_id text);
             CREATE PUBLICATION walpost FOR ALL TABLES",
        )
        .await;
    scene.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
    let walpost = scene.run().await;
    let heavy = "INSERT INTO public.other
           SELECT i, repeat('x', 300) FROM generate_series(1, 50000) AS i;
         INSERT INTO aside.outbox SELECT i, 'order', i FROM generate_series(1, 100) AS i";
    let rows = insert(20, 3);
    scene.postgres.execute(&format!("{heavy}; {rows}; {heavy}")).await;
    scene.postgres.execute(heavy).await;
    scene.postgres.execute(&rows).await;
    scene.postgres.execute("UPDATE public.other SET id = -id WHERE id < 1000").await;
    scene.postgres.execute(heavy).await;
    scene.assert_exact(LATER).await;
    let last = stop(walpost).await;
    assert_eq!((&last["delivered"], &last["ignored_updates"]), (&40.into(), &0.into()), "{last}");
}
