//! A database with an outbox, an HTTP server, and the walpost binary between them.

use std::time::Duration;

use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, program};
use walpost_bed::oracle::{self, Verdict};
use walpost_bed::writer::Writer;
use walpost_bed::{Major, Postgres, Walpost, WalpostBuilder};

use super::receiver::Receiver;

pub struct HttpFixture {
    pub receiver: Receiver,
    /// The URL of the server for walpost.
    pub url: String,
    /// The database, and what it asks of it.
    pub inner: Fixture,
    directory: TempDir,
}

impl HttpFixture {
    /// After `walpost init --apply`.
    pub async fn new() -> Self {
        Self::with(Receiver::start()).await
    }

    pub async fn with(receiver: Receiver) -> Self {
        let postgres = Postgres::start(Major::V15).await;
        let inner = Fixture::bare(postgres, "none");
        let url = format!("http://127.0.0.1:{}/events", receiver.port());
        let directory = TempDir::new().expect("a directory");
        let fixture = Self { receiver, url, inner, directory };
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
        self.command_without_url(name).env("WALPOST_HTTP_URL", &self.url)
    }

    pub fn command_without_url(&self, name: &str) -> WalpostBuilder {
        let file = self.directory.path().join("walpost.toml");
        let config = file.is_file().then(|| ["--config".to_owned(), file.display().to_string()]);
        Walpost::builder(program())
            .arg(name)
            .args(["--source", &self.inner.source, "--sink", "http"])
            .args(config.into_iter().flatten())
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

    /// The oracle on everything: the table against the accepted requests.
    pub async fn judge_with(&self, rolled_back: &[String]) -> Verdict {
        let (committed, records) = (self.inner.committed().await, self.receiver.records());
        oracle::judge(&committed, rolled_back.iter().map(String::as_str), &records)
    }

    /// Everything is confirmed, and each row was accepted once.
    pub async fn assert_exact(&self) {
        self.confirmed(LONG_TIMEOUT).await;
        self.judge_with(&[]).await.assert_exact();
        self.receiver.assert_one_at_a_time();
    }

    /// Once the writer has stopped, each row was accepted, in order; without its rolled-back rows.
    pub async fn assert_ok_after(&self, writer: Writer) -> Verdict {
        let rolled_back = writer.stop().await;
        self.confirmed(LONG_TIMEOUT).await;
        let verdict = self.judge_with(&rolled_back).await;
        verdict.assert_ok();
        verdict
    }
}
