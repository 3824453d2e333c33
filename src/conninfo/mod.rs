//! Connection strings as libpq users know them.
//!
//! `ConnInfo::resolve` reads a URL or `key=value` text, then a service file,
//! then the `PG*` environment, then libpq's defaults and the password file, in
//! that order of precedence, and gives one value that both PostgreSQL clients
//! are configured from. It opens no connection and reads no certificate.
//!
//! The reference is <https://www.postgresql.org/docs/current/libpq-connect.html>.
//! What differs: `connect_timeout` is 10 seconds where libpq waits for ever;
//! `verify-full` without a root certificate file uses the system's roots, as with
//! `sslrootcert=system`, where libpq refuses; named certificate files must exist; and a parameter that
//! protects the connection, but that walpost cannot honour, is refused.

mod auth;
mod env;
mod error;
mod info;
mod parameters;
mod passfile;
mod resolve;
mod service;
mod text;

pub use auth::{AuthMethod, ChannelBinding, RequireAuth};
pub use env::Env;
pub use error::{ConnInfoError, Origin};
pub use info::{
    ClientCertificate, ConnInfo, Host, HostAddress, Keepalive, Roots, SslMode, TargetSession,
};
pub(crate) use parameters::is_known as is_known_parameter;
