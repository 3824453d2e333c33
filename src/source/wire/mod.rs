//! PostgreSQL's frontend/backend protocol, as far as a replication session needs it, and the limits
//! that apply to every connection.
//!
//! This is our own client, on the messages and SCRAM of `postgres-protocol`, because no published
//! client has all of the following (`docs/design/decisions.md` compares `pgwire-replication`):
//!
//! * Status updates are sent on time in every situation: while one message arrives in chunks, while
//!   no caller takes received events, and while the socket accepts no writes. A client that sends
//!   none while it reads one message can never receive a row that takes longer than
//!   `wal_sender_timeout`: the server ends the session each time.
//! * Any received byte counts as a sign of life, so a slow connection is not mistaken for a dead
//!   one.
//! * What a server can make walpost spend before authentication is bounded: message lengths and
//!   SCRAM iterations. Memory grows with the bytes received, not with the length that a message
//!   announces.
//! * `require_auth` and `channel_binding` apply to this session as to the others, and TLS uses the
//!   same `rustls` configuration.
//! * The final status update requests a reply.
//! * The socket has the connection string's TCP options.
//!
//! Protocol: <https://www.postgresql.org/docs/current/protocol.html> and
//! <https://www.postgresql.org/docs/current/protocol-replication.html>.

mod client;
mod error;
mod framing;
mod guard;
mod line;
mod policy;
mod query;
mod startup;
mod stream;

pub(super) use client::{Replication, ReplicationSession, StreamSettings, connect};
pub(super) use error::WireError;
pub(crate) use error::{ServerError, SqlState};
pub use framing::{Frame, FrameError, Frames};
pub(crate) use guard::Lifted;
pub(super) use guard::{AnswerLimit, Guard, Handshaken};
pub(super) use line::{Socket, secure};
pub(crate) use policy::Refused;
pub(super) use policy::{Login, MESSAGE, Policy};
pub use policy::{Method, Security};
pub(super) use stream::Event;
