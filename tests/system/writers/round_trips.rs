//! Counts how often a program waits for the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// How late responses are, so that a program that does not wait for them has sent all it can.
const DELAY: Duration = Duration::from_millis(10);

/// A proxy in front of a server, which counts the times that the program sends something after it
/// has received something: its round trips.
pub struct CountingProxy {
    port: u16,
    turns: Arc<AtomicU64>,
}

impl CountingProxy {
    /// In front of this port.
    pub async fn to(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let turns = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&turns);
        // It ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let has_received = Arc::new(AtomicBool::new(true));
                tokio::spawn(forward(
                    from_client,
                    to_server,
                    Arc::clone(&has_received),
                    Arc::clone(&counted),
                ));
                tokio::spawn(answer(from_server, to_client, has_received));
            }
        });
        Self { port, turns }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    has_received: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // The last message of a session has no response.
        if has_received.swap(false, Ordering::SeqCst) && buffer[0] != b'X' {
            turns.fetch_add(1, Ordering::SeqCst);
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn answer(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, has_received: Arc<AtomicBool>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        tokio::time::sleep(DELAY).await;
        has_received.store(true, Ordering::SeqCst);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
