//! The walpost binary with a PostgreSQL cluster under Patroni, whose leader is switched over and
//! killed under load, verified by the oracle on what a consumer read.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod fixture;
mod leader_changes;
