//! Messages in any chunks, and memory only for received bytes.

use allocation_counter::measure;
use bytes::BufMut as _;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::property;

/// Maximum message length in these tests, in bytes.
const LIMIT: u32 = 1 << 30;

fn encoded(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, body) in messages {
        bytes.put_u8(*tag);
        bytes.put_u32(u32::try_from(body.len()).expect("short") + 4);
        bytes.put_slice(body);
    }
    bytes
}

/// All complete messages, received in chunks of these lengths, repeated cyclically.
fn received(bytes: &[u8], pieces: &[usize], limit: u32) -> Result<Vec<Frame>, FrameError> {
    let mut frames = Frames::new(limit);
    let (mut rest, mut found) = (bytes, Vec::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for length in pieces.iter().copied().cycle() {
        let (piece, left) = rest.split_at(length.clamp(1, 1 << 20).min(rest.len()));
        rest = left;
        let mut piece = piece;
        while !piece.is_empty() {
            runtime.block_on(frames.read(&mut piece)).expect("a slice");
            while let Some(frame) = frames.take()? {
                found.push(frame);
            }
        }
        if rest.is_empty() {
            return Ok(found);
        }
    }
    Ok(found)
}

#[test]
fn any_chunking_yields_the_same_messages() {
    let body = prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..100_000)];
    let cases = (vec((any::<u8>(), body), 0..8), vec(1..70_000_usize, 1..6), any::<usize>());
    let name = "any_chunking_yields_the_same_messages";
    property::holds(name, 300, &cases, |(messages, pieces, cut)| {
        let mut bytes = encoded(&messages);
        let found = received(&bytes, &pieces, LIMIT).expect("messages");
        let found: Vec<_> = found.iter().map(|frame| (frame.tag, frame.body.to_vec())).collect();
        assert_eq!(found, messages);
        // A truncated message is not returned.
        bytes.truncate(cut % (bytes.len() + 1));
        let found = received(&bytes, &pieces, LIMIT).expect("messages").len();
        assert!(found <= messages.len());
    });
}

#[test]
fn any_bytes_yield_messages_or_an_error_within_the_memory_bound() {
    let cases = (vec(any::<u8>(), 0..2000), vec(1..300_usize, 1..6), 0..100_000_u32);
    let name = "any_bytes_yield_messages_or_an_error_within_the_memory_bound";
    property::holds(name, 3000, &cases, |(bytes, pieces, limit)| {
        match received(&bytes, &pieces, limit) {
            Ok(found) => {
                let counted: usize = found.iter().map(|frame| HEADER + frame.body.len()).sum();
                assert!(counted <= bytes.len());
            }
            Err(FrameError::TooShort(length)) => assert!(length < 4),
            Err(FrameError::TooLong { length, .. }) => assert!(length > limit),
        }
    });
}

/// I15: the maximum memory used for that many bytes of one message.
fn memory(bytes: &[u8]) -> u64 {
    let mut frames = Frames::new(LIMIT);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let used = measure(|| {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut piece = &rest[..rest.len().min(1000)];
            let count = runtime.block_on(frames.read(&mut piece)).expect("a slice");
            rest = &rest[count..];
            frames.take().expect("no error");
        }
    });
    used.bytes_max
}

#[test]
fn an_announced_length_allocates_no_memory_before_its_bytes_arrive() {
    let announced = |length: usize| {
        let mut bytes = vec![b'd'];
        bytes.put_u32(LIMIT);
        bytes.resize(length, 0);
        bytes
    };
    for length in [5, 6, 1000, 100_000, 3_000_000] {
        let used = memory(&announced(length));
        // While the buffer grows, old and new memory exist together.
        let allowed = 3 * length + 2 * READ;
        assert!(used <= allowed as u64, "{used} bytes for {length}");
    }
}

#[test]
fn memory_of_a_large_message_is_freed() {
    let mut frames = Frames::new(LIMIT);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let bytes = encoded(&[(b'd', vec![0; 10 << 20])]);
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        runtime.block_on(frames.read(&mut rest)).expect("a slice");
        drop(frames.take().expect("no error"));
    }
    runtime.block_on(frames.read(&mut [0].as_slice())).expect("a slice");
    assert!(frames.buffer.capacity() <= KEPT, "{}", frames.buffer.capacity());
}

#[test]
fn impossible_lengths_are_rejected_after_the_header() {
    for (length, limit, error) in [
        (3, 100, FrameError::TooShort(3)),
        (0, 100, FrameError::TooShort(0)),
        (101, 100, FrameError::TooLong { length: 101, limit: 100 }),
        (u32::MAX, LIMIT, FrameError::TooLong { length: u32::MAX, limit: LIMIT }),
    ] {
        let mut bytes = vec![b'd'];
        bytes.put_u32(length);
        assert_eq!(received(&bytes, &[1], limit), Err(error));
    }
}
