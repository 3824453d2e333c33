//! A proxy in front of the server that delays answers or cuts connections.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// The simple query that ends a transaction.
const COMMIT: &[u8] = b"COMMIT\0";

/// What the proxy does from now on.
#[derive(Clone, Copy, Default)]
pub(crate) enum Mode {
    #[default]
    Pass,
    /// Passes no answer on before the client has sent `COMMIT`.
    HoldAnswers,
    /// Passes so many bytes of the client on, and cuts the connection.
    CutAfter(usize),
}

#[derive(Clone)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    mode: Mode,
    /// What the client has sent in this mode.
    sent: Vec<u8>,
}

impl Proxy {
    pub(crate) async fn new(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::<Shared>::default();
        let proxy = Self { port, shared: Arc::clone(&shared) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let (done, cut) = tokio::sync::oneshot::channel();
                let (one, other) = (Arc::clone(&shared), Arc::clone(&shared));
                tokio::spawn(async move {
                    one.requests(from_client, to_server).await;
                    let _ = done.send(());
                });
                tokio::spawn(async move { other.answers(from_server, to_client, cut).await });
            }
        });
        proxy
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn begin(&self, mode: Mode) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = State { mode, sent: Vec::new() };
        self.shared.changed.notify_waiters();
    }

    /// What the client has sent in this mode.
    pub(crate) fn sent(&self) -> Vec<u8> {
        self.shared.with(|state| state.sent.clone())
    }
}

impl Shared {
    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Passes on what the client sends, until the end or the cut.
    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let passed = self.with(|state| {
                let before = state.sent.len();
                state.sent.extend_from_slice(&buffer[..read]);
                match state.mode {
                    Mode::CutAfter(bytes) => read.min(bytes.saturating_sub(before)),
                    Mode::Pass | Mode::HoldAnswers => read,
                }
            });
            self.changed.notify_waiters();
            if to.write_all(&buffer[..passed]).await.is_err() || self.is_cut() {
                break;
            }
        }
        // The server reads all that was passed on, and then the end.
        let _ = to.shutdown().await;
    }

    fn is_cut(&self) -> bool {
        self.with(|state| matches!(state.mode, Mode::CutAfter(bytes) if state.sent.len() >= bytes))
    }

    /// Passes answers on until the requests end; later ones are dropped.
    async fn answers(
        &self,
        mut from: OwnedReadHalf,
        to: OwnedWriteHalf,
        mut cut: tokio::sync::oneshot::Receiver<()>,
    ) {
        let mut to = Some(to);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = tokio::select! {
                _ = &mut cut, if to.is_some() => {
                    // Closes the client's connection.
                    to = None;
                    continue;
                }
                read = from.read(&mut buffer) => read,
            };
            let Ok(read @ 1..) = read else { return };
            self.answers_pass().await;
            if let Some(to) = &mut to
                && to.write_all(&buffer[..read]).await.is_err()
            {
                return;
            }
        }
    }

    async fn answers_pass(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let is_held = self.with(|state| {
                let has_commit = state.sent.windows(COMMIT.len()).any(|bytes| bytes == COMMIT);
                matches!(state.mode, Mode::HoldAnswers) && !has_commit
            });
            if !is_held {
                return;
            }
            changed.await;
        }
    }
}
