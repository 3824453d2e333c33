//! Connection strings, as in libpq.
//!
//! `ConnInfo::resolve` reads a URL or `key=value` text, then a service file, then the `PG*`
//! environment, then libpq's defaults and the password file, in that order of precedence. The
//! result configures both PostgreSQL clients. It opens no connection and reads no certificate.
//!
//! The reference is <https://www.postgresql.org/docs/current/libpq-connect.html>. Differences:
//! `connect_timeout` is 10 seconds, while libpq waits forever; `verify-full` without a root
//! certificate file uses the system's roots, as with `sslrootcert=system`, while libpq fails; named
//! certificate files must exist; and a parameter that secures the connection, but that walpost does
//! not support, is rejected.

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
pub(crate) use text::for_user;
