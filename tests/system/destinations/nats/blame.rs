//! A server that takes no event, or all but one: by the user's rights, and by the stream's subjects.

use serde_json::json;

use super::fixture::{NatsFixture, STREAM, SUBJECTS, limited_to, users};
use crate::blame::{Refusing, Way, Whom, costs_the_refused_event_alone};
use crate::promise::Promise as _;

/// What keeps the event out.
#[derive(Debug, Clone, Copy)]
pub enum Missing {
    Right,
    Subject,
}

impl Refusing for NatsFixture {
    type Answer = Missing;

    const BAD_EVENT: (&str, &str) = ("bad", "1");
    /// Each costs a replay.
    const FAILURES: u64 = 3;

    async fn refuses(&mut self, missing: Missing, whom: Whom) {
        let taken = if whom == Whom::All { "outbox.none" } else { "outbox.event.order" };
        let (rights, subjects) = match missing {
            Missing::Right => (taken, SUBJECTS),
            Missing::Subject => ("outbox.>", &[taken][..]),
        };
        // Before the reload, during which the server refuses connections.
        self.nats.edit_stream(STREAM, subjects, &json!({})).await;
        self.nats.reload(&users(rights));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_and_subjects_cost_the_refused_event_alone() {
    let fixture = limited_to("outbox.>").await;
    let mut fixture = fixture.configured("[poison]\nmissing_topic = 'skip'\nrefused = 'skip'\n");
    fixture.adopt().await;
    let way = |name, answer| Way { name, answer, cause: "missing_topic" };
    let ways = [way("no right", Missing::Right), way("no subject", Missing::Subject)];
    costs_the_refused_event_alone(&mut fixture, &ways).await;
}
