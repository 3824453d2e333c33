//! Messages of a PostgreSQL server, in pieces of any size.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use walpost::source::{Frame, FrameError, Frames};

use super::input::parts;

/// Longest message here, in bytes.
const LIMIT: u32 = 1000;

/// The first part says how long each piece is, the second is what the server sends: whatever the
/// pieces, the same messages come of it, and the same end.
pub fn wire(input: &[u8]) {
    let mut parts = parts(input);
    let lengths = parts.next().unwrap_or_default();
    let bytes = parts.next().unwrap_or_default();
    let (messages, end) = received(bytes, lengths);
    assert_eq!((messages.clone(), end), received(bytes, &[]));
    let taken: usize = messages.iter().map(|frame| 5 + frame.body.len()).sum();
    assert!(taken <= bytes.len());
    let mut rest = bytes;
    for frame in &messages {
        assert_eq!(rest[0], frame.tag);
        assert_eq!(&rest[5..5 + frame.body.len()], &frame.body[..]);
        rest = &rest[5 + frame.body.len()..];
    }
    let length = rest
        .get(1..5)
        .map(|length| u32::from_be_bytes([length[0], length[1], length[2], length[3]]));
    let refused = match end {
        None => false,
        Some(FrameError::TooShort(found)) => found < 4 && Some(found) == length,
        Some(FrameError::TooLong { length: found, limit }) => {
            found > limit && limit == LIMIT && Some(found) == length
        }
    };
    assert_eq!(refused, length.is_some_and(|length| !(4..=LIMIT).contains(&length)));
}

/// What comes of these bytes, in pieces of these lengths over and over.
fn received(mut bytes: &[u8], lengths: &[u8]) -> (Vec<Frame>, Option<FrameError>) {
    let mut frames = Frames::new(LIMIT);
    let mut messages = Vec::new();
    let whole = [u8::MAX];
    let lengths = if lengths.is_empty() { &whole[..] } else { lengths };
    for length in lengths.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (mut piece, rest) = bytes.split_at(usize::from(*length).clamp(1, bytes.len()));
        bytes = rest;
        let read = pin!(frames.read(&mut piece)).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(read, Poll::Ready(Ok(1..))), "a slice gives what it has");
        loop {
            match frames.take() {
                Ok(Some(frame)) => messages.push(frame),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}
