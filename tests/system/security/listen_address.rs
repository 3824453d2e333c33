//! The addresses on which walpost listens, as reported by the kernel.

use std::fs;
use std::process::{Child, Command, Stdio};

use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{eventually, fixture};

/// A walpost in a network namespace of its own, where every port is free.
struct StandaloneWalpost(Child);

impl Drop for StandaloneWalpost {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl StandaloneWalpost {
    fn run(arguments: &str) -> Self {
        let run = format!(
            "ip link set lo up && exec {} run --source postgres://u@127.0.0.1/db {arguments}",
            fixture::program().display()
        );
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-c", &run]).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.expect("unshare is there: apt-get install util-linux"))
    }

    /// The addresses in its network that someone listens on, in hexadecimal as
    /// `/proc/net/tcp` has them, and whether walpost has begun at all.
    fn listens(&self) -> (Vec<String>, bool) {
        let read = |name| fs::read_to_string(format!("/proc/{}/{name}", self.0.id()));
        let begun = read("comm").is_ok_and(|name| name.trim() == "walpost");
        let sockets = [read("net/tcp"), read("net/tcp6")].map(Result::unwrap_or_default).concat();
        let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let listening = fields.filter(|fields| fields.get(3) == Some(&"0A"));
        (listening.map(|fields| fields[1].to_owned()).collect(), begun)
    }

    async fn await_listening(&self) -> Vec<String> {
        eventually(SHORT_TIMEOUT, "it listens", async || {
            // Before it has begun, what is seen is another network's.
            let (addresses, begun) = self.listens();
            (begun && !addresses.is_empty()).then_some(addresses)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listens_only_on_loopback_by_default() {
    let walpost = StandaloneWalpost::run("");
    assert_eq!(walpost.await_listening().await, ["0100007F:25A9"], "127.0.0.1:9641");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listens_on_the_configured_address_or_not_at_all() {
    let walpost = StandaloneWalpost::run("--admin-listen 0.0.0.0:9700");
    assert_eq!(walpost.await_listening().await, ["00000000:25E4"], "0.0.0.0:9700");
    let silent = StandaloneWalpost::run("--admin-listen off");
    // It tries PostgreSQL once it has done all else: a connection that is refused shows
    // in its log alone, so the other is what its time is measured by.
    eventually(SHORT_TIMEOUT, "it has begun", async || silent.listens().1).await;
    let later = StandaloneWalpost::run("");
    later.await_listening().await;
    assert_eq!(silent.listens(), (Vec::new(), true));
}
