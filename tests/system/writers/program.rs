//! Runs one example writer in the shop.

use tokio::task::JoinHandle;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT};
use walpost_bed::{Walpost, eventually};

use crate::round_trips::CountingProxy;
use crate::shop::{Shop, summary};

#[allow(dead_code, reason = "its main is for people")]
#[path = "../../../examples/writers/rust/main.rs"]
mod rust;

/// The order between whose change and event the program is killed.
const INTERRUPTED: i64 = 28;

/// Makes its event wait until the test releases the lock.
const GATE: &str = "
    CREATE FUNCTION public.waits() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_catalog.pg_advisory_xact_lock(28);
        RETURN NEW;
    END $$;
    CREATE TRIGGER waits BEFORE INSERT ON public.outbox
        FOR EACH ROW WHEN (NEW.aggregate_id = '28') EXECUTE FUNCTION public.waits()";

/// A writer program.
pub enum Program {
    /// In this process.
    Rust,
    /// A command line, to which the count is added. Its databases' addresses begin so.
    Command { line: Vec<String>, scheme: &'static str },
}

/// A running program.
enum Running {
    Task(JoinHandle<anyhow::Result<(u32, u32)>>),
    Process(Walpost),
}

impl Program {
    fn start(&self, port: u16, count: i64) -> Running {
        let scheme = match self {
            Self::Rust => "postgres",
            Self::Command { scheme, .. } => scheme,
        };
        // In JDBC the user is a parameter; libpq's addresses take it so too.
        let database = format!("{scheme}://127.0.0.1:{port}/postgres?user=postgres");
        match self {
            Self::Rust => {
                Running::Task(tokio::spawn(async move { rust::write(&database, count).await }))
            }
            Self::Command { line, .. } => {
                let process = Walpost::builder("/usr/bin/env").args(line).arg(count.to_string());
                Running::Process(process.env("DATABASE_URL", database).start())
            }
        }
    }

    /// Each change that it commits has its event, and no other event is published, while changes,
    /// events and commits fail, and after a kill between a change and its event.
    pub async fn writes_the_events_of_its_changes(&self) {
        let shop = Shop::with_faults().await;
        let port = shop.fixture.postgres.port();
        assert_eq!(self.start(port, 20).summary().await, summary(1, 20));
        shop.assert_orders(20).await;
        shop.assert_events_are_the_changes().await;
        self.is_killed_before_an_event(&shop).await;
        shop.assert_events_are_the_changes().await;
        // It tries all orders again: those that exist can neither be placed nor paid once more.
        assert_eq!(self.start(port, 30).summary().await, summary(INTERRUPTED, 30));
        shop.assert_orders(30).await;
        shop.assert_events_are_the_changes().await;
    }

    async fn is_killed_before_an_event(&self, shop: &Shop) {
        let postgres = &shop.fixture.postgres;
        postgres.execute(GATE).await;
        let gate = postgres.client().await;
        gate.batch_execute("SELECT pg_advisory_lock(28)").await.unwrap();
        let program = self.start(postgres.port(), 30);
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 28";
        eventually(LONG_TIMEOUT, "the program writes the event", async || {
            postgres.query_text(waits).await.as_deref() == Some("1")
        })
        .await;
        program.kill().await;
        gate.batch_execute("SELECT pg_advisory_unlock(28)").await.unwrap();
        let sessions = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 28";
        eventually(SHORT_TIMEOUT, "its transaction ends", async || {
            postgres.query_text(sessions).await.as_deref() == Some("0")
        })
        .await;
        let left = format!("SELECT count(*) FROM public.orders WHERE id = {INTERRUPTED}");
        assert_eq!(postgres.query_text(&left).await.as_deref(), Some("0"));
    }

    /// How often it waits for the server to place and to pay one order.
    pub async fn round_trips_of_an_order(&self) -> u64 {
        let shop = Shop::open().await;
        let proxy = CountingProxy::to(shop.fixture.postgres.port()).await;
        // The first orders include what drivers do once: statements are prepared, for example.
        let mut counts = Vec::new();
        for upto in [10, 20] {
            shop.fixture.postgres.execute("TRUNCATE public.orders").await;
            let before = proxy.turns();
            let summary = self.start(proxy.port(), upto).summary().await;
            assert_eq!(summary, format!("placed {upto}, paid {upto}"));
            counts.push(proxy.turns() - before);
        }
        let further = counts[1] - counts[0];
        // What arrives in two parts, on a busy machine, can be answered in two: once or twice in all.
        let nearest = (further + 5) / 10;
        assert!(further.abs_diff(nearest * 10) <= 2, "{counts:?}");
        nearest
    }
}

impl Running {
    /// What it prints, once it has ended successfully.
    async fn summary(self) -> String {
        match self {
            Self::Task(task) => {
                let ended = tokio::time::timeout(LONG_TIMEOUT, task).await.expect("it ends");
                let (placed, paid) = ended.expect("no panic").expect("it succeeds");
                format!("placed {placed}, paid {paid}")
            }
            Self::Process(process) => {
                let status = process.wait(LONG_TIMEOUT).await.expect("it ends");
                assert!(status.success(), "{}", process.stderr().join("\n"));
                process.stdout().join("\n")
            }
        }
    }

    async fn kill(self) {
        match self {
            Self::Task(task) => {
                task.abort();
                let ended = tokio::time::timeout(SHORT_TIMEOUT, task).await.expect("it ends");
                assert!(ended.unwrap_err().is_cancelled());
            }
            Self::Process(process) => process.kill9().await,
        }
    }
}
