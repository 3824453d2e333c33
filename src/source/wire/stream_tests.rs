//! The task against an in-memory server, on a paused clock.

use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::{advance, timeout};

use super::super::client::Replication;
use super::super::policy::MESSAGE;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

const TIMING: Timing =
    Timing { wal_sender_timeout: TIMEOUT, silence_limit: Duration::from_secs(20) };

/// A stream over a connection that buffers this many bytes each way.
fn stream(holds: usize) -> (Replication, DuplexStream) {
    let (ours, theirs) = duplex(holds);
    let shared = Arc::new(Shared::new(Lsn::new(7)));
    let (sender, batches) = mpsc::unbounded_channel();
    let frames = Frames::new(MESSAGE);
    let pump = Pump::new(Line::Plain(ours), frames, Arc::clone(&shared), sender, TIMING);
    (Replication::new(shared, batches, tokio::spawn(pump.run())), theirs)
}

fn message(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![b'd'];
    bytes.put_u32(u32::try_from(body.len()).expect("short") + 4);
    bytes.put_slice(body);
    bytes
}

fn data(payload: &[u8]) -> Vec<u8> {
    message(&[&[b'w'][..], &[0; 24], payload].concat())
}

fn keepalive(wal_end: u64, wanted: u8) -> Vec<u8> {
    message(&[&[b'k'][..], &wal_end.to_be_bytes(), &[0; 8], &[wanted]].concat())
}

/// A status update: what it confirms, and whether it requests a reply.
async fn status(server: &mut DuplexStream) -> (u64, bool) {
    let mut bytes = [0; 39];
    server.read_exact(&mut bytes).await.expect("a status update");
    assert_eq!(bytes[..6], [b'd', 0, 0, 0, 38, b'r']);
    let lsns: Vec<_> = bytes[6..30].chunks(8).collect();
    assert!(lsns[0] == lsns[1] && lsns[1] == lsns[2], "{lsns:?}");
    (u64::from_be_bytes(lsns[0].try_into().expect("eight")), bytes[38] == 1)
}

#[tokio::test(start_paused = true)]
async fn the_confirmed_lsn_is_sent_soon_and_never_decreases() {
    let (client, mut server) = stream(1 << 16);
    assert_eq!(status(&mut server).await, (7, false));
    let since = Instant::now();
    for lsn in [9, 12, 8] {
        client.confirm(Lsn::new(lsn));
    }
    assert_eq!(status(&mut server).await, (12, false));
    assert!(since.elapsed() <= STATUS_INTERVAL, "{:?}", since.elapsed());
    server.write_all(&keepalive(20, 1)).await.expect("written");
    assert_eq!(status(&mut server).await, (12, false));
    assert!(since.elapsed() <= STATUS_INTERVAL * 2, "an answer is sent at once");
}

/// A6: a message that takes many times `wal_sender_timeout` to arrive does not end the session.
#[tokio::test(start_paused = true)]
async fn status_updates_continue_while_one_message_arrives_in_chunks() {
    let (mut client, server) = stream(1 << 16);
    let (mut reading, mut writing) = tokio::io::split(server);
    let large = data(&vec![1; 1 << 20]);
    let length = large.len();
    let serve = tokio::spawn(async move {
        for piece in large.chunks(10_000) {
            writing.write_all(piece).await.expect("written");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        writing
    });
    let heard = tokio::spawn(async move {
        let (mut last, mut gap, mut bytes) = (Instant::now(), Duration::ZERO, [0; 39]);
        while timeout(TIMEOUT, reading.read_exact(&mut bytes)).await.is_ok_and(|read| read.is_ok())
        {
            gap = gap.max(last.elapsed());
            last = Instant::now();
        }
        gap
    });
    let Some(Event::Data(payload)) = client.next().await.expect("no end") else {
        panic!("no data")
    };
    assert_eq!(payload.len(), length - 5 - 25);
    drop((client, serve));
    let gap = heard.await.expect("it heard");
    assert!(gap > Duration::ZERO && gap <= TIMEOUT / 3, "I14: {gap:?}");
}

#[tokio::test(start_paused = true)]
async fn status_updates_continue_while_events_are_not_taken_and_memory_is_bounded() {
    let (mut client, server) = stream(1 << 16);
    let (mut reading, mut writing) = tokio::io::split(server);
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    tokio::spawn(async move {
        while writing.write_all(&data(&[0; 1000])).await.is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (mut last, since, mut bytes) = (Instant::now(), Instant::now(), [0; 39]);
    while since.elapsed() < TIMEOUT * 5 {
        reading.read_exact(&mut bytes).await.expect("a status update");
        assert!(last.elapsed() <= TIMEOUT / 3, "I14: {:?}", last.elapsed());
        assert_eq!(bytes[38], 0, "an answer would not be read");
        last = Instant::now();
    }
    let most = (QUEUED + 3 * (1 << 16)) / 1000;
    let before = sent.load(Ordering::Relaxed);
    assert!(before <= most, "{before} messages were read ahead");
    assert!(client.bursts() > 0);
    for _ in 0..before {
        assert!(matches!(client.next().await, Ok(Some(Event::Data(_)))));
    }
    assert!(sent.load(Ordering::Relaxed) > before, "it reads on");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_asked_for_a_reply_and_then_times_out() {
    let (mut client, mut server) = stream(1 << 16);
    assert_eq!(status(&mut server).await, (7, false));
    let since = Instant::now();
    assert_eq!(status(&mut server).await, (7, true));
    assert!(since.elapsed() <= TIMEOUT / 3, "{:?}", since.elapsed());
    server.write_all(&keepalive(9, 0)).await.expect("written");
    assert_eq!(client.next().await.expect("no end"), Some(Event::Keepalive(Lsn::new(9))));
    let since = Instant::now();
    let error = client.next().await.expect_err("it is silent");
    assert!(matches!(error, WireError::Silent(_)), "{error}");
    assert_eq!(since.elapsed().as_secs(), TIMING.silence_limit.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_trickle_of_bytes_keeps_the_session_alive() {
    let (mut client, mut server) = stream(1 << 16);
    let message = data(&[1; 20]);
    for byte in message.chunks(1) {
        server.write_all(byte).await.expect("written");
        tokio::time::sleep(TIMING.silence_limit / 2).await;
    }
    assert!(matches!(client.next().await, Ok(Some(Event::Data(_)))));
}

#[tokio::test(start_paused = true)]
async fn the_servers_error_follows_the_events_before_it() {
    let (mut client, mut server) = stream(1 << 16);
    let error = b"E\0\0\0\x15C57P01\0Mnot now\0\0".to_vec();
    let bytes = [data(b"x"), keepalive(3, 0), error].concat();
    server.write_all(&bytes).await.expect("written");
    drop(server);
    assert!(matches!(client.next().await, Ok(Some(Event::Data(_)))));
    assert!(matches!(client.next().await, Ok(Some(Event::Keepalive(_)))));
    for _ in 0..2 {
        let error = client.next().await.expect_err("the end");
        assert_eq!(error.to_string(), "not now (SQLSTATE 57P01)");
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_without_an_error_names_wal_sender_timeout() {
    let (mut client, server) = stream(1 << 16);
    drop(server);
    let error = client.next().await.expect_err("the end").to_string();
    assert!(error.contains("wal_sender_timeout (it is 10 s)"), "{error}");
    let (mut client, mut server) = stream(1 << 16);
    server.write_all(b"c\0\0\0\x04").await.expect("written");
    assert_eq!(client.next().await.expect("in order"), None);
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_sends_the_confirmed_lsn_and_terminates() {
    let (mut client, mut server) = stream(1 << 16);
    assert_eq!(status(&mut server).await, (7, false));
    client.confirm(Lsn::new(99));
    let serve = async move {
        server.write_all(&data(b"unread")).await.expect("written");
        assert_eq!(status(&mut server).await, (99, false));
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.expect("read");
        assert_eq!(rest, b"c\0\0\0\x04X\0\0\0\x04");
    };
    let (end, ()) = tokio::join!(client.shutdown(), serve);
    end.expect("in order");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_stream_confirms_nothing_more() {
    let (client, mut server) = stream(1 << 16);
    assert_eq!(status(&mut server).await, (7, false));
    client.confirm(Lsn::new(99));
    drop(client);
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).await.expect("read");
    assert!(rest.is_empty(), "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn writing_in_small_chunks_does_not_block_reading() {
    // The server reads nothing, and the connection buffers half a status update.
    let (mut client, mut server) = stream(20);
    tokio::task::yield_now().await;
    for count in 0..50 {
        client.confirm(Lsn::new(100 + count));
        advance(STATUS_INTERVAL).await;
        server.write_all(&data(b"x")).await.expect("written");
        assert!(matches!(client.next().await, Ok(Some(Event::Data(_)))));
    }
    // Then it reads: the update in progress, and one for everything confirmed since.
    assert_eq!(status(&mut server).await.0, 7);
    assert_eq!(status(&mut server).await.0, 149);
}

#[test]
fn a_truncated_or_unknown_stream_message_is_an_error() {
    for whole in [&data(b"")[5..], &keepalive(1, 1)[5..]] {
        assert!(event(Bytes::copy_from_slice(whole)).is_ok());
        for cut in 0..whole.len() {
            assert!(event(Bytes::copy_from_slice(&whole[..cut])).is_err(), "{cut}");
        }
    }
    assert!(event(Bytes::from_static(b"x")).is_err());
}
