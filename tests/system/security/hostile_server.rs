//! Hostile servers: what they can cost walpost before and after authentication, and what they can
//! learn from it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, ended};
use walpost_bed::{Endpoints, Walpost, eventually, under_load};

/// What a server says to whom it does not know yet, in turn: after each message of the client's
/// one of these. It hangs up where there is none.
type Lines = fn(&[u8]) -> Vec<u8>;

/// A server that answers so, from the connection of that number on; those before are led to a real
/// one.
struct HostileServer {
    port: u16,
    received: Arc<Mutex<Vec<u8>>>,
    accepting: JoinHandle<()>,
}

impl Drop for HostileServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl HostileServer {
    async fn start(real: u16, after: usize, lines: Lines) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let received: Arc<Mutex<Vec<u8>>> = Arc::default();
        let all = Arc::clone(&received);
        let accepting = tokio::spawn(async move {
            for number in 0_usize.. {
                let Ok((mut client, _)) = listener.accept().await else { break };
                let all = Arc::clone(&all);
                tokio::spawn(async move {
                    if number < after {
                        let mut server =
                            TcpStream::connect(("127.0.0.1", real)).await.expect("the real one");
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    } else {
                        answer(client, lines, &all).await;
                    }
                });
            }
        });
        Self { port, received, accepting }
    }

    fn source(&self, parameters: &str) -> String {
        format!(
            "postgres://postgres:s3cret@127.0.0.1:{}/postgres?sslmode=disable{parameters}",
            self.port
        )
    }

    fn has_received(&self, text: &str) -> bool {
        let received = self.received.lock().expect("whole");
        received.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

async fn answer(mut client: TcpStream, lines: Lines, received: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 10_000];
    while let Ok(count @ 1..) = client.read(&mut buffer).await {
        received.lock().expect("whole").extend_from_slice(&buffer[..count]);
        let answer = lines(&buffer[..count]);
        if answer.is_empty() || client.write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn request(code: u8, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(8 + data.len()).expect("short").to_be_bytes();
    [&[b'R'][..], &length, &[0, 0, 0, code], data].concat()
}

/// Announces a gigabyte, and sends a part of it.
fn announces_a_huge_length(_: &[u8]) -> Vec<u8> {
    let mut bytes = request(10, &[0; 5000]);
    bytes[1..5].copy_from_slice(&(1_u32 << 30).to_be_bytes());
    bytes
}

/// SCRAM with two thousand million iterations.
fn demands_many_iterations(client: &[u8]) -> Vec<u8> {
    if client[0] != b'p' {
        return request(10, b"SCRAM-SHA-256\0\0");
    }
    let text = String::from_utf8_lossy(client);
    let (_, nonce) = text.split_once(",r=").expect("a nonce");
    request(11, format!("r={nonce}more,s=c2FsdA==,i=2000000000").as_bytes())
}

/// Requests the password.
fn asks_for_the_password(_: &[u8]) -> Vec<u8> {
    request(3, &[])
}

/// What it answers to every query: another line of the log, orders to the terminal, and more than
/// anybody reads.
fn forged() -> Vec<u8> {
    let line = "1\n2026-01-01T00:00:00.000000Z ERROR forged line\r\u{1b}[2J\u{202e}";
    [line.as_bytes(), &vec![b'x'; 3 << 20]].concat()
}

/// Accepts every client, and answers each query with one column of text.
fn answers_every_query(client: &[u8]) -> Vec<u8> {
    let message = |tag: u8, data: &[u8]| {
        let length = u32::try_from(4 + data.len()).expect("short").to_be_bytes();
        [&[tag][..], &length, data].concat()
    };
    let ready = message(b'Z', b"I");
    if client[0] == 0 {
        let version = message(b'S', b"server_version\x0015.1\0");
        return [request(0, &[]), version, message(b'K', &[0; 8]), ready].concat();
    }
    let mut answers = Vec::new();
    let mut rest = client;
    while let [tag, length @ ..] = rest {
        let length: [u8; 4] = length[..4].try_into().expect("four bytes");
        let length = usize::try_from(u32::from_be_bytes(length)).expect("it fits");
        rest = &rest[1 + length..];
        let answer = match tag {
            b'Q' => [message(b'C', b"SET\0"), ready.clone()].concat(),
            b'P' => message(b'1', &[]),
            b'D' => {
                let text = [&b"\0\x01x\0"[..], &[0; 6], &25_u32.to_be_bytes(), &[0xff; 6], &[0; 2]];
                [message(b't', &[0; 2]), message(b'T', &text.concat())].concat()
            }
            b'B' => message(b'2', &[]),
            b'E' => {
                let text = forged();
                let length = u32::try_from(text.len()).expect("short").to_be_bytes();
                let row = message(b'D', &[&[0, 1][..], &length, &text].concat());
                [row, message(b'C', b"SELECT 1\0")].concat()
            }
            b'C' => message(b'3', &[]),
            b'S' => ready.clone(),
            _ => Vec::new(),
        };
        answers.extend(answer);
    }
    answers
}

fn run(fixture: &mut Fixture, source: String) -> Walpost {
    fixture.source = source;
    fixture.command("run").args(["--catch-up", "stream"]).start()
}

/// Number of the replication session among the connections of `run`, and of the control
/// connection.
const CONNECTIONS: [usize; 2] = [0, 1];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_message_length_reserves_no_memory() {
    let mut fixture = Fixture::new().await;
    for after in CONNECTIONS {
        let server =
            HostileServer::start(fixture.postgres.port(), after, announces_a_huge_length).await;
        let walpost = run(&mut fixture, server.source(""));
        let line = walpost.await_line("cannot connect to PostgreSQL", SHORT_TIMEOUT).await;
        assert!(line.contains("1073741824 bytes; at most 65536"), "{after}: {line}");
        let peak = walpost.peak_rss_bytes().expect("it runs");
        assert!(peak < 200 << 20, "{after}: {} MiB", peak >> 20);
        let since = Instant::now();
        walpost.terminate();
        let status = walpost.wait(SHORT_TIMEOUT).await.expect("walpost stops");
        assert!(status.success(), "{after}: {:?}", walpost.stderr());
        assert!(
            since.elapsed() < under_load(Duration::from_secs(5)),
            "{after}: {:?}",
            since.elapsed()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excessive_scram_iterations_are_rejected() {
    let mut fixture = Fixture::new().await;
    for after in CONNECTIONS {
        let server =
            HostileServer::start(fixture.postgres.port(), after, demands_many_iterations).await;
        let since = Instant::now();
        let (status, text) = ended(&run(&mut fixture, server.source(""))).await;
        assert_eq!(status, Some(78), "{after}: {text}");
        assert!(text.contains("2000000000 SCRAM iterations"), "{after}: {text}");
        assert!(
            since.elapsed() < under_load(Duration::from_secs(10)),
            "{after}: {:?}",
            since.elapsed()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_is_not_sent_to_a_server_excluded_by_require_auth() {
    let mut fixture = Fixture::new().await;
    for after in CONNECTIONS {
        // The bed's server uses `trust`; the other one requests a password.
        for parameters in ["&require_auth=scram-sha-256,none", "&require_auth=!password"] {
            let server =
                HostileServer::start(fixture.postgres.port(), after, asks_for_the_password).await;
            let (status, text) = ended(&run(&mut fixture, server.source(parameters))).await;
            assert_eq!(status, Some(78), "{after}{parameters}: {text}");
            assert!(text.contains("require_auth does not allow"), "{after}{parameters}: {text}");
            assert!(!server.has_received("s3cret"), "{after}{parameters}");
        }
        let server =
            HostileServer::start(fixture.postgres.port(), after, asks_for_the_password).await;
        let walpost = run(&mut fixture, server.source(""));
        eventually(SHORT_TIMEOUT, "without it the password is sent", async || {
            server.has_received("s3cret")
        })
        .await;
        drop(walpost);
    }
}

/// A message of that type.
fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(4 + body.len()).expect("short").to_be_bytes();
    [&[tag][..], &length, body].concat()
}

/// What a server floods an accepted session with, after its first query.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flood {
    /// Parameters that the client did not request, each with another name.
    Parameters,
    /// The same parameter repeatedly.
    Parameter,
    Notices,
    /// An unlimited number of rows.
    Rows,
    /// One row of the maximal length.
    Row,
    /// Nothing is sent.
    Silence,
}

impl Flood {
    /// A part of the flood.
    fn piece(self, number: u32) -> Vec<u8> {
        let value = [b'v'; 1000];
        let one = |index: u32| match self {
            Self::Parameters => {
                let name = format!("p{}\0", number * 1000 + index);
                message(b'S', &[name.as_bytes(), &value, b"\0"].concat())
            }
            Self::Parameter => message(b'S', &[&b"p\0"[..], &value, b"\0"].concat()),
            Self::Notices => message(b'N', &[&b"SNOTICE\0C00000\0M"[..], &value, b"\0\0"].concat()),
            Self::Rows => message(b'D', &[&b"\0\x01\0\0\x03\xe8"[..], &value].concat()),
            Self::Row if (number, index) == (0, 0) => {
                [&b"D"[..], &(1_u32 << 30).to_be_bytes(), b"\0\x01\x3f\xff\xff\x00"].concat()
            }
            Self::Row => value.to_vec(),
            Self::Silence => Vec::new(),
        };
        (0..1000).flat_map(one).collect()
    }

    /// Accepts every client, and floods it after its first query until it disconnects.
    async fn serve(self, mut client: TcpStream) {
        let mut buffer = vec![0; 10_000];
        let _ = client.read(&mut buffer).await;
        let key = message(b'K', &[0; 8]);
        let welcome = [request(0, &[]), key, message(b'Z', b"I")].concat();
        if client.write_all(&welcome).await.is_err() || client.read(&mut buffer).await.is_err() {
            return;
        }
        let columns = [&b"\0\x01x\0"[..], &[0; 6], &25_u32.to_be_bytes(), &[255; 6], &[0; 2]];
        let columns = message(b'T', &columns.concat());
        let first = if self == Self::Silence { &[][..] } else { &columns };
        let begun = client.write_all(first).await;
        // A bound on the memory used if the limit is missing.
        for number in 0..600 {
            if begun.is_err() || client.write_all(&self.piece(number)).await.is_err() {
                return;
            }
        }
        while client.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    }
}

/// A server that does that with the connection of that number and those after it; those before are
/// led to a real one.
struct FloodingServer {
    port: u16,
    flood: Flood,
    /// Flooded connections: all, and the open ones.
    counts: Arc<[AtomicUsize; 2]>,
    accepting: JoinHandle<()>,
}

impl Drop for FloodingServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl FloodingServer {
    async fn start(real: u16, after: usize, flood: Flood) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let counts: Arc<[AtomicUsize; 2]> = Arc::default();
        let all = Arc::clone(&counts);
        let accepting = tokio::spawn(async move {
            for number in 0_usize.. {
                let Ok((mut client, _)) = listener.accept().await else { break };
                let counts = Arc::clone(&all);
                tokio::spawn(async move {
                    if number < after {
                        let mut server =
                            TcpStream::connect(("127.0.0.1", real)).await.expect("the real one");
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                        return;
                    }
                    for count in counts.iter() {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                    flood.serve(client).await;
                    counts[1].fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { port, flood, counts, accepting }
    }

    /// Connections so far, and how many of them are open.
    fn counts(&self) -> [usize; 2] {
        [0, 1].map(|index| self.counts[index].load(Ordering::SeqCst))
    }

    fn source(&self) -> String {
        let port = self.port;
        // A flood is to be met by its own limit, however slow the machine is.
        let timeout = if self.flood == Flood::Silence { 2 } else { 25 };
        format!(
            "postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable&connect_timeout={timeout}"
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authenticated_server_cannot_exhaust_memory() {
    let mut fixture = Fixture::new().await;
    for after in CONNECTIONS {
        for flood in [Flood::Parameters, Flood::Parameter, Flood::Notices, Flood::Rows, Flood::Row]
        {
            let flooding = FloodingServer::start(fixture.postgres.port(), after, flood).await;
            let walpost = run(&mut fixture, flooding.source());
            let line = walpost.await_line(" bytes", SHORT_TIMEOUT).await;
            let expected = ["sends more than", "answered with more than", "bytes; at most"];
            assert!(
                expected.iter().any(|expected| line.contains(expected)),
                "{after} {flood:?}: {line}"
            );
            let again = async || flooding.counts()[0] > 2;
            eventually(SHORT_TIMEOUT, "walpost retries", again).await;
            let peak = walpost.peak_rss_bytes().expect("it runs");
            assert!(peak < 200 << 20, "{after} {flood:?}: {} MiB", peak >> 20);
            let [all, open] = flooding.counts();
            assert!(open <= 2, "{after} {flood:?}: {open} of {all} connections are open");
        }
    }
}

/// An abandoned attempt to connect leaves no connection open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connection_is_closed_with_its_attempt() {
    let mut fixture = Fixture::new().await;
    let flooding = FloodingServer::start(fixture.postgres.port(), 0, Flood::Silence).await;
    let walpost = run(&mut fixture, flooding.source());
    walpost.await_line("no answer within", SHORT_TIMEOUT * 2).await;
    let next = async || flooding.counts()[0] >= 2;
    eventually(SHORT_TIMEOUT, "walpost retries", next).await;
    let left = async || flooding.counts()[1] == 1;
    eventually(Duration::from_secs(5), "the first connection is closed", left).await;
}

/// The commands that connect to PostgreSQL.
const COMMANDS: [(&str, &[&str]); 4] =
    [("check", &[]), ("init", &["--apply"]), ("tail", &["--from-slot"]), ("tail", &[])];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_time_out_on_a_silent_server() {
    let mut fixture = Fixture::new().await;
    let mut started = Vec::new();
    for (name, arguments) in COMMANDS {
        let silent = FloodingServer::start(fixture.postgres.port(), 0, Flood::Silence).await;
        fixture.source = silent.source();
        started.push((fixture.command(name).args(arguments).start(), silent));
    }
    for (walpost, silent) in started {
        fails_with(&walpost, &format!("127.0.0.1:{}", silent.port), "no answer within 2").await;
    }
}

/// Only the second connection, which is for replication, is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn tail_times_out_on_a_silent_replication_connection() {
    let mut fixture = Fixture::new().await;
    let silent = FloodingServer::start(fixture.postgres.port(), 1, Flood::Silence).await;
    fixture.source = silent.source();
    let walpost = fixture.command("tail").start();
    fails_with(&walpost, &format!("127.0.0.1:{}", silent.port), "was not ready within 32").await;
}

/// Awaits exit code 1 and one line with this host and this error.
async fn fails_with(walpost: &Walpost, host: &str, error: &str) {
    let status = walpost.wait(SHORT_TIMEOUT * 2).await;
    let output = [walpost.stdout(), walpost.stderr()].concat();
    let status = status.unwrap_or_else(|| panic!("{error}: still running; its output: {output:?}"));
    assert_eq!(status.code(), Some(1), "{error}: {output:?}");
    let is_it = |line: &&String| line.contains(host) && line.contains(error);
    assert_eq!(output.iter().filter(is_it).count(), 1, "{host}, {error}: {output:?}");
}

/// The server has accepted the session, and then waits for a lock of another session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn commands_time_out_on_a_server_that_stops_responding() {
    let mut fixture = Fixture::new().await;
    let holder = fixture.postgres.client().await;
    let lock = "BEGIN; LOCK TABLE pg_catalog.pg_publication IN ACCESS EXCLUSIVE MODE";
    holder.batch_execute(lock).await.expect("a superuser is allowed to");
    fixture.source += "?connect_timeout=2";
    let started = COMMANDS[..3]
        .iter()
        .map(|(name, arguments)| fixture.command(name).args(arguments.iter().copied()).start());
    let host = format!(":{}", fixture.postgres.port());
    for walpost in started.collect::<Vec<_>>() {
        fails_with(&walpost, &host, "no answer within 32").await;
    }
}

/// walpost logs that it waits for an open transaction, and keeps waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_creation_waits_for_open_transactions() {
    let fixture = Fixture::new().await;
    let holder = fixture.postgres.client().await;
    let begun = "BEGIN; SELECT pg_catalog.pg_current_xact_id()";
    holder.batch_execute(begun).await.expect("it begins");
    // Limits of the role are for the application.
    let limit = "ALTER ROLE CURRENT_USER SET statement_timeout = '1s'";
    fixture.postgres.execute(limit).await;
    let init = fixture.command("init").args(["--apply", "--slot", "another"]).start();
    let tail = fixture.command("tail").start();
    init.await_line("waits for the end of all transactions", SHORT_TIMEOUT).await;
    tail.await_line("waiting for all transactions", SHORT_TIMEOUT).await;
    holder.batch_execute("COMMIT").await.expect("it ends");
    tail.await_line("showing events committed", SHORT_TIMEOUT).await;
    let status = init.wait(SHORT_TIMEOUT).await.expect("it ends");
    assert!(status.success(), "{:?}", init.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_messages_are_one_short_line_in_logs_and_endpoints() {
    let mut fixture = Fixture::new().await;
    let server = HostileServer::start(fixture.postgres.port(), 0, answers_every_query).await;
    fixture.source = server.source("");
    let walpost = fixture.command("run");
    let walpost = walpost.args(["--log-format", "text", "--admin-listen", "127.0.0.1:0"]).start();
    let line = walpost.await_line("walpost starts", SHORT_TIMEOUT).await;
    let (_, address) = line.split_once("endpoints=").expect("where its pages are");
    let address = address.split_whitespace().next().expect("an address").trim_matches('"');
    let endpoints = Endpoints::at(address);
    walpost.await_line("cannot connect to PostgreSQL", SHORT_TIMEOUT).await;
    let assert_tame = |text: &str, what: &str| {
        assert!(text.len() < 20_000, "{what}: {} bytes", text.len());
        let is_raw = |sign: char| (sign != '\n' && sign.is_control()) || sign == '\u{202e}';
        assert!(!text.contains(is_raw), "{what}: {text:?}");
        let forged = text.lines().find(|line| line.starts_with("2026-01-01"));
        assert_eq!(forged, None, "{what}");
    };
    let log = walpost.stderr().join("\n");
    assert_tame(&log, "the log");
    for page in ["/readyz", "/status"] {
        let (_, body) = endpoints.page(page).await;
        assert!(body.contains("identifying the server"), "{page}: {body}");
        assert_tame(&body, page);
    }
    let status = fixture.command("status").args(["--admin-listen", address]).start();
    status.wait(SHORT_TIMEOUT).await.expect("it ends");
    let screen = status.stdout().join("\n");
    assert!(screen.contains("last error"), "{screen}");
    assert_tame(&screen, "the screen");
}
