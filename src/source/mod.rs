//! Where changes come from: PostgreSQL, by a replication session and an
//! ordinary connection beside it.
//!
//! A feed hands out pgoutput messages and keepalives in the log's order and
//! carries confirmations back; the relay knows nothing else of it.

mod backlog;
mod base;
mod batches;
mod begin;
mod config;
mod connect;
mod copy;
mod error;
mod facts;
mod feed;
mod halted;
mod history;
mod instance;
mod limit;
mod live;
mod lock;
mod mark;
mod moved;
mod observer;
mod opening;
mod patience;
mod refusal;
mod session;
mod tls;
mod turns;
mod types;
mod watch;
mod wire;

pub use backlog::Backlog;
pub(crate) use config::APPLICATION_NAME;
pub use config::{CatchUp, ConnInfoSource, SourceConfig};
pub(crate) use connect::{Control, SqlClient, control, control_for_rows};
pub use error::{Holder, SourceError};
pub use facts::{Facts, Slot, published_tables};
pub use feed::{Announcement, Feed, OpenError, Received, Source, SwitchFeed};
pub use halted::LastLook;
pub use history::{LastTransaction, ReceivedTransactions};
pub use limit::Silent;
pub(crate) use limit::{Limit, with_patience};
pub use live::Live;
pub use mark::PublicationFingerprint;
pub(crate) use observer::slot_figures;
pub(crate) use opening::identify_server;
pub use opening::{Resume, ServerIdentity, Waited};
pub(crate) use refusal::{ConnectError, SqlState, TlsFault};
pub use session::Session;
pub use tls::install_crypto_provider;
pub(crate) use tls::system_bundle;
pub use turns::{
    CatchupProgress, LagDetector, Move, SlotAdvanceSchedule, StartPosition, WalPosition,
};
pub(crate) use watch::is_young;
pub(crate) use wire::Refused;
pub use wire::{Frame, FrameError, Frames, Method, Security};
