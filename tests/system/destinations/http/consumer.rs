//! The receiver of docs/http.md acts once on each event, though it and walpost are ended in between.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::{Port, Postgres};

use super::fixture::HttpFixture;

#[path = "../../../../examples/consumers/http/main.rs"]
#[allow(dead_code, reason = "the program's own start")]
mod program;

const PROGRAM: &str = include_str!("../../../../examples/consumers/http/main.rs");
const TABLES: &str = include_str!("../../../../sql/consumer_dedupe.sql");
const TURNOVER: &str = include_str!("../../../../examples/consumers/turnover.sql");
const PAGE: &str = include_str!("../../../../docs/http.md");
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The body has all that the receiver acts on.
const SIGNED: &str = "record.value = 'cloudevents'\n";

#[test]
fn page_quotes_the_program() {
    let (_, quoted) = PAGE.split_once("```rust\n").expect("a program");
    let (quoted, _) = quoted.split_once("```").expect("its end");
    assert!(PROGRAM.contains(quoted.trim()), "docs/http.md is not a part of the program");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_acts_once_on_each_event() {
    let mut fixture = HttpFixture::new().await.configured(SIGNED);
    let port = Port::reserve().expect("a port");
    let address = ("127.0.0.1", port.number());
    let listener = TcpListener::bind(address).await.expect("its port");
    fixture.url = format!("http://127.0.0.1:{}/", port.number());
    let postgres: &Postgres = &fixture.inner.postgres;
    postgres.execute(TABLES).await;
    postgres.execute(TURNOVER).await;
    let rows = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                SELECT 'order', (i % 7)::text, CASE WHEN i % 10 = 0 THEN 'paid' ELSE 'placed' END, \
                       jsonb_build_object('customer', i % 7, 'total_cents', i) FROM generate_series(1, 700) AS i";
    postgres.execute(rows).await;
    let receive = async |listener: TcpListener| {
        let source = &fixture.inner.source;
        program::receive(listener, SECRET, "placed", source).await
    };
    let mut listener = Some(listener);
    for _ in 0..4 {
        let own = match listener.take() {
            Some(listener) => listener,
            None => TcpListener::bind(address).await.expect("its port"),
        };
        let walpost = fixture.command("run").env("WALPOST_HTTP_SECRET", SECRET).start();
        let ended = timeout(Duration::from_millis(700), receive(own)).await;
        assert!(ended.is_err(), "{ended:?}");
        walpost.kill9().await;
    }
    let expected = "SELECT sum(i) FROM generate_series(1, 700) AS i WHERE i % 10 <> 0";
    let expected = postgres.query_text(expected).await;
    let total = "SELECT coalesce(sum(total_cents), 0) FROM public.turnover";
    let walpost = fixture.command("run").env("WALPOST_HTTP_SECRET", SECRET).start();
    let own = TcpListener::bind(address).await.expect("its port");
    tokio::select! {
        ended = receive(own) => panic!("{ended:?}"),
        () = async {
            // All may be confirmed already.
            walpost.await_line("streaming from PostgreSQL", LONG_TIMEOUT).await;
            fixture.confirmed(LONG_TIMEOUT).await;
        } => {}
    }
    assert_eq!(postgres.query_text(total).await, expected);
    stop(walpost).await;
}

/// A request of somebody else changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_rejects_what_is_not_signed() {
    let fixture = HttpFixture::new().await;
    let postgres: &Postgres = &fixture.inner.postgres;
    postgres.execute(TABLES).await;
    postgres.execute(TURNOVER).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    fixture.insert(1, 1).await;
    let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let walpost = fixture.command_without_url("run").env("WALPOST_HTTP_URL", &url);
    let walpost = walpost.env("WALPOST_HTTP_SECRET", other).start();
    let source = &fixture.inner.source;
    tokio::select! {
        ended = program::receive(listener, SECRET, "placed", source) => {
            panic!("{ended:?}")
        }
        line = walpost.await_line("trying again", LONG_TIMEOUT) => {
            assert!(line.contains("401"), "{line}");
        }
    }
    stop(walpost).await;
    let rows = postgres.query_text("SELECT count(*) FROM public.turnover").await;
    assert_eq!(rows.as_deref(), Some("0"));
}
