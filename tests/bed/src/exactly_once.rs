//! A fixture with exactly-once delivery.

use std::os::unix::process::ExitStatusExt as _;

use crate::eventually::eventually;
use crate::fixture::{AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use crate::walpost::{Walpost, WalpostBuilder};
use crate::writer::Writer;

/// What `abort` ends a process with.
const ABORTED: Option<i32> = Some(6);

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

    /// An instance that is frozen under load, so often, while another one takes over, repeats nothing
    /// once it is thawed.
    pub async fn frozen_instance_repeats_nothing(&self, rounds: usize) {
        let first = self.run().await;
        let writer = Writer::start(&self.fixture.postgres, 300);
        let second = self.command().start();
        second.await_line("waiting for it", SHORT_TIMEOUT).await;
        for _ in 0..rounds {
            writer.commits(40).await;
            first.pause();
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE application_name LIKE 'walpost%' AND pid IN \
                       (SELECT pid FROM pg_stat_replication UNION SELECT pid FROM pg_locks \
                        WHERE locktype = 'advisory')";
            self.fixture.postgres.execute(end).await;
            eventually(LONG_TIMEOUT, "the second one publishes", async || second.said(AGREES))
                .await;
            writer.commits(40).await;
            first.resume();
            writer.commits(40).await;
        }
        self.fixture.judge_after(writer).await.assert_exact();
        stop(first).await;
        stop(second).await;
    }
}

/// It dies at the crash point that is armed.
pub async fn assert_aborts(walpost: &Walpost) {
    let status = walpost.wait(LONG_TIMEOUT).await;
    let signal = status.and_then(|status| status.signal());
    assert_eq!(signal, ABORTED, "{:?}", walpost.stderr());
}
