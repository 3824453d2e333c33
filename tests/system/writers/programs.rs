//! Each example writer publishes exactly the events of the changes that it commits.
//!
//! The second number of each is what `docs/writing-events.md` says: round trips for placing and
//! paying an order.

use crate::program::Program;
use crate::tools;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_writer_publishes_the_events_of_committed_changes() {
    writes_events(&Program::Rust, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Java's tools and fetches jars: make writers"]
async fn java_jdbc_writer_publishes_the_events_of_committed_changes() {
    writes_events(&tools::java_jdbc(), 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Java's tools and fetches jars: make writers"]
async fn java_spring_writer_publishes_the_events_of_committed_changes() {
    // It opens a session for each transaction.
    writes_events(&tools::java_spring(), 11).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make writers"]
async fn go_pgx_writer_publishes_the_events_of_committed_changes() {
    writes_events(&tools::go_pgx(), 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants pip and fetches packages: make writers"]
async fn python_psycopg_writer_publishes_the_events_of_committed_changes() {
    writes_events(&tools::python("writer_psycopg.py", "postgres"), 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants pip and fetches packages: make writers"]
async fn python_sqlalchemy_writer_publishes_the_events_of_committed_changes() {
    writes_events(&tools::python("writer_sqlalchemy.py", "postgresql+psycopg"), 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants npm and fetches packages: make writers"]
async fn typescript_writer_publishes_the_events_of_committed_changes() {
    writes_events(&tools::typescript(), 5).await;
}

async fn writes_events(program: &Program, round_trips: u64) {
    program.writes_the_events_of_its_changes().await;
    assert_eq!(program.round_trips_of_an_order().await, round_trips, "round trips of an order");
}
