//! Runs one example consumer on the orders.

use std::time::Duration;

use tokio::task::JoinHandle;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT};
use walpost_bed::{Walpost, eventually};

use crate::fixture::{OrdersFixture, Turnover};

#[allow(dead_code, reason = "its main is for people")]
#[path = "../../../examples/consumers/rust/main.rs"]
mod rust;

/// What a program is told: brokers, topic, group, database and by what to know repeated
/// events, in this order.
pub type Arguments = [String; 5];

/// A consumer program.
pub enum Program {
    /// In this process.
    Rust,
    /// A command line, to which the arguments are added. Its databases' addresses
    /// begin so.
    Command { line: Vec<String>, scheme: &'static str },
}

/// A running program.
pub enum Running {
    Task(JoinHandle<anyhow::Result<()>>),
    Process(Walpost),
}

impl Program {
    fn start(&self, arguments: Arguments) -> Running {
        match self {
            Self::Rust => Running::Task(tokio::spawn(async move {
                let [brokers, topic, group, database, by] = &arguments;
                rust::consume(brokers, topic, group, database, by).await
            })),
            Self::Command { line, .. } => {
                let process = Walpost::builder("/usr/bin/env").args(line).args(arguments);
                Running::Process(process.start())
            }
        }
    }

    /// In JDBC the user is a parameter; libpq's addresses take it so too.
    pub fn database(&self, server: &str, name: &str) -> String {
        let scheme = match self {
            Self::Rust => "postgres",
            Self::Command { scheme, .. } => scheme,
        };
        format!("{scheme}://{server}/{name}?user=postgres")
    }

    /// Reads the shop's orders, is killed in the middle, reads them all again: the
    /// effects are there once, and the offsets are committed.
    pub async fn acts_once(&self, orders: &OrdersFixture, name: &str, by: &str) {
        let own = format!("{name}_{}", by.replace('-', "_"));
        orders.make_database(&own).await;
        let start = |group: &str| {
            let database = self.database(&orders.database_server(), &own);
            let brokers = orders.brokers().to_owned();
            self.start([brokers, orders.topic(), group.to_owned(), database, by.to_owned()])
        };
        let mut first = start(&format!("{own}-first"));
        eventually(LONG_TIMEOUT, "the first effects", async || {
            first.assert_runs().await;
            !orders.written(&own).await.is_empty()
        })
        .await;
        first.kill().await;
        // A new group without offsets reads everything again.
        let group = format!("{own}-second");
        let mut second = start(&group);
        eventually(LONG_TIMEOUT, "all offsets are committed", async || {
            second.assert_runs().await;
            orders.is_read_by(&group).await
        })
        .await;
        assert_eq!(orders.written(&own).await, OrdersFixture::turnover(by), "{name}, by {by}");
        second.kill().await;
    }
}

impl Program {
    /// Reads all events of the shop once; returns what it has written.
    pub async fn reads(&self, shop: &OrdersFixture, name: &str) -> Turnover {
        shop.make_database(name).await;
        let database = self.database(&shop.database_server(), name);
        let (brokers, by) = (shop.brokers().to_owned(), "id".to_owned());
        let mut running = self.start([brokers, shop.topic(), name.to_owned(), database, by]);
        eventually(LONG_TIMEOUT, "all offsets are committed", async || {
            running.assert_runs().await;
            shop.is_read_by(name).await
        })
        .await;
        running.kill().await;
        shop.written(name).await
    }
}

impl Running {
    /// Panics with its output if it has exited.
    async fn assert_runs(&mut self) {
        match self {
            Self::Task(task) if task.is_finished() => panic!("it ended: {:?}", task.await),
            Self::Process(process) if process.wait(Duration::ZERO).await.is_some() => {
                panic!("it ended: {}", process.stderr().join("\n"))
            }
            Self::Task(_) | Self::Process(_) => {}
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
