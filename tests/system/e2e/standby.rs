//! Decoding on a standby: walpost reads from a slot there, and follows its promotion.

use walpost_bed::fixture::{AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, stop};
use walpost_bed::writer::{Writer, lsn};
use walpost_bed::{Kafka, Major, Postgres, Stop, eventually};

use super::state_topic::{newest_state, topic};

/// Nobody uses this on the primary: the slot is on the standby.
const SLOT: &str = "SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')";

/// The fixture's server is the primary, and walpost reads from the standby.
struct Pair {
    fixture: Fixture,
    standby: Postgres,
}

impl Pair {
    async fn new(major: Major) -> Self {
        let postgres = Postgres::builder(major).own_identity().start().await;
        let standby = postgres.start_standby(Postgres::builder(major), false).await;
        let bootstrap = Kafka::shared().await.bootstrap();
        let mut fixture = Fixture::over_server(postgres, &bootstrap, &[]).await;
        fixture.postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
        fixture.source = standby.url();
        let pair = Self { fixture, standby };
        pair.replayed().await;
        pair.create_slot().await;
        pair
    }

    /// Awaits that the standby has everything.
    async fn replayed(&self) {
        let end = self.fixture.postgres.wal_end().await;
        let query = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
        eventually(LONG_TIMEOUT, "the standby has everything", async || {
            self.standby.query_text(&query).await.as_deref() == Some("t")
        })
        .await;
    }

    /// Creating it waits for the primary's snapshot of running transactions.
    async fn create_slot(&self) {
        let client = self.standby.client().await;
        let created = tokio::spawn(async move { client.batch_execute(SLOT).await });
        eventually(LONG_TIMEOUT, "the slot is created", async || {
            self.fixture.postgres.execute("SELECT pg_log_standby_snapshot()").await;
            created.is_finished()
        })
        .await;
        created.await.expect("no panic").expect("a slot");
    }

    /// Awaits that the slot has confirmed everything that is committed on the primary.
    async fn confirmed(&self) {
        self.replayed().await;
        let end = "SELECT pg_last_wal_replay_lsn()";
        let end = self.standby.query_text(end).await.expect("an LSN");
        eventually(LONG_TIMEOUT, "the standby's slot confirms it", async || {
            let query =
                "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walpost'";
            let found = self.standby.query_text(query).await.expect("a position");
            lsn(&found) >= lsn(&end)
        })
        .await;
    }
}

async fn published_from_a_standby(major: Major) {
    let pair = Pair::new(major).await;
    let state_topic = topic(&pair.fixture).await;
    pair.fixture.adopt(&state_topic).await;
    let arguments = ["--delivery", "exactly-once", "--state-topic", &state_topic];
    let walpost = pair.fixture.run_with(&arguments).await;
    let writer = Writer::start(&pair.fixture.postgres, 200);
    writer.commits(100).await;
    walpost.kill9().await;
    writer.commits(50).await;
    let walpost = pair.fixture.run_with(&arguments).await;
    writer.commits(50).await;
    let mark = walpost.mark();
    pair.standby.restart(Stop::Fast).await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", LONG_TIMEOUT).await;
    writer.commits(50).await;
    let rolled_back = writer.stop().await;
    pair.confirmed().await;
    pair.fixture.judge_with(&rolled_back).await.assert_exact();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_is_published_from_a_standby_16() {
    published_from_a_standby(Major::V16).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_is_published_from_a_standby_17() {
    published_from_a_standby(Major::V17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_is_published_from_a_standby_18() {
    published_from_a_standby(Major::V18).await;
}

/// A standby does not know what the primary's sessions see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_until_visible_on_a_standby_is_rejected() {
    let pair = Pair::new(Major::V16).await;
    let run = pair.fixture.command("run").env("WALPOST_DELIVERY_WAIT_UNTIL_VISIBLE", "true");
    let (code, said) = ended(&run.start()).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("connect to the primary, or set delivery.wait_until_visible"), "{said}");
    // The reason: a transaction that runs on the primary is missing in the standby's snapshot.
    let client = pair.fixture.postgres.client().await;
    let own = "BEGIN; CREATE TABLE running (); SELECT pg_current_xact_id()";
    client.batch_execute(own).await.expect("a transaction");
    pair.fixture.postgres.execute("CREATE TABLE later ()").await;
    pair.fixture.postgres.execute("SELECT pg_log_standby_snapshot()").await;
    pair.replayed().await;
    let running = "SELECT count(*) FROM pg_snapshot_xip(pg_current_snapshot())";
    let seen = [&pair.fixture.postgres, &pair.standby];
    let seen = [seen[0].query_text(running).await, seen[1].query_text(running).await];
    assert_eq!(seen.map(|count| count.expect("a count")), ["1", "0"]);
}

/// The session outlives the promotion. Its position is one of the new timeline then: the next start
/// does not take it for one that the server lacks.
async fn promoted(major: Major, delivery: &'static str) {
    let pair = Pair::new(major).await;
    let state_topic = topic(&pair.fixture).await;
    pair.fixture.adopt(&state_topic).await;
    let arguments = ["--delivery", delivery, "--state-topic", &state_topic];
    let walpost = pair.fixture.run_with(&arguments).await;
    walpost.await_line(AGREES, SHORT_TIMEOUT).await;
    let writer = Writer::start(&pair.fixture.postgres, 200);
    writer.commits(100).await;
    let Pair { mut fixture, standby } = pair;
    fixture.postgres.kill9().await;
    // Rows whose COMMIT did not return may be on it.
    let rolled_back = writer.rolled_back();
    drop(writer);
    let mark = walpost.mark();
    standby.promote().await;
    fixture.postgres = standby;
    for _ in 0..5 {
        fixture.postgres.execute(&insert(20, 5)).await;
        fixture.confirmed(LONG_TIMEOUT).await;
    }
    walpost.await_line_after(mark, "streaming from PostgreSQL", LONG_TIMEOUT).await;
    fixture.postgres.execute(&insert(20, 5)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    eventually(LONG_TIMEOUT, "the position is of the new timeline", async || {
        let state = newest_state(&fixture, &state_topic).await;
        state.is_some_and(|state| state["timeline"] == 2)
    })
    .await;
    stop(walpost).await;
    fixture.postgres.execute(&insert(20, 5)).await;
    let until = [&arguments[..], &["--until", "current"]].concat();
    let (code, said) = ended(&fixture.command("run").args(until).start()).await;
    assert_eq!(code, Some(0), "{said}");
    let verdict = fixture.judge_with(&rolled_back).await;
    if delivery == "exactly-once" {
        verdict.assert_exact();
    } else {
        verdict.assert_ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promotion_of_the_standby_is_followed_at_least_once() {
    promoted(Major::V17, "at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promotion_of_the_standby_is_followed_exactly_once() {
    promoted(Major::V18, "exactly-once").await;
}
