//! What PostgreSQL stores and cannot send.

use walpost_bed::oracle::{Row, judge};
use walpost_bed::scene::{LATER, Scene};
use walpost_bed::{Kafka, Major, Postgres, Walpost};

fn row(id: &str, payload: &str) -> String {
    format!("INSERT INTO public.outbox VALUES ('{id}', 'order', 'k', 'e', {payload})")
}

/// A database that takes any bytes for text, with an outbox of plain text.
async fn without_encoding(major: Major, bootstrap: &str) -> Scene {
    let postgres = Postgres::builder(major).encoding("SQL_ASCII").start().await;
    let table = "CREATE TABLE public.outbox (id text PRIMARY KEY, aggregate_type text,
                   aggregate_id text, event_type text, payload text)";
    Scene::bare(postgres, bootstrap).over(table).await
}

/// How it ends, which takes its time.
async fn ended_at_last(walpost: &Walpost) -> (Option<i32>, String) {
    let status = walpost.wait(LATER).await.expect("it ends");
    (status.code(), walpost.stderr().join("\n"))
}

/// Goes on from there; these are published then, and nothing else.
async fn goes_on_with(scene: &Scene, ids: &[&str]) {
    let (code, text) =
        ended_at_last(&scene.command("run").args(["--until", "current"]).start()).await;
    assert_eq!(code, Some(0), "{text}");
    let rows: Vec<Row> = ids.iter().map(|id| Row::new(*id, "k")).collect();
    judge(&rows, std::iter::empty(), &scene.records().await).assert_exact();
}

/// Any role that may connect can emit such a message, also where nobody reads messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_nobody_that_has_no_form_in_utf8_stops_nothing() {
    let scene = without_encoding(Major::V15, &Kafka::shared().await.bootstrap()).await;
    for transactional in [true, false] {
        let emit = format!(r"SELECT pg_logical_emit_message({transactional}, E'\xff', 'x')");
        scene.postgres.execute(&emit).await;
    }
    scene.postgres.execute(&row("good", "'p'")).await;
    goes_on_with(&scene, &["good"]).await;
}

/// Any role that may connect decides how large it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_nobody_takes_no_memory() {
    let scene = Scene::new().await;
    for feed in ["stream", "auto"] {
        for transactional in [true, false] {
            let emit = format!(
                "SELECT pg_logical_emit_message({transactional}, 'nobody', repeat('x', 200000000))"
            );
            scene.postgres.execute(&emit).await;
        }
        scene.postgres.execute(&walpost_bed::scene::insert(1, 1)).await;
        let walpost = scene.command("run").args(["--catch-up", feed]);
        let walpost = walpost.env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start();
        scene.confirmed(LATER).await;
        let peak = walpost.peak_rss_bytes().expect("it runs");
        assert!(peak < 120 << 20, "{feed}: {} MiB", peak >> 20);
        walpost_bed::scene::stop(walpost).await;
    }
}
