//! Catch-up reads: a large backlog is read by SQL in batches, from a temporary copy of the slot.
//!
//! [`policy`] decides when to catch up and when to advance the slot, and [`cost`] which feed costs
//! less and how large a batch is (both pure). [`reader`] reads batches ahead, out of the COPY that
//! [`copy`] parses. [`feed`] passes them to the relay and advances the slot behind the
//! acknowledgements.

pub(super) mod backend_liveness;
mod copy;
pub(super) mod cost;
pub(super) mod feed;
pub(super) mod policy;
mod reader;
