//! Where changes come from: PostgreSQL, by a replication session and an
//! ordinary connection beside it.
//!
//! A feed hands out pgoutput messages and keepalives in the log's order and
//! carries confirmations back; the relay knows nothing else of it.

mod connect;
mod error;
mod facts;
mod session;
mod tls;

pub use connect::install_crypto_provider;
pub use error::SourceError;
pub use facts::{Facts, Slot, published_tables, quote_identifier};
pub use session::{Received, Resume, ServerIdentity, Session, SourceConfig};
