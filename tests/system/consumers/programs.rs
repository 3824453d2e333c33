//! Each example consumer processes each event once.

use crate::fixture::{BY, OrdersFixture};
use crate::program::Program;
use crate::tools;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_consumer_processes_each_event_once() {
    acts_once_by_each(&Program::Rust, "rust").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Java's tools and fetches jars: make consumers"]
async fn java_consumer_processes_each_event_once() {
    acts_once_by_each(&tools::java(), "java").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Go and fetches modules: make consumers"]
async fn go_consumer_processes_each_event_once() {
    acts_once_by_each(&tools::go(), "go").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants pip and fetches packages: make consumers"]
async fn python_consumer_processes_each_event_once() {
    acts_once_by_each(&tools::python(), "python").await;
}

async fn acts_once_by_each(program: &Program, name: &str) {
    let orders = OrdersFixture::open().await;
    for by in BY {
        program.acts_once(&orders, name, by).await;
    }
}
