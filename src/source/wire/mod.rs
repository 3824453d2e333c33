//! PostgreSQL's frontend/backend protocol, as far as a replication session needs it, and the
//! limits that hold for every connection.
//!
//! A client of our own, over the messages and the SCRAM of `postgres-protocol`, since the session
//! needs what no published client offers together:
//!
//! * Status updates are sent on time in every situation: while one message arrives in pieces,
//!   while nobody takes what has arrived, and while the socket does not take what is written.
//!   A client that sends none while it reads one message can never receive a row that takes
//!   longer than `wal_sender_timeout`: the server ends the session each time.
//! * Any received byte is a sign of life, so that a slow line is not taken for a dead one.
//! * What a server can make walpost spend before it has authenticated is bounded: message lengths
//!   and SCRAM iterations. Memory grows with the bytes that have been received, not with a length
//!   that was announced.
//! * `require_auth` and `channel_binding` hold for this session as for the others, and TLS is the
//!   same `rustls` configuration.
//! * The last status update asks for an answer.
//! * The socket has the TCP options of the connection string.
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

pub(super) use client::{Connection, Replication, StreamSettings, connect};
pub(crate) use error::SqlState;
pub(super) use error::{ServerError, WireError};
pub use framing::{Frame, FrameError, Frames};
pub(crate) use guard::Lifted;
pub(super) use guard::{AnswerLimit, Guard, Handshaken};
pub(super) use line::{Socket, secure};
pub(crate) use policy::Refused;
pub(super) use policy::{Login, MESSAGE, Policy};
pub use policy::{Method, Security};
pub(super) use stream::Event;
