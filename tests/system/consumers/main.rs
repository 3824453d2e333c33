//! Executes what `docs/consumers.md` and `docs/from-polling.md` instruct readers to do.
//!
//! walpost publishes events, some of them twice; each program reads them, is killed in the middle
//! and starts again, and its own table must show each effect once. The Rust program runs here;
//! those in other languages need these languages' tools and are run by `make consumers`. A service
//! with a poller migrates to walpost and back, by the steps of its page, and walpost publishes from
//! the tables of common pollers. Each example consumer reads what each example writer has written.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod clients;
mod fixture;
mod migration;
mod page;
mod pairs;
mod pollers;
mod program;
mod programs;
mod tables;
mod tools;
#[path = "../writers/tools.rs"]
mod writers;
