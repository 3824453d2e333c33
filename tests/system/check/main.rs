//! `walpost check` on setups that are really broken: each finding appears with its fix, the fix is
//! applied as printed, and the finding is gone.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod columns;
mod configuration;
mod connection;
mod endpoints;
mod failover;
mod fixture;
mod init;
mod kafka;
mod publication;
mod server;
mod slot;
mod tls;
mod topics;
mod unresponsive_servers;
