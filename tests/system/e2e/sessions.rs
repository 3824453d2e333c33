//! What keeps a replication session, what ends it, and what walpost logs then. No test here needs a
//! broker.

use std::time::{Duration, Instant};

use walpost_bed::{Major, Postgres, PostgresBuilder, eventually};

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT};

/// Where no broker listens.
const NOWHERE: &str = "127.0.0.1:1";

async fn fixture(postgres: PostgresBuilder) -> Fixture {
    let fixture = Fixture::bare(postgres.start().await, NOWHERE);
    fixture.init(&[]).await;
    fixture
}

fn builder() -> PostgresBuilder {
    Postgres::builder(Major::V15)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_server_is_not_treated_as_dead() {
    let fixture = fixture(builder().wal_sender_timeout(Duration::from_secs(1))).await;
    let walpost = fixture.run().await;
    let since = Instant::now();
    let pid = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let first = fixture.postgres.query_text(pid).await;
    // Silence is noticed after ten seconds at the least.
    eventually(SHORT_TIMEOUT, "the idle time has passed", async || since.elapsed().as_secs() > 11)
        .await;
    assert!(!walpost.said("lost the connection to PostgreSQL"), "{:?}", walpost.stderr());
    assert_eq!(fixture.postgres.query_text(pid).await, first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn printed_fix_for_a_halt_works() {
    let fixture = fixture(builder()).await;
    let insert = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) VALUES";
    fixture.postgres.execute(&format!("{insert} ('no topic', '1', 'e')")).await;
    fixture.postgres.execute(&format!("{insert} ('one', '2', 'e')")).await;
    let walpost = fixture.command("run").start();
    let status = walpost.wait(SHORT_TIMEOUT).await.expect("it halts");
    assert_eq!(status.code(), Some(4), "{:?}", walpost.stderr());
    let said = walpost.stderr().join("\n");
    assert!(said.contains("table public.outbox"), "{said}");
    let (_, advance) = said.split_once("then SELECT ").expect("a statement");
    let (arguments, _) = advance.split_once(')').expect("its end");
    fixture.postgres.query_rows(&format!("SELECT {arguments})")).await;
    let tail = fixture.command("tail").arg("--from-slot").start();
    assert_eq!(tail.wait(SHORT_TIMEOUT).await.and_then(|status| status.code()), Some(0));
    let left = tail.stdout();
    assert!(left.len() == 1 && left[0].contains("\"key\":\"2\""), "{left:?}");
}
