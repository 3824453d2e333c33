//! One direction of a connection, with configurable delay and bandwidth.
//!
//! Data comes out at the far end after the delay, in order, and no faster than the rate. The data
//! in flight is bounded: a sender then waits, as with a full socket buffer.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// Pieces on the way at most, of up to 64 KiB each.
const PIECES: usize = 64;

/// What a throttled line lets out at once.
const DROP_BYTES: usize = 4096;

/// How slow a line is, each way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slowness {
    pub(super) delay: Duration,
    pub(super) bytes_per_second: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Link {
    sender: mpsc::Sender<(Instant, Vec<u8>)>,
    slowness: watch::Receiver<Slowness>,
    forwarder: Forwarder,
}

/// Ends with the line, whatever is still on the way.
#[derive(Debug)]
struct Forwarder(JoinHandle<io::Result<()>>);

impl Link {
    pub(super) fn to(far_end: OwnedWriteHalf, slowness: watch::Receiver<Slowness>) -> Self {
        let (sender, receiver) = mpsc::channel(PIECES);
        let forwarder = Forwarder(tokio::spawn(carry(receiver, far_end, slowness.clone())));
        Self { sender, slowness, forwarder }
    }

    /// Puts bytes on the way; an error when the far end takes no more.
    pub(super) async fn send(&self, bytes: &[u8]) -> Result<(), ()> {
        let due = Instant::now() + self.slowness.borrow().delay;
        self.sender.send((due, bytes.to_vec())).await.map_err(drop)
    }

    /// Nothing more comes: closes the far end once all on the way has arrived.
    pub(super) async fn end(self) {
        let Self { sender, mut forwarder, .. } = self;
        drop(sender);
        // A far end that is gone needs no closing.
        let _ = (&mut forwarder.0).await;
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn carry(
    mut receiver: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut far_end: OwnedWriteHalf,
    slowness: watch::Receiver<Slowness>,
) -> io::Result<()> {
    while let Some((due, bytes)) = receiver.recv().await {
        sleep_until(due).await;
        for piece in bytes.chunks(DROP_BYTES) {
            far_end.write_all(piece).await?;
            let rate = slowness.borrow().bytes_per_second;
            if let (Some(rate), Ok(length)) = (rate, u32::try_from(piece.len())) {
                sleep(Duration::from_secs(length.into()) / rate.max(1)).await;
            }
        }
    }
    far_end.shutdown().await
}
