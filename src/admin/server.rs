//! The HTTP server: pages for programs and one for browsers, each generated on request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use prometheus_client::registry::Registry;
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{sleep, timeout};

use super::checks::{self, Checked};
use super::health::{self, Health};
use super::history::{History, SAMPLE_INTERVAL};
use super::host::Hosts;

use super::page::{self, ShownSetting};
use super::{About, Status, registry};
use crate::metrics::{Metrics, TRAIL, unix_seconds};

/// Maximum number of connections: a few scrapers and probes have one each, for milliseconds. One
/// more closes the oldest, so that no client can exclude others by keeping connections open. It is
/// large enough that a probe has time to send its request even if another client opens thousands
/// per second.
const CONNECTIONS: usize = 256;

/// How long a client may take for its request and the response.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);

/// Maximum size of a request, in bytes: hyper's own limit is 400 KiB, which is 100 MB for all
/// connections.
const REQUEST_BYTES: usize = 16 << 10;

/// How long to wait after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The format that Prometheus's client library writes.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const INDEX: &str = "walpost\n\n\
    /livez    200 while the relay's loop turns\n\
    /readyz   200 while it delivers, or would; else 503 with the reasons\n\
    /metrics  metrics for Prometheus\n\
    /status   what it does, as JSON; `walpost status` shows it\n";

/// `docs/security.md` lists the accepted names.
const ELSEWHERE: &str = "the Host header names another machine: use localhost, or the address of \
    admin.listen\n";

/// The data for the pages.
struct Pages {
    metrics: Arc<Metrics>,
    about: About,
    registry: Registry,
    history: Mutex<History>,
    checked: Checked,
    hosts: Hosts,
}

/// Serves until the process ends.
pub(super) async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    about: About,
    hosts: Hosts,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let registry = registry(&metrics, &about);
    let checked = Checked::default();
    if let Some(options) = about.check.clone() {
        tokio::spawn(checks::repeat(options, checked.clone()));
    }
    let pages =
        Arc::new(Pages { metrics, about, registry, history: Mutex::default(), checked, hosts });
    tokio::spawn(sample(Arc::clone(&pages)));
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS {
                    // Requests that have already arrived are answered first, however fast others
                    // arrive: the runtime polls them before it continues here.
                    yield_now().await;
                    open.retain(|connection| !connection.is_finished());
                }
                if open.len() >= CONNECTIONS {
                    open.pop_front().inspect(AbortHandle::abort);
                }
                let answered = tokio::spawn(answer(stream, Arc::clone(&pages)));
                open.push_back(answered.abort_handle());
            }
            // The system may be out of file descriptors, for instance; that can be temporary.
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Takes a sample every second, until the process ends.
async fn sample(pages: Arc<Pages>) {
    loop {
        pages.sample();
        sleep(SAMPLE_INTERVAL).await;
    }
}

async fn answer(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = if pages.hosts.have(&request) {
            pages.answer(&request)
        } else {
            response(StatusCode::MISDIRECTED_REQUEST, TEXT, ELSEWHERE.to_owned())
        };
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A client that disconnects early is not an error.
    let _ = timeout(CONNECTION_LIMIT, pin!(connection)).await;
}

impl Pages {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response =
                response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned());
            response
                .headers_mut()
                .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        // A browser prefers HTML, and other programs take anything.
        let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let settings = self.about.settings.as_deref();
        let is_browser = accept.is_some_and(|accept| accept.contains("text/html"));
        match (request.uri().path(), settings) {
            ("/", Some(settings)) if is_browser => self.page(settings),
            ("/page.css", Some(_)) => response(StatusCode::OK, CSS, page::STYLE.to_owned()),
            ("/icon.svg", Some(_)) => response(StatusCode::OK, SVG, page::ICON.to_owned()),
            ("/page.js", Some(_)) => response(StatusCode::OK, JAVASCRIPT, page::SCRIPT.to_owned()),
            (path, _) => self.for_programs(path),
        }
    }

    /// The page for a browser.
    fn page(&self, settings: &[ShownSetting]) -> Response<Full<Bytes>> {
        let now = SystemTime::now();
        let history = self.history();
        let status = Status::of(&self.metrics, (&self.about, &self.checked), &history, now);
        let html = page::html(&status, &history, settings, unix_seconds(now));
        let mut response = response(StatusCode::OK, HTML, html);
        let policy = hyper::header::HeaderValue::from_static(page::POLICY);
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
        response
    }

    fn for_programs(&self, path: &str) -> Response<Full<Bytes>> {
        match path {
            "/" => response(StatusCode::OK, TEXT, INDEX.to_owned()),
            "/livez" => of_health(&health::live(&self.metrics)),
            "/readyz" => of_health(&health::ready(&self.metrics, SystemTime::now())),
            "/metrics" => self.metrics_page(),
            "/status" => self.status_page(),
            _ => response(StatusCode::NOT_FOUND, TEXT, format!("there is no such page\n\n{INDEX}")),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sample(&self) {
        if self.about.settings.is_some() {
            self.metrics.trail.want(TRAIL);
        }
        self.history().sample(Instant::now(), &self.metrics);
    }

    fn metrics_page(&self) -> Response<Full<Bytes>> {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            Ok(()) => response(StatusCode::OK, OPENMETRICS, text),
            Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        }
    }

    fn status_page(&self) -> Response<Full<Bytes>> {
        let status = Status::of(
            &self.metrics,
            (&self.about, &self.checked),
            &self.history(),
            SystemTime::now(),
        );
        match serde_json::to_string_pretty(&status) {
            Ok(text) => response(StatusCode::OK, "application/json", text + "\n"),
            Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        }
    }
}

fn of_health(health: &Health) -> Response<Full<Bytes>> {
    if health.is_good() {
        return response(StatusCode::OK, TEXT, "ok\n".to_owned());
    }
    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, health.reasons().join("\n") + "\n")
}

fn response(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, hyper::header::HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, hyper::header::HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn listener() -> (TcpListener, std::net::SocketAddr) {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let listener = socket.listen(4 * 256).expect("it listens").into_std().expect("it is one");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    fn serving(listener: TcpListener) -> tokio::task::JoinHandle<()> {
        let [database, slot, publication] = ["d", "s", "p"].map(str::to_owned);
        let about = About { database, slot, publication, ..About::default() };
        tokio::spawn(serve(listener, Arc::default(), about, Hosts::Any))
    }

    #[tokio::test]
    async fn unfinished_request_takes_bounded_memory() {
        let (listener, address) = listener();
        let serving = serving(listener);
        let mut client = TcpStream::connect(address).await.expect("it listens");
        let request = format!("GET /livez HTTP/1.1\r\nx: {}", "x".repeat(2 * REQUEST_BYTES));
        // The server may end the connection before it has read everything.
        let _ = client.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
        serving.abort();
    }

    /// More connections are accepted at once than may be open.
    #[tokio::test]
    async fn requests_that_wait_are_answered_before_connections_are_ended() {
        let (listener, address) = listener();
        let mut clients = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            let mut client = TcpStream::connect(address).await.expect("it waits in the queue");
            client
                .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .await
                .expect("sent");
            clients.push(client);
        }
        let serving = serving(listener);
        for (number, mut client) in clients.into_iter().enumerate() {
            let mut answer = String::new();
            let read = client.read_to_string(&mut answer).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {read:?} {answer:?}");
        }
        serving.abort();
    }
}
