//! A server in front of ElasticMQ that fails single messages of a batch, answers with an error, or
//! loses an answer, as a test wants. It sees which message groups are under way at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A request of the API.
#[derive(Debug, Clone)]
pub struct Received {
    /// `SendMessageBatch`, for instance.
    pub action: String,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The messages of a batch.
    pub fn entries(&self) -> Vec<Value> {
        self.body["Entries"].as_array().cloned().unwrap_or_default()
    }

    pub fn is_batch(&self) -> bool {
        self.action == "SendMessageBatch"
    }

    /// The groups of a batch, with their queue.
    fn groups(&self) -> Vec<String> {
        let (entries, queue) = (self.entries(), &self.body["QueueUrl"]);
        let groups = entries.iter().map(|entry| entry["MessageGroupId"].as_str());
        groups.map(|group| format!("{queue} {}", group.expect("a group"))).collect()
    }
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Deed {
    /// ElasticMQ answers it.
    Pass,
    /// The same for the messages of a batch that are not listed: those fail with this code, by a fault
    /// of the sender or not. By their places.
    Fail(Vec<(usize, &'static str, bool)>),
    /// It is answered with an error: status, code and message.
    Error(u16, &'static str, &'static str),
    /// It is answered so.
    Answer(Value),
    /// ElasticMQ answers it, and the answer is lost.
    Lose,
}

type Plan = Box<dyn Fn(&Received) -> Deed + Send + Sync>;

struct Inner {
    port: u16,
    plan: Mutex<Plan>,
    /// The time before an answer.
    delay: Mutex<Duration>,
    requests: Mutex<Vec<Received>>,
    /// The groups of the batches that are not answered yet.
    under_way: Mutex<BTreeSet<String>>,
    /// How many batches are not answered yet, and the most that there were.
    batches: Mutex<(u32, u32)>,
    overlapping: Mutex<Vec<String>>,
}

pub struct Front {
    port: u16,
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics with it")
}

impl Front {
    /// One that passes everything on to that port.
    pub fn start(behind: u16) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("an option");
        let port = listener.local_addr().expect("bound").port();
        let listener = TcpListener::from_std(listener).expect("a listener");
        let inner = Arc::new(Inner {
            port: behind,
            plan: Mutex::new(Box::new(|_| Deed::Pass)),
            delay: Mutex::default(),
            requests: Mutex::default(),
            under_way: Mutex::default(),
            batches: Mutex::default(),
            overlapping: Mutex::default(),
        });
        let served = Arc::clone(&inner);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                connections.spawn(talk(Arc::clone(&served), stream));
            }
        });
        Self { port, inner, task }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Does so with requests from here on.
    pub fn does(&self, plan: impl Fn(&Received) -> Deed + Send + Sync + 'static) {
        *locked(&self.inner.plan) = Box::new(plan);
    }

    /// Takes so long for each batch from here on.
    pub fn delays(&self, delay: Duration) {
        *locked(&self.inner.delay) = delay;
    }

    pub fn requests(&self) -> Vec<Received> {
        locked(&self.inner.requests).clone()
    }

    /// The batches so far.
    pub fn batches(&self) -> Vec<Received> {
        let mut requests = self.requests();
        requests.retain(Received::is_batch);
        requests
    }

    /// How many batches were under way at a time.
    pub fn most_batches(&self) -> u32 {
        locked(&self.inner.batches).1
    }

    /// No group ever had two messages under way.
    pub fn assert_one_at_a_time(&self) {
        let overlapping = locked(&self.inner.overlapping);
        assert!(overlapping.is_empty(), "{overlapping:?}");
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn talk(inner: Arc<Inner>, stream: TcpStream) {
    let service = service_fn(|request| answer(Arc::clone(&inner), request));
    // An error is that of a client that is gone, or an answer that is lost.
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

/// The groups of a batch, until it is answered or the client is gone.
struct UnderWay<'a> {
    inner: &'a Inner,
    groups: Vec<String>,
}

impl<'a> UnderWay<'a> {
    fn new(inner: &'a Inner, groups: Vec<String>) -> Self {
        let mut under_way = locked(&inner.under_way);
        for group in &groups {
            if !under_way.insert(group.clone()) {
                locked(&inner.overlapping).push(group.clone());
            }
        }
        drop(under_way);
        let mut batches = locked(&inner.batches);
        batches.0 += 1;
        batches.1 = batches.1.max(batches.0);
        drop(batches);
        Self { inner, groups }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut under_way = locked(&self.inner.under_way);
        for group in &self.groups {
            under_way.remove(group);
        }
        locked(&self.inner.batches).0 -= 1;
    }
}

/// The answer is lost.
#[derive(Debug)]
struct Lost;

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("lost")
    }
}

impl std::error::Error for Lost {}

async fn answer(
    inner: Arc<Inner>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Lost> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    let target = head.headers.get("x-amz-target").and_then(|target| target.to_str().ok());
    let received = Received {
        action: target.and_then(|target| target.split('.').nth(1)).expect("an action").to_owned(),
        headers: head.headers.clone(),
        body: serde_json::from_slice(&body).expect("JSON"),
    };
    locked(&inner.requests).push(received.clone());
    let under_way = received.is_batch().then(|| UnderWay::new(&inner, received.groups()));
    let deed = (locked(&inner.plan))(&received);
    if under_way.is_some() {
        let delay = *locked(&inner.delay);
        tokio::time::sleep(delay).await;
    }
    let answered = match deed {
        Deed::Pass => forward(&inner, &head.headers, body).await?,
        Deed::Error(status, code, message) => {
            let body = json!({ "__type": format!("com.amazonaws.sqs#{code}"), "message": message });
            json_response(status, &body)
        }
        Deed::Answer(body) => json_response(200, &body),
        Deed::Lose => {
            forward(&inner, &head.headers, body).await?;
            return Err(Lost);
        }
        Deed::Fail(places) => failing(&inner, &received, &places).await?,
    };
    // Before the client has its answer.
    drop(under_way);
    Ok(answered)
}

fn json_response(status: u16, body: &Value) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status);
    let response = response.header("content-type", "application/x-amz-json-1.0");
    response.body(Full::from(body.to_string())).expect("an answer")
}

/// The answer of ElasticMQ for the other messages, with the errors of these.
async fn failing(
    inner: &Inner,
    received: &Received,
    places: &[(usize, &'static str, bool)],
) -> Result<Response<Full<Bytes>>, Lost> {
    let entries = received.entries();
    let is_failing = |at: usize| places.iter().any(|(place, _, _)| *place == at);
    let others: Vec<_> =
        entries.iter().enumerate().filter(|(at, _)| !is_failing(*at)).map(|(_, one)| one).collect();
    let mut answer = json!({ "Successful": [], "Failed": [] });
    if !others.is_empty() {
        let body = json!({ "QueueUrl": received.body["QueueUrl"], "Entries": others });
        let passed = forward(inner, &received.headers, Bytes::from(body.to_string())).await?;
        let passed = passed.into_body().collect().await.expect("a body").to_bytes();
        answer = serde_json::from_slice(&passed).expect("JSON");
    }
    let mut failed = answer["Failed"].as_array().cloned().unwrap_or_default();
    for (place, code, is_senders) in places {
        let Some(entry) = entries.get(*place) else { continue };
        failed.push(json!({
            "Id": entry["Id"], "Code": code, "SenderFault": is_senders, "Message": "as planned",
        }));
    }
    answer["Failed"] = failed.into();
    Ok(json_response(200, &answer))
}

async fn forward(
    inner: &Inner,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response<Full<Bytes>>, Lost> {
    let stream = TcpStream::connect(("127.0.0.1", inner.port)).await.map_err(|_| Lost)?;
    let (mut sender, connection) =
        client::handshake(TokioIo::new(stream)).await.map_err(|_| Lost)?;
    tokio::spawn(connection);
    let mut request = Request::post("/").header("host", "127.0.0.1");
    for name in ["content-type", "x-amz-target", "authorization"] {
        if let Some(value) = headers.get(name) {
            request = request.header(name, value);
        }
    }
    let request = request.body(Full::new(body)).expect("a request");
    let answer = sender.send_request(request).await.map_err(|_| Lost)?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    let mut response = Response::builder().status(head.status);
    for name in ["content-type", "x-amzn-query-error"] {
        if let Some(value) = head.headers.get(name) {
            response = response.header(name, value);
        }
    }
    Ok(response.body(Full::new(body)).expect("an answer"))
}
