//! Whether server, slot, history and publication are still the same, and the position at which a
//! session resumes.

pub(super) mod history;
pub(super) mod publication_fingerprint;
pub(super) mod publication_guard;
pub(super) mod resume;
pub(super) mod server_identity;
pub(super) mod timeline;
