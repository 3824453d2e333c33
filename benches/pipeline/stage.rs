//! The servers that a bench runs on, and the walpost under test.

use std::path::PathBuf;
use std::time::Duration;

use walpost_bed::{Kafka, Major, Postgres, Walpost, WalpostBuilder};

/// Long enough for everything here; what takes longer is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);

/// A database with an outbox and a Kafka.
pub(crate) struct Stage {
    pub(crate) postgres: Postgres,
    pub(crate) kafka: Kafka,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let postgres = Postgres::builder(Major::V15)
            .setting("max_wal_size", "8GB")
            .setting("shared_buffers", "512MB")
            .setting("synchronous_commit", "on")
            .start()
            .await;
        let stage = Self { postgres, kafka: Kafka::start().await };
        let init = stage.command("init").arg("--apply").start();
        let status = init.wait(PATIENCE).await.expect("init ends");
        assert!(status.success(), "init failed: {:?}", init.stderr());
        stage
    }

    pub(crate) fn command(&self, name: &str) -> WalpostBuilder {
        Walpost::builder(env!("CARGO_BIN_EXE_walpost"))
            .arg(name)
            .args(["--source", &self.postgres.url()])
            .args(["--bootstrap-servers", &self.kafka.bootstrap()])
    }

    /// A slot that stands where `base` stands.
    pub(crate) async fn copy_slot(&self, base: &str, copy: &str) {
        let sql = format!("SELECT pg_copy_logical_replication_slot('{base}', '{copy}')");
        self.postgres.execute(&sql).await;
    }

    pub(crate) async fn drop_slot(&self, slot: &str) {
        self.postgres.execute(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
    }

    pub(crate) async fn wal_end(&self) -> String {
        let lsn = self.postgres.query_text("SELECT pg_current_wal_flush_lsn()").await;
        lsn.expect("an LSN")
    }
}

/// `pg_recvlogical` of the machine's own PostgreSQL.
pub(crate) fn pg_recvlogical() -> PathBuf {
    let output = std::process::Command::new("pg_config").arg("--bindir").output();
    let directory = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    PathBuf::from(directory.expect("pg_config runs")).join("pg_recvlogical")
}

pub(crate) fn tell_of_the_machine() {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    println!(
        "machine: {cores} cores, shared with PostgreSQL, Kafka and the consumer; walpost {}",
        env!("CARGO_PKG_VERSION")
    );
}

/// Median of a few figures.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
