//! The programs under comparison, and how a bench starts and stops them.

use std::time::{Duration, Instant};

use walpost_bed::debezium::Connector;
use walpost_bed::{Debezium, Process, Walpost, eventually};

use crate::fixture::{Fixture, TIMEOUT};
use crate::topics::TopicNames;

/// The programs that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Walpost,
    /// walpost that always streams.
    WalpostStreaming,
    /// walpost that keeps its position in a state topic.
    WalpostWithState,
    /// walpost in exactly-once mode.
    WalpostExactlyOnce,
    /// walpost that waits until other sessions see a transaction.
    WalpostVisible,
    /// The same, and it always streams.
    WalpostVisibleStreaming,
    /// Debezium's connector with the outbox event router, on a worker of Kafka Connect, with large
    /// batches and short waits, as its manual and Kafka's advise where it is to be fast.
    Debezium,
}

/// A running contender.
pub(crate) enum Running {
    Walpost(Box<Walpost>),
    Debezium(Box<Debezium>),
}

impl Contender {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Walpost => "walpost",
            Self::WalpostStreaming => "walpost --catch-up stream",
            Self::WalpostWithState => "walpost, state topic",
            Self::WalpostExactlyOnce => "walpost, exactly once",
            Self::WalpostVisible => "walpost, until visible",
            Self::WalpostVisibleStreaming => "walpost, until visible, --catch-up stream",
            Self::Debezium => "Debezium",
        }
    }

    /// Its name in slots and topics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Walpost => "walpost",
            Self::WalpostStreaming => "streaming",
            Self::WalpostWithState => "state",
            Self::WalpostExactlyOnce => "once",
            Self::WalpostVisible => "visible",
            Self::WalpostVisibleStreaming => "visible_streaming",
            Self::Debezium => "debezium",
        }
    }

    /// Does what an operator does before the first start with that slot.
    pub(crate) async fn prepare(self, fixture: &Fixture, slot: &str, topics: &TopicNames) {
        match self {
            Self::WalpostWithState | Self::WalpostExactlyOnce => {
                fixture.adopt(slot, &state_topic(topics)).await;
            }
            Self::Walpost
            | Self::WalpostStreaming
            | Self::WalpostVisible
            | Self::WalpostVisibleStreaming
            | Self::Debezium => {}
        }
    }

    /// Reads that slot of that publication into those topics of the brokers at that address. It may
    /// not have begun when this returns.
    pub(crate) async fn start(
        self,
        fixture: &Fixture,
        (slot, publication): (&str, &str),
        (topics, bootstrap): (&TopicNames, &str),
    ) -> Running {
        let state_topic = state_topic(topics);
        let walpost = |arguments: &[&str]| {
            let run = fixture.run(&topics.template(), bootstrap);
            let waits = matches!(self, Self::WalpostVisible | Self::WalpostVisibleStreaming);
            let run = run.args(["--slot", slot, "--publication", publication]);
            let run = run.env("WALPOST_DELIVERY_WAIT_UNTIL_VISIBLE", waits.to_string());
            Running::Walpost(Box::new(run.args(arguments).start()))
        };
        let with_state = ["--state-topic", state_topic.as_str()];
        match self {
            Self::Walpost | Self::WalpostVisible => walpost(&[]),
            Self::WalpostStreaming | Self::WalpostVisibleStreaming => {
                walpost(&["--catch-up", "stream"])
            }
            Self::WalpostWithState => walpost(&with_state),
            Self::WalpostExactlyOnce => {
                walpost(&[&with_state[..], &["--delivery", "exactly-once"]].concat())
            }
            Self::Debezium => debezium(fixture, (slot, publication), (topics, bootstrap)).await,
        }
    }
}

fn state_topic(topics: &TopicNames) -> String {
    format!("{}-state", topics.base())
}

async fn debezium(
    fixture: &Fixture,
    (slot, publication): (&str, &str),
    (topics, bootstrap): (&TopicNames, &str),
) -> Running {
    let own = fixture.servers.own.as_ref().expect("servers of the bench's own");
    let connector = Connector::new(&format!("bench-{}", topics.base()), slot, publication)
        .setting("table.include.list", "public.outbox")
        .setting("max.batch.size", "20480")
        .setting("max.queue.size", "81920")
        .setting("poll.interval.ms", "1")
        .setting("producer.override.linger.ms", "1")
        .setting("producer.override.batch.size", "262144")
        .setting("producer.override.enable.idempotence", "true")
        // Only a heartbeat lets it confirm what it sent last.
        .setting("heartbeat.interval.ms", "1000")
        .router("table.field.event.key", "aggregate_id")
        .router("table.field.event.type", "event_type")
        .router("route.by.field", "aggregate_type")
        .router("route.topic.replacement", &topics.replacement())
        .router("table.expand.json.payload", "false");
    let debezium = Debezium::with(&own.postgres, bootstrap, connector).await;
    Running::Debezium(Box::new(debezium))
}

impl Running {
    pub(crate) fn process(&self) -> Process {
        let pid = match self {
            Self::Walpost(walpost) => walpost.pid(),
            Self::Debezium(debezium) => debezium.pid(),
        };
        Process(pid.expect("it runs"))
    }

    /// Panics when it has ended.
    pub(crate) fn assert_runs(&self) {
        match self {
            Self::Walpost(walpost) => walpost.assert_runs(),
            Self::Debezium(debezium) => assert!(debezium.pid().is_some(), "Debezium ended"),
        }
    }

    /// Awaits that it streams.
    pub(crate) async fn streams(&self, fixture: &Fixture, slot: &str) {
        if let Self::Walpost(walpost) = self {
            walpost.await_line("streaming from PostgreSQL", TIMEOUT).await;
        }
        fixture.await_active(slot, true).await;
    }

    /// Ends it in order, and awaits that its slot is free.
    pub(crate) async fn stop(self, fixture: &Fixture, slot: &str) {
        match &self {
            Self::Walpost(walpost) => {
                walpost.terminate();
                let status = walpost.wait(TIMEOUT).await.expect("walpost stops");
                assert!(status.success(), "{:?}", walpost.stderr());
            }
            Self::Debezium(debezium) => {
                assert!(debezium.stop(Duration::from_secs(60)).await, "walpost stops");
            }
        }
        fixture.await_active(slot, false).await;
    }
}

/// Seconds until `done`, looked at each few milliseconds.
pub(crate) async fn seconds_until(begun: Instant, what: &str, done: impl Fn() -> bool) -> f64 {
    eventually(TIMEOUT, what, async || done()).await;
    begun.elapsed().as_secs_f64()
}
