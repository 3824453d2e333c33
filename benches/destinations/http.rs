//! An HTTP endpoint, which answers at once, or after the time that a distant one needs. The bare client
//! sends as many requests of the same size over as many connections, one request at a time on each.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::backlog::Shape;
use crate::{Bench, apart, ended, until};

/// The default of `http.lanes`.
const LANES: usize = 16;

/// Those that walpost sends.
const HEADERS: [(&str, &str); 11] = [
    ("host", "127.0.0.1:10000"),
    ("user-agent", "walpost/0.1.0"),
    ("id", "00000000-0000-0000-0000-000000000000"),
    ("event-type", "placed"),
    ("walpost-position", "00000000016B3748/00000000"),
    ("webhook-id", "00000000-0000-0000-0000-000000000000"),
    ("walpost-topic", "outbox.event.order"),
    ("walpost-key", "123"),
    ("walpost-timestamp", "1790000000000"),
    ("content-type", "application/json"),
    ("webhook-timestamp", "1790000000"),
];

pub(crate) async fn bench(bench: &Bench) {
    for delay in [Duration::ZERO, Duration::from_millis(2)] {
        let endpoint = Endpoint::start(delay).await;
        let url = format!("http://127.0.0.1:{}/events", endpoint.port);
        let command = |name: &str| bench.command("http", name).env("WALPOST_HTTP_URL", &url);
        ended(command("init").arg("--apply")).await;
        let round = async || {
            bench.write_backlog(Shape::OneTransaction, 1000).await;
            endpoint.taken.store(0, Ordering::Relaxed);
            let taken = async || endpoint.taken.load(Ordering::Relaxed);
            let walposts = bench.drain(command("run"), until(bench.rows, taken)).await;
            let (port, rows) = (endpoint.port, bench.rows);
            bench.against(walposts, async || apart(move || send(port, rows)).await).await
        };
        bench.compare(&format!("HTTP, answers after {delay:?}"), round).await;
        bench.drop_slot().await;
    }
}

/// A server that reads each request, and answers 204.
struct Endpoint {
    port: u16,
    taken: Arc<AtomicUsize>,
}

impl Endpoint {
    async fn start(delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let taken = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&taken);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                stream.set_nodelay(true).expect("an option");
                let taken = Arc::clone(&counted);
                let service = service_fn(move |request: Request<Incoming>| {
                    let taken = Arc::clone(&taken);
                    async move {
                        let body = request.into_body().collect().await;
                        if !delay.is_zero() {
                            tokio::time::sleep(delay).await;
                        }
                        taken.fetch_add(usize::from(body.is_ok()), Ordering::Relaxed);
                        let answer = Response::builder().status(204);
                        Ok::<_, Infallible>(answer.body(Full::<Bytes>::default()).expect("valid"))
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { port, taken }
    }
}

/// Sends as many bodies.
async fn send(port: u16, rows: usize) -> Duration {
    let body = Bytes::from(format!(r#"{{"n": 10000, "text": "{}"}}"#, "x".repeat(150)));
    let begun = Instant::now();
    let lanes = (0..LANES).map(|_| {
        let body = body.clone();
        tokio::spawn(async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it accepts");
            stream.set_nodelay(true).expect("an option");
            let (mut sender, connection) =
                handshake(TokioIo::new(stream)).await.expect("a connection");
            tokio::spawn(connection);
            for _ in 0..rows / LANES {
                let request = HEADERS
                    .iter()
                    .fold(Request::post("/events"), |request, (name, value)| {
                        request.header(*name, *value)
                    })
                    .body(Full::new(body.clone()))
                    .expect("a request");
                sender.ready().await.expect("it is open");
                let answer = sender.send_request(request).await.expect("an answer");
                assert!(answer.status().is_success());
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.expect("it ends");
    }
    begun.elapsed()
}
