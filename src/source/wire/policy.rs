//! What a server may request before the session is ready: one policy for every connection.
//!
//! The policy checks each message of the server before it is processed, up to the first
//! `ReadyForQuery`.
//!
//! <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>

use std::fmt;

use postgres_protocol::authentication::sasl::{SCRAM_SHA_256, SCRAM_SHA_256_PLUS};
use secrecy::SecretString;

use super::framing::FrameError;
use crate::conninfo::{AuthMethod, ChannelBinding, RequireAuth};

/// Maximum length of a message before the session is ready, in bytes; PostgreSQL's own limit on
/// what it receives then is a quarter of this.
pub(super) const STARTUP_MESSAGE: u32 = 64 << 10;

/// Maximum size of all messages before the session is ready, in bytes.
const STARTUP_BYTES: usize = 1 << 20;

/// What a message counts in addition to its body: storing an empty notice also takes memory.
pub(super) const MESSAGE_COST: usize = 128;

/// Maximum length of a message with rows, in bytes: PostgreSQL allocates no more for one.
pub(in crate::source) const MESSAGE: u32 = 1 << 30;

/// Maximum SCRAM iterations: 26 ms on a processor with SHA-256 instructions, some tenths of a
/// second on others. `postgres-protocol` has the same limit; it is checked here for a better error
/// message.
pub(super) const SCRAM_ITERATIONS: u32 = 100_000;

/// Maximum size of a command's response, in bytes: one row or none.
pub(super) const ANSWER: u32 = 1 << 20;

/// How walpost authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The server requested nothing: `trust`, `peer`, `ident` or `cert` in `pg_hba.conf`.
    None,
    /// The password in clear text.
    Password,
    /// An MD5 hash of the password.
    Md5,
    /// SCRAM-SHA-256.
    Scram,
    /// SCRAM-SHA-256 with channel binding.
    ScramPlus,
}

impl Method {
    /// The method as `require_auth` names it.
    fn required(self) -> AuthMethod {
        match self {
            Self::None => AuthMethod::None,
            Self::Password => AuthMethod::Password,
            Self::Md5 => AuthMethod::Md5,
            Self::Scram | Self::ScramPlus => AuthMethod::ScramSha256,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Password => "password",
            Self::Md5 => "md5",
            Self::Scram => "scram-sha-256",
            Self::ScramPlus => "scram-sha-256-plus",
        })
    }
}

/// How a connection is secured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Security {
    /// The TLS version, such as `TLSv1.3`; `None` without TLS.
    pub tls: Option<&'static str>,
    /// How walpost authenticated.
    pub method: Method,
    /// Whether the server is on this machine: a Unix socket or the loopback interface.
    pub is_local: bool,
}

impl Security {
    /// Whether others on the network can read the traffic.
    pub fn is_readable(&self) -> bool {
        self.tls.is_none() && !self.is_local
    }

    /// Whether others on the network can read the password, or a hash that is sufficient to log in.
    pub fn shows_password(&self) -> bool {
        self.is_readable() && matches!(self.method, Method::Password | Method::Md5)
    }
}

impl fmt::Display for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = self.tls.unwrap_or("no TLS");
        write!(f, "{tls}, authentication {}", self.method)
    }
}

/// Why walpost does not authenticate to a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// `require_auth` does not allow the method.
    #[error("it asks for the authentication method {asked}, which require_auth does not allow")]
    Method { asked: AuthMethod },
    /// `require_auth` requires a method, and the server requests none.
    #[error("it asks for no authentication, which require_auth does not allow")]
    Unasked,
    /// walpost does not support the method.
    #[error("it asks for the authentication method {0}, which walpost does not support")]
    Unsupported(&'static str),
    /// `channel_binding=require`, but channel binding is not possible.
    #[error("channel_binding=require cannot be met: {0}")]
    Unbound(&'static str),
    /// The server requests too many SCRAM iterations.
    #[error("it asks for {0} SCRAM iterations; at most {SCRAM_ITERATIONS} are computed")]
    Iterations(String),
    /// The server requests a password, and none is configured.
    #[error("it asks for a password and none is given")]
    NoPassword,
    /// An invalid SCRAM exchange: the server may not know the password.
    #[error("SCRAM: {0}")]
    Scram(String),
    /// Too many bytes before the session is ready.
    #[error("it sends more than {STARTUP_BYTES} bytes before the session is ready")]
    Flood,
    /// Too many bytes once the session is ready.
    #[error("it sends more than {limit} bytes of {what}")]
    TooMuch { limit: u64, what: &'static str },
    /// `tokio-postgres` would query the server for the type, and in turn for the types in the
    /// response.
    #[error(
        "it describes a value of the data type with OID {0}; walpost queries only built-in types"
    )]
    DataType(u32),
    /// Not a message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message out of order.
    #[error("{0}")]
    OutOfOrder(&'static str),
}

impl Refused {
    /// The remedy.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::Method { .. } | Self::Unasked => {
                "change this line of pg_hba.conf, for example to scram-sha-256, or require_auth"
            }
            Self::Unsupported(_) => {
                "walpost supports trust, password, md5, scram-sha-256 and cert: change this line of \
                 pg_hba.conf"
            }
            Self::Unbound(_) => {
                "use TLS and scram-sha-256: a hostssl line in pg_hba.conf, and sslmode=verify-full; \
                 or set channel_binding=prefer"
            }
            Self::Iterations(_) => {
                "lower scram_iterations on the server and set the role's password again"
            }
            Self::NoPassword => "give it in PGPASSWORD or in a password file (~/.pgpass)",
            Self::Scram(_) => {
                "check that this is the right server and the right password; walpost supports \
                 trust, password, md5, scram-sha-256 and cert"
            }
            Self::Flood
            | Self::TooMuch { .. }
            | Self::DataType(_)
            | Self::Frame(_)
            | Self::OutOfOrder(_) => "check host and port",
        }
    }
}

/// The connection string's requirements for authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) require_auth: RequireAuth,
    pub(crate) channel_binding: ChannelBinding,
}

/// The role that logs in, and its credentials.
pub(crate) struct Login<'a> {
    pub(crate) user: &'a str,
    pub(crate) dbname: &'a str,
    pub(crate) password: Option<&'a SecretString>,
    pub(crate) application_name: &'a str,
    /// Command-line options for the session.
    pub(crate) options: String,
    pub(crate) policy: Policy,
}

/// The channel binding that SCRAM can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    /// None: the connection is without TLS.
    Unencrypted,
    /// None: the server's certificate has no data for it.
    Unknown,
    /// The server's certificate.
    EndPoint,
}

/// Checks the messages of a starting session, one after the other.
#[derive(Debug)]
pub(super) struct Checker {
    policy: Policy,
    binding: Binding,
    bytes: usize,
    asked: Option<Method>,
    is_proven: bool,
    is_ready: bool,
}

impl Checker {
    pub(super) fn new(policy: Policy, binding: Binding) -> Self {
        Self { policy, binding, bytes: 0, asked: None, is_proven: false, is_ready: false }
    }

    /// Whether the session is ready, and so nothing more is checked.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// How walpost authenticates.
    pub(super) fn method(&self) -> Method {
        self.asked.unwrap_or(Method::None)
    }

    /// Checks a message before it is processed.
    pub(super) fn check(&mut self, tag: u8, body: &[u8]) -> Result<(), Refused> {
        // An empty message also takes memory if it is stored.
        self.bytes = self.bytes.saturating_add(body.len() + MESSAGE_COST);
        if self.bytes > STARTUP_BYTES {
            return Err(Refused::Flood);
        }
        match tag {
            b'R' => self.authentication(body),
            b'Z' => {
                self.is_ready = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn authentication(&mut self, body: &[u8]) -> Result<(), Refused> {
        let (code, data) = body
            .split_first_chunk()
            .ok_or(Refused::OutOfOrder("an empty authentication request"))?;
        match u32::from_be_bytes(*code) {
            0 => self.accepted(),
            3 => self.asks(Method::Password),
            5 => self.asks(Method::Md5),
            10 => {
                let method = self.sasl(data)?;
                self.asks(method)
            }
            11 => iterations(data),
            12 => {
                self.is_proven = true;
                Ok(())
            }
            7 => Err(self.unsupported(AuthMethod::Gss, "gss")),
            9 => Err(self.unsupported(AuthMethod::Sspi, "sspi")),
            _ => Err(Refused::Unsupported("by an unknown number")),
        }
    }

    fn unsupported(&self, asked: AuthMethod, name: &'static str) -> Refused {
        if self.policy.require_auth.allows(asked) {
            Refused::Unsupported(name)
        } else {
            Refused::Method { asked }
        }
    }

    fn asks(&mut self, method: Method) -> Result<(), Refused> {
        if self.asked.is_some() {
            return Err(Refused::OutOfOrder("it asks for authentication twice"));
        }
        let asked = method.required();
        if !self.policy.require_auth.allows(asked) {
            return Err(Refused::Method { asked });
        }
        if method != Method::ScramPlus {
            self.may_be_unbound("the server asks for another method than SCRAM-SHA-256-PLUS")?;
        }
        self.asked = Some(method);
        Ok(())
    }

    fn may_be_unbound(&self, otherwise: &'static str) -> Result<(), Refused> {
        if self.policy.channel_binding != ChannelBinding::Require {
            return Ok(());
        }
        Err(Refused::Unbound(match self.binding {
            Binding::Unencrypted => "the connection is without TLS",
            Binding::EndPoint => otherwise,
            Binding::Unknown => {
                "the signature algorithm of the server's certificate has no channel binding"
            }
        }))
    }

    fn sasl(&self, mechanisms: &[u8]) -> Result<Method, Refused> {
        let offers =
            |name: &str| mechanisms.split(|byte| *byte == 0).any(|one| one == name.as_bytes());
        let may_bind = self.binding == Binding::EndPoint
            && self.policy.channel_binding != ChannelBinding::Disable;
        if offers(SCRAM_SHA_256_PLUS) && may_bind {
            Ok(Method::ScramPlus)
        } else if offers(SCRAM_SHA_256) {
            Ok(Method::Scram)
        } else if offers("OAUTHBEARER") {
            Err(self.unsupported(AuthMethod::Oauth, "oauth"))
        } else {
            Err(Refused::Unsupported("by an unknown SASL mechanism"))
        }
    }

    fn accepted(&self) -> Result<(), Refused> {
        match self.asked {
            None if !self.policy.require_auth.allows(AuthMethod::None) => Err(Refused::Unasked),
            None => self.may_be_unbound("the server asks for no authentication"),
            Some(Method::Scram | Method::ScramPlus) if !self.is_proven => {
                Err(Refused::OutOfOrder("it does not prove that it knows the password"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Checks the iteration count in SCRAM's server-first-message, such as `r=…,s=…,i=4096`
/// (<https://www.rfc-editor.org/rfc/rfc5802#section-7>). An unreadable count passes: the parser of
/// the message rejects it.
fn iterations(message: &[u8]) -> Result<(), Refused> {
    let counts = message.split(|byte| *byte == b',').filter_map(|part| part.strip_prefix(b"i="));
    for digits in counts.filter_map(|digits| std::str::from_utf8(digits).ok()) {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && digits.parse().map_or(true, |count: u32| count > SCRAM_ITERATIONS) {
            let shown = digits.chars().take(20).collect();
            return Err(Refused::Iterations(shown));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
