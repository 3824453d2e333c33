//! Failover to a real standby: its slot synchronized, stale or missing, with everything that was
//! published and without.

use tokio_postgres::error::SqlState;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, proxied};
use walpost_bed::oracle::Verdict;
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Proxy, STANDBY_SLOT, Walpost, eventually};

use super::endpoints::Answering;
use super::state_topic::{newest_state, topic};
use super::visibility;

const PROMOTED: &str = "the server was promoted";

/// A primary behind a proxy, and its standby.
pub(crate) struct Pair {
    pub(crate) fixture: Fixture,
    pub(crate) proxy: Proxy,
    pub(crate) standby: Postgres,
}

impl Pair {
    /// The slot is a failover slot. `sync_slots`: the standby synchronizes it by itself. `waits`: the
    /// slot waits for the standby (`synchronized_standby_slots`).
    pub(crate) async fn new(major: Major, sync_slots: bool, waits: bool) -> Self {
        let postgres = Postgres::builder(major).own_identity().start().await;
        let standby = postgres.start_standby(Postgres::builder(major), sync_slots).await;
        let bootstrap = Kafka::shared().await.bootstrap();
        let mut fixture = Fixture::over_server(postgres, &bootstrap, &["--failover"]).await;
        if waits {
            let set = format!("ALTER SYSTEM SET synchronized_standby_slots = '{STANDBY_SLOT}'");
            fixture.postgres.execute(&set).await;
            fixture.postgres.execute("SELECT pg_reload_conf()").await;
        }
        let proxy = Proxy::to(fixture.postgres.port()).await;
        fixture.source = proxied(&proxy);
        Self { fixture, proxy, standby }
    }

    /// The standby's copy of the slot.
    async fn copy(&self) -> Option<String> {
        let query = "SELECT confirmed_flush_lsn FROM pg_replication_slots
                      WHERE slot_name = 'walpost' AND synced AND NOT temporary";
        self.standby.query_text(query).await
    }

    /// Synchronizes the slot once, or awaits that the standby has done so.
    async fn synchronize(&self, by_itself: bool) {
        eventually(LONG_TIMEOUT, "the slot is synchronized", async || {
            if !by_itself {
                // It is an error where the standby has not received what the slot has confirmed.
                let synchronize = "SELECT pg_sync_replication_slots()";
                if let Err(error) = self.standby.client().await.batch_execute(synchronize).await {
                    let is_behind = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
                    assert_eq!(error.code(), Some(&is_behind), "{error:?}");
                    return false;
                }
            }
            // A copy needs the primary's snapshot of running transactions.
            self.fixture.postgres.execute("SELECT pg_log_standby_snapshot()").await;
            self.copy().await.is_some()
        })
        .await;
    }

    /// The standby receives nothing more.
    async fn cut_off(&self) {
        self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''").await;
        self.standby.execute("SELECT pg_reload_conf()").await;
        eventually(SHORT_TIMEOUT, "the standby is alone", async || {
            let follows = "SELECT count(*) FROM pg_stat_replication
                            WHERE application_name = 'standby'";
            self.fixture.postgres.query_text(follows).await.as_deref() == Some("0")
        })
        .await;
    }

    /// The primary is killed, and the standby takes its place.
    pub(crate) async fn fail_over(self) -> (Fixture, Proxy) {
        self.fail_over_to("SELECT 1").await
    }

    /// The same; the promoted server has executed that before walpost meets it.
    async fn fail_over_to(self, sql: &str) -> (Fixture, Proxy) {
        let Self { mut fixture, proxy, standby } = self;
        proxy.refuse();
        proxy.cut();
        fixture.postgres.kill9().await;
        standby.promote().await;
        standby.execute(sql).await;
        fixture.postgres = standby;
        proxy.point_at(fixture.postgres.port());
        proxy.restore();
        (fixture, proxy)
    }
}

async fn rows(fixture: &Fixture, count: u32) {
    fixture.postgres.execute(&insert(count, 3)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
}

/// walpost continues by itself, and has published all rows of the promoted server.
async fn continues(walpost: &Walpost, mark: (usize, usize), fixture: &Fixture) -> Verdict {
    walpost.await_line_after(mark, PROMOTED, LONG_TIMEOUT).await;
    let writer = Writer::start(&fixture.postgres, 100);
    writer.commits(100).await;
    let verdict = fixture.judge_after(writer).await;
    assert!(walpost.pid().is_some());
    verdict
}

async fn under_load(major: Major) {
    let pair = Pair::new(major, true, true).await;
    let walpost = pair.fixture.run().await;
    let writer = Writer::start(&pair.fixture.postgres, 100);
    pair.synchronize(true).await;
    writer.commits(200).await;
    let mark = walpost.mark();
    let (fixture, _proxy) = pair.fail_over().await;
    // Rows whose COMMIT did not return may be on either server.
    drop(writer);
    continues(&walpost, mark, &fixture).await.assert_ok();
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_under_load_with_a_synchronized_slot_is_followed_17() {
    under_load(Major::V17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_under_load_with_a_synchronized_slot_is_followed_18() {
    under_load(Major::V18).await;
}

async fn stale(major: Major) {
    let pair = Pair::new(major, false, true).await;
    let walpost = pair.fixture.run().await;
    rows(&pair.fixture, 20).await;
    pair.synchronize(false).await;
    let copy = pair.copy().await;
    rows(&pair.fixture, 20).await;
    let copy = copy.expect("a position");
    let behind = format!(
        "SELECT confirmed_flush_lsn > '{copy}' FROM pg_replication_slots WHERE slot_name = 'walpost'"
    );
    assert_eq!(pair.fixture.postgres.query_text(&behind).await.as_deref(), Some("t"));
    let mark = walpost.mark();
    let (fixture, _proxy) = pair.fail_over().await;
    continues(&walpost, mark, &fixture).await.assert_exact();
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_whose_copy_is_behind_repeats_nothing_to_a_running_walpost_17() {
    stale(Major::V17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_whose_copy_is_behind_repeats_nothing_to_a_running_walpost_18() {
    stale(Major::V18).await;
}

/// What the promoted server lacks is named: a slot, or commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_without_the_slot_or_with_lost_commits_ends_the_run() {
    for major in [Major::V17, Major::V18] {
        let pair = Pair::new(major, false, true).await;
        let walpost = pair.fixture.run().await;
        rows(&pair.fixture, 20).await;
        let _promoted = pair.fail_over().await;
        let (status, said) = ended(&walpost).await;
        assert_eq!(status, Some(3), "{said}");
        assert!(said.contains("replication slot") && said.contains("does not exist"), "{said}");

        let pair = Pair::new(major, false, false).await;
        let walpost = pair.fixture.run().await;
        rows(&pair.fixture, 20).await;
        pair.synchronize(false).await;
        pair.cut_off().await;
        rows(&pair.fixture, 20).await;
        let before = pair.fixture.records().await.len();
        // Its WAL grows past what was published.
        let others = format!(
            "{}; CREATE TABLE other AS SELECT generate_series(1, 100000) AS i",
            insert(7, 3)
        );
        let (fixture, _proxy) = pair.fail_over_to(&others).await;
        let (status, said) = ended(&walpost).await;
        assert_eq!(status, Some(3), "{said}");
        assert!(said.contains("the server was promoted from timeline 1 to 2"), "{said}");
        assert_eq!(fixture.records().await.len(), before, "nothing is published from it");
    }
}

/// With `delivery.wait_until_visible`: the commit waits for the standby that is promoted instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_the_promoted_server_lacks_is_not_published() {
    let pair = Pair::new(Major::V17, false, false).await;
    pair.fixture.postgres.wait_for_standby().await;
    let run = pair.fixture.command("run").env(visibility::WAITS, "true");
    let answering = Answering::over(run).await;
    rows(&pair.fixture, 20).await;
    pair.synchronize(false).await;
    pair.cut_off().await;
    let client = pair.fixture.postgres.client().await;
    let committed = tokio::spawn(async move { client.batch_execute(&insert(7, 3)).await });
    eventually(SHORT_TIMEOUT, "its transaction is held back", async || {
        let held = "walpost_oldest_unconfirmed_commit_timestamp_seconds";
        answering.scrape().await.of(held) > 0.0
    })
    .await;
    let mark = answering.walpost.mark();
    let (fixture, _proxy) = pair.fail_over().await;
    committed.await.expect("no panic").expect_err("the primary is gone");
    // It follows, or halts if it has received other WAL that this server lacks.
    eventually(LONG_TIMEOUT, "walpost meets the promoted server", async || {
        answering.walpost.said_after(mark, PROMOTED) || answering.walpost.pid().is_none()
    })
    .await;
    assert_eq!(fixture.committed().await.len(), 20);
    fixture.judge().await.assert_exact();
}

const WAITS: &str = "is in use by server process";

/// A waiting instance follows too, one that has never had the slot and one that had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_wait_follow_a_failover() {
    for had_it in [false, true] {
        let pair = Pair::new(Major::V17, true, true).await;
        let first = pair.fixture.run().await;
        rows(&pair.fixture, 20).await;
        let second = pair.fixture.command("run").start();
        second.await_line(WAITS, SHORT_TIMEOUT).await;
        pair.synchronize(true).await;
        let (active, waiting) = if had_it {
            first.pause();
            let mark = second.mark();
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication
                        WHERE application_name = 'walpost'";
            pair.fixture.postgres.execute(end).await;
            second.await_line_after(mark, "streaming from PostgreSQL", LONG_TIMEOUT).await;
            let mark = first.mark();
            first.resume();
            first.await_line_after(mark, WAITS, LONG_TIMEOUT).await;
            (second, first)
        } else {
            (first, second)
        };
        rows(&pair.fixture, 20).await;
        let (active_mark, waiting_mark) = (active.mark(), waiting.mark());
        let (fixture, _proxy) = pair.fail_over().await;
        eventually(LONG_TIMEOUT, "one of them streams", async || {
            active.said_after(active_mark, "streaming from")
                || waiting.said_after(waiting_mark, "streaming from")
        })
        .await;
        for _ in 0..5 {
            rows(&fixture, 20).await;
        }
        // Several looks of the one that waits.
        let writer = Writer::start(&fixture.postgres, 50);
        writer.commits(250).await;
        assert!(active.pid().is_some(), "{:?}", active.stderr());
        assert!(waiting.pid().is_some(), "{:?}", waiting.stderr());
        active.kill9().await;
        writer.commits(50).await;
        fixture.judge_after(writer).await.assert_ok();
    }
}

/// The position is one of the new timeline then: the old primary is not taken for the server.
async fn with_a_state_topic(delivery: &str) {
    let pair = Pair::new(Major::V17, false, true).await;
    let state_topic = topic(&pair.fixture).await;
    pair.fixture.adopt(&state_topic).await;
    let arguments = ["--delivery", delivery, "--state-topic", &state_topic];
    let walpost = pair.fixture.run_with(&arguments).await;
    rows(&pair.fixture, 20).await;
    pair.synchronize(false).await;
    rows(&pair.fixture, 20).await;
    let mark = walpost.mark();
    let (fixture, _proxy) = pair.fail_over().await;
    let verdict = continues(&walpost, mark, &fixture).await;
    if delivery == "exactly-once" {
        verdict.assert_exact();
    } else {
        verdict.assert_ok();
    }
    eventually(LONG_TIMEOUT, "the position is of the new timeline", async || {
        let state = newest_state(&fixture, &state_topic).await;
        state.is_some_and(|state| state["timeline"] == 2)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn failover_is_followed_with_a_state_topic() {
    with_a_state_topic("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_is_followed_with_exactly_once_delivery() {
    with_a_state_topic("exactly-once").await;
}
