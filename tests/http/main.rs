//! End to end: the walpost binary between a real PostgreSQL and an HTTP server, verified by the
//! oracle on the requests that the server has accepted.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod configuration;
mod consumer;
mod fixture;
mod kills;
mod outages;
mod poison;
mod receiver;
mod requests;
mod security;
