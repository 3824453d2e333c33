//! walpost between a PostgreSQL and a Kafka that let nobody in without TLS and a
//! password, a token or a certificate: real servers, certificates signed under way.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod answers;
mod deliver;
mod examples;
mod hijack;
mod listen;
mod methods;
mod place;
mod process;
mod refuse;
mod rogue;
mod rotate;
mod secrets;
mod token;
mod unfit;
mod unprivileged;
