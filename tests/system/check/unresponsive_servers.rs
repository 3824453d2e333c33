//! Servers at the source's address that are not a usable PostgreSQL: silent, closing connections,
//! speaking another protocol, or shutting down.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{Major, Stop, eventually};

use crate::fixture::{Fixture, sound};

/// What the server does with a connection.
#[derive(Clone, Copy)]
pub(crate) enum FakeServer {
    /// Accepts it, and sends nothing.
    Silent,
    /// Closes it.
    HangsUp,
    /// Responds to everything with this.
    Says(&'static [u8]),
}

/// Listens until the test ends; returns the port.
pub(crate) async fn listen(server: FakeServer) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            match server {
                FakeServer::Silent => held.push(stream),
                FakeServer::HangsUp => drop(stream),
                FakeServer::Says(text) => {
                    tokio::spawn(async move {
                        let mut question = [0; 1024];
                        while stream.read(&mut question).await.is_ok_and(|length| length > 0) {
                            if stream.write_all(text).await.is_err() {
                                break;
                            }
                        }
                    });
                }
            }
        }
    });
    port
}

/// Checks the finding on such a server; the right address is the fix.
async fn found(server: FakeServer, code: &str, words: &[&str]) {
    let mut fixture = Fixture::new().await;
    let port = listen(server).await;
    let wrong = format!("postgres://postgres@127.0.0.1:{port}/x?connect_timeout=2&sslmode=disable");
    let right = std::mem::replace(&mut fixture.source, wrong);
    let follow = async |fixture: &mut Fixture, _: &str| fixture.source.clone_from(&right);
    fixture.finding_with_advice("error", code, words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_server_is_reported() {
    found(FakeServer::Silent, "connection_timeout", &["host and port", "packets"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_closes_connections_is_reported() {
    found(FakeServer::HangsUp, "connection_broken", &["firewall, proxy"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_not_postgresql_is_reported() {
    // How a MySQL handshake starts: a length of three bytes, a number, protocol and version.
    let greeting = b"\x4a\0\0\0\x0a8.0.36\0\x08\0\0\0salt";
    found(FakeServer::Says(greeting), "not_postgresql", &["host and port"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_unusable_hosts_are_reported() {
    let mut fixture = Fixture::new().await;
    let wrong = "postgres://postgres@127.0.0.1:1,127.0.0.1:2/x".into();
    let right = std::mem::replace(&mut fixture.source, wrong);
    let follow = async |fixture: &mut Fixture, _: &str| fixture.source.clone_from(&right);
    let report = fixture.finding_with_advice("error", "no_host", &["each host"], follow).await;
    let what = report.finding("error", "no_host")["what"].to_string();
    assert!(what.contains("127.0.0.1:1") && what.contains("127.0.0.1:2"), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_shutting_down_is_reported() {
    // Its log is read below.
    let english = sound(Major::V15).setting("lc_messages", "C");
    let mut fixture = Fixture::on(english).await;
    // Shutdown waits for this session, and accepts no other.
    let session = fixture.postgres.client().await;
    fixture.postgres.begin_stop(Stop::Smart);
    let down = async || fixture.postgres.log_tail(20).contains("smart shutdown");
    eventually(SHORT_TIMEOUT, "it is shutting down", down).await;
    let follow = async |fixture: &mut Fixture, _: &str| {
        drop(session);
        assert!(fixture.postgres.stopped(SHORT_TIMEOUT).await);
        fixture.postgres.start_again().await;
    };
    let words = ["wait until the server accepts connections"];
    let report = fixture.finding_with_advice("error", "server_unavailable", &words, follow).await;
    let what = report.finding("error", "server_unavailable")["what"].to_string();
    assert!(what.contains("57P03"), "{what}");
}
