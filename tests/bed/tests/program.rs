//! Controlling a program in tests, with a shell in place of walpost.

use std::time::Duration;

use walpost_bed::{Process, Walpost, eventually};

const LONG: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Walpost {
    // A shell cannot trap what it was started to ignore, as by `nohup make test &`.
    let shell = ["--default-signal=INT,TERM", "/bin/sh", "-c", script];
    Walpost::builder("/usr/bin/env").args(shell).start()
}

#[tokio::test]
async fn stdout_and_stderr_are_read_while_the_program_runs() {
    let program = shell("echo one; echo two >&2; exec sleep 60");
    program.await_line("one", LONG).await;
    program.await_line("two", LONG).await;
    assert_eq!(program.stdout(), ["one"]);
    assert_eq!(program.stderr(), ["two"]);
    assert!(program.pid().is_some());
    assert!(program.rss_bytes().unwrap() > 100_000);
    assert!(program.cpu_time().unwrap() < LONG);
}

#[tokio::test]
async fn signals_are_delivered_and_the_exit_code_is_reported() {
    let program = shell("trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.02; done");
    program.await_line("ready", LONG).await;
    assert_eq!(program.wait(Duration::from_millis(100)).await, None);
    program.terminate();
    let status = program.wait(LONG).await.unwrap();
    assert_eq!(status.code(), Some(7));
    assert_eq!(program.stdout(), ["ready", "asked"]);
}

#[tokio::test]
async fn paused_program_does_nothing_until_it_is_resumed() {
    let program = shell("trap 'echo asked; exit 0' INT; echo ready; while :; do sleep 0.02; done");
    program.await_line("ready", LONG).await;
    program.pause();
    program.interrupt();
    assert_eq!(program.wait(Duration::from_millis(200)).await, None);
    program.resume();
    assert_eq!(program.wait(LONG).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn environment_of_the_test_is_not_inherited() {
    let program = Walpost::builder("/usr/bin/env").env("WALPOST_SLOT", "mine").start();
    program.wait(LONG).await.unwrap();
    let lines = program.stdout();
    let foreign = ["PG", "DATABASE_URL", "WALPOST_", "KAFKA_", "RUST_LOG"];
    let mut found: Vec<_> =
        lines.iter().filter(|line| foreign.iter().any(|name| line.starts_with(name))).collect();
    found.sort();
    // Without endpoints and without a state topic, unless a test asks for them.
    let off = ["WALPOST_ADMIN_LISTEN=off", "WALPOST_DELIVERY_STATE_TOPIC=off"];
    assert_eq!(found, [off[0], off[1], "WALPOST_SLOT=mine"]);
    assert!(lines.iter().any(|line| line.starts_with("PATH=")));
}

#[tokio::test]
#[should_panic(expected = "it ended with exit status: 3; it said:\nbye")]
async fn missing_line_error_includes_the_output() {
    let program = shell("echo bye; exit 3");
    program.wait(LONG).await.unwrap();
    program.await_line("hello", Duration::from_millis(100)).await;
}

#[tokio::test]
async fn cpu_time_includes_running_and_exited_children() {
    let program = shell(
        "work='i=0; while [ $i -lt 20000000 ]; do i=$((i+1)); done'; \
         sh -c \"$work\" & trap 'kill $!; wait; echo ended; exec sleep 60' TERM; echo begun; wait",
    );
    program.await_line("begun", LONG).await;
    let process = Process(program.pid().unwrap());
    let worked = || process.family_cpu_time().unwrap().saturating_sub(process.cpu_time().unwrap());
    let some = Duration::from_millis(200);
    eventually(LONG, "work of a child that runs", async || worked() >= some).await;
    program.terminate();
    program.await_line("ended", LONG).await;
    assert!(worked() >= some);
}
