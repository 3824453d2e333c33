//! A new major version for a server's data: by `pg_upgrade`, or by a dump.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Postgres, PostgresBuilder, Stop};
use crate::cache;
use crate::error::BedError;
use crate::port::Port;

const STOPPED: Duration = Duration::from_secs(60);

impl Postgres {
    /// One of the programs of a server with [`PostgresBuilder::tools`].
    pub fn tool(&self, name: &str) -> PathBuf {
        self.program.with_file_name(name)
    }

    /// Stops this server as `pg_ctl stop --mode fast` does.
    pub async fn stop_fast(&self) {
        assert!(self.stop(Stop::Fast, STOPPED).await, "{}", self.log_tail(10));
    }

    /// The server of that major version, started, with the data of this one, which is stopped: by
    /// `pg_upgrade`, which copies the files. If it refuses, what it prints. Both servers have to be
    /// [`PostgresBuilder::tools`].
    pub async fn pg_upgrade(&self, builder: PostgresBuilder) -> Result<Self, String> {
        assert_eq!(self.pid(), None, "it runs");
        let old = (self.program.clone(), self.data_dir());
        let laid_out = tokio::task::spawn_blocking(move || {
            let new = builder.tools().lay_out()?;
            let upgraded = new.upgrade_from(&old.0, &old.1)?;
            Ok::<_, BedError>(upgraded.map(|()| new))
        });
        let laid_out = laid_out.await.expect("no panic").unwrap_or_else(|error| panic!("{error}"));
        let new = laid_out?;
        new.start_again().await;
        Ok(new)
    }

    /// Runs this version's `pg_upgrade`; its output if it fails.
    fn upgrade_from(&self, program: &Path, data: &Path) -> Result<Result<(), String>, BedError> {
        let binaries = |program: &Path| program.with_file_name("");
        let ports = [Port::reserve()?, Port::reserve()?].map(|port| port.number().to_string());
        let mut upgrade = Command::new(self.tool("pg_upgrade"));
        upgrade
            .args(["--username", "postgres", "--no-sync", "--old-bindir"])
            .arg(binaries(program))
            .arg("--new-bindir")
            .arg(binaries(&self.program))
            .arg("--old-datadir")
            .arg(data)
            .arg("--new-datadir")
            .arg(self.data_dir())
            .args(["--old-port", &ports[0], "--new-port", &ports[1]])
            // Where it writes its sockets too.
            .current_dir(self.socket_dir());
        self.account.apply(&mut upgrade);
        let done = upgrade
            .output()
            .map_err(|source| BedError::Io { what: "running pg_upgrade".to_owned(), source })?;
        if done.status.success() {
            return Ok(Ok(()));
        }
        Ok(Err(String::from_utf8_lossy(&done.stdout).into_owned()))
    }

    /// Copies all databases and roles of `old` into this server, which is new, with `pg_dumpall`.
    pub async fn restore_dump_of(&self, old: &Self) {
        self.pipe_dump(old, &[]).await;
    }

    /// The same without rows, and without `old`'s slots and subscriptions.
    pub async fn restore_schema_of(&self, old: &Self) {
        self.pipe_dump(old, &["--schema-only"]).await;
    }

    async fn pipe_dump(&self, old: &Self, arguments: &[&str]) {
        let address =
            |server: &Self| format!("host=127.0.0.1 port={} user=postgres", server.port());
        let mut dump = Command::new("sh");
        // The role postgres exists already: the only error that is expected.
        let script =
            "\"$1\" --dbname \"$2\" $5 >dump.sql && \"$3\" --quiet --dbname \"$4\" --file dump.sql";
        dump.args(["-c", script, "dump"])
            .arg(self.tool("pg_dumpall"))
            .arg(address(old))
            .arg(self.tool("psql"))
            .arg(format!("{} dbname=postgres", address(self)))
            .arg(arguments.join(" "))
            .current_dir(self.socket_dir());
        self.account.apply(&mut dump);
        let run = tokio::task::spawn_blocking(move || cache::run(&mut dump, "sh", "dash"));
        run.await.expect("no panic").unwrap_or_else(|error| panic!("{error}"));
    }
}
