//! An HTTP server that accepts events, or answers as a test wants.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{Consumed, Port, within_blocking};

/// A request.
#[derive(Debug, Clone)]
pub struct Received {
    pub method: String,
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The status that it was answered with.
    pub status: u16,
    pub at: Instant,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn consumed(&self) -> Consumed {
        let headers = self.headers.iter();
        let headers = headers
            .map(|(name, value)| (name.as_str().to_owned(), Some(value.as_bytes().to_vec())));
        Consumed {
            topic: self.header("walpost-topic").unwrap_or_default().to_owned(),
            partition: 0,
            offset: 0,
            key: self.header("walpost-key").map(|key| key.as_bytes().to_vec()),
            value: Some(self.body.to_vec()),
            headers: headers.collect(),
            timestamp_ms: None,
        }
    }
}

/// How a request is answered.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    /// Whether its body does not end.
    pub is_endless: bool,
    /// Whether the connection is closed instead.
    pub closes: bool,
    /// The time before it.
    pub after: Duration,
}

/// The body of an answer.
struct Reply {
    next: Option<Bytes>,
    is_endless: bool,
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Closed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Closed>>> {
        match self.next.take() {
            None if self.is_endless => Poll::Pending,
            next => Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.next {
            _ if self.is_endless => SizeHint::default(),
            next => SizeHint::with_exact(next.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

/// The connection is closed without an answer.
#[derive(Debug)]
struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed")
    }
}

impl std::error::Error for Closed {}

impl Answer {
    pub fn of(status: u16) -> Self {
        let (headers, body) = (Vec::new(), String::new());
        Self { status, headers, body, is_endless: false, closes: false, after: Duration::ZERO }
    }
}

type Plan = Box<dyn Fn(&Received) -> Answer + Send + Sync>;

struct Inner {
    plan: Mutex<Plan>,
    requests: Mutex<Vec<Received>>,
    /// The keys that are being answered, and those that came while one was.
    busy: Mutex<BTreeSet<String>>,
    overlapping: Mutex<Vec<String>>,
}

/// The server. Its port stays the same.
pub struct Receiver {
    port: Port,
    inner: Arc<Inner>,
    running: Mutex<Option<JoinHandle<()>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics with it")
}

impl Receiver {
    /// One that accepts everything.
    pub fn start() -> Self {
        let inner = Inner {
            plan: Mutex::new(Box::new(|_| Answer::of(200))),
            requests: Mutex::default(),
            busy: Mutex::default(),
            overlapping: Mutex::default(),
        };
        let port = Port::reserve().expect("a port");
        let listener = listener(port.number());
        let receiver = Self { port, inner: Arc::new(inner), running: Mutex::new(None) };
        receiver.serve(listener);
        receiver
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Answers like this from here on.
    pub fn answers(&self, plan: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        *locked(&self.inner.plan) = Box::new(plan);
    }

    pub fn requests(&self) -> Vec<Received> {
        locked(&self.inner.requests).clone()
    }

    /// Those that were answered with 2xx, in the order of the answers.
    pub fn accepted(&self) -> Vec<Received> {
        let mut requests = self.requests();
        requests.retain(|request| (200..300).contains(&request.status));
        requests
    }

    pub fn records(&self) -> Vec<Consumed> {
        self.accepted().iter().map(Received::consumed).collect()
    }

    /// No key ever had two requests at a time.
    pub fn assert_one_at_a_time(&self) {
        let overlapping = locked(&self.inner.overlapping);
        assert!(overlapping.is_empty(), "{overlapping:?}");
    }

    /// Closes its port and all connections, whatever is in flight.
    pub async fn stop(&self) {
        let task = locked(&self.running).take();
        if let Some(task) = task {
            task.abort();
            // The port is free once it has ended.
            let _ = task.await;
        }
        locked(&self.inner.busy).clear();
    }

    pub fn start_again(&self) {
        self.serve(listener(self.port()));
    }

    fn serve(&self, listener: TcpListener) {
        let inner = Arc::clone(&self.inner);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                connections.spawn(talk(Arc::clone(&inner), stream));
            }
        });
        *locked(&self.running) = Some(task);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(task) = locked(&self.running).take() {
            task.abort();
        }
    }
}

/// A listener whose port can be bound again while old connections of it linger. A process that was
/// forked while the port was bound has it too, until it executes its program.
fn listener(port: u16) -> TcpListener {
    let address = SocketAddr::from(([127, 0, 0, 1], port)).into();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("an option");
    socket.set_nonblocking(true).expect("an option");
    within_blocking(SHORT_TIMEOUT, || socket.bind(&address)).expect("a free port");
    socket.listen(128).expect("it listens");
    TcpListener::from_std(socket.into()).expect("a listener")
}

async fn talk(inner: Arc<Inner>, stream: TcpStream) {
    let service = service_fn(|request| answer(Arc::clone(&inner), request));
    // An error is that of a client that is gone.
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

/// A key that is being answered, until that is done or the client is gone.
struct Busy<'a> {
    inner: &'a Inner,
    key: String,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        locked(&self.inner.busy).remove(&self.key);
    }
}

async fn answer(inner: Arc<Inner>, request: Request<Incoming>) -> Result<Response<Reply>, Closed> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Closed)?;
    let mut received = Received {
        method: head.method.to_string(),
        target: head.uri.to_string(),
        headers: head.headers,
        body: body.to_bytes(),
        status: 0,
        at: Instant::now(),
    };
    let key = received.header("walpost-key").unwrap_or_default().to_owned();
    if !locked(&inner.busy).insert(key.clone()) {
        locked(&inner.overlapping).push(key.clone());
    }
    let busy = Busy { inner: &inner, key };
    let answer = (locked(&inner.plan))(&received);
    tokio::time::sleep(answer.after).await;
    received.status = if answer.closes { 0 } else { answer.status };
    drop(busy);
    locked(&inner.requests).push(received);
    if answer.closes {
        return Err(Closed);
    }
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    let next = (!answer.body.is_empty()).then(|| Bytes::from(answer.body));
    Ok(response.body(Reply { next, is_endless: answer.is_endless }).expect("an answer"))
}
