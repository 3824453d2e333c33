//! The server is a different one, or was reset (58, 59, 61): a standby was promoted, a backup or a
//! disk snapshot was restored, an address leads to two servers.

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, proxied};
use walpost_bed::oracle::{Row, judge};
use walpost_bed::{DataSnapshot, Kafka, Major, Postgres, Proxy, Stop, Walpost, eventually};

use super::retain_published;
use crate::case::{Case, CaseReport};

const WAITS: &str = "is in use by server process";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(58, "lossless_failover_is_followed", lost_nothing),
        Case::new(59, "failover_that_lost_commits_ends_the_run", lost_commits),
        Case::new(59, "failover_that_lost_commits_ends_the_standby_instance", both_end),
        Case::new(61, "restored_server_ends_the_run", restore_data),
        Case::new(61, "restored_server_with_new_wal_ends_the_run", grew_again),
        Case::new(61, "interrupted_wal_comparison_is_repeated", cut_short),
        Case::new(61, "different_transaction_at_the_last_position_ends_the_run", replaced),
        Case::new(61, "restored_server_during_a_replay_publishes_nothing", replayed),
        Case::new(61, "restored_server_ends_the_standby_instance", waited),
        Case::new(61, "address_of_two_servers_advances_neither_slot", two_servers),
        Case::new(61, "backlog_is_not_read_from_a_different_server", two_servers_in_batches),
    ]
}

/// A fixture behind a proxy, so that walpost meets the server only when the test lets it.
struct Behind {
    fixture: Fixture,
    proxy: Proxy,
}

impl Behind {
    async fn new() -> Self {
        let mut fixture = Fixture::new().await;
        let proxy = Proxy::to(fixture.postgres.port()).await;
        fixture.source = proxied(&proxy);
        Self { fixture, proxy }
    }

    async fn rows(&self, count: u32) {
        self.fixture.postgres.execute(&insert(count, 3)).await;
        self.fixture.confirmed(SHORT_TIMEOUT).await;
    }

    /// Rows are published; the data is saved; more rows are published; the server is stopped.
    async fn saved_in_between(&self) -> (DataSnapshot, Vec<Row>) {
        let saved = self.saved().await;
        self.rows(10).await;
        let rows = self.fixture.committed().await;
        self.stop().await;
        (saved, rows)
    }

    async fn saved(&self) -> DataSnapshot {
        self.rows(10).await;
        self.stop().await;
        let saved = self.fixture.postgres.snapshot_data();
        self.start().await;
        saved
    }

    async fn stop(&self) {
        self.proxy.refuse();
        self.proxy.cut();
        assert!(self.fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "walpost stops");
    }

    async fn start(&self) {
        self.fixture.postgres.start_again().await;
        self.proxy.restore();
    }

    /// Starts the server as one that was a standby, and promotes it.
    async fn promote(&self) {
        self.fixture.postgres.make_standby();
        self.fixture.postgres.start_again().await;
        self.fixture.postgres.execute("SELECT pg_promote()").await;
        self.proxy.restore();
    }

    /// The WAL grows past its previous end.
    async fn burn(&self) {
        let switch = "CREATE TABLE burn AS SELECT; SELECT pg_switch_wal(); DROP TABLE burn";
        for _ in 0..3 {
            self.fixture.postgres.execute(switch).await;
        }
    }

    async fn judged(&self, report: &CaseReport, rows: &[Row]) {
        report.exact(&judge(rows, std::iter::empty(), &self.fixture.records().await));
    }

    /// An operator accepts the slot's position: of the history from the saved data on nothing is
    /// missing.
    async fn accepted(&self, report: &CaseReport, mut rows: Vec<Row>) {
        let next = self.fixture.run().await;
        self.fixture.confirmed(SHORT_TIMEOUT).await;
        rows.extend_from_slice(&self.fixture.committed().await[10..]);
        self.judged_with_repeats(report, &rows).await;
        report.still_running(&next);
    }

    /// The same after the next start: a server that was stopped may have forgotten the slot's last
    /// position (until 17), and repeats what follows it.
    async fn judged_with_repeats(&self, report: &CaseReport, rows: &[Row]) {
        report.ok(&judge(rows, std::iter::empty(), &self.fixture.records().await));
    }
}

/// Ends with 3 and these words.
async fn refused(report: &CaseReport, walpost: &Walpost, words: &str) {
    let text = report.ends(walpost, 3).await;
    assert!(text.contains(words), "{words}: {text}");
}

async fn lost_nothing(report: CaseReport) {
    let behind = Behind::new().await;
    let walpost = behind.fixture.run().await;
    behind.rows(10).await;
    for _ in 0..2 {
        behind.stop().await;
        let mark = walpost.mark();
        behind.promote().await;
        walpost.await_line_after(mark, "the server was promoted", SHORT_TIMEOUT).await;
        behind.rows(10).await;
    }
    behind.judged_with_repeats(&report, &behind.fixture.committed().await).await;
    report.still_running(&walpost);
}

async fn lost_commits(report: CaseReport) {
    let behind = Behind::new().await;
    let walpost = behind.fixture.run().await;
    let (saved, rows) = behind.saved_in_between().await;
    behind.fixture.postgres.restore_data(&saved);
    behind.promote().await;
    behind.burn().await;
    behind.fixture.postgres.execute(&insert(5, 3)).await;
    refused(&report, &walpost, "the server was promoted from timeline 1 to 2").await;
    behind.judged(&report, &rows).await;
    behind.accepted(&report, rows).await;
}

async fn both_end(report: CaseReport) {
    let mut behind = Behind::new().await;
    let first = behind.fixture.run().await;
    behind.rows(10).await;
    let proxy = Proxy::to(behind.fixture.postgres.port()).await;
    let start = first.mark();
    behind.fixture.source = proxied(&proxy);
    let second = behind.fixture.command("run").start();
    second.await_line(WAITS, SHORT_TIMEOUT).await;
    // The first has the slot again after the restart, and the second sees what the first confirmed.
    proxy.refuse();
    proxy.cut();
    let saved = behind.saved().await;
    first.await_line_after(start, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
    behind.rows(10).await;
    let mark = second.mark();
    proxy.restore();
    second.await_line_after(mark, WAITS, SHORT_TIMEOUT).await;
    let rows = behind.fixture.committed().await;
    behind.stop().await;
    behind.fixture.postgres.restore_data(&saved);
    behind.promote().await;
    behind.burn().await;
    behind.fixture.postgres.execute(&insert(5, 3)).await;
    // The first has published what is lost; the second may only learn of the halt.
    let texts = [report.ends(&first, 3).await, report.ends(&second, 3).await];
    let (lost, halted) = ("was promoted from timeline 1 to 2", "an operator has to decide");
    assert!(texts.iter().any(|text| text.contains(lost)), "{texts:?}");
    assert!(texts.iter().all(|text| [lost, halted].iter().any(|one| text.contains(one))));
    behind.judged_with_repeats(&report, &rows).await;
}

async fn restore_data(report: CaseReport) {
    let behind = Behind::new().await;
    let walpost = behind.fixture.run().await;
    let (saved, rows) = behind.saved_in_between().await;
    behind.fixture.postgres.restore_data(&saved);
    behind.start().await;
    refused(&report, &walpost, "lost WAL or was restored").await;
    behind.judged(&report, &rows).await;
}

async fn grew_again(report: CaseReport) {
    let behind = Behind::new().await;
    let walpost = behind.fixture.run().await;
    let (saved, rows) = behind.saved_in_between().await;
    behind.fixture.postgres.restore_data(&saved);
    behind.fixture.postgres.start_again().await;
    behind.fixture.postgres.execute(&insert(100, 3)).await;
    behind.burn().await;
    let before = behind.fixture.confirmed_flush().await;
    behind.proxy.restore();
    refused(&report, &walpost, "is not the one that walpost has published from").await;
    assert_eq!(behind.fixture.confirmed_flush().await, before, "nothing is confirmed to it");
    behind.judged(&report, &rows).await;
    behind.accepted(&report, rows).await;
}

/// The session that compares the histories ends before it receives anything.
async fn cut_short(report: CaseReport) {
    let behind = Behind::new().await;
    let walpost = behind.fixture.run().await;
    let (saved, rows) = behind.saved_in_between().await;
    behind.fixture.postgres.restore_data(&saved);
    behind.fixture.postgres.start_again().await;
    // The server reads this log before it has anything to send.
    let others = "CREATE TABLE other (i int); INSERT INTO other SELECT generate_series(1, 1000000)";
    behind.fixture.postgres.execute(others).await;
    behind.fixture.postgres.execute(&insert(100, 3)).await;
    let before = behind.fixture.confirmed_flush().await;
    let mark = walpost.mark();
    behind.proxy.restore();
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
    behind.fixture.postgres.execute(end).await;
    walpost
        .await_line_after(mark, "lost the connection to PostgreSQL; reconnecting", SHORT_TIMEOUT)
        .await;
    refused(&report, &walpost, "is not the one that walpost has published from").await;
    assert_eq!(behind.fixture.confirmed_flush().await, before, "nothing is confirmed to it");
    behind.judged(&report, &rows).await;
}

/// The new history has a transaction that commits at the same LSN.
async fn replaced(report: CaseReport) {
    let behind = Behind::new().await;
    let walpost = behind.fixture.run().await;
    let (saved, rows) = behind.saved_in_between().await;
    behind.fixture.postgres.restore_data(&saved);
    behind.fixture.postgres.start_again().await;
    // As the lost transaction was, byte for byte, but at another time.
    behind.fixture.postgres.execute(&insert(10, 3)).await;
    behind.burn().await;
    behind.proxy.restore();
    refused(&report, &walpost, "is not the one that walpost has published from").await;
    behind.judged(&report, &rows).await;
}

/// A record waits for its topic, so that the producer is replaced again and again, and reading
/// begins at that record's transaction each time.
async fn replayed(report: CaseReport) {
    let behind = Behind::new().await;
    let kafka = Kafka::shared().await;
    let fixture = &behind.fixture;
    kafka.create_topic(&fixture.topic("order"), 3).await;
    let walpost = fixture.run_with(&["-X", "allow.auto.create.topics=false"]).await;
    behind.rows(10).await;
    behind.stop().await;
    let saved = fixture.postgres.snapshot_data();
    behind.start().await;
    fixture.postgres.execute(&insert(1, 3).replace("'order'", "'absent'")).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    walpost.await_line("replaying", LONG_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "what follows is published", async || {
        fixture.records().await.len() >= 20
    })
    .await;
    let mut rows = fixture.committed().await;
    behind.stop().await;
    fixture.postgres.restore_data(&saved);
    fixture.postgres.start_again().await;
    for _ in 0..3 {
        fixture.postgres.execute(&insert(2, 3)).await;
    }
    behind.burn().await;
    behind.proxy.restore();
    refused(&report, &walpost, "is not the one that walpost has published from").await;
    // None of the other history's rows, and not the one without a topic.
    let records = fixture.records().await;
    retain_published(&mut rows, &records);
    assert_eq!(rows.len(), 20);
    report.ok(&judge(&rows, std::iter::empty(), &records));
}

async fn waited(report: CaseReport) {
    let behind = Behind::new().await;
    let first = behind.fixture.run().await;
    behind.rows(10).await;
    behind.stop().await;
    let saved = behind.fixture.postgres.snapshot_data();
    behind.start().await;
    behind.rows(10).await;
    let second = behind.fixture.command("run").start();
    second.await_line(WAITS, SHORT_TIMEOUT).await;
    let rows = behind.fixture.committed().await;
    behind.stop().await;
    behind.fixture.postgres.restore_data(&saved);
    behind.start().await;
    for walpost in [&first, &second] {
        let text = report.ends(walpost, 3).await;
        let words = ["lost WAL or was restored", "has halted, and an operator has to decide"];
        assert!(words.iter().any(|words| text.contains(words)), "{text}");
    }
    behind.judged_with_repeats(&report, &rows).await;
}

/// Two servers with a slot and rows of their own, behind one address.
async fn two(behind: &Behind) -> Fixture {
    let other = Postgres::builder(Major::V15).own_identity().start().await;
    let other = Fixture::bare(other, &behind.fixture.bootstrap);
    other.init(&[]).await;
    other.postgres.execute(&insert(20, 3)).await;
    other
}

async fn two_servers(report: CaseReport) {
    let mut behind = Behind::new().await;
    behind.fixture.source.push_str("?sslmode=disable");
    let other = two(&behind).await;
    let (here, there) = (behind.fixture.postgres.port(), other.postgres.port());
    let before = (behind.fixture.confirmed_flush().await, other.confirmed_flush().await);
    behind.fixture.postgres.execute(&insert(10, 3)).await;
    behind.proxy.point_in_turn(&[here, there]);
    let walpost = behind.fixture.command("run").start();
    walpost.await_line("two connections reached two servers", SHORT_TIMEOUT).await;
    behind.judged(&report, &[]).await;
    let after = (behind.fixture.confirmed_flush().await, other.confirmed_flush().await);
    assert_eq!(before, after, "neither slot is moved");
    behind.proxy.point_at(here);
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    behind.fixture.confirmed(SHORT_TIMEOUT).await;
    behind.judged(&report, &behind.fixture.committed().await).await;
    report.still_running(&walpost);
}

async fn two_servers_in_batches(report: CaseReport) {
    let mut behind = Behind::new().await;
    behind.fixture.source.push_str("?sslmode=disable");
    let other = two(&behind).await;
    let (here, there) = (behind.fixture.postgres.port(), other.postgres.port());
    let before = other.confirmed_flush().await;
    behind.fixture.postgres.execute(&insert(1000, 3)).await;
    // Control, replication; then the connection that reads, and the one that moves the slot.
    behind.proxy.point_in_turn(&[here, here, there, here]);
    let catching_up = ("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB");
    let walpost = behind.fixture.command("run").env(catching_up.0, catching_up.1).start();
    walpost.await_line("two connections reached two servers", SHORT_TIMEOUT).await;
    behind.judged(&report, &[]).await;
    behind.proxy.point_at(here);
    eventually(LONG_TIMEOUT, "all records arrive", async || {
        behind.fixture.records().await.len() >= 1000
    })
    .await;
    behind.fixture.confirmed(SHORT_TIMEOUT).await;
    assert_eq!(other.confirmed_flush().await, before, "the other slot is not moved");
    behind.judged(&report, &behind.fixture.committed().await).await;
    report.still_running(&walpost);
}
