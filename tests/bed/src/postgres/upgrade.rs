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

    /// Restarts this server, which has to be [`PostgresBuilder::tools`], with that transaction id as the
    /// next one, after it has frozen all rows. Its slots do not survive that.
    pub async fn skip_to_transaction(&self, xid: u32) {
        /// Transactions of a segment of the commit log, and its bytes.
        const SEGMENT: (u32, usize) = (32 * 8192 * 4, 32 * 8192);
        self.execute("UPDATE pg_database SET datallowconn = true").await;
        for database in ["postgres", "template1", "template0"] {
            let frozen = self.client_of(database).await.batch_execute("VACUUM FREEZE").await;
            frozen.unwrap_or_else(|error| panic!("{database}: {error:?}"));
        }
        self.stop_fast().await;
        let mut reset = Command::new(self.tool("pg_resetwal"));
        reset.args(["-x", &xid.to_string(), "-D"]).arg(self.data_dir()).current_dir("/");
        self.account.apply(&mut reset);
        cache::run(&mut reset, "pg_resetwal", "postgresql")
            .unwrap_or_else(|error| panic!("{error}"));
        let segment = self.data_dir().join("pg_xact").join(format!("{:04X}", xid / SEGMENT.0));
        std::fs::write(&segment, vec![0; SEGMENT.1]).expect("a segment of the commit log");
        self.account.own(&segment).unwrap_or_else(|error| panic!("{error}"));
        self.start_again().await;
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
