//! A database with an outbox, a NATS server, and the walpost binary between them.

use std::time::Duration;

use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, program};
use walpost_bed::oracle::{self, Verdict};
use walpost_bed::writer::Writer;
use walpost_bed::{Consumed, Major, Nats, NatsBuilder, Postgres, Walpost, WalpostBuilder};

/// The configured stream.
pub const STREAM: &str = "orders";

/// Its subjects.
pub const SUBJECTS: &[&str] = &["outbox.>", "walpost.dead-letter", "orders.>"];

pub struct NatsFixture {
    pub nats: Nats,
    /// The URL of NATS for walpost.
    pub url: String,
    /// The database, and what it asks of it.
    pub inner: Fixture,
    directory: TempDir,
}

impl NatsFixture {
    /// After `walpost init --apply` and `walpost adopt --apply`.
    pub async fn new() -> Self {
        Self::with(Nats::builder()).await
    }

    pub async fn with(nats: NatsBuilder) -> Self {
        let fixture = Self::bare(nats.start().await).await;
        fixture.nats.add_stream(STREAM, SUBJECTS, &serde_json::json!({})).await;
        fixture.adopt().await;
        fixture
    }

    /// Without a stream, and before `walpost adopt --apply`.
    pub async fn bare(nats: Nats) -> Self {
        Self::over(Postgres::start(Major::V15).await, nats).await
    }

    /// The same on this server.
    pub async fn over(postgres: Postgres, nats: Nats) -> Self {
        let inner = Fixture::bare(postgres, "none");
        let url = nats.url();
        let fixture = Self { nats, url, inner, directory: TempDir::new().expect("a directory") };
        let init = fixture.command("init").arg("--apply").start();
        let status = init.wait(SHORT_TIMEOUT).await.expect("init ends");
        assert!(status.success(), "init failed: {:?}", init.stderr());
        fixture.inner.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
        fixture
    }

    /// A configuration file that every command has from here on.
    #[must_use]
    pub fn configured(self, toml: &str) -> Self {
        let file = self.directory.path().join("walpost.toml");
        std::fs::write(&file, toml).expect("it can be written");
        self
    }

    pub fn command(&self, name: &str) -> WalpostBuilder {
        self.command_without_url(name).env("WALPOST_NATS_URL", &self.url)
    }

    pub fn command_without_url(&self, name: &str) -> WalpostBuilder {
        let file = self.directory.path().join("walpost.toml");
        let config = file.is_file().then(|| ["--config".to_owned(), file.display().to_string()]);
        Walpost::builder(program())
            .arg(name)
            .args(["--source", &self.inner.source, "--sink", "nats"])
            .args(config.into_iter().flatten())
            .env("WALPOST_NATS_STREAM", STREAM)
    }

    /// Runs `walpost adopt --apply`; returns what it prints.
    pub async fn adopt(&self) -> Vec<String> {
        let adopt = self.command("adopt").arg("--apply").start();
        let status = adopt.wait(LONG_TIMEOUT).await.expect("adopt ends");
        assert!(status.success(), "adopt failed: {:?}", adopt.stderr());
        adopt.stdout()
    }

    /// `walpost run`, streaming.
    pub async fn run(&self) -> Walpost {
        let walpost = self.command("run").start();
        walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        walpost
    }

    /// The exit status and the output of a command.
    pub async fn ended(&self, name: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let command = self.command(name).args(arguments).start();
        let (code, errors) = ended(&command).await;
        (code, [command.stdout().join("\n"), errors].concat())
    }

    pub async fn insert(&self, count: u32, keys: u32) {
        self.inner.postgres.execute(&walpost_bed::fixture::insert(count, keys)).await;
    }

    pub async fn confirmed(&self, deadline: Duration) {
        self.inner.confirmed(deadline).await;
    }

    pub async fn records(&self) -> Vec<Consumed> {
        self.nats.records(STREAM).await
    }

    /// The oracle on everything: the table against the stream.
    pub async fn judge(&self) -> Verdict {
        self.judge_with(&[]).await
    }

    pub async fn judge_with(&self, rolled_back: &[String]) -> Verdict {
        let (committed, records) = (self.inner.committed().await, self.records().await);
        oracle::judge(&committed, rolled_back.iter().map(String::as_str), &records)
    }

    /// Everything is confirmed, and each row is in the stream once.
    pub async fn assert_exact(&self) {
        self.confirmed(LONG_TIMEOUT).await;
        self.judge().await.assert_exact();
    }

    /// The same once the writer has stopped, without its rolled-back rows.
    pub async fn assert_exact_after(&self, writer: Writer) {
        let rolled_back = writer.stop().await;
        self.confirmed(LONG_TIMEOUT).await;
        self.judge_with(&rolled_back).await.assert_exact();
    }
}
