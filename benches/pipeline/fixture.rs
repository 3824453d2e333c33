//! A database with an outbox and a Kafka, and the operations on both.

use std::time::Duration;

use tokio_postgres::Client;
use walpost_bed::{Process, Walpost, WalpostBuilder, eventually, pg_recvlogical};

use crate::Plan;
use crate::conditions::Conditions;
use crate::reference_client;
use crate::servers::Servers;

/// Long enough for everything here.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(900);

pub(crate) struct Fixture {
    pub(crate) servers: Servers,
    /// Arguments of the user's own for walpost.
    arguments: Vec<String>,
}

impl Fixture {
    pub(crate) async fn new(plan: &Plan) -> Self {
        Self::under(plan, &[Conditions::default()]).await
    }

    /// One for these cells, which have the same number of brokers.
    pub(crate) async fn under(plan: &Plan, cells: &[Conditions]) -> Self {
        let servers = Servers::of(plan, cells).await;
        let fixture = Self { servers, arguments: plan.walpost.clone() };
        // A server that was given may have a slot walpost, and alerts on all that begin so.
        let bootstrap = fixture.servers.bootstrap.clone();
        let init = walpost("init", &fixture.servers.source, &bootstrap)
            .args(["--apply", "--slot", "bench"])
            .start();
        let status = init.wait(TIMEOUT).await.expect("init ends");
        assert!(status.success(), "init failed: {:?}", init.stderr());
        fixture
    }

    /// `walpost run` into that topic of the brokers at that address.
    pub(crate) fn run(&self, topic: &str, bootstrap: &str) -> WalpostBuilder {
        self.run_in(&self.servers.source, topic, bootstrap)
    }

    /// Creates a state topic with the slot's position.
    pub(crate) async fn adopt(&self, slot: &str, topic: &str) {
        let adopt = walpost("adopt", &self.servers.source, &self.servers.bootstrap)
            .args(["--apply", "--slot", slot, "--state-topic", topic])
            .start();
        let status = adopt.wait(TIMEOUT).await.expect("adopt ends");
        assert!(status.success(), "adopt failed: {:?}", adopt.stderr());
    }

    /// The same from that database.
    pub(crate) fn run_in(&self, source: &str, topic: &str, bootstrap: &str) -> WalpostBuilder {
        walpost("run", source, bootstrap).args(["--topic", topic]).args(&self.arguments)
    }

    /// Runs statements in a session of their own.
    pub(crate) async fn execute(&self, sql: &str) {
        let done = self.servers.client().await.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The first column of the only row.
    pub(crate) async fn text(&self, sql: &str) -> String {
        let row = self.servers.client().await.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Begins a transaction that writes a row and stays open as long as this session. The slots that
    /// begin behind it have to exist already: they would wait for its end.
    pub(crate) async fn open_transaction(&self) -> Client {
        let client = self.servers.client().await;
        let sql = "CREATE TABLE IF NOT EXISTS public.open_transaction (id int8); \
                   SET idle_in_transaction_session_timeout = 0";
        client.batch_execute(sql).await.expect("a table");
        let sql = "BEGIN; INSERT INTO public.open_transaction VALUES (1)";
        client.batch_execute(sql).await.expect("a transaction");
        client
    }

    /// What the server has used so far, all its processes; of its own alone.
    pub(crate) fn server_cpu_time(&self) -> Option<Duration> {
        let own = self.servers.own.as_ref()?;
        Process(own.postgres.pid()?).family_cpu_time()
    }

    /// What it has used since it had used that.
    pub(crate) fn server_cpu_time_since(&self, then: Option<Duration>) -> Option<Duration> {
        self.server_cpu_time().zip(then).map(|(now, then)| now.saturating_sub(then))
    }

    /// A slot at the end of the log.
    pub(crate) async fn create_slot(&self, name: &str) {
        self.execute(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"))
            .await;
    }

    /// A slot that is where `base` stands.
    pub(crate) async fn copy_slot(&self, base: &str, copy: &str) {
        let sql = format!("SELECT pg_copy_logical_replication_slot('{base}', '{copy}')");
        self.execute(&sql).await;
    }

    /// Awaits that someone streams from the slot, or that nobody does.
    pub(crate) async fn await_active(&self, slot: &str, active: bool) {
        let query =
            format!("SELECT active::text FROM pg_replication_slots WHERE slot_name = '{slot}'");
        eventually(TIMEOUT, "the slot's activity", async || {
            self.text(&query).await == active.to_string()
        })
        .await;
    }

    pub(crate) async fn drop_slot(&self, slot: &str) {
        self.execute(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
    }

    pub(crate) async fn wal_end(&self) -> String {
        self.text("SELECT pg_current_wal_flush_lsn()::text").await
    }

    /// Where WAL ends, flushed or not.
    pub(crate) async fn wal_position(&self) -> String {
        self.text("SELECT pg_current_wal_insert_lsn()::text").await
    }

    /// Bytes of log that were written since.
    pub(crate) async fn wal_since(&self, begun: &str) -> f64 {
        let bytes = format!("SELECT (pg_current_wal_insert_lsn() - pg_lsn '{begun}')::text");
        self.text(&bytes).await.parse().expect("a number")
    }

    /// Seconds that `pg_recvlogical` takes from that slot to that position, with these options
    /// for its session.
    pub(crate) async fn receive(&self, base: &str, end: &str, options: &str) -> f64 {
        self.copy_slot(base, "receiver").await;
        let receive = pg_recvlogical::receive(&self.servers.source, "receiver", end, options);
        let seconds = receive.await.as_secs_f64();
        self.drop_slot("receiver").await;
        seconds
    }

    /// The same of `pgwire-replication`, which is built without TLS: on the bench's own servers.
    pub(crate) async fn receive_by_reference(&self, base: &str, end: &str, options: &str) -> f64 {
        self.copy_slot(base, "receiver").await;
        let source = &self.servers.source;
        let seconds =
            reference_client::receive(source, "receiver", end, options).await.as_secs_f64();
        self.await_active("receiver", false).await;
        self.drop_slot("receiver").await;
        seconds
    }
}

fn walpost(command: &str, source: &str, bootstrap: &str) -> WalpostBuilder {
    Walpost::builder(env!("CARGO_BIN_EXE_walpost"))
        .arg(command)
        .args(["--source", source])
        .args(["--bootstrap-servers", bootstrap])
}
