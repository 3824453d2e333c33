//! Spans as a collector receives them: OTLP over HTTP, in protocol buffers.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use walpost_bed::eventually;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, stop};

/// Stores what is posted, and responds with 200.
struct Collector {
    address: String,
    posted: Arc<Mutex<Vec<Posted>>>,
}

/// A request's first line, and its body.
struct Posted {
    line: String,
    body: Vec<u8>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let posted = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&posted);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let taken = Arc::clone(&taken);
                tokio::spawn(async move {
                    let mut stream = stream;
                    while let Some(posted) = take(&mut stream).await {
                        taken.lock().expect("whole").push(posted);
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                        stream.write_all(answer).await.expect("it listens");
                    }
                });
            }
        });
        Self { address, posted }
    }

    /// How often a body has these bytes.
    fn count(&self, bytes: &[u8]) -> usize {
        let posted = self.posted.lock().expect("whole");
        let count = |body: &[u8]| body.windows(bytes.len()).filter(|part| *part == bytes).count();
        posted.iter().map(|one| count(&one.body)).sum()
    }
}

/// The next request.
async fn take(stream: &mut TcpStream) -> Option<Posted> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("a head is text").to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).await.ok()?;
    Some(Posted { line: head.lines().next()?.to_owned(), body })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_span_links_to_the_trace_of_each_row() {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("ALTER TABLE public.outbox ADD COLUMN traceparent text").await;
    let collector = Collector::start().await;
    let run = fixture
        .command("run")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
    let walpost = run.env("OTEL_BSP_SCHEDULE_DELAY", "100").start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    fixture
        .postgres
        .execute(&format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, traceparent) \
             SELECT 'order', i::text, 'placed', '{{\"secret\": 1}}', '00-{trace}-00000000000000' || \
             to_char(i, 'FM00') || '-01' FROM generate_series(1, 20) AS i"
        ))
        .await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let id: Vec<u8> = (0..16)
        .map(|at| u8::from_str_radix(&trace[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect();
    eventually(SHORT_TIMEOUT, "each row's trace is linked to", async || {
        match collector.count(&id) {
            20 => Ok(()),
            count => Err(count),
        }
    })
    .await;
    let spans = collector.count(b"messaging.batch.message_count");
    assert!((1..20).contains(&spans), "{spans} spans for one transaction of 20 rows");
    assert!(collector.count(b"service.name") >= 1 && collector.count(b"walpost.slot") >= 1);
    assert_eq!(collector.count(b"secret"), 0, "no payload");
    let first = collector.posted.lock().expect("whole")[0].line.clone();
    assert_eq!(first, "post /v1/traces http/1.1");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_collector_is_logged_once_and_delays_nothing() {
    let fixture = Fixture::new().await;
    let run = fixture.command("run").env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    let walpost = run.env("OTEL_BSP_SCHEDULE_DELAY", "100").start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let insert = walpost_bed::fixture::insert(10, 10);
    for _ in 0..5 {
        fixture.postgres.execute(&insert).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
    }
    walpost.await_line("cannot export spans", SHORT_TIMEOUT).await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
    let logged = |walpost: &walpost_bed::Walpost| {
        walpost.stderr().iter().filter(|line| line.contains("cannot export spans")).count()
    };
    assert_eq!(logged(&walpost), 1);
    stop(walpost).await;
}
