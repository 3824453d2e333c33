//! What keeps a session, what ends it, and what walpost says then. No test here
//! needs a broker.

use std::time::{Duration, Instant};

use walpost_bed::{Major, Postgres, PostgresBuilder, eventually};

use walpost_bed::scene::{SOON, Scene};

/// Where no broker listens.
const NOWHERE: &str = "127.0.0.1:1";

async fn scene(postgres: PostgresBuilder) -> Scene {
    let scene = Scene::bare(postgres.start().await, NOWHERE);
    scene.init(&[]).await;
    scene
}

fn builder() -> PostgresBuilder {
    Postgres::builder(Major::V15)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_is_not_taken_for_a_silent_one() {
    let scene = scene(builder().wal_sender_timeout(Duration::from_secs(1))).await;
    let walpost = scene.run().await;
    let since = Instant::now();
    let pid = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let first = scene.postgres.query_text(pid).await;
    // Silence is noticed after ten seconds at the least.
    eventually(SOON, "the idle time has passed", async || since.elapsed().as_secs() > 11).await;
    assert!(!walpost.said("lost the connection to PostgreSQL"), "{:?}", walpost.stderr());
    assert_eq!(scene.postgres.query_text(pid).await, first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_out_of_a_halt_that_the_text_names_is_one() {
    let scene = scene(builder()).await;
    let insert = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) VALUES";
    scene.postgres.execute(&format!("{insert} ('no topic', '1', 'e')")).await;
    scene.postgres.execute(&format!("{insert} ('one', '2', 'e')")).await;
    let walpost = scene.command("run").start();
    let status = walpost.wait(SOON).await.expect("it halts");
    assert_eq!(status.code(), Some(4), "{:?}", walpost.stderr());
    let said = walpost.stderr().join("\n");
    assert!(said.contains("table public.outbox"), "{said}");
    let (_, advance) = said.split_once("then SELECT ").expect("a statement");
    let (arguments, _) = advance.split_once(')').expect("its end");
    scene.postgres.query_rows(&format!("SELECT {arguments})")).await;
    let tail = scene.command("tail").arg("--from-slot").start();
    assert_eq!(tail.wait(SOON).await.and_then(|status| status.code()), Some(0));
    let left = tail.stdout();
    assert!(left.len() == 1 && left[0].contains("\"key\":\"2\""), "{left:?}");
}
