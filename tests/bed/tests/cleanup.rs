//! Nothing outlives the process that started it, however it ends.

use std::path::Path;
use std::time::Duration;

use walpost_bed::{Kafka, Major, Postgres, Walpost, eventually};

const MINUTE: Duration = Duration::from_secs(60);

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
    !stat.is_empty() && state != Some('Z')
}

/// The shared memory segment that a server names next to its data.
fn segment_of(data: &Path) -> String {
    let lock = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
    let line = lock.lines().nth(6).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

fn segment_exists(segment: &str) -> bool {
    let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let mut rows = table.lines();
    rows.any(|row| row.split_whitespace().nth(1) == Some(segment))
}

#[tokio::test]
async fn killed_process_leaves_no_server_and_no_directory() {
    let holder = Walpost::builder(env!("CARGO_BIN_EXE_hold_servers")).start();
    let postgres = holder.await_line("postgres ", 3 * MINUTE).await;
    let kafka = holder.await_line("kafka ", 3 * MINUTE).await;
    let servers: Vec<_> = [postgres, kafka]
        .iter()
        .map(|line| {
            let mut words = line.split_whitespace().skip(1).map(str::to_owned);
            (words.next().unwrap(), words.next().unwrap())
        })
        .collect();
    for (pid, directory) in &servers {
        assert!(is_alive(pid), "{pid} runs while it is held");
        assert!(Path::new(directory).exists());
    }
    let segment = segment_of(Path::new(&servers[0].1));
    assert!(segment_exists(&segment));
    // SIGKILL for the holder alone: the servers' end is the watchdogs' work.
    let pid = holder.pid().unwrap().to_string();
    let sent = std::process::Command::new("kill").args(["-KILL", &pid]).status();
    assert!(sent.unwrap().success());
    for (pid, directory) in &servers {
        eventually(MINUTE, "the end of a server", async || !is_alive(pid)).await;
        eventually(MINUTE, "the end of its files", async || {
            !Path::new(directory).parent().unwrap().exists()
        })
        .await;
    }
    assert!(!segment_exists(&segment));
}

#[tokio::test]
async fn dropped_server_stops_at_once_even_after_a_kill() {
    let postgres = Postgres::start(Major::V15).await;
    let pid = postgres.pid().unwrap().to_string();
    let directory = postgres.data_dir();
    drop(postgres);
    assert!(!is_alive(&pid));
    assert!(!directory.exists());

    let killed = Postgres::start(Major::V15).await;
    let directory = killed.data_dir();
    let segment = segment_of(&directory);
    assert!(segment_exists(&segment));
    killed.kill9().await;
    drop(killed);
    assert!(!directory.exists());
    assert!(!segment_exists(&segment));

    let kafka = Kafka::start().await;
    let pid = kafka.pid().unwrap().to_string();
    let directory = kafka.directory().to_owned();
    drop(kafka);
    assert!(!is_alive(&pid));
    assert!(!directory.exists());
}
