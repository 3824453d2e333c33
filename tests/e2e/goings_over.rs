//! From batches to the stream and back: where it must not, where it has to, and what is in
//! the way of it.

use std::time::Duration;

use walpost_bed::{Major, eventually};

use walpost_bed::scene::{LATER, SOON, Scene, assert_in_log_order, insert, stop};

use crate::catch_up::{IN_BATCHES, STREAMING, catching_up, one_by_one, transactions};

/// How many times it has said so.
fn times(walpost: &walpost_bed::Walpost, text: &str) -> usize {
    walpost.stderr().iter().filter(|line| line.contains(text)).count()
}

/// Rows of another table: nothing comes for seconds before the server has read all of them.
async fn others(scene: &Scene) {
    let rows = "CREATE TABLE public.other (i int);
                INSERT INTO public.other SELECT generate_series(1, 4000000)";
    scene.postgres.execute(rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_standbys_keep_is_streamed_by_one_session() {
    let scene = Scene::on(Major::V17).await;
    let kept = "SELECT pg_drop_replication_slot('walpost');
                SELECT pg_create_logical_replication_slot('walpost', 'pgoutput', false, false, true)";
    scene.postgres.execute(kept).await;
    others(&scene).await;
    one_by_one(&scene, 1000).await;
    let walpost = catching_up(&scene).start();
    scene.assert_exact(SOON * 2).await;
    assert_eq!(times(&walpost, STREAMING), 1, "{:?}", walpost.stderr());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_change_of_the_publication_is_open_one_session_streams() {
    let scene = Scene::new().await;
    let changing = scene.postgres.client().await;
    let change = "BEGIN; ALTER PUBLICATION walpost SET (publish = 'insert, update')";
    changing.batch_execute(change).await.expect("changed");
    others(&scene).await;
    one_by_one(&scene, 1000).await;
    let walpost = catching_up(&scene).start();
    eventually(SOON * 2, "all come", async || scene.records().await.len() >= 1000).await;
    assert_eq!(times(&walpost, STREAMING), 1, "{:?}", walpost.stderr());
    changing.batch_execute("ROLLBACK").await.expect("as it was");
    scene.assert_exact(SOON).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_have_no_more_connections_streams() {
    for limit in [2, 3] {
        let mut scene = Scene::new().await;
        let role = format!("CREATE ROLE few LOGIN REPLICATION CONNECTION LIMIT {limit}");
        scene.postgres.execute(&role).await;
        scene.source = scene.postgres.url_for("few");
        one_by_one(&scene, 1000).await;
        let walpost = catching_up(&scene).start();
        walpost.await_line(STREAMING, SOON).await;
        scene.assert_exact(SOON).await;
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_go_on_where_kafka_is_slow_and_takes_records() {
    let scene = Scene::new().await;
    transactions(&scene, 3000, 20).await;
    let walpost = catching_up(&scene).args(["--in-flight-bytes", "8KiB"]).start();
    walpost.await_line(IN_BATCHES, SOON).await;
    let begun = std::time::Instant::now();
    walpost.await_line(STREAMING, LATER).await;
    let (took, count) = (begun.elapsed(), scene.records().await.len());
    assert!(count > 55_000, "it streams after {count}, {took:?}");
    assert!(took > Duration::from_secs(15), "it was no slow one: {took:?}");
    scene.assert_exact(LATER).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_somebody_ends_each_batch_it_is_streamed() {
    let scene = Scene::new().await;
    scene.postgres.execute(&insert(400_000, 100)).await;
    let client = scene.postgres.client().await;
    let ends = tokio::spawn(async move {
        let long = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE query LIKE 'COPY %' AND state = 'active'
                       AND query_start < now() - interval '1 second'";
        loop {
            client.simple_query(long).await.expect("ended");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let walpost = catching_up(&scene).args(["--in-flight-bytes", "64KiB"]).start();
    walpost.await_line(IN_BATCHES, SOON).await;
    walpost.await_line("lost PostgreSQL", SOON).await;
    scene.confirmed(LATER).await;
    ends.abort();
    scene.judge().await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_for_the_servers_temporary_files_is_streamed() {
    let scene = Scene::new().await;
    one_by_one(&scene, 1000).await;
    scene.postgres.execute(&insert(300_000, 100)).await;
    one_by_one(&scene, 1000).await;
    for statement in ["ALTER SYSTEM SET temp_file_limit = '1MB'", "SELECT pg_reload_conf()"] {
        scene.postgres.execute(statement).await;
    }
    let walpost = catching_up(&scene).start();
    walpost.await_line(IN_BATCHES, SOON).await;
    let said = walpost.await_line("does not hand out the backlog in batches", LATER).await;
    assert!(said.contains("temp_file_limit"), "{said}");
    walpost.await_line(STREAMING, SOON).await;
    scene.confirmed(LATER).await;
    for statement in ["ALTER SYSTEM RESET temp_file_limit", "SELECT pg_reload_conf()"] {
        scene.postgres.execute(statement).await;
    }
    eventually(SOON, "it is read", async || {
        scene.postgres.query_text("SHOW temp_file_limit").await == Some("-1".into())
    })
    .await;
    scene.judge().await.assert_exact();
    assert_in_log_order(&scene.records().await);
    stop(walpost).await;
}
