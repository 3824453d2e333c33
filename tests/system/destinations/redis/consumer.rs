//! The consumer of docs/redis.md acts once on each event, though it is killed in between and runs twice.

use super::fixture::{RedisFixture, STREAM};
use crate::consumers::act_once;

#[path = "../../../../examples/consumers/redis/main.rs"]
#[allow(dead_code, reason = "the program's own start")]
mod program;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_acts_once_on_each_event() {
    let fixture = RedisFixture::new().await;
    let one = async || {
        program::consume(&fixture.url, STREAM, "outbox.event.order", &fixture.inner.source).await
    };
    // A second one at the same time, as when the first one's last commit comes late.
    let both = async || {
        tokio::select! {
            ended = one() => ended,
            ended = one() => ended,
        }
    };
    act_once(&fixture, 700, || fixture.command("run"), both).await;
}
