//! A database with an outbox, and the walpost binary that publishes it elsewhere than to Kafka.

use std::time::Duration;

use tempfile::TempDir;

use crate::consumer::Consumed;
use crate::fixture::{self, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, program};
use crate::oracle::{self, Verdict};
use crate::postgres::Postgres;
use crate::walpost::{Walpost, WalpostBuilder};

/// The variable of the URL of a kind of destination.
pub fn url_variable(kind: &str) -> String {
    let name = if kind == "sqs" { "QUEUE_URL" } else { "URL" };
    format!("WALPOST_{}_{name}", kind.to_uppercase())
}

/// The database, and how walpost is started for its destination.
pub struct SinkFixture {
    /// The database, and what it asks of it.
    pub inner: Fixture,
    /// The URL of the destination for walpost.
    pub url: String,
    /// `sink.kind`
    kind: &'static str,
    /// Variables of every command.
    variables: &'static [(&'static str, &'static str)],
    directory: TempDir,
}

impl SinkFixture {
    /// On this server, after `walpost init --apply` without a position.
    pub async fn over(
        postgres: Postgres,
        kind: &'static str,
        url: String,
        variables: &'static [(&'static str, &'static str)],
    ) -> Self {
        let inner = Fixture::bare(postgres, "none");
        let directory = TempDir::new().expect("a directory");
        let fixture = Self { inner, url, kind, variables, directory };
        fixture.applied("init", &["--no-state"], SHORT_TIMEOUT).await;
        fixture.inner.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
        fixture
    }

    /// Writes a configuration file that every command has from here on.
    pub fn configure(&self, toml: &str) {
        let file = self.directory.path().join("walpost.toml");
        std::fs::write(&file, toml).expect("it can be written");
    }

    pub fn command(&self, name: &str) -> WalpostBuilder {
        self.command_without_url(name).env(url_variable(self.kind), &self.url)
    }

    pub fn command_without_url(&self, name: &str) -> WalpostBuilder {
        let file = self.directory.path().join("walpost.toml");
        let config = file.is_file().then(|| ["--config".to_owned(), file.display().to_string()]);
        let command = Walpost::builder(program())
            .arg(name)
            .args(["--source", &self.inner.source, "--sink", self.kind])
            .args(config.into_iter().flatten())
            .keeps_position();
        let variables = self.variables.iter();
        variables.fold(command, |command, (name, value)| command.env(name, value))
    }

    /// Runs a command with `--apply`; returns what it prints.
    async fn applied(&self, name: &str, arguments: &[&str], deadline: Duration) -> Vec<String> {
        let command = self.command(name).arg("--apply").args(arguments).start();
        let status = command.wait(deadline).await.expect("it ends");
        assert!(status.success(), "{name} failed: {:?}", command.stderr());
        command.stdout()
    }

    /// Runs `walpost adopt --apply`; returns what it prints.
    pub async fn adopt(&self) -> Vec<String> {
        self.applied("adopt", &[], LONG_TIMEOUT).await
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
        let (code, errors) = fixture::ended(&command).await;
        (code, [command.stdout().join("\n"), errors].concat())
    }

    pub async fn insert(&self, count: u32, keys: u32) {
        self.inner.postgres.execute(&fixture::insert(count, keys)).await;
    }

    pub async fn confirmed(&self, deadline: Duration) {
        self.inner.confirmed(deadline).await;
    }

    /// The oracle on the table against these records.
    pub async fn verdict(&self, records: &[Consumed], rolled_back: &[String]) -> Verdict {
        let committed = self.inner.committed().await;
        oracle::judge(&committed, rolled_back.iter().map(String::as_str), records)
    }
}
