//! `walpost check` on set-ups that are really broken: each finding appears with its mend,
//! the mend is applied as it is printed, and the finding is gone.

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
