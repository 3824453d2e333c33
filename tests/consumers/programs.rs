//! Each program acts once on each event.

use crate::program::Program;
use crate::shop::{BY, Shop};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumer_in_rust_acts_once_on_each_event() {
    let shop = Shop::open().await;
    for by in BY {
        Program::Rust.acts_once(&shop, "rust", by).await;
    }
}
