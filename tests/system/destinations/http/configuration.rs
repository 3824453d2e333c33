//! What `check` finds.

use super::fixture::HttpFixture;
use crate::promise::{Destination as _, finding};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_sends_nothing() {
    let fixture = HttpFixture::new().await;
    let found = fixture.codes(&[]).await;
    assert_eq!(found, [finding("warning", "http_unsigned"), finding("ok", "http_server")]);
    assert!(fixture.receiver.requests().is_empty());
}
