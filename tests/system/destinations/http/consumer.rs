//! The receiver of docs/http.md acts once on each event, though it and walpost are ended in between.

use tokio::net::TcpListener;
use walpost_bed::Port;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::HttpFixture;
use crate::consumers::{act_once, create_tables};
use crate::promise::Promise as _;

#[path = "../../../../examples/consumers/http/main.rs"]
#[allow(dead_code, reason = "the program's own start")]
mod program;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The body has all that the receiver acts on.
const SIGNED: &str = "record.value = 'cloudevents'\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_acts_once_on_each_event() {
    let mut fixture = HttpFixture::new().await.configured(SIGNED);
    let port = Port::reserve().expect("a port");
    let address = ("127.0.0.1", port.number());
    fixture.url = format!("http://127.0.0.1:{}/", port.number());
    let receive = async || {
        let listener = TcpListener::bind(address).await.expect("its port");
        program::receive(listener, SECRET, "placed", &fixture.inner.source).await
    };
    let command = || fixture.command("run").env("WALPOST_HTTP_SECRET", SECRET);
    act_once(&fixture, 700, command, receive).await;
}

/// A request of somebody else changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_rejects_what_is_not_signed() {
    let fixture = HttpFixture::new().await;
    create_tables(&fixture).await;
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
    let rows = "SELECT count(*) FROM public.turnover";
    let rows = fixture.inner.postgres.query_text(rows).await;
    assert_eq!(rows.as_deref(), Some("0"));
}
