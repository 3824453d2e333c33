//! A server that takes no event, or all but one, by the user's rights to routing keys: it closes the
//! channel, and does not say at which message.

use super::fixture::RabbitFixture;
use crate::blame::{Refusing, Way, Whom, costs_the_refused_event_alone};

impl Refusing for RabbitFixture {
    type Answer = ();

    const BAD_EVENT: (&str, &str) = ("order", "elsewhere");
    /// Each costs a replay.
    const FAILURES: u64 = 4;

    async fn refuses(&mut self, (): (), whom: Whom) {
        let keys = if whom == Whom::All { "^$" } else { "^[0-9]$" };
        let rights = ["set_topic_permissions", "-p", "/", "guest", &self.exchange, keys, ".*"];
        self.rabbit.control(&rights).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_cost_the_refused_event_alone() {
    let mut fixture = RabbitFixture::routed("poison.missing_topic = 'skip'\n").await;
    fixture.queue_keys().await;
    fixture.rabbit.bind(&fixture.queue(0), &fixture.exchange, RabbitFixture::BAD_EVENT.1).await;
    let way = Way { name: "no right", answer: (), cause: "missing_topic" };
    costs_the_refused_event_alone(&mut fixture, &[way]).await;
}
