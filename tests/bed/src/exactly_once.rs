//! A fixture with exactly-once delivery.

use crate::fixture::{AGREES, Fixture, LONG_TIMEOUT};
use crate::walpost::{Walpost, WalpostBuilder};

/// An outbox whose position is in a state topic of its own.
pub struct ExactlyOnce {
    pub fixture: Fixture,
    pub state_topic: String,
}

impl ExactlyOnce {
    /// After `walpost adopt --apply`. The topic must not be one of the fixture's, which the oracle
    /// reads.
    pub async fn adopted(fixture: Fixture, state_topic: String) -> Self {
        fixture.adopt(&state_topic).await;
        Self { fixture, state_topic }
    }

    /// `walpost run`.
    pub fn command(&self) -> WalpostBuilder {
        let arguments = ["--delivery", "exactly-once", "--state-topic", &self.state_topic];
        self.fixture.command("run").args(arguments)
    }

    /// The same, once it has read its position.
    pub async fn run(&self) -> Walpost {
        let walpost = self.command().start();
        walpost.await_line(AGREES, LONG_TIMEOUT).await;
        walpost
    }
}
