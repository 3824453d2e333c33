//! Messages out of any chunks, and memory for what is there alone.

use allocation_counter::measure;
use bytes::BufMut as _;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::property;

/// Longest message here, in bytes.
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

/// Everything that is whole, as it comes in pieces of these lengths, over and over.
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
fn any_chunking_gives_the_same_messages() {
    let body = prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..100_000)];
    let cases = (vec((any::<u8>(), body), 0..8), vec(1..70_000_usize, 1..6), any::<usize>());
    let name = "any_chunking_gives_the_same_messages";
    property::holds(name, 300, &cases, |(messages, pieces, cut)| {
        let mut bytes = encoded(&messages);
        let found = received(&bytes, &pieces, LIMIT).expect("messages");
        let found: Vec<_> = found.iter().map(|frame| (frame.tag, frame.body.to_vec())).collect();
        assert_eq!(found, messages);
        // What is cut short is waited for.
        bytes.truncate(cut % (bytes.len() + 1));
        let found = received(&bytes, &pieces, LIMIT).expect("messages").len();
        assert!(found <= messages.len());
    });
}

#[test]
fn any_bytes_give_messages_or_an_error_and_take_no_memory_that_is_not_there() {
    let cases = (vec(any::<u8>(), 0..2000), vec(1..300_usize, 1..6), 0..100_000_u32);
    let name = "any_bytes_give_messages_or_an_error_and_take_no_memory_that_is_not_there";
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

/// I15: the memory at most, for that many bytes of one message.
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
fn a_length_that_is_announced_takes_no_memory_before_its_bytes_come() {
    let announced = |length: usize| {
        let mut bytes = vec![b'd'];
        bytes.put_u32(LIMIT);
        bytes.resize(length, 0);
        bytes
    };
    for length in [5, 6, 1000, 100_000, 3_000_000] {
        let used = memory(&announced(length));
        // While it grows there are the old memory and the new.
        let allowed = 3 * length + 2 * READ;
        assert!(used <= allowed as u64, "{used} bytes for {length}");
    }
}

#[test]
fn the_memory_of_a_large_message_is_given_back() {
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
fn lengths_that_cannot_be_are_refused_by_the_header_alone() {
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
