//! Where changes come from: PostgreSQL, by a replication session and an
//! ordinary connection beside it.
//!
//! A feed hands out pgoutput messages and keepalives in the log's order and
//! carries confirmations back; the relay knows nothing else of it.

mod connect;
mod error;
mod facts;
mod refusal;
mod session;
mod tls;

pub(crate) use connect::control;
pub use error::SourceError;
pub use facts::{Facts, Slot, published_tables};
pub(crate) use session::APPLICATION_NAME;
pub use session::{ConnInfoSource, Received, Resume, ServerIdentity, Session, SourceConfig};
pub use tls::install_crypto_provider;
