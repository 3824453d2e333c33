//! Executes what `docs/writing-events.md` instructs readers to do.
//!
//! Each program places and pays orders, while triggers of the test fail some changes, some events
//! and some commits, and is killed between a change and its event. walpost publishes the events;
//! then Kafka must have exactly those of the committed changes. The Rust program and the page's SQL
//! run here; programs in other languages need these languages' tools and are run by `make writers`.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod function;
mod order;
mod page;
mod program;
mod programs;
mod round_trips;
mod shop;
mod tools;
