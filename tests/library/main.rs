//! The crate with real servers: embedded in a program, and its parts beside what they are to match.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod embed;
mod membership;
mod partitioner;
mod reference_client;
