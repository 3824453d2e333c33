//! Servers that let walpost in and answer its queries with more than they were asked for: data
//! types without end, and rows without end.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert};

/// A message of that type.
fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(4 + body.len()).expect("short").to_be_bytes();
    [&[tag][..], &length, body].concat()
}

/// A message of the client, the first of which has no type.
async fn received(client: &mut OwnedReadHalf, is_first: bool) -> Option<(u8, Vec<u8>)> {
    let tag = if is_first { 0 } else { client.read_u8().await.ok()? };
    let length = client.read_u32().await.ok()?;
    let mut body = vec![0; usize::try_from(length).expect("short") - 4];
    client.read_exact(&mut body).await.ok()?;
    Some((tag, body))
}

/// The part of a message before the zero byte, and the part after it.
fn text(body: &[u8]) -> (&[u8], &[u8]) {
    let end = body.iter().position(|byte| *byte == 0).expect("it ends");
    (&body[..end], &body[end + 1..])
}

fn has(body: &[u8], what: &str) -> bool {
    body.windows(what.len()).any(|window| window == what.as_bytes())
}

/// The columns of a response, with the OIDs of their types.
fn columns_of(types: &[u32]) -> Vec<u8> {
    let mut body = u16::try_from(types.len()).expect("few").to_be_bytes().to_vec();
    for oid in types {
        body.extend([&b"c\0"[..], &[0; 6], &oid.to_be_bytes(), &[255; 6], &[0, 1]].concat());
    }
    message(b'T', &body)
}

fn row(values: &[Option<&[u8]>]) -> Vec<u8> {
    let mut body = u16::try_from(values.len()).expect("few").to_be_bytes().to_vec();
    for value in values {
        let length = value.map_or(-1, |value| i32::try_from(value.len()).expect("short"));
        body.extend(length.to_be_bytes());
        body.extend(value.unwrap_or_default());
    }
    message(b'D', &body)
}

/// Accepts every client; each column's type is a domain over another one.
async fn domains(client: TcpStream) -> Option<()> {
    const NAME: u32 = 19;
    const CHAR: u32 = 18;
    const OID: u32 = 26;
    let (mut client, mut answers) = client.into_split();
    received(&mut client, true).await?;
    let version = message(b'S', b"server_version\x0015.1\0");
    let ready = message(b'Z', b"I");
    let welcome = [&message(b'R', &[0; 4])[..], &version, &message(b'K', &[0; 8]), &ready];
    answers.write_all(&welcome.concat()).await.ok()?;
    let (mut asks_for_a_type, mut bound, mut oid) = (HashSet::new(), Vec::new(), 100_000_u32);
    loop {
        let (tag, body) = received(&mut client, false).await?;
        let answer = match tag {
            b'Q' if has(&body, "IDENTIFY_SYSTEM") => {
                let values = ["7000000000000000001", "1", "0/1000", "postgres"];
                let row = row(&values.map(|value| Some(value.as_bytes())));
                [columns_of(&[25; 4]), row, message(b'C', b"X\0"), ready.clone()].concat()
            }
            b'Q' => [message(b'C', b"SET\0"), ready.clone()].concat(),
            b'P' => {
                let (name, rest) = text(&body);
                if has(rest, "typbasetype") && has(rest, "rngsubtype") {
                    asks_for_a_type.insert(name.to_vec());
                }
                message(b'1', &[])
            }
            b'D' if asks_for_a_type.contains(text(&body[1..]).0) => {
                let parameter = message(b't', &[&[0, 1][..], &OID.to_be_bytes()].concat());
                [parameter, columns_of(&[NAME, CHAR, OID, OID, OID, NAME, OID])].concat()
            }
            b'D' => [message(b't', &[0; 2]), columns_of(&[oid])].concat(),
            b'B' => {
                bound = text(text(&body).1).0.to_vec();
                message(b'2', &[])
            }
            b'E' => {
                oid += 1;
                let (id, none) = (oid.to_be_bytes(), 0_u32.to_be_bytes());
                let of_type =
                    [Some(&b"d"[..]), Some(b"d"), Some(&none), None, Some(&id), Some(b"s")];
                let answer = if asks_for_a_type.contains(&bound) {
                    row(&[&of_type[..], &[Some(&none)]].concat())
                } else {
                    row(&[Some(b"1")])
                };
                [answer, message(b'C', b"SELECT 1\0")].concat()
            }
            b'C' => message(b'3', &[]),
            b'S' => ready.clone(),
            _ => return None,
        };
        answers.write_all(&answer).await.ok()?;
    }
}

/// A server in front of `real` that answers for itself, once it is asked a query that has `asked`
/// in it: with rows of a mebibyte, a gibibyte of them in all.
async fn floods(client: TcpStream, real: u16, asked: &str) -> Option<()> {
    let (mut client, answers) = client.into_split();
    let answers = Arc::new(Mutex::new(answers));
    let server = TcpStream::connect(("127.0.0.1", real)).await.ok()?;
    let (server, mut requests) = server.into_split();
    let (answered, mut whole) = watch::channel(0);
    let passing_on = tokio::spawn(pass_on(server, Arc::clone(&answers), answered));
    let (mut statement, mut sent) = (None, 1);
    let (_, startup) = received(&mut client, true).await?;
    requests.write_all(&message(0, &startup)[1..]).await.ok()?;
    loop {
        let (tag, body) = received(&mut client, false).await?;
        match tag {
            b'P' if has(&body, asked) => statement = Some(text(&body).0.to_vec()),
            b'B' if statement.as_deref() == Some(text(text(&body).1).0) => break,
            b'S' | b'Q' => sent += 1,
            _ => {}
        }
        requests.write_all(&message(tag, &body)).await.ok()?;
    }
    whole.wait_for(|answers| *answers == sent).await.ok()?;
    passing_on.abort();
    let mut answers = answers.lock().await;
    answers.write_all(&message(b'2', &[])).await.ok()?;
    let one = row(&[Some(&vec![b'v'; 1 << 20]), None, None, None, None, None, None]);
    for _ in 0..1024 {
        answers.write_all(&one).await.ok()?;
    }
    while received(&mut client, false).await.is_some() {}
    None
}

/// The server's messages; how many of its answers are whole.
async fn pass_on(
    mut server: OwnedReadHalf,
    answers: Arc<Mutex<OwnedWriteHalf>>,
    answered: watch::Sender<i32>,
) {
    while let Some((tag, body)) = received(&mut server, false).await {
        if answers.lock().await.write_all(&message(tag, &body)).await.is_err() {
            return;
        }
        answered.send_modify(|answers| *answers += i32::from(tag == b'Z'));
    }
}

/// How the answers of a server are altered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Altered {
    /// Each column is of an unknown type.
    Types,
    /// Each value is NULL.
    Values,
}

impl Altered {
    fn is_of(self, tag: u8) -> bool {
        tag == if self == Self::Types { b'T' } else { b'D' }
    }

    fn alter(self, body: &[u8]) -> Vec<u8> {
        const POINT: u32 = 600;
        let columns = usize::from(u16::from_be_bytes([body[0], body[1]]));
        match self {
            Self::Types => columns_of(&vec![POINT; columns]),
            Self::Values => row(&vec![None; columns]),
        }
    }
}

/// A server in front of `real` that alters the answer of that number among those which have
/// something to alter; they are counted over all connections.
async fn alters(
    client: TcpStream,
    real: u16,
    how: Altered,
    number: usize,
    count: Arc<AtomicUsize>,
) -> Option<()> {
    let (mut client, mut answers) = client.into_split();
    let server = TcpStream::connect(("127.0.0.1", real)).await.ok()?;
    let (mut server, mut requests) = server.into_split();
    let asking = tokio::spawn(async move { copy(&mut client, &mut requests).await });
    let mut this = None;
    while let Some((tag, body)) = received(&mut server, false).await {
        if tag == b'Z' {
            this = None;
        }
        let mut message = message(tag, &body);
        if how.is_of(tag) {
            let this = this.get_or_insert_with(|| count.fetch_add(1, Ordering::SeqCst));
            if *this == number {
                message = how.alter(&body);
            }
        }
        if answers.write_all(&message).await.is_err() {
            break;
        }
    }
    asking.abort();
    None
}

/// A server that runs until it is dropped.
struct Server {
    port: u16,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<()>> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client));
            }
        });
        Self { port, accepting }
    }

    fn source(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }
}

const UNKNOWN_TYPE: &str = "a value of the data type with OID 100000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_chain_of_data_types_does_not_crash_walpost() {
    let mut fixture = Fixture::new().await;
    let server = Server::start(domains).await;
    fixture.source = server.source();
    let commands: [(&str, &[&str]); 4] =
        [("check", &[]), ("tail", &[]), ("tail", &["--from-slot"]), ("init", &["--apply"])];
    for (name, arguments) in commands {
        let walpost = fixture.command(name).args(arguments.iter().copied()).start();
        let status = walpost.wait(SHORT_TIMEOUT).await;
        let said = [walpost.stdout(), walpost.stderr()].concat();
        let status =
            status.unwrap_or_else(|| panic!("{name} {arguments:?} is still running: {said:?}"));
        assert_eq!(status.code(), Some(1), "{name} {arguments:?}: {said:?}");
        // The other commands write no log.
        let named = said.iter().any(|line| line.contains(UNKNOWN_TYPE));
        assert!(named || name != "tail", "{name} {arguments:?}: {said:?}");
        let closed = said.iter().any(|line| line.contains("connection closed"));
        assert!(closed, "{name} {arguments:?}: {said:?}");
    }
    let walpost = fixture.command("run").start();
    walpost.await_line(UNKNOWN_TYPE, SHORT_TIMEOUT).await;
    walpost.await_line("cannot connect to PostgreSQL", SHORT_TIMEOUT).await;
    walpost.terminate();
    let status = walpost.wait(SHORT_TIMEOUT).await.expect("it stops");
    assert!(status.success(), "{:?}", walpost.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_catalog_response_does_not_exhaust_the_memory_of_tail() {
    let mut fixture = Fixture::new().await;
    let real = fixture.postgres.port();
    let server = Server::start(move |client| floods(client, real, "pg_catalog.pg_type t")).await;
    fixture.source = server.source();
    let tail = fixture.command("tail").arg("--from-slot").start();
    let status = tail.wait(SHORT_TIMEOUT).await;
    let said = [tail.stdout(), tail.stderr()].concat();
    let status = status.unwrap_or_else(|| panic!("it is still running: {said:?}"));
    assert_eq!(status.code(), Some(1), "{said:?}");
    let logged = said.iter().any(|line| line.contains("more than 67108864 bytes of rows"));
    assert!(logged, "{said:?}");
}

/// Runs each command with each response altered in turn.
async fn ends_without_a_panic(name: &str, arguments: &[&str], how: Altered) {
    let mut fixture = Fixture::new().await;
    let real = fixture.postgres.port();
    fixture.postgres.execute(&insert(3, 1)).await;
    for number in 0.. {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let alter = move |client| alters(client, real, how, number, Arc::clone(&counted));
        let server = Server::start(alter).await;
        fixture.source = server.source();
        let walpost = fixture.command(name).args(arguments.iter().copied()).start();
        let status = walpost.wait(LONG_TIMEOUT).await;
        let said = [walpost.stdout(), walpost.stderr()].concat();
        let status =
            status.unwrap_or_else(|| panic!("{how:?} {number}: it is still running: {said:?}"));
        let is_panic = said.iter().any(|line| line.contains("panicked"));
        let code = status.code().filter(|code| *code < 100);
        assert!(!is_panic && code.is_some(), "{name} {how:?} {number}: {status}: {said:?}");
        if count.load(Ordering::SeqCst) <= number {
            assert!(number > 3, "{name} {how:?}: only {number} answers");
            assert!(status.success(), "{name} as it is: {said:?}");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_with_unexpected_types_does_not_panic() {
    tokio::join!(
        ends_without_a_panic("check", &[], Altered::Types),
        ends_without_a_panic("init", &["--apply"], Altered::Types),
        ends_without_a_panic("tail", &["--from-slot"], Altered::Types),
        ends_without_a_panic("run", &["--until", "current"], Altered::Types),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_of_nulls_does_not_panic() {
    tokio::join!(
        ends_without_a_panic("check", &[], Altered::Values),
        ends_without_a_panic("init", &["--apply"], Altered::Values),
        ends_without_a_panic("tail", &["--from-slot"], Altered::Values),
        ends_without_a_panic("run", &["--until", "current"], Altered::Values),
    );
}
