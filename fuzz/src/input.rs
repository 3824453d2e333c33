//! Splits a fuzz input so that it survives mutations: parts between separators, a reader that never
//! runs out, and an initial event.

use walpost::Lsn;
use walpost::outbox::Event;
use walpost::pgoutput::PgTimestamp;
use walpost::position::EventPosition;

/// Parts one part of an input from the next. A text that no other has: bytes
/// that are put in or taken out change one part, and leave the others.
pub const SEPARATOR: &[u8] = b"<#>";

/// The parts of an input, in order; at least one.
pub(crate) fn parts(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let at = input.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        let (part, rest) = match at {
            Some(at) => (&input[..at], &input[at + SEPARATOR.len()..]),
            None => (input, &input[input.len()..]),
        };
        (input, ended) = (rest, at.is_none());
        Some(part)
    })
}

/// Reads values from bytes; where none are left, it reads zeros.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rng<'a>(pub(crate) &'a [u8]);

impl<'a> Rng<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.bytes(8).iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// That many bytes, or what is left.
    pub(crate) fn bytes(&mut self, wanted: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// As many bytes as the first byte says.
    pub(crate) fn counted(&mut self) -> &'a [u8] {
        let wanted = usize::from(self.byte());
        self.bytes(wanted)
    }
}

/// An event with a key, and nothing else that a record needs.
pub(crate) fn an_event<'a>() -> Event<'a> {
    Event {
        position: EventPosition { commit_lsn: Lsn::new(1), ordinal: 0 },
        commit_time: PgTimestamp::default(),
        id: None,
        aggregate_type: None,
        aggregate_id: Some(b"7".into()),
        event_type: None,
        payload: None,
        headers: None,
        traceparent: None,
        tracestate: None,
        timestamp: None,
        schema_version: None,
        placed: Vec::new(),
        types: None,
    }
}
