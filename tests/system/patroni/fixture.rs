//! A cluster with an outbox and a failover slot, topics of its own on the shared broker, a state
//! topic, and the walpost binary between them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, program};
use walpost_bed::oracle::{self, Row, Verdict};
use walpost_bed::writer::Writer;
use walpost_bed::{
    Consumed, Kafka, Patroni, Topics, Walpost, WalpostBuilder, eventually, read_all,
};

pub struct Fixture {
    pub patroni: Patroni,
    bootstrap: String,
    /// Of the topics and of the state topic.
    prefix: String,
}

impl Fixture {
    /// After `walpost init --apply` with these arguments, and `walpost adopt --apply`.
    pub async fn over(patroni: Patroni, init: &[&str]) -> Self {
        patroni.settled().await;
        let bootstrap = Kafka::shared().await.bootstrap();
        let id = "SELECT system_identifier::text FROM pg_control_system()";
        let id = patroni.query_text(id).await.expect("an identifier");
        let fixture = Self { patroni, bootstrap, prefix: format!("patroni-{id}.") };
        fixture.done(fixture.command("init").arg("--apply").args(init)).await;
        // The order of commits, for each key that one session writes.
        fixture.patroni.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
        fixture.adopt().await;
        fixture
    }

    /// Runs a command that ends by itself and well; returns its output.
    async fn done(&self, command: WalpostBuilder) -> Vec<String> {
        let walpost = command.start();
        let status = walpost.wait(LONG_TIMEOUT).await.expect("it ends");
        assert!(status.success(), "{:?}", walpost.stderr());
        walpost.stdout()
    }

    /// Runs `walpost adopt --apply`; returns what it prints.
    pub async fn adopt(&self) -> Vec<String> {
        self.done(self.command("adopt").arg("--apply")).await
    }

    pub fn command(&self, name: &str) -> WalpostBuilder {
        Walpost::builder(program())
            .arg(name)
            .args(["--source", &self.patroni.source()])
            .args(["--bootstrap-servers", &self.bootstrap])
            .args(["--topic", &format!("{}{{aggregate_type}}", self.prefix)])
            .args(["--state-topic", &format!("{}state", self.prefix)])
            .args(["-X", "allow.auto.create.topics=true"])
    }

    /// `walpost run`, streaming.
    pub async fn run(&self) -> Walpost {
        let walpost = self.command("run").start();
        walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        walpost
    }

    /// The same after `walpost adopt --apply`, once all members are back.
    pub async fn run_again(&self) -> Walpost {
        self.patroni.settled().await;
        println!("{}", self.adopt().await.join("\n"));
        self.run().await
    }

    /// So many transactions a second, to whichever member takes them.
    pub fn write(&self, per_second: u32) -> Writer {
        Writer::connecting(self.patroni.leaders_address(), "order", per_second)
    }

    /// Awaits that each standby has a copy of the slot that can be used after a promotion.
    pub async fn synchronized(&self) {
        let leader = self.patroni.settled().await;
        for name in self.patroni.names().into_iter().filter(|name| *name != leader) {
            // As docs/high-availability.md says.
            self.patroni.query_text_of(name, DROP_FORMER).await;
            eventually(LONG_TIMEOUT, "the slot is synchronized", async || {
                // A copy needs the leader's snapshot of running transactions.
                self.patroni.try_rows("SELECT pg_log_standby_snapshot()").await?;
                let copy = self.patroni.query_text_of(name, COPY).await;
                copy.map(drop).ok_or_else(|| self.patroni.log_tail(name, 3))
            })
            .await;
        }
    }

    /// Awaits that the slot needs no catalog rows of the time at which it was made. The new leader may
    /// clean these up before the former one follows it, which would invalidate the slot there.
    pub async fn past_the_setup(&self) {
        let horizon =
            self.patroni.query_text("SELECT pg_snapshot_xmax(pg_current_snapshot())").await;
        let horizon = horizon.expect("a transaction id");
        let query = format!(
            "SELECT catalog_xmin FROM pg_replication_slots
              WHERE slot_name = 'walpost' AND age(catalog_xmin) <= age('{horizon}'::xid)"
        );
        eventually(LONG_TIMEOUT, "the slot needs nothing older", async || {
            // A slot advances at such snapshots.
            self.patroni.try_rows("SELECT pg_log_standby_snapshot()").await?;
            let advanced = self.patroni.query_text(&query).await;
            advanced.ok_or_else(|| format!("catalog_xmin is older than {horizon}"))
        })
        .await;
    }

    /// Awaits that Patroni has copied the slot to each standby, with the position of now: before
    /// PostgreSQL 17.
    pub async fn copied(&self) {
        let leader = self.patroni.settled().await;
        let now =
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walpost'";
        let now = self.patroni.query_text(now).await.expect("the slot");
        let query = format!(
            "SELECT slot_name FROM pg_replication_slots
              WHERE slot_name = 'walpost' AND confirmed_flush_lsn >= '{now}'"
        );
        for name in self.patroni.names().into_iter().filter(|name| *name != leader) {
            eventually(LONG_TIMEOUT, "Patroni has copied the slot", async || {
                let copy = self.patroni.query_text_of(name, &query).await;
                copy.map(drop).ok_or_else(|| self.patroni.log_tail(name, 9))
            })
            .await;
        }
    }

    /// Awaits that everything committed now is confirmed; or walpost's end, with its exit code.
    pub async fn confirmed(&self, walpost: &Walpost) -> Result<(), Option<i32>> {
        let end = eventually(LONG_TIMEOUT, "a leader", async || {
            self.patroni.query_text("SELECT pg_current_wal_insert_lsn()").await
        })
        .await;
        let query = format!(
            "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'walpost'"
        );
        eventually(LONG_TIMEOUT, "what is committed is confirmed", async || {
            if walpost.pid().is_none() {
                let status = walpost.wait(SHORT_TIMEOUT).await;
                return Some(Err(status.and_then(|status| status.code())));
            }
            let confirmed = self.patroni.query_text(&query).await;
            (confirmed.as_deref() == Some("t")).then_some(Ok(()))
        })
        .await
    }

    /// Stops the writer; the oracle on all that is in the table, which has all rows whose COMMIT
    /// returned, once that is confirmed.
    pub async fn judge_after(&self, writer: Writer, walpost: &Walpost) -> Verdict {
        let acknowledged = writer.acknowledged();
        let rolled_back = writer.stop().await;
        self.judge(&acknowledged, &rolled_back, walpost).await
    }

    /// The same with given ids of rows.
    pub async fn judge(
        &self,
        acknowledged: &[String],
        rolled_back: &[String],
        walpost: &Walpost,
    ) -> Verdict {
        self.confirmed(walpost).await.expect("walpost runs");
        let query = "SELECT id, aggregate_id FROM public.outbox ORDER BY n";
        let rows = self.patroni.query_rows(query).await;
        let text = |value: &Option<String>| value.clone().expect("not null");
        let rows: Vec<_> = rows.iter().map(|row| Row::new(text(&row[0]), text(&row[1]))).collect();
        let kept: HashSet<_> = rows.iter().map(|row| row.id.as_str()).collect();
        let lost: Vec<_> = acknowledged.iter().filter(|id| !kept.contains(id.as_str())).collect();
        assert!(lost.is_empty(), "Patroni lost commits that were acknowledged: {lost:?}");
        let records = self.records().await;
        oracle::judge(&rows, rolled_back.iter().map(String::as_str), &records)
    }

    /// What was published.
    pub async fn records(&self) -> Vec<Consumed> {
        let topic = format!("{}order", self.prefix);
        read_all(&self.bootstrap, Topics::named([topic.as_str()])).await
    }
}

/// A standby that was the leader when the slot was created has that slot, and synchronizes no other
/// of its name.
const DROP_FORMER: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
    WHERE slot_name = 'walpost' AND failover AND NOT synced AND pg_is_in_recovery()";

/// The slot of a standby, once it is permanent.
const COPY: &str = "SELECT confirmed_flush_lsn FROM pg_replication_slots
                     WHERE slot_name = 'walpost' AND synced AND NOT temporary";

/// Awaits further commits, for longer than a failover takes; returns when that was.
pub async fn commits(writer: &Writer, further: u64) -> Instant {
    let goal = writer.committed() + further;
    eventually(LONG_TIMEOUT, "the writer commits", async || {
        let count = writer.committed();
        if count >= goal { Ok(()) } else { Err(count) }
    })
    .await;
    Instant::now()
}

/// Seconds with one digit.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
