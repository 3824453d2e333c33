//! The clock jumps (11), for walpost only: libfaketime intercepts its system calls and reads the
//! offset from a file.

use std::fs;
use std::path::PathBuf;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT};
use walpost_bed::writer::Writer;

use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![Case::new(11, "clock_jump_of_an_hour_has_no_effect", jumps)]
}

async fn jumps(report: CaseReport) {
    let directory = tempfile::tempdir().expect("a directory");
    let clock = directory.path().join("clock");
    fs::write(&clock, "+0").expect("written");
    let fixture = Fixture::new().await;
    let walpost = fixture
        .command("run")
        .env("LD_PRELOAD", library())
        .env("FAKETIME_TIMESTAMP_FILE", &clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1")
        .start();
    let first = walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let writer = Writer::start(&fixture.postgres, 200);
    // libfaketime does not know glibc's `cnd_timedwait`: after a jump forward librdkafka waits an hour
    // longer than it meant to, unless something wakes it. Only a topic that does not exist yet needs
    // its timers.
    writer.commits(1).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    for (jump, hour) in [("+1h", 1), ("-1h", -1), ("+0", 0), ("-1h", -1), ("+1h", 1)] {
        writer.commits(50).await;
        fs::write(&clock, jump).expect("written");
        writer.commits(50).await;
        // Each new session is a line with the time that walpost sees.
        let mark = walpost.mark();
        let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
        fixture.postgres.query_rows(terminate).await;
        let line = walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
        let jumped = (seconds(&line) - seconds(&first) + 1800).rem_euclid(86_400) / 3600;
        assert_eq!(jumped, i64::from(hour).rem_euclid(24), "{first}, then {line}");
        writer.commits(50).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
    }
    report.did("its time jumped");
    report.ok(&fixture.judge_after(writer).await);
    report.still_running(&walpost);
}

/// The library for programs of several threads, as Debian's package `faketime` has it.
fn library() -> PathBuf {
    let places = fs::read_dir("/usr/lib").expect("there is a /usr/lib").flatten();
    let mut found = places.map(|place| place.path().join("faketime/libfaketimeMT.so.1"));
    found.find(|file| file.is_file()).expect("libfaketime, which `make setup` installs")
}

/// The second of the day in a line's timestamp.
fn seconds(line: &str) -> i64 {
    let line: serde_json::Value = serde_json::from_str(line).expect("a JSON line");
    let (_, time) = line["timestamp"].as_str().and_then(|one| one.split_once('T')).expect("a time");
    let parts = time.split([':', '.']).take(3).map(|part| part.parse::<i64>().expect("a number"));
    parts.fold(0, |sum, part| sum * 60 + part)
}
