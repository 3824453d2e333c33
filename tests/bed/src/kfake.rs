//! A cluster of three brokers that are not Apache Kafka: `kfake` of the Go library franz-go, an
//! independent implementation of Kafka's protocol in memory.
//!
//! Its program is built by `go` into the cache. One process has all three brokers, so that leaders,
//! the transaction coordinator and the controller are different ones. Topics and transactions
//! survive a clean stop. A kill during a transaction makes it lose committed records, so there is no
//! kill here. Replicas exist in its answers only.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::cache;
use crate::error::{BedError, Doing};
use crate::kafka::Admin;
use crate::port::Port;
use crate::server::Server;

const MAIN: &str = include_str!("../kfake/main.go");
const MODULE: &str = include_str!("../kfake/go.mod");
const SUMS: &str = include_str!("../kfake/go.sum");

const BROKERS: usize = 3;

/// The running (or stopped) brokers. They are removed with their data on drop.
#[derive(Debug)]
pub struct Kfake {
    server: Server,
    program: PathBuf,
    ports: Vec<Port>,
    release: Option<String>,
}

impl Kfake {
    /// Brokers that make topics of three partitions when they are first named.
    pub async fn start() -> Self {
        Self::try_start(None).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same with the requests and versions of an older release of Kafka, such as `2.8`.
    pub async fn start_as(release: &str) -> Self {
        Self::try_start(Some(release)).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn try_start(release: Option<&str>) -> Result<Self, BedError> {
        let program = tokio::task::spawn_blocking(install).await.expect("no panic")?;
        let server = Server::new("kfake", Signal::KILL)?;
        let ports: Result<_, _> = (0..BROKERS).map(|_| Port::reserve()).collect();
        let release = release.map(ToOwned::to_owned);
        let kfake = Self { server, program, ports: ports?, release };
        kfake.try_start_again().await?;
        Ok(kfake)
    }

    /// The addresses for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        self.addresses().collect::<Vec<_>>().join(",")
    }

    fn addresses(&self) -> impl Iterator<Item = String> {
        self.ports.iter().map(|port| format!("127.0.0.1:{}", port.number()))
    }

    /// All that a test wants of its topics.
    pub fn administration(&self) -> Admin {
        Admin::of(self.bootstrap(), i32::try_from(BROKERS).expect("few"))
    }

    /// Asks the brokers to stop (SIGTERM); whether they had stopped within the deadline.
    pub async fn stop(&self, deadline: Duration) -> bool {
        self.server.signal(Signal::TERM);
        self.server.ended(deadline).await;
        self.server.pid().is_none()
    }

    /// Freezes the brokers (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        self.server.signal(Signal::STOP);
    }

    /// Thaws them.
    pub fn resume(&self) {
        self.server.signal(Signal::CONT);
    }

    /// Starts stopped brokers on their ports with their data, and awaits that they accept
    /// connections.
    pub async fn start_again(&self) {
        self.try_start_again().await.unwrap_or_else(|error| panic!("{error}"));
    }

    async fn try_start_again(&self) -> Result<(), BedError> {
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = self.server.cleanup().launcher(&self.program);
        command.arg("-data").arg(self.server.directory().join("data"));
        if let Some(release) = &self.release {
            command.args(["-as", release]);
        }
        command.args(self.ports.iter().map(|port| port.number().to_string()));
        // It ends when this closes.
        command.stdin(Stdio::piped()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())?;
        let ask = async || self.addresses().try_for_each(|to| TcpStream::connect(to).map(drop));
        self.server.ready("kfake", ask).await
    }
}

/// The program, built by `go`.
fn install() -> Result<PathBuf, BedError> {
    let name = cache::name_for("kfake", &[MAIN, MODULE, SUMS]);
    Ok(cache::entry(&name, build)?.join("kfake"))
}

fn build(partial: &Path) -> Result<(), BedError> {
    for (name, text) in [("main.go", MAIN), ("go.mod", MODULE), ("go.sum", SUMS)] {
        fs::write(partial.join(name), text).doing(|| format!("writing {name}"))?;
    }
    let mut go = Command::new("go");
    go.args(["build", "-mod=readonly", "-buildvcs=false", "-o", "kfake", "."]).current_dir(partial);
    cache::run(&mut go, "go", "golang-go").map(drop)
}
