//! A TCP proxy that can cut, blackhole, refuse or slow down connections, and disturb one kind of
//! Kafka requests.
//!
//! Otherwise it does not interpret the data, and adds no delay unless configured. It ends when
//! dropped.

mod link;
mod requests;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::error::{BedError, Doing};

use link::{Link, Slowness};
pub use requests::Disturbance;
use requests::{Requests, is_one_request};

/// How long the broker has for a request of which the reply is lost.
const HANDLED: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    /// Connections are accepted and stay open; no byte and no end passes.
    Swallow,
    /// New connections are closed at once.
    Refuse,
}

/// A way through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// One way of one connection, by its number.
type ConnectionDirection = (usize, Direction);

#[derive(Debug)]
struct State {
    mode: watch::Sender<Mode>,
    /// Lanes through which no byte and no end passes, whatever the mode.
    holes: watch::Sender<Vec<ConnectionDirection>>,
    /// Counts the cuts; each ends the connections that were made before it.
    cuts: watch::Sender<u64>,
    /// Where connections lead, one after the other in turn.
    targets: watch::Sender<Vec<SocketAddr>>,
    slowness: watch::Sender<Slowness>,
    /// How many late requests were answered.
    late: watch::Sender<u64>,
    /// What happens to the next request with this API key.
    disturbance: watch::Sender<Option<(i16, Disturbance)>>,
}

/// A proxy on a port of its own, in front of a server on 127.0.0.1.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy that leads nowhere yet, for a server that has to know its port first.
    pub async fn start() -> Self {
        Self::try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// A proxy in front of this port.
    pub async fn to(port: u16) -> Self {
        let proxy = Self::start().await;
        proxy.point_at(port);
        proxy
    }

    async fn try_start() -> Result<Self, BedError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.doing(|| "opening a proxy".into())?;
        let port = listener.local_addr().doing(|| "the proxy's port".into())?.port();
        let state = Arc::new(State {
            mode: watch::Sender::new(Mode::Pass),
            holes: watch::Sender::new(Vec::new()),
            cuts: watch::Sender::new(0),
            targets: watch::Sender::new(Vec::new()),
            slowness: watch::Sender::new(Slowness::default()),
            late: watch::Sender::new(0),
            disturbance: watch::Sender::new(None),
        });
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            for number in 0.. {
                let Ok((client, _)) = listener.accept().await else { break };
                let target = {
                    let targets = shared.targets.borrow();
                    targets.get(number % targets.len().max(1)).copied()
                };
                if let (Some(target), false) = (target, *shared.mode.borrow() == Mode::Refuse) {
                    tokio::spawn(carry(number, client, target, Arc::clone(&shared)));
                }
            }
        });
        Ok(Self { port, state, accepting })
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where new connections lead from now on.
    pub fn point_at(&self, port: u16) {
        self.point_in_turn(&[port]);
    }

    /// New connections lead to these ports in turn: the one with number n to the n-th, modulo
    /// their count.
    pub fn point_in_turn(&self, ports: &[u16]) {
        let targets = ports.iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port)));
        self.state.targets.send_replace(targets.collect());
    }

    /// Closes all connections; new ones are taken.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|count| *count += 1);
    }

    /// Lets nothing through and closes nothing: half-open connections.
    pub fn blackhole(&self) {
        self.state.mode.send_replace(Mode::Swallow);
    }

    /// Lets nothing more through one way of a connection, and does not close it:
    /// half-open. Connections count from 0, the refused ones too.
    pub fn blackhole_direction(&self, connection: usize, way: Direction) {
        self.state.holes.send_modify(|holes| holes.push((connection, way)));
    }

    /// Closes new connections at once; the old ones live until [`Proxy::cut`].
    pub fn refuse(&self) {
        self.state.mode.send_replace(Mode::Refuse);
    }

    /// Bytes take so long each way from now on, and come no faster than that.
    pub fn slow(&self, delay: Duration, bytes_per_second: Option<u32>) {
        self.state.slowness.send_replace(Slowness { delay, bytes_per_second });
    }

    /// Disturbs the next Kafka request with this API key; returns once that has happened.
    pub async fn disturb(&self, api_key: i16, how: Disturbance) {
        self.state.disturbance.send_replace(Some((api_key, how)));
        // An error says that the proxy is gone.
        let _ = self.state.disturbance.subscribe().wait_for(Option::is_none).await;
    }

    /// Waits until so many late requests were answered in all.
    pub async fn late_answers(&self, count: u64) {
        let _ = self.state.late.subscribe().wait_for(|answered| *answered >= count).await;
    }

    /// Lets all through again, first what was held back, and at full speed.
    pub fn restore(&self) {
        self.state.holes.send_replace(Vec::new());
        self.state.slowness.send_replace(Slowness::default());
        self.state.mode.send_replace(Mode::Pass);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn carry(number: usize, client: TcpStream, target: SocketAddr, state: Arc<State>) {
    let mut cuts = state.cuts.subscribe();
    let lost = Notify::new();
    let carried = async {
        passing(&state, (number, Direction::ToServer)).await;
        let Ok(server) = TcpStream::connect(target).await else {
            return;
        };
        // What waits to be sent must not add delay.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::join!(
            pump(from_client, to_server, target, &state, (number, Direction::ToServer), &lost),
            pump(from_server, to_client, target, &state, (number, Direction::ToClient), &lost)
        );
    };
    tokio::select! {
        () = carried => {}
        _ = cuts.changed() => {}
        () = lost.notified() => {}
    }
}

impl State {
    /// What is to happen to a request in these bytes, which a client sends.
    fn disturbance_of(
        &self,
        requests: &mut Requests,
        lane: ConnectionDirection,
        bytes: &[u8],
    ) -> Option<Disturbance> {
        if lane.1 == Direction::ToClient {
            return None;
        }
        let wanted = *self.disturbance.borrow();
        let found = requests.have(bytes, wanted.map(|(api_key, _)| api_key));
        let (_, how) = wanted.filter(|_| found)?;
        if matches!(how, Disturbance::LateRequest(_)) && !is_one_request(bytes) {
            return None;
        }
        self.disturbance.send_replace(None);
        Some(how)
    }
}

/// Awaits that bytes may pass; refusing concerns new connections only.
async fn passing(state: &State, lane: ConnectionDirection) {
    let (mut mode, mut holes) = (state.mode.subscribe(), state.holes.subscribe());
    // An error says that the proxy is gone, and the cut ends the connection then.
    let _ = holes.wait_for(|holes| !holes.contains(&lane)).await;
    let _ = mode.wait_for(|mode| *mode != Mode::Swallow).await;
}

/// Sends a request on a connection of its own, which brokers without authentication accept, and
/// waits for the reply.
async fn send_late(
    target: SocketAddr,
    request: Vec<u8>,
    delay: Duration,
    answered: watch::Sender<u64>,
) {
    sleep(delay).await;
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    if server.write_all(&request).await.is_ok() && server.read_u8().await.is_ok() {
        answered.send_modify(|count| *count += 1);
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    target: SocketAddr,
    state: &State,
    lane: ConnectionDirection,
    lost: &Notify,
) {
    let mut requests = Requests::default();
    let slowed = Link::to(to, state.slowness.subscribe());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await;
        passing(state, lane).await;
        match read {
            Ok(count) if count > 0 => {
                let disturbance = state.disturbance_of(&mut requests, lane, &buffer[..count]);
                match disturbance {
                    Some(Disturbance::LoseRequest) => return lost.notify_one(),
                    Some(Disturbance::LateRequest(delay)) => {
                        let (request, answered) = (buffer[..count].to_vec(), state.late.clone());
                        tokio::spawn(send_late(target, request, delay, answered));
                        return lost.notify_one();
                    }
                    _ => {}
                }
                let replies = (lane.0, Direction::ToClient);
                if disturbance.is_some() {
                    state.holes.send_modify(|holes| holes.push(replies));
                }
                if slowed.send(&buffer[..count]).await.is_err() {
                    return;
                }
                match disturbance {
                    None | Some(Disturbance::LoseRequest | Disturbance::LateRequest(_)) => {}
                    Some(Disturbance::LoseReply) => {
                        sleep(HANDLED).await;
                        return lost.notify_one();
                    }
                    Some(Disturbance::DelayReply(delay)) => {
                        sleep(delay).await;
                        state.holes.send_modify(|holes| holes.retain(|hole| *hole != replies));
                    }
                }
            }
            _ => {
                // The other side learns of the end.
                slowed.end().await;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(5);
    const SHORT: Duration = Duration::from_millis(200);

    /// A client whose bytes come back from a server behind the proxy.
    async fn echo() -> (Proxy, TcpStream) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::to(server.local_addr().unwrap().port()).await;
        tokio::spawn(async move {
            while let Ok((stream, _)) = server.accept().await {
                let (mut read, mut write) = stream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut read, &mut write).await });
            }
        });
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap();
        (proxy, client)
    }

    async fn answer(client: &mut TcpStream, within: Duration) -> Option<usize> {
        let mut byte = [0];
        let read = tokio::time::timeout(within, client.read(&mut byte)).await.ok()?;
        Some(read.unwrap_or(0))
    }

    #[tokio::test]
    async fn dropped_traffic_arrives_after_restore() {
        let (proxy, mut client) = echo().await;
        client.write_all(b"a").await.unwrap();
        assert_eq!(answer(&mut client, LONG).await, Some(1));
        proxy.blackhole();
        client.write_all(b"b").await.unwrap();
        assert_eq!(answer(&mut client, SHORT).await, None);
        proxy.restore();
        assert_eq!(answer(&mut client, LONG).await, Some(1));
    }

    #[tokio::test]
    async fn one_direction_of_one_connection_can_be_blackholed() {
        for way in [Direction::ToServer, Direction::ToClient] {
            let (proxy, mut first) = echo().await;
            first.write_all(b"a").await.unwrap();
            assert_eq!(answer(&mut first, LONG).await, Some(1));
            let mut second = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap();
            proxy.blackhole_direction(0, way);
            first.write_all(b"b").await.unwrap();
            second.write_all(b"c").await.unwrap();
            assert_eq!(answer(&mut second, LONG).await, Some(1));
            assert_eq!(answer(&mut first, SHORT).await, None);
            proxy.restore();
            assert_eq!(answer(&mut first, LONG).await, Some(1));
        }
    }

    #[tokio::test]
    async fn delay_and_rate_limit_apply_in_each_direction() {
        let (proxy, mut client) = echo().await;
        let begun = Instant::now();
        proxy.slow(SHORT, None);
        client.write_all(b"a").await.unwrap();
        assert_eq!(answer(&mut client, LONG).await, Some(1));
        assert!(begun.elapsed() >= 2 * SHORT, "{:?}", begun.elapsed());
        let begun = Instant::now();
        proxy.slow(Duration::ZERO, Some(100_000));
        let mut all = vec![0; 40_000];
        client.write_all(&all).await.unwrap();
        client.read_exact(&mut all).await.unwrap();
        assert!(begun.elapsed() >= SHORT, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn cut_closes_open_connections_and_accepts_new_ones() {
        let (proxy, mut client) = echo().await;
        client.write_all(b"a").await.unwrap();
        assert_eq!(answer(&mut client, LONG).await, Some(1));
        proxy.cut();
        assert_eq!(answer(&mut client, LONG).await, Some(0));
        let mut next = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap();
        next.write_all(b"c").await.unwrap();
        assert_eq!(answer(&mut next, LONG).await, Some(1));
    }
}
