//! What several destinations have in common.

#![cfg_attr(
    not(feature = "destinations"),
    allow(dead_code, unused_imports, unused_macros, reason = "a build may have few destinations")
)]

pub(crate) mod attempts;
pub(crate) mod check;
pub(crate) mod claims;
pub(crate) mod delays;
pub(crate) mod dial;
mod failure;
pub(crate) mod http_server;
pub(crate) mod keyed;
pub(crate) mod link;
pub(crate) mod linked;
pub(crate) mod message_id;
pub(crate) mod progress;
mod reread;
pub(crate) mod roots;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
pub(crate) mod server_url;
pub(crate) mod settings;
pub(crate) mod stored;
pub(crate) mod template;
pub(crate) mod url;
pub(crate) mod worker;

pub(crate) use failure::Failure;
pub(crate) use reread::Reread;
