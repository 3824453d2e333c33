//! Why a connection failed, classified by what the operator can do about it. Classifies server
//! errors by SQLSTATE. Nothing here retries.
//!
//! The codes: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio_postgres::error::DbError;

use super::tls::TlsError;
use crate::conninfo::TargetSession;
use crate::excerpt::at_most;
use crate::source::wire::{Refused, ServerError, SqlState, WireError};

/// The function of PostgreSQL's source code that refuses by `pg_hba.conf`. A missing role has the same
/// SQLSTATE.
pub(crate) const HBA_ROUTINE: &str = "ClientAuthentication";

/// Maximum length of a server's message in characters: walpost's own text follows it and must stay
/// visible.
const MOST: usize = 2000;

/// Why a connection failed or was lost. The text is a single line, whatever the server sends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// No response, or a broken connection. Retryable.
    #[error("{host} cannot be reached, or closed the connection")]
    Unreachable {
        host: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// No session within `connect_timeout`. Retryable.
    #[error("{host} opened no session within {} s (connect_timeout)", after.as_secs())]
    TimedOut { host: String, after: Duration },
    /// The server rejects connections for now: it is starting up, shutting down, or full.
    /// Retryable.
    #[error("{host} refuses for now: {}", said(error))]
    Transient { host: String, error: Box<ServerError> },
    /// The server does not match `target_session_attrs`. Retryable, because a standby may be
    /// promoted.
    #[error("{host} does not match target_session_attrs={wanted}")]
    WrongSession { host: String, wanted: TargetSession },
    /// All hosts failed, each for a retryable reason.
    #[error("no host accepts a session: {}", listed(.0))]
    NoHost(Vec<ConnectError>),
    /// The server rejects the connection until its configuration, or walpost's, is changed.
    #[error("{host} refuses: {}: {advice}", said(error))]
    Configuration {
        host: String,
        error: Box<ServerError>,
        /// The remedy.
        advice: &'static str,
        /// The address on this machine from which it was reached; `None` for a Unix socket.
        from: Option<IpAddr>,
    },
    /// The server requests something that the connection string or walpost does not allow.
    #[error("{host} refuses: {}: {}", at_most(MOST, &refused.to_string()), refused.advice())]
    Policy { host: String, refused: Refused },
    /// TLS fails until the configuration is changed.
    #[error("{host}: TLS: {}: {}", at_most(MOST, message), fault.advice())]
    Tls { host: String, message: String, fault: TlsFault },
    /// The files named by `sslrootcert`, `sslcert` or `sslkey` are unusable.
    #[error("TLS cannot be set up")]
    TlsSetUp(#[from] TlsError),
    /// Any other server error: the caller classifies it by SQLSTATE.
    #[error("{host}: {}", said(error))]
    Server { host: String, error: Box<ServerError> },
    /// A violation of the protocol.
    #[error("{host} does not follow the PostgreSQL protocol: {}", at_most(MOST, message))]
    Protocol { host: String, message: String },
}

/// A host name without an address; with the resolver's error, if it reported one.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.as_ref().map_or_else(|| "its name has no address".to_owned(), ToString::to_string))]
pub(crate) struct UnknownHost(pub(super) Option<io::Error>);

impl ConnectError {
    /// Whether a retry may succeed without a change of configuration. `false` for `Server`, which
    /// the caller classifies.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Transient { .. }
            | Self::WrongSession { .. }
            | Self::NoHost(_) => true,
            Self::Configuration { .. }
            | Self::Policy { .. }
            | Self::Tls { .. }
            | Self::TlsSetUp(_)
            | Self::Server { .. }
            | Self::Protocol { .. } => false,
        }
    }

    /// Whether the server is unavailable or shutting down, as opposed to rejecting the connection.
    pub(crate) fn is_outage(&self) -> bool {
        match self.sqlstate() {
            None => self.is_retryable(),
            Some(code) => ["08", "57"].contains(&&code.as_str()[..2]),
        }
    }

    /// The server's SQLSTATE, if it sent one.
    pub(crate) fn sqlstate(&self) -> Option<SqlState> {
        self.server_error()?.sqlstate
    }

    /// The server's error, if it sent one.
    pub(crate) fn server_error(&self) -> Option<&ServerError> {
        match self {
            Self::Transient { error, .. }
            | Self::Configuration { error, .. }
            | Self::Server { error, .. } => Some(error),
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::WrongSession { .. }
            | Self::NoHost(_)
            | Self::Policy { .. }
            | Self::Tls { .. }
            | Self::TlsSetUp(_)
            | Self::Protocol { .. } => None,
        }
    }

    /// Classifies an error of the control connection, after TLS is negotiated.
    pub(crate) fn of_control(host: &str, error: tokio_postgres::Error) -> Self {
        let host = host.to_owned();
        if let Some(refusal) = error.as_db_error() {
            return Self::of_server(host, server_error(refusal));
        }
        if let Some(tls) = cause::<rustls::Error>(&error) {
            return Self::of_tls(host, tls.to_string());
        }
        if let Some(refused) = cause::<Refused>(&error) {
            return Self::of_policy(host, refused);
        }
        // `tokio-postgres` exposes the kind only in the error's text.
        let kind = error.to_string();
        let detail = error.source().map(ToString::to_string).unwrap_or_default();
        if kind.starts_with("invalid configuration") && detail == "password missing" {
            Self::of_policy(host, &Refused::NoPassword)
        } else if kind.starts_with("authentication error") {
            Self::of_policy(host, &Refused::Scram(detail))
        } else if kind.starts_with("unexpected message")
            || kind.starts_with("error parsing")
            || kind.starts_with("error communicating") && is_invalid_message(&error)
        {
            Self::Protocol { host, message: format!("{kind} {detail}").trim_end().to_owned() }
        } else {
            Self::Unreachable { host, source: Box::new(error) }
        }
    }

    /// Classifies an error of a connection before it has a session, or of the replication session.
    pub(crate) fn of_wire(host: &str, error: &WireError) -> Self {
        let host = host.to_owned();
        match error {
            WireError::Server(error) => Self::of_server(host, error.clone()),
            WireError::NoTls => {
                let fault = TlsFault::Unsupported;
                Self::Tls { host, message: error.to_string(), fault }
            }
            WireError::Io(source) => match cause::<rustls::Error>(source.as_ref()) {
                Some(tls) => Self::of_tls(host, tls.to_string()),
                // Kept as the I/O error itself, so that its kind remains visible.
                None => Self::Unreachable {
                    host,
                    source: Box::new(io::Error::new(source.kind(), source.to_string())),
                },
            },
            WireError::Refused(refused) => Self::of_policy(host, refused),
            WireError::Protocol(message) => Self::Protocol { host, message: message.clone() },
            WireError::Closed | WireError::Ended { .. } | WireError::Silent(_) => {
                Self::Unreachable { host, source: Box::new(error.clone()) }
            }
        }
    }

    /// Classifies a request of the server that the policy rejects.
    fn of_policy(host: String, refused: &Refused) -> Self {
        match refused {
            Refused::Flood | Refused::Frame(_) | Refused::OutOfOrder(_) => {
                Self::Protocol { host, message: refused.to_string() }
            }
            refused => Self::Policy { host, refused: refused.clone() },
        }
    }

    fn of_server(host: String, error: ServerError) -> Self {
        let error = Box::new(error);
        let Some(code) = error.sqlstate else { return Self::Server { host, error } };
        if let Some(advice) = advice(&error) {
            return Self::Configuration { host, error, advice, from: None };
        }
        // 53400 (configuration_limit_exceeded) needs an operator.
        let transient =
            ["08", "53", "57"].contains(&&code.as_str()[..2]) || code.as_str() == "58030";
        if transient && code.as_str() != "53400" {
            Self::Transient { host, error }
        } else {
            Self::Server { host, error }
        }
    }

    /// The same error, of a connection from this address.
    pub(crate) fn reached_from(self, address: Option<IpAddr>) -> Self {
        match self {
            Self::Configuration { host, error, advice, .. } => {
                Self::Configuration { host, error, advice, from: address }
            }
            error => error,
        }
    }

    fn of_tls(host: String, mut message: String) -> Self {
        // The verification time is in seconds: with it, each attempt would have another text.
        if let Some(at) = message.find(": verification time ") {
            message.truncate(at);
        }
        let fault = TlsFault::of(&message);
        Self::Tls { host, message, fault }
    }
}

/// Why TLS failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsFault {
    /// The server does not support TLS.
    Unsupported,
    /// The server's certificate has no usable names.
    Nameless,
    /// The server's certificate is for other names.
    WrongName,
    /// No trusted authority has signed the certificate.
    UnknownIssuer,
    /// The certificate is a certificate authority's own.
    Authority,
    /// The certificate has expired.
    Expired,
    /// Another reason.
    Other,
}

impl TlsFault {
    fn of(message: &str) -> Self {
        let says = |part: &str| message.contains(part);
        if says("does not support TLS") {
            Self::Unsupported
        } else if says("not valid for any names") {
            Self::Nameless
        } else if says("not valid for name") || says("NotValidForName") {
            Self::WrongName
        } else if says("UnknownIssuer") || says("unknown issuer") || says("BadSignature") {
            // A certificate authority re-created under its old name has another signing key.
            Self::UnknownIssuer
        } else if says("CaUsedAsEndEntity") {
            Self::Authority
        } else if says("expired") || says("Expired") {
            Self::Expired
        } else {
            Self::Other
        }
    }

    /// The remedy.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Unsupported => "turn ssl on in postgresql.conf, or lower sslmode",
            Self::Nameless => "have the server's certificate made with its names in subjectAltName",
            Self::WrongName => {
                "connect by a name that the certificate has in its subjectAltName (hostaddr can say \
                 where that host is)"
            }
            Self::UnknownIssuer => {
                "name the authority that signed the server's certificate by sslrootcert"
            }
            Self::Authority => {
                "the server shows an authority's own certificate: have the authority sign one for \
                 the server"
            }
            Self::Expired => "renew the server's certificate",
            Self::Other => "see sslmode, sslrootcert, sslcert and sslkey, and the server's log",
        }
    }
}

/// The remedy for a rejection that persists until a change of configuration.
fn advice(error: &ServerError) -> Option<&'static str> {
    Some(match error.sqlstate?.as_str() {
        "28P01" => "the password is wrong, or the user does not exist or has none",
        "28000" if error.is_of_routine(HBA_ROUTINE) => {
            "add a hostssl line with scram-sha-256 for this user, database and address to \
             pg_hba.conf, or change sslmode"
        }
        "28000" => {
            "check that the user exists, has LOGIN, and is allowed this method by pg_hba.conf"
        }
        "3D000" => "name an existing database by dbname",
        "57P04" => "the database was dropped: name an existing one by dbname",
        "08P01" => {
            "this may be a connection pooler: connect to PostgreSQL itself, since a pooler \
             passes no replication"
        }
        "42501" => {
            "grant the missing privilege to the role: for the replication session that is \
             ALTER ROLE ... REPLICATION"
        }
        _ => return None,
    })
}

/// The first cause of type `E` in an error's chain of sources.
fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        // `source` of an I/O error skips the error that it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let found = error
            .downcast_ref()
            .or_else(|| wrapped.and_then(<dyn StdError + Send + Sync>::downcast_ref));
        if found.is_some() {
            return found;
        }
        next = error.source();
    }
    None
}

/// Whether the received bytes were not a message: `tokio-postgres` reports that as an I/O error.
fn is_invalid_message(error: &tokio_postgres::Error) -> bool {
    error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|error| error.kind() == io::ErrorKind::InvalidInput)
}

/// A server's message, escaped and shortened for display, and its code.
pub(crate) fn said(error: &ServerError) -> String {
    let code = error.sqlstate.map_or_else(String::new, |code| format!(" (SQLSTATE {code})"));
    at_most(MOST, &error.text().to_string()) + &code
}

/// The server's error in a result of the client library.
fn server_error(error: &DbError) -> ServerError {
    ServerError {
        sqlstate: SqlState::new(error.code().code()),
        message: error.message().into(),
        detail: error.detail().map(Into::into),
        hint: error.hint().map(Into::into),
        file: error.file().map(Into::into),
        routine: error.routine().map(Into::into),
    }
}

/// Each failure with its causes: several failures do not fit into one chain of sources.
fn listed(failures: &[ConnectError]) -> String {
    let mut text = String::new();
    for failure in failures {
        if !text.is_empty() {
            text.push_str("; ");
        }
        let mut next: Option<&dyn StdError> = Some(failure);
        while let Some(error) = next {
            let separator = if text.is_empty() || text.ends_with("; ") { "" } else { ": " };
            text.push_str(separator);
            text.push_str(&at_most(2 * MOST, &error.to_string()));
            next = error.source();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_code(message: &str, code: &str) -> ConnectError {
        let sqlstate = SqlState::new(code);
        let error = ServerError { sqlstate, message: message.into(), ..Default::default() };
        ConnectError::of_wire("db:5432", &WireError::Server(error))
    }

    #[test]
    fn rejections_are_classified_by_who_can_resolve_them() {
        for code in ["57P03", "57P01", "53300", "08006"] {
            let error = of_code("not now", code);
            assert!(matches!(error, ConnectError::Transient { .. }), "{code}");
            assert!(error.is_retryable());
            assert_eq!(error.sqlstate(), SqlState::new(code));
        }
        for code in ["28P01", "28000", "3D000", "08P01", "42501", "57P04"] {
            let error = of_code("no", code);
            assert!(matches!(error, ConnectError::Configuration { .. }), "{code}");
            assert!(!error.is_retryable());
        }
        for code in ["42704", "55006", "53400", "XX000"] {
            let error = of_code("no", code);
            assert!(matches!(error, ConnectError::Server { .. }), "{code}");
            assert_eq!(error.to_string(), format!("db:5432: no (SQLSTATE {code})"));
        }
        let without = of_code("no code", "");
        assert!(matches!(without, ConnectError::Server { .. }) && without.sqlstate().is_none());
    }

    #[test]
    fn a_rejection_names_the_remedy() {
        let text = of_code("database \"x\" does not exist", "3D000").to_string();
        assert_eq!(
            text,
            "db:5432 refuses: database \"x\" does not exist (SQLSTATE 3D000): \
             name an existing database by dbname"
        );
    }

    #[test]
    fn a_servers_message_is_one_short_line_followed_by_the_advice() {
        let message = format!("no\nok\u{1b}[2K{}", "x".repeat(100_000));
        for code in ["28P01", "57P03", "XX000"] {
            let text = of_code(&message, code).to_string();
            assert!(text.contains(r"no\nok\u{1b}[2Kxxx") && text.len() < 3000, "{text}");
            assert!(text.contains(code), "{text}");
        }
        assert!(
            of_code(&message, "28P01")
                .to_string()
                .ends_with("or the user does not exist or has none")
        );
        let host = "db".to_owned();
        let error = ConnectError::NoHost(vec![ConnectError::Protocol { host, message }]);
        assert!(!error.to_string().contains(char::is_control), "{error}");
    }

    fn of_tls(error: rustls::Error) -> ConnectError {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        ConnectError::of_wire("db", &error.into())
    }

    #[test]
    fn a_connection_lost_in_the_tls_handshake_is_retryable() {
        let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        for error in kinds.into_iter().map(io::Error::from) {
            assert!(ConnectError::of_wire("db", &error.into()).is_retryable());
        }
        let issuer = rustls::CertificateError::UnknownIssuer;
        let unknown = of_tls(rustls::Error::InvalidCertificate(issuer));
        assert!(!unknown.is_retryable());
        assert!(unknown.to_string().contains("sslrootcert"));
    }

    #[test]
    fn an_expired_certificate_has_the_same_error_text_each_time() {
        let at = |seconds| {
            let text = format!(
                "invalid peer certificate: certificate expired: verification time {seconds} (UNIX), \
                 but certificate is not valid after 1 ({seconds} seconds ago)"
            );
            ConnectError::of_tls("db".to_owned(), text).to_string()
        };
        assert_eq!(at(7), at(8));
        assert!(at(7).contains("certificate expired: renew the server's certificate"), "{}", at(7));
    }

    #[test]
    fn policy_violations_need_an_operator_and_invalid_messages_do_not() {
        for refused in [Refused::NoPassword, Refused::Unasked, Refused::Iterations("9".into())] {
            let error = ConnectError::of_wire("db", &refused.into());
            assert!(matches!(error, ConnectError::Policy { .. }), "{error}");
            assert!(!error.is_retryable());
        }
        let error = ConnectError::of_wire("db", &Refused::Flood.into());
        assert!(matches!(error, ConnectError::Protocol { .. }), "{error}");
    }
}
