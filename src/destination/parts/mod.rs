//! What several destinations have in common.

#![allow(dead_code, reason = "a build may have few destinations")]

pub(crate) mod attempts;
pub(crate) mod delays;
pub(crate) mod dial;
pub(crate) mod link;
pub(crate) mod message_id;
mod reread;
pub(crate) mod roots;
pub(crate) mod settings;
pub(crate) mod stored;
pub(crate) mod template;

pub(crate) use reread::Reread;
