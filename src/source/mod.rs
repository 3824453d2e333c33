//! Where changes come from: the replication session and the control connection.

// The session and the commands that use these come next.
#[allow(dead_code, reason = "used by the session")]
mod connect;
#[allow(dead_code, reason = "used by the session")]
mod refusal;
mod tls;

pub use tls::install_crypto_provider;
