//! Benchmarks a backlog to an HTTP endpoint, beside a bare client: the same library sends the same
//! bodies over as many connections, one request at a time on each, without a database before it.
//!
//!     cargo bench --features http --bench http -- [ROUNDS] [ROWS]
//!
//! Runs are interleaved, and ratios are computed round by round. It starts its own servers. The
//! endpoint answers at once, or after the time that a distant one needs.

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
use walpost_bed::fixture::program;
use walpost_bed::{Major, Postgres, Walpost, WalpostBuilder};

/// The default of `http.lanes`.
const LANES: usize = 16;

/// How often is looked whether all events are there.
const POLL: Duration = Duration::from_millis(5);

fn main() {
    // `cargo test --benches` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    let rounds = numbers.first().copied().unwrap_or(3);
    let rows = numbers.get(1).copied().unwrap_or(50_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(bench(rounds, rows));
}

async fn bench(rounds: usize, rows: usize) {
    let postgres = Postgres::start(Major::V15).await;
    println!("{rows} rows of about 250 bytes, {LANES} lanes; requests/s; ratio to the bare client");
    for delay in [Duration::ZERO, Duration::from_millis(2)] {
        let endpoint = Endpoint::start(delay).await;
        let command = |name: &str| command(&postgres, endpoint.port, name);
        ended(command("init").arg("--apply").start()).await;
        let mut ratios = Vec::new();
        for round in 1..=rounds {
            postgres.execute(&backlog(rows)).await;
            endpoint.taken.store(0, Ordering::Relaxed);
            let begun = Instant::now();
            let walpost = command("run").start();
            until_taken(&endpoint, rows).await;
            let walposts = begun.elapsed();
            // Confirmed too, so that the next round begins behind it.
            walpost.terminate();
            walpost.wait(Duration::from_secs(60)).await.expect("it stops");
            let bare = bare(endpoint.port, rows).await;
            let rate = |elapsed: Duration| rate(rows, elapsed);
            let ratio = bare.as_secs_f64() / walposts.as_secs_f64();
            println!(
                "answers after {delay:?}, round {round}: walpost {:.0}, bare {:.0}, ratio {ratio:.2}",
                rate(walposts),
                rate(bare)
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        println!("answers after {delay:?}: median ratio {:.2}", ratios[ratios.len() / 2]);
        postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    }
}

fn command(postgres: &Postgres, port: u16, name: &str) -> WalpostBuilder {
    Walpost::builder(program())
        .arg(name)
        .args(["--source", &postgres.url(), "--sink", "http", "--log-level", "warn"])
        .env("WALPOST_HTTP_URL", url(port))
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/events")
}

async fn ended(walpost: Walpost) {
    let status = walpost.wait(Duration::from_secs(60)).await.expect("it ends");
    assert!(status.success(), "{:?}", walpost.stderr());
}

/// Rows of about 250 bytes with 1000 keys, in one transaction.
fn backlog(rows: usize) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', (i % 1000)::text, 'placed', \
                jsonb_build_object('n', i, 'text', repeat('x', 150)) \
           FROM generate_series(1, {rows}) AS i"
    )
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

async fn until_taken(endpoint: &Endpoint, rows: usize) {
    while endpoint.taken.load(Ordering::Relaxed) < rows {
        tokio::time::sleep(POLL).await;
    }
}

/// Sends as many bodies with nothing before them.
async fn bare(port: u16, rows: usize) -> Duration {
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
                let request = Request::post("/events")
                    .header("host", "127.0.0.1")
                    .header("content-type", "application/json")
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

#[allow(clippy::cast_precision_loss, reason = "a rate is shown")]
fn rate(rows: usize, elapsed: Duration) -> f64 {
    rows as f64 / elapsed.as_secs_f64()
}
