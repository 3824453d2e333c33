//! A database with an outbox, and the walpost binary that publishes it elsewhere than to Kafka.

use std::time::Duration;

use serde_json::Value;
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
    /// Lines that its configuration file always has.
    always: String,
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
        let always = String::new();
        let fixture = Self { inner, url, kind, variables, directory, always };
        fixture.applied("init", &["--no-state"], SHORT_TIMEOUT).await;
        fixture.inner.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
        fixture
    }

    /// `sink.kind`
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Begins each configuration file with these lines, in TOML's dotted form, from here on.
    pub fn configure_always(&mut self, lines: String) {
        self.always = lines;
        self.configure("");
    }

    /// Writes a configuration file that every command has from here on.
    pub fn configure(&self, toml: &str) {
        let file = self.directory.path().join("walpost.toml");
        std::fs::write(&file, format!("{}{toml}", self.always)).expect("it can be written");
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

    /// Level and code of each finding of `walpost check` about that subject.
    pub async fn findings(&self, subject: &str, arguments: &[&str]) -> Vec<(String, String)> {
        let check = self.command("check").arg("--json").args(arguments).start();
        check.wait(LONG_TIMEOUT).await.expect("check ends");
        let report: Value = serde_json::from_str(&check.stdout().join("\n")).expect("JSON");
        let text =
            |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        let findings = report["findings"].as_array().expect("findings").iter();
        let of_subject = findings.filter(|finding| finding["subject"] == subject);
        of_subject.map(|finding| (text(finding, "level"), text(finding, "code"))).collect()
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
