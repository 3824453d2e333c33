//! What `docs/consumers.md` and `docs/from-polling.md` tell others to do, done.
//!
//! walpost publishes events, some of them twice; each program reads them, is killed
//! in the middle and begins anew, and its own table has to show each effect once.
//! The program in Rust runs here by itself; those in other languages want these
//! languages' tools and are run by `make consumers`. A service with a poller moves to
//! walpost and back, by the steps of its page.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod fixture;
mod migration;
mod page;
mod program;
mod programs;
mod tables;
mod tools;
