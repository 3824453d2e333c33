//! A TCP proxy that adds a precise round trip, for benches, and a probe that measures it.
//!
//! [`Proxy`](crate::Proxy) can delay too, but Tokio's timer rounds up to a millisecond: too coarse
//! for a round trip of one. Here each direction of a connection has two threads. One reads and
//! notes when each piece is due; the other sleeps until then and writes. The order is kept, pieces
//! in flight overlap, and bandwidth is not limited.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Pieces in flight in one direction, of up to [`PIECE_BYTES`] each. A reader waits when there are
/// more, as with a full socket buffer.
const PIECES: usize = 512;
const PIECE_BYTES: usize = 64 * 1024;

/// Of the threads here, where root runs them; -20 is the highest.
const PRIORITY: i32 = -15;

/// How often a probe sends a ping.
const PING_INTERVAL: Duration = Duration::from_millis(10);

/// A proxy on a port of its own, in front of a server on 127.0.0.1. Dropped, it closes all
/// connections.
#[derive(Debug)]
pub struct DelayProxy {
    port: u16,
    state: Arc<State>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    /// Nanoseconds that half a round trip takes.
    delay: AtomicU64,
    /// The server's port; 0 before it is known.
    target: AtomicU16,
    ended: AtomicBool,
    connections: Mutex<Vec<Weak<Connection>>>,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    ToServer,
    ToClient,
}

impl DelayProxy {
    /// A proxy without delay that leads nowhere yet: some servers have to know its port first.
    pub fn start() -> Self {
        Self::try_start().unwrap_or_else(|error| panic!("starting a delay proxy: {error}"))
    }

    /// A proxy in front of this port, with this round trip.
    pub fn to(port: u16, round_trip: Duration) -> Self {
        let proxy = Self::start();
        proxy.point_at(port);
        proxy.set_round_trip(round_trip);
        proxy
    }

    fn try_start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State {
            delay: AtomicU64::new(0),
            target: AtomicU16::new(0),
            ended: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        let accepting = thread::spawn(move || shared.accept(&listener));
        Ok(Self { port, state, accepting: Some(accepting) })
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server of new connections.
    pub fn point_at(&self, port: u16) {
        self.state.target.store(port, Ordering::Relaxed);
    }

    /// What a round trip takes from now on, half of it in each direction.
    pub fn set_round_trip(&self, round_trip: Duration) {
        let nanos = u64::try_from((round_trip / 2).as_nanos()).expect("less than a century");
        self.state.delay.store(nanos, Ordering::Relaxed);
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        // Wakes the accepting thread. An error means that it has ended.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for connection in self.state.connections().drain(..).filter_map(|one| one.upgrade()) {
            connection.close();
        }
    }
}

impl State {
    fn connections(&self) -> MutexGuard<'_, Vec<Weak<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay.load(Ordering::Relaxed))
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            // A client whose connection fails here sees it closed.
            let _ = client.and_then(|client| self.connect(client));
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let target = self.target.load(Ordering::Relaxed);
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
        // Nagle's algorithm would add delays of its own.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let connection = Arc::new(Connection { client, server });
        let mut connections = self.connections();
        connections.retain(|one| one.strong_count() > 0);
        connections.push(Arc::downgrade(&connection));
        for direction in [Direction::ToServer, Direction::ToClient] {
            let (sender, receiver) = mpsc::sync_channel(PIECES);
            let (state, source) = (Arc::clone(self), Arc::clone(&connection));
            thread::spawn(move || source.read(direction, &state, &sender));
            let sink = Arc::clone(&connection);
            thread::spawn(move || sink.write(direction, receiver));
        }
        Ok(())
    }
}

/// Bytes with the time at which they are due. No bytes: the end of the stream.
type Piece = (Instant, Vec<u8>);

impl Connection {
    fn ends(&self, direction: Direction) -> (&TcpStream, &TcpStream) {
        match direction {
            Direction::ToServer => (&self.client, &self.server),
            Direction::ToClient => (&self.server, &self.client),
        }
    }

    fn read(&self, direction: Direction, state: &State, sender: &mpsc::SyncSender<Piece>) {
        wake_promptly();
        let (mut source, _) = self.ends(direction);
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            // An error ends the stream for the other side too.
            let count = source.read(&mut buffer).unwrap_or(0);
            let due = Instant::now() + state.delay();
            if sender.send((due, buffer[..count].to_vec())).is_err() || count == 0 {
                return;
            }
        }
    }

    fn write(&self, direction: Direction, receiver: mpsc::Receiver<Piece>) {
        wake_promptly();
        let (source, mut sink) = self.ends(direction);
        for (due, bytes) in receiver {
            sleep_until(due);
            if bytes.is_empty() || sink.write_all(&bytes).is_err() {
                break;
            }
        }
        // Either fails if that side is closed already.
        let _ = (sink.shutdown(Shutdown::Write), source.shutdown(Shutdown::Read));
    }

    fn close(&self) {
        let _ = (self.client.shutdown(Shutdown::Both), self.server.shutdown(Shutdown::Both));
    }
}

/// Lets the kernel wake this thread on time, not 50 µs late; and, as root, before threads that keep
/// the cores busy: a network does not compete with programs for processors. Without these it is only
/// less precise.
fn wake_promptly() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    // On Linux a thread has a priority of its own.
    let _ = rustix::process::setpriority_process(None, PRIORITY);
}

fn sleep_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left);
    }
}

/// Pings an echo server through a [`DelayProxy`] until it is finished: the round trip that clients
/// of such a proxy have meanwhile, under the load of that time.
#[derive(Debug)]
pub struct RoundTripProbe {
    finished: Arc<AtomicBool>,
    pinging: JoinHandle<io::Result<Vec<Duration>>>,
}

impl RoundTripProbe {
    /// Begins to ping through a proxy with this round trip.
    pub fn start(round_trip: Duration) -> Self {
        let finished = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&finished);
        let pinging = thread::spawn(move || ping(round_trip, &flag));
        Self { finished, pinging }
    }

    /// The round trips of all pings so far, in ascending order; at least one.
    pub fn finish(self) -> Vec<Duration> {
        self.finished.store(true, Ordering::Relaxed);
        let measured = self.pinging.join().expect("the probe does not panic");
        let mut measured = measured.unwrap_or_else(|error| panic!("pinging: {error}"));
        measured.sort_unstable();
        measured
    }
}

fn ping(round_trip: Duration, finished: &AtomicBool) -> io::Result<Vec<Duration>> {
    wake_promptly();
    let server = echo_server()?;
    let proxy = DelayProxy::to(server, round_trip);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()))?;
    stream.set_nodelay(true)?;
    let (mut measured, mut byte) = (Vec::new(), [0]);
    // The first ping waits for the connection.
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    while measured.is_empty() || !finished.load(Ordering::Relaxed) {
        let begun = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        measured.push(begun.elapsed());
        thread::sleep(PING_INTERVAL);
    }
    Ok(measured)
}

/// The port of a server that sends the bytes of its only client back.
fn echo_server() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || -> io::Result<()> {
        wake_promptly();
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..count])?;
        }
    });
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(round_trip: Duration) -> (DelayProxy, TcpStream) {
        let proxy = DelayProxy::to(echo_server().unwrap(), round_trip);
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        (proxy, client)
    }

    #[test]
    fn bytes_arrive_complete_and_in_order() {
        let (_proxy, client) = client(Duration::from_millis(2));
        // Numbers in pieces of changing sizes, together more than the sockets' buffers hold.
        let sent: Vec<u8> = (0..1_500_000_u32).flat_map(u32::to_be_bytes).collect();
        let mut received = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut rest = &sent[..];
                for size in (1..).map(|number| number * 37 % 60_000 + 1) {
                    let (piece, after) = rest.split_at(size.min(rest.len()));
                    (&client).write_all(piece).unwrap();
                    rest = after;
                    if rest.is_empty() {
                        break;
                    }
                }
                client.shutdown(Shutdown::Write).unwrap();
            });
            (&client).read_to_end(&mut received).unwrap();
        });
        assert!(received == sent, "{} of {} bytes came", received.len(), sent.len());
    }

    #[test]
    fn round_trip_takes_at_least_the_configured_time() {
        for round_trip in [Duration::from_millis(40), Duration::from_micros(900)] {
            let probe = RoundTripProbe::start(round_trip);
            let fastest = probe.finish()[0];
            assert!(fastest >= round_trip, "{fastest:?} instead of {round_trip:?}");
        }
    }

    #[test]
    fn round_trip_can_change_on_an_open_connection() {
        let (proxy, mut client) = client(Duration::ZERO);
        let (long, mut byte) = (Duration::from_millis(40), [0]);
        client.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        proxy.set_round_trip(long);
        let begun = Instant::now();
        client.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        assert!(begun.elapsed() >= long, "{:?}", begun.elapsed());
    }

    #[test]
    fn pieces_in_flight_overlap() {
        let (_proxy, mut client) = client(Duration::from_millis(200));
        client.set_nodelay(true).unwrap();
        let (begun, mut answers) = (Instant::now(), [0; 100]);
        for number in 0..100 {
            client.write_all(&[number]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        client.read_exact(&mut answers).unwrap();
        // One after the other they would take twenty seconds.
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(answers.is_sorted());
    }

    #[test]
    fn dropped_proxy_closes_its_connections() {
        let (proxy, mut client) = client(Duration::from_millis(1));
        let mut byte = [0];
        client.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        drop(proxy);
        assert_eq!(client.read(&mut byte).unwrap_or(0), 0);
    }
}
