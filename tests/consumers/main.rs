//! The consumers of `docs/consumers.md`, and the tables that they stand on.
//!
//! walpost publishes events, some of them twice; each program reads them, is killed
//! in the middle and begins anew, and its own table has to show each effect once.
//! The program in Rust runs here by itself; those in other languages want these
//! languages' tools and are run by `make consumers`.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod page;
mod program;
mod programs;
mod shop;
mod tables;
mod tools;
