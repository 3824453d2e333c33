//! `pg_recvlogical` of the machine's own PostgreSQL, which benches compare walpost with.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Reads the changes of a slot for the publication `walpost` up to a position to /dev/null, with these
/// options for its session, and returns how long that took.
pub async fn receive(source: &str, slot: &str, end: &str, options: &str) -> Duration {
    let begun = Instant::now();
    let status = tokio::process::Command::new(program())
        .args(["--dbname", source, "--slot", slot, "--start"])
        .args(["--endpos", end, "--no-loop", "--file", "/dev/null"])
        .args(["-o", "proto_version=1", "-o", "publication_names=walpost"])
        .env("PGOPTIONS", options)
        .stdout(Stdio::null())
        .status()
        .await
        .expect("pg_recvlogical runs");
    assert!(status.success(), "pg_recvlogical: {status}");
    begun.elapsed()
}

/// The version that it prints.
pub fn version() -> String {
    let output = Command::new(program()).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_else(|error| error.to_string())
}

fn program() -> PathBuf {
    let output = Command::new("pg_config").arg("--bindir").output();
    let directory = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    PathBuf::from(directory.expect("pg_config runs")).join("pg_recvlogical")
}
