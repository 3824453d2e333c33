//! What other local users can access of a running walpost: neither its memory nor, through a
//! browser, its endpoints.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, Stdio};

use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{eventually, fixture};

/// A walpost of an unprivileged user that waits for a database; stopped on drop.
struct Unprivileged(Child);

impl Drop for Unprivileged {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const NOBODY: u32 = 65_534;

impl Unprivileged {
    /// And its owner.
    fn run(variables: &[(&str, &str)]) -> (Self, u32) {
        let own = fs::metadata("/proc/self").expect("there is a /proc").uid();
        let mut command = if own == 0 {
            let mut command = Command::new("setpriv");
            let user = NOBODY.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
            command.arg(fixture::program());
            command
        } else {
            Command::new(fixture::program())
        };
        command.args(["run", "--source", "postgres://u@127.0.0.1:1/db", "--log-format", "json"]);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("WALPOST_ADMIN_LISTEN", "127.0.0.1:0").envs(variables.iter().copied());
        let child = command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child = child.expect("setpriv is of the package util-linux");
        (Self(child), if own == 0 { NOBODY } else { own })
    }

    /// The address that it listens on, as soon as it does.
    fn address(&mut self) -> String {
        let mut lines = self.0.stderr.take().expect("it is piped");
        let mut text = Vec::new();
        while !text.ends_with(b"\n") {
            let mut byte = [0];
            lines.read_exact(&mut byte).expect("a line");
            text.push(byte[0]);
        }
        // It keeps writing, and no other thread reads.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let line: serde_json::Value = serde_json::from_slice(&text).expect("a JSON line");
        line["endpoints"].as_str().unwrap_or_else(|| panic!("{line}")).to_owned()
    }

    /// The owner of its memory, according to the kernel.
    fn owner_of_its_memory(&self) -> u32 {
        fs::metadata(format!("/proc/{}/mem", self.0.id())).expect("it runs").uid()
    }
}

/// The first line of the answer to `GET path`, with these headers.
fn answer(address: &str, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_memory_is_unreadable_unless_core_dumps_are_allowed() {
    let (mut walpost, user) = Unprivileged::run(&[]);
    let address = walpost.address();
    assert_eq!(walpost.owner_of_its_memory(), 0);
    // walpost can still read its own process metrics.
    let page = answer(&address, "/metrics", "Host: localhost\r\n");
    for name in ["process_open_fds", "process_resident_memory_bytes", "process_cpu_seconds_total"] {
        assert!(page.contains(name), "{name}\n{page}");
    }
    let (mut walpost, _) = Unprivileged::run(&[("WALPOST_PROCESS_CORE_DUMPS", "allow")]);
    walpost.address();
    eventually(SHORT_TIMEOUT, "its memory is its own", async || {
        walpost.owner_of_its_memory() == user
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_host_header_is_rejected_on_loopback() {
    let (mut walpost, _) = Unprivileged::run(&[]);
    let address = walpost.address();
    let port = address.rsplit_once(':').expect("a port").1.to_owned();
    for path in ["/status", "/metrics", "/livez", "/readyz", "/"] {
        for host in ["attacker.example", &format!("attacker.example:{port}"), "10.1.2.3"] {
            let text = answer(&address, path, &format!("Host: {host}\r\n"));
            assert!(text.starts_with("HTTP/1.1 421 "), "{path} {host}: {text}");
            assert!(!text.contains("slot"), "{path} {host}: {text}");
        }
        for host in ["localhost", &format!("localhost:{port}"), &address, "[::1]"] {
            let text = answer(&address, path, &format!("Host: {host}\r\n"));
            assert!(!text.starts_with("HTTP/1.1 421 "), "{path} {host}: {text}");
        }
    }
    let (mut walpost, _) = Unprivileged::run(&[("WALPOST_ADMIN_LISTEN", "0.0.0.0:0")]);
    let address = walpost.address().replace("0.0.0.0", "127.0.0.1");
    let text = answer(&address, "/status", "Host: pod.example\r\n");
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}
