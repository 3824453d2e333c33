//! The result: the configuration of both PostgreSQL clients.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::auth::{ChannelBinding, RequireAuth};

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAddress {
    /// A name, which the certificate must also have, and optionally an address that avoids the DNS
    /// lookup.
    Tcp {
        /// A host name, or an IP address as text.
        name: String,
        /// libpq's `hostaddr`.
        hostaddr: Option<IpAddr>,
    },
    /// The directory of its Unix socket.
    Unix(PathBuf),
}

/// One server to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The host's address.
    pub address: HostAddress,
    /// The port; for a Unix socket, part of the socket's name.
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

/// How the connection is secured (<https://www.postgresql.org/docs/current/libpq-ssl.html>).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Without TLS.
    Disable,
    /// Without TLS; with TLS if the server rejects that.
    Allow,
    /// TLS, or none if the server rejects TLS.
    Prefer,
    /// TLS, with a certificate that is not verified.
    Require,
    /// TLS, with a certificate issued by one of the roots.
    VerifyCa,
    /// TLS, with such a certificate for the host's name.
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

    /// Whether the server's certificate is verified.
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

/// The root certificates for the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Roots {
    /// The CA certificates that the operating system trusts.
    System,
    /// The certificates in this PEM file.
    File(PathBuf),
}

/// A client certificate and its private key, both PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, and any intermediate ones.
    pub certificate: PathBuf,
    /// The private key, unencrypted.
    pub key: PathBuf,
}

/// The required state of a server
/// (<https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-TARGET-SESSION-ATTRS>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetSession {
    /// Any server.
    Any,
    /// A server that accepts writes.
    ReadWrite,
    /// A server that does not accept writes.
    ReadOnly,
    /// A server that is not in recovery.
    Primary,
    /// A server in recovery.
    Standby,
    /// A server in recovery if one of the hosts is, otherwise any.
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

/// How a dead connection is detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keepalive {
    /// Whether TCP keepalives are sent.
    pub enabled: bool,
    /// Idle time before the first one.
    pub idle: Duration,
    /// Interval between them.
    pub interval: Duration,
    /// How many may remain unacknowledged.
    pub retries: u32,
    /// How long sent data may remain unacknowledged; not for a replication session, whose receiver
    /// may pause.
    pub user_timeout: Duration,
}

/// A resolved connection string.
///
/// `Display` is one line without any secret: `host:port/dbname as user`.
#[derive(Debug, Clone)]
pub struct ConnInfo {
    pub(super) hosts: Vec<Host>,
    /// The role.
    pub user: String,
    /// The database.
    pub dbname: String,
    pub(super) password: Option<SecretString>,
    pub(super) password_in_text: bool,
    /// The passwords of the password file, one per host.
    pub(super) passfile_passwords: Vec<Option<SecretString>>,
    /// Timeout for connecting to one address: DNS, TCP, TLS and authentication.
    pub connect_timeout: Duration,
    /// Command-line options for the session, as configured.
    pub options: Option<String>,
    /// The configured `application_name`, if any.
    pub application_name: Option<String>,
    /// The effective `sslmode`; `require` with a root certificate file becomes `verify-ca`.
    pub sslmode: SslMode,
    /// The roots for verification of certificates.
    pub roots: Roots,
    /// The client certificate, if any.
    pub client_certificate: Option<ClientCertificate>,
    /// Whether SCRAM uses channel binding.
    pub channel_binding: ChannelBinding,
    /// The authentication methods that the server may request.
    pub require_auth: RequireAuth,
    /// The required state of a server.
    pub target_session: TargetSession,
    /// How a dead connection is detected.
    pub keepalive: Keepalive,
    pub(super) warnings: Vec<String>,
}

impl ConnInfo {
    /// The servers, in the order of attempts; never empty.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The password for that host: the configured one, or else that of the password file.
    pub fn password_for(&self, host: &Host) -> Option<&SecretString> {
        self.password.as_ref().or_else(|| {
            let at = self.hosts.iter().position(|known| known == host)?;
            self.passfile_passwords.get(at)?.as_ref()
        })
    }

    /// Whether the password was part of the resolved text, where others may see it.
    pub fn password_in_text(&self) -> bool {
        self.password_in_text
    }

    /// Ignored settings on which the operator may rely, as messages.
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
