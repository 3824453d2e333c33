//! Catch-up reads: SQL queries read a large backlog in batches from a temporary copy of the slot.
//!
//! [`policy`] decides when to catch up and when to advance the slot. [`cost`] compares the costs of
//! the two feeds and sizes the batches. Both are pure. [`reader`] reads batches ahead with COPY,
//! whose output [`copy`] parses. [`feed`] passes them to the relay, and [`advancer`] advances the slot as
//! records are acknowledged.

pub(super) mod advancer;
pub(super) mod backend_liveness;
mod copy;
pub(super) mod cost;
pub(super) mod feed;
pub(super) mod policy;
mod reader;
