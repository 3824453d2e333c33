//! A physical standby, streaming from its primary through a slot.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use super::{Major, Postgres, PostgresBuilder, Stop};
use crate::error::{BedError, Doing};
use crate::eventually;
use crate::server::signal;

/// A standby's WAL receiver that is stopped. Dropped, it continues.
#[derive(Debug)]
pub struct PausedReceiver(u32);

impl Drop for PausedReceiver {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// The physical slot on the primary.
pub const STANDBY_SLOT: &str = "standby";

const STOPPED: Duration = Duration::from_secs(60);

impl Postgres {
    /// A standby of this server, which is stopped for the copy of its data, and of the same major.
    /// From version 17 on it synchronizes failover slots if `sync_slots` says so.
    pub async fn start_standby(&self, builder: PostgresBuilder, sync_slots: bool) -> Self {
        let slot = format!("SELECT pg_create_physical_replication_slot('{STANDBY_SLOT}', true)");
        self.execute(&slot).await;
        assert!(self.stop(Stop::Fast, STOPPED).await, "it stops");
        let saved = self.snapshot_data();
        self.start_again().await;
        let laid_out = tokio::task::spawn_blocking(move || builder.lay_out()).await;
        let standby = laid_out.expect("no panic").unwrap_or_else(|error| panic!("{error}"));
        standby.clone_data(&saved);
        standby.follow(self.port(), sync_slots).unwrap_or_else(|error| panic!("{error}"));
        standby.make_standby();
        standby.start_again().await;
        eventually(STOPPED, "the standby follows", async || {
            let state = "SELECT state FROM pg_stat_replication WHERE application_name = 'standby'";
            self.query_text(state).await.as_deref() == Some("streaming")
        })
        .await;
        standby
    }

    fn follow(&self, primary: u16, sync_slots: bool) -> Result<(), BedError> {
        let path = self.data_dir().join("postgresql.conf");
        let mut text = fs::read_to_string(&path).doing(|| format!("reading {}", path.display()))?;
        let _ = write!(
            text,
            "primary_conninfo = 'host=127.0.0.1 port={primary} user=postgres dbname=postgres \
             application_name=standby'\n\
             primary_slot_name = '{STANDBY_SLOT}'\nhot_standby_feedback = on\n"
        );
        if self.major() >= Major::V17 {
            let _ = writeln!(text, "sync_replication_slots = {sync_slots}");
        }
        fs::write(&path, text).doing(|| format!("writing {}", path.display()))
    }

    /// Lets commits on this server wait for its standby.
    pub async fn wait_for_standby(&self) {
        self.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'").await;
        self.execute("SELECT pg_reload_conf()").await;
        eventually(STOPPED, "the standby is synchronous", async || {
            let state =
                "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'standby'";
            self.query_text(state).await.as_deref() == Some("sync")
        })
        .await;
    }

    /// Stops the process that receives this standby's WAL with SIGSTOP, until the guard is dropped:
    /// commits that wait for this standby wait as long.
    pub async fn pause_wal_receiver(&self) -> PausedReceiver {
        let pid = "SELECT pid FROM pg_stat_wal_receiver WHERE status = 'streaming'";
        let pid = eventually(STOPPED, "the standby receives", async || self.query_text(pid).await);
        let pid = pid.await.parse().expect("a process id");
        signal(pid, Signal::STOP);
        PausedReceiver(pid)
    }

    /// Promotes this standby.
    pub async fn promote(&self) {
        let promoted = self.query_text("SELECT pg_promote()").await;
        assert_eq!(promoted.as_deref(), Some("t"), "{}", self.log_tail(10));
    }
}
