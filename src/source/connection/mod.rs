//! Connections to PostgreSQL: how they are opened and secured, which server they reached, their
//! timeouts, and how their failures are classified.

pub(super) mod connect;
pub(super) mod deadline;
pub(super) mod error;
pub(super) mod instance;
pub(super) mod tls;
