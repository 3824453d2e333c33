//! PostgreSQL as the source of changes.
//!
//! A feed yields pgoutput messages and keepalives in WAL order, and carries confirmations back.
//! There are two: a stream, which is a replication session with an SQL connection next to it, and
//! catch-up reads, which read batches by SQL from a temporary copy of the slot. The relay reads
//! through the traits in `feed`. Besides these it uses only the errors, the server's identity and
//! the publication's fingerprint.
//!
//! | file or folder | what it does |
//! |---|---|
//! | `feed` | the traits; the stream, the two feeds as one, holding back what other sessions do not see yet, and texts of logical messages |
//! | `catchup` | the feed of catch-up reads, and its policy |
//! | `open` | opening a session at the right position, with the feed that fits |
//! | `identity` | whether server, slot, history and publication are still the same; where a session resumes |
//! | `instances` | coordination between instances |
//! | `catalog` | what the catalogs say about slots, publication and tables, for the relay and for commands that write rows; the metrics that PostgreSQL has |
//! | `rows` | rows that no slot sends, as a feed |
//! | `connection`, `wire` | connecting, and the replication protocol |
//! | `config`, `error`, `slot_error` | settings and errors |

mod catalog;
mod catchup;
mod config;
mod connection;
mod error;
mod feed;
mod identity;
mod instances;
mod open;
mod rows;
mod slot_error;
mod wire;

pub(crate) use catalog::confirmed_slots::{ConfirmedSlot, ConfirmedSlots, published};
pub(crate) use catalog::locked_table::TableShape;
pub use catalog::logical_decoding::LogicalDecoding;
pub(crate) use catalog::logical_decoding::{ADD_PLUGIN, COLUMNS as DECODING_COLUMNS, Lack};
pub(crate) use catalog::membership::{membership, row_filter};
pub use catalog::outbox_size::TableSize;
pub(crate) use catalog::owners_code::{OwnersCode, RowEvents};
pub(crate) use catalog::slot_metrics::read_slot_metrics;
pub use catalog::slot_metrics::{Horizon, MinuteMetrics, SlotMetrics};
pub(crate) use catalog::types::BASE_TYPE;
pub(crate) use catalog::unsent_parts::{PartKind, UnsentPart, unsent_parts};
pub use catalog::{CatalogState, Slot, published_tables};
pub(crate) use catalog::{SLOT_NAME_MAX, disable_two_phase};
pub use catchup::cost::{Backlog, BatchEnd, Traffic};
pub use catchup::feed::CatchupFeed;
pub use catchup::policy::{
    CatchupProgress, LagDetector, SlotAdvance, SlotAdvanceSchedule, StartPosition, WalPosition,
};
pub(crate) use config::APPLICATION_NAME;
pub use config::{CatchUp, ConnInfoSource, SourceConfig};
pub(crate) use connection::connect::{Control, SqlClient, control};
pub use connection::deadline::Silent;
pub(crate) use connection::deadline::{Limit, log_if_slow};
pub(crate) use connection::error::{
    ConnectError, HBA_ROUTINE, TlsFault, UnknownHost, said as said_by_server,
};
pub(crate) use connection::instance::Instance;
pub use connection::tls::install_crypto_provider;
pub(crate) use connection::tls::system_bundle;
pub(crate) use error::said;
pub use error::{Holder, HolderKind, PublicationChange, SourceError};
pub(crate) use feed::message_text::MessageText;
pub use feed::postgres_feed::PostgresFeed;
pub use feed::stream::StreamFeed;
pub use feed::{
    Announcement, Feed, HeldBack, OpenError, Received, Source, SwitchFeed, VisibilityWaits,
};
pub use identity::history::{
    HistoryCheck, LastTransaction, MessageAction, PublishedHistory, ReceivedTransactions,
    RequiredTransaction,
};
pub use identity::publication_fingerprint::PublicationFingerprint;
pub(crate) use identity::publication_guard::{is_newer_than_slot, publication_fingerprint};
pub use identity::resume::{Resume, Waited};
pub use identity::server_identity::ServerIdentity;
pub(crate) use instances::slot_lock::try_lock_slot;
pub use open::open_state::OpenState;
pub(crate) use open::session_setup::{identify_server, lift_limits};
pub(crate) use rows::row_conditions::{COLUMN_TYPE, in_text_form, in_utc};
pub(crate) use rows::row_feed::{RowBatch, RowPositions, RowSession, RowSource};
pub(crate) use rows::row_snapshot::{RowBound, RowChoice, RowSnapshot, TIME_COLUMN};
pub use slot_error::SlotError;
pub use wire::{Frame, FrameError, Frames, Method, Security};
pub(crate) use wire::{Refused, ServerError, SqlState};
