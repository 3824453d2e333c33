//! The result: what both PostgreSQL clients are configured from.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::auth::{ChannelBinding, RequireAuth};

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAddress {
    /// By name, which is also what a certificate must show, and possibly by an
    /// address that spares the look-up.
    Tcp {
        /// A host name, or an IP address as text.
        name: String,
        /// libpq's `hostaddr`.
        hostaddr: Option<IpAddr>,
    },
    /// By the directory of its Unix socket.
    Unix(PathBuf),
}

/// One server to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Where it is.
    pub address: HostAddress,
    /// Its port; for a Unix socket a part of the socket's name.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            HostAddress::Tcp { name, .. } if name.contains(':') => {
                write!(f, "[{name}]:{}", self.port)
            }
            HostAddress::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
            HostAddress::Unix(directory) => write!(f, "{}:{}", directory.display(), self.port),
        }
    }
}

/// How far the connection is protected
/// (<https://www.postgresql.org/docs/current/libpq-ssl.html>).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Without TLS.
    Disable,
    /// Without TLS, and with it where the server refuses that.
    Allow,
    /// With TLS, and without it where the server refuses that.
    Prefer,
    /// With TLS, whoever the server is.
    Require,
    /// With TLS and a certificate that the roots vouch for.
    VerifyCa,
    /// With TLS and such a certificate for the host's name.
    VerifyFull,
}

impl SslMode {
    pub(super) const ALL: [(&'static str, Self); 6] = [
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];

    /// Whether the server's certificate is checked at all.
    pub fn verifies(self) -> bool {
        self >= Self::VerifyCa
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = Self::ALL[*self as usize];
        f.write_str(name)
    }
}

/// Whose word counts for a server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Roots {
    /// The authorities that the operating system trusts.
    System,
    /// The certificates in this PEM file.
    File(PathBuf),
}

/// A client certificate and its private key, both PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, and any above it.
    pub certificate: PathBuf,
    /// The private key, not encrypted.
    pub key: PathBuf,
}

/// What a server must be to be used
/// (<https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-TARGET-SESSION-ATTRS>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetSession {
    /// Anything.
    Any,
    /// It accepts writes.
    ReadWrite,
    /// It does not accept writes.
    ReadOnly,
    /// It is not in recovery.
    Primary,
    /// It is in recovery.
    Standby,
    /// In recovery where one of the hosts is, else anything.
    PreferStandby,
}

impl TargetSession {
    pub(super) const ALL: [(&'static str, Self); 6] = [
        ("any", Self::Any),
        ("read-write", Self::ReadWrite),
        ("read-only", Self::ReadOnly),
        ("primary", Self::Primary),
        ("standby", Self::Standby),
        ("prefer-standby", Self::PreferStandby),
    ];
}

impl fmt::Display for TargetSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = Self::ALL[*self as usize];
        f.write_str(name)
    }
}

/// How a dead peer is noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keepalive {
    /// Whether TCP keepalives are sent.
    pub enabled: bool,
    /// Silence before the first one.
    pub idle: Duration,
    /// Time between one and the next.
    pub interval: Duration,
    /// How many may go unanswered.
    pub retries: u32,
    /// How long sent data may go unacknowledged; not on a replication session, whose receiver
    /// may pause.
    pub user_timeout: Duration,
}

/// A resolved connection string.
///
/// `Display` is one line without any secret: `host:port/dbname as user`.
#[derive(Debug, Clone)]
pub struct ConnInfo {
    pub(super) hosts: Vec<Host>,
    /// Who connects.
    pub user: String,
    /// To which database.
    pub dbname: String,
    pub(super) password: Option<SecretString>,
    pub(super) password_in_text: bool,
    /// From the password file, one for each host.
    pub(super) passfile_passwords: Vec<Option<SecretString>>,
    /// Time for connecting to one address: name, TCP, TLS and authentication.
    pub connect_timeout: Duration,
    /// Command-line options for the session, as given.
    pub options: Option<String>,
    /// The session's name, where one was given.
    pub application_name: Option<String>,
    /// The protection asked for; `require` with a file of roots has become
    /// `verify-ca`.
    pub sslmode: SslMode,
    /// What certificates are checked against, where they are checked.
    pub roots: Roots,
    /// The certificate to show, where there is one.
    pub client_certificate: Option<ClientCertificate>,
    /// Whether SCRAM is bound to the TLS channel.
    pub channel_binding: ChannelBinding,
    /// The authentication methods that the server may ask for.
    pub require_auth: RequireAuth,
    /// What a server must be to be used.
    pub target_session: TargetSession,
    /// How a dead peer is noticed.
    pub keepalive: Keepalive,
    pub(super) warnings: Vec<String>,
}

impl ConnInfo {
    /// The servers, in the order to try them in; never empty.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The password for that host: the one given, else the password file's.
    pub fn password_for(&self, host: &Host) -> Option<&SecretString> {
        self.password.as_ref().or_else(|| {
            let at = self.hosts.iter().position(|known| known == host)?;
            self.passfile_passwords.get(at)?.as_ref()
        })
    }

    /// Whether the password was inside the text that was resolved, where
    /// others may see it.
    pub fn password_in_text(&self) -> bool {
        self.password_in_text
    }

    /// Settings that are ignored although the operator may rely on them, as texts.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl fmt::Display for ConnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, host) in self.hosts.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            write!(f, "{separator}{host}")?;
        }
        write!(f, "/{} as {}", self.dbname, self.user)
    }
}
