//! PostgreSQL as the source of changes.
//!
//! A feed yields pgoutput messages and keepalives in WAL order, and carries confirmations back.
//! There are two: a stream, which is a replication session with an SQL connection next to it, and
//! catch-up reads, which read batches by SQL from a temporary copy of the slot. The relay reads
//! through the traits in `feed`. Besides these it uses only the errors, the server's identity and
//! the publication's fingerprint.
//!
//! | files | what they do |
//! |---|---|
//! | `feed`, `feed_base`, `feed_select`, `stream`, `postgres_feed`, `catchup/` | the two feeds and the choice between them |
//! | `open`, `open_state`, `session_setup`, `resume`, `config` | opening a session at the right position |
//! | `visibility` | holding back what other sessions do not see yet |
//! | `publication_guard`, `publication_fingerprint`, `catalog`, `types`, `membership` | the publication and its tables, as the catalogs have them |
//! | `history`, `server_identity`, `advanced_slot` | whether server and slot are still the same |
//! | `row_feed`, `row_snapshot`, `row_conditions` | rows that no slot sends, as a feed |
//! | `slot_lock`, `halt_notice`, `advisory_lock` | coordination between instances |
//! | `locked_table`, `owners_code`, `confirmed_slots` | for commands that write rows: the table, whose code runs, and what is delivered |
//! | `error`, `slot_error`, `slot_metrics`, `outbox_size` | errors, and the metrics that PostgreSQL has |
//! | `connection/`, `wire/` | connecting, and the replication protocol |

mod advanced_slot;
mod advisory_lock;
mod catalog;
mod catchup;
mod config;
mod confirmed_slots;
mod connection;
mod error;
mod feed;
mod feed_base;
mod feed_select;
mod halt_notice;
mod history;
mod locked_table;
mod logical_decoding;
mod membership;
mod message_text;
mod open;
mod open_state;
mod outbox_size;
mod owners_code;
mod postgres_feed;
mod publication_fingerprint;
mod publication_guard;
mod resume;
mod row_conditions;
mod row_feed;
mod row_snapshot;
mod server_identity;
mod session_setup;
mod slot_error;
mod slot_lock;
mod slot_metrics;
mod stream;
mod timeline;
mod types;
mod unsent_parts;
mod visibility;
mod wire;

pub use catalog::{Facts, Slot, published_tables};
pub(crate) use catalog::{SLOT_NAME_MAX, disable_two_phase};
pub use catchup::cost::{Backlog, BatchEnd, Traffic};
pub use catchup::feed::CatchupFeed;
pub use catchup::policy::{
    CatchupProgress, LagDetector, SlotAdvance, SlotAdvanceSchedule, StartPosition, WalPosition,
};
pub(crate) use config::APPLICATION_NAME;
pub use config::{CatchUp, ConnInfoSource, SourceConfig};
pub(crate) use confirmed_slots::{ConfirmedSlot, ConfirmedSlots, published};
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
pub use feed::{
    Announcement, Feed, HeldBack, OpenError, Received, Source, SwitchFeed, VisibilityWaits,
};
pub use history::{
    HistoryCheck, LastTransaction, PublishedHistory, ReceivedTransactions, RequiredTransaction,
    Verdict,
};
pub(crate) use locked_table::TableShape;
pub use logical_decoding::LogicalDecoding;
pub(crate) use logical_decoding::{ADD_PLUGIN, COLUMNS as DECODING_COLUMNS, Lack};
pub(crate) use membership::{membership, row_filter};
pub(crate) use message_text::MessageText;
pub use open_state::OpenState;
pub use outbox_size::TableSize;
pub(crate) use owners_code::{OwnersCode, RowEvents};
pub use postgres_feed::PostgresFeed;
pub use publication_fingerprint::PublicationFingerprint;
pub(crate) use publication_guard::is_newer_than_slot;
pub use resume::{Resume, Waited};
pub(crate) use row_conditions::{COLUMN_TYPE, in_text_form, in_utc};
pub(crate) use row_feed::{RowBatch, RowPositions, RowSession, RowSource};
pub(crate) use row_snapshot::{RowBound, RowChoice, RowSnapshot, TIME_COLUMN};
pub use server_identity::ServerIdentity;
pub(crate) use session_setup::{identify_server, lift_limits};
pub use slot_error::SlotError;
pub(crate) use slot_lock::try_lock_slot;
pub(crate) use slot_metrics::read_slot_metrics;
pub use slot_metrics::{Horizon, SlotMetrics};
pub use stream::StreamFeed;
pub(crate) use types::BASE_TYPE;
pub(crate) use unsent_parts::{PartKind, UnsentPart, unsent_parts};
pub use wire::{Frame, FrameError, Frames, Method, Security};
pub(crate) use wire::{Refused, ServerError, SqlState};
