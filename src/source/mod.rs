//! Where changes come from: PostgreSQL, by a replication session and an
//! ordinary connection beside it.
//!
//! A feed hands out pgoutput messages and keepalives in the log's order and
//! carries confirmations back; the relay knows nothing else of it.

mod connect;
mod error;
mod facts;
mod feed;
mod opening;
mod refusal;
mod session;
mod tls;
mod watch;

pub(crate) use connect::control;
pub use error::{Holder, SourceError};
pub use facts::{Facts, Slot, published_tables};
pub use feed::{Feed, Source};
pub(crate) use opening::APPLICATION_NAME;
pub use opening::{ConnInfoSource, Resume, ServerIdentity, SourceConfig};
pub use session::{Received, Session};
pub use tls::install_crypto_provider;
pub use watch::Mark;
