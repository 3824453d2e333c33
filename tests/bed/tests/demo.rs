//! The demo, as `make demo` runs it, with the mock broker that needs no Java.

use std::process::Command;

#[test]
fn demo_succeeds_and_shows_rollbacks_and_duplicates() {
    let demo = env!("CARGO_BIN_EXE_demo");
    let walpost = std::path::Path::new(demo).with_file_name("walpost");
    assert!(walpost.exists(), "build walpost first: cargo build");
    let done = Command::new(demo).env("WALPOST_DEMO_MOCK", "1").output().unwrap();
    let (out, err) =
        (String::from_utf8(done.stdout).unwrap(), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    for expected in [
        "mock broker",
        "rolled back order 1002 paid: card refused      nothing, as it should be",
        "kill -9",
        "229 events committed, all delivered, in order for each key",
        "23 events rolled back, none delivered",
        "repeats after the kill, with the same id",
        "lag of the slot: 0 bytes",
        "What to try next",
    ] {
        assert!(out.contains(expected), "{expected:?} in:\n{out}");
    }
    assert!(!out.contains('\x1b'), "colour without a terminal:\n{out}");
    assert_eq!(err, "");
}

/// The demo with another destination than Kafka; what it printed.
fn demo_to(sink: &str) -> String {
    let demo = env!("CARGO_BIN_EXE_demo");
    let done = Command::new(demo).env("WALPOST_DEMO_SINK", sink).output().unwrap();
    let (out, err) =
        (String::from_utf8(done.stdout).unwrap(), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "built with all features? {out}\n{err}");
    let expected = "229 events committed, all delivered, in order for each key";
    assert!(out.contains(expected), "{expected:?} in:\n{out}");
    out
}

#[test]
fn kill_repeats_nothing_in_the_streams_of_redis_and_nats() {
    for (sink, origin) in [("redis", "from Redis"), ("nats", "from NATS")] {
        let out = demo_to(sink);
        let expected = "    0 records more than events: the kill repeats nothing in the stream";
        assert!(out.contains(expected) && out.contains(origin), "{out}");
    }
}

#[test]
fn demo_delivers_to_an_http_endpoint_and_to_rabbitmq_too() {
    for (sink, origin) in [("http", "by the HTTP receiver"), ("rabbitmq", "from RabbitMQ")] {
        let out = demo_to(sink);
        let expected = "with the same id (at least once)";
        assert!(out.contains(expected) && out.contains(origin), "{out}");
    }
}

#[test]
fn unknown_destination_of_the_demo_is_rejected_in_one_line() {
    let demo = env!("CARGO_BIN_EXE_demo");
    let done = Command::new(demo).env("WALPOST_DEMO_SINK", "fax").output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(err.starts_with("demo: WALPOST_DEMO_SINK") && err.lines().count() == 1, "{err}");
}

#[test]
fn invalid_demo_argument_is_rejected_in_one_line() {
    let done = Command::new(env!("CARGO_BIN_EXE_demo")).arg("dance").output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&done.stderr), "usage: demo [stay]\n");
}
