//! Why a connection failed, typed by what the operator can do about it. Judges
//! the server's errors by SQLSTATE; retries nothing.
//!
//! The codes: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use super::tls::TlsError;
use crate::conninfo::TargetSession;
use crate::excerpt::at_most;
use crate::source::wire::{Refused, ServerError, SqlState, WireError};

/// Characters of a server's words that are shown; what walpost says of them stands behind.
const MOST: usize = 2000;

/// Why there is no connection, or no longer one. As text it is one line, whatever the server says.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// No answer, or a connection that broke. Worth another try.
    #[error("{host} cannot be reached, or hung up")]
    Unreachable {
        host: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// No session within the time for it. Worth another try.
    #[error("{host} gave no session within {} s (connect_timeout)", after.as_secs())]
    TimedOut { host: String, after: Duration },
    /// The server refuses for now: it starts, stops, or is full. Worth another
    /// try.
    #[error("{host} refuses for now: {} (SQLSTATE {sqlstate})", said(message))]
    Transient { host: String, sqlstate: SqlState, message: String },
    /// Not such a server as `target_session_attrs` asks for. Worth another try,
    /// since a standby may be promoted.
    #[error("{host} is not what target_session_attrs={wanted} asks for")]
    WrongSession { host: String, wanted: TargetSession },
    /// None of several hosts, each for a reason that is worth another try.
    #[error("no host gives a session: {}", listed(.0))]
    NoHost(Vec<ConnectError>),
    /// The server will refuse until something is changed.
    #[error("{host} refuses: {}{}: {advice}", said(message), bracketed(*sqlstate))]
    Configuration {
        host: String,
        sqlstate: Option<SqlState>,
        message: String,
        /// What to do.
        advice: &'static str,
    },
    /// The server asks for what the connection string, or walpost, does not allow.
    #[error("{host} refuses: {}: {}", said(&refused.to_string()), refused.advice())]
    Policy { host: String, refused: Refused },
    /// TLS fails and will until something is changed.
    #[error("{host}: TLS: {}: {}", said(message), fault.advice())]
    Tls { host: String, message: String, fault: TlsFault },
    /// The files that `sslrootcert`, `sslcert` or `sslkey` name are no good.
    #[error("TLS cannot be set up")]
    TlsSetUp(#[from] TlsError),
    /// Any other error of the server: the caller judges it by its SQLSTATE.
    #[error("{host}: {}{}", said(message), bracketed(*sqlstate))]
    Server { host: String, sqlstate: Option<SqlState>, message: String },
    /// Not what a PostgreSQL server says.
    #[error("{host} does not speak as PostgreSQL does: {}", said(message))]
    Protocol { host: String, message: String },
}

impl ConnectError {
    /// Whether another try may do better with nothing changed. `Server` is for
    /// the caller to judge, and `false` here.
    pub(crate) fn is_worth_another_try(&self) -> bool {
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

    /// Whether the server is away, or on its way there, rather than that it refuses.
    pub(crate) fn is_outage(&self) -> bool {
        match self.sqlstate() {
            None => self.is_worth_another_try(),
            Some(code) => ["08", "57"].contains(&&code.as_str()[..2]),
        }
    }

    /// The server's SQLSTATE, where it gave one.
    pub(crate) fn sqlstate(&self) -> Option<SqlState> {
        match self {
            Self::Transient { sqlstate, .. } => Some(*sqlstate),
            Self::Configuration { sqlstate, .. } | Self::Server { sqlstate, .. } => *sqlstate,
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

    /// An error of the control connection, once TLS is settled.
    pub(crate) fn of_control(host: &str, error: tokio_postgres::Error) -> Self {
        let host = host.to_owned();
        if let Some(refusal) = error.as_db_error() {
            let refusal = ServerError {
                sqlstate: SqlState::new(refusal.code().code()),
                message: refusal.message().to_owned(),
                detail: refusal.detail().map(ToOwned::to_owned),
                hint: refusal.hint().map(ToOwned::to_owned),
            };
            return Self::of_server(host, refusal.sqlstate, refusal.text());
        }
        if let Some(tls) = cause::<rustls::Error>(&error) {
            return Self::of_tls(host, tls.to_string());
        }
        if let Some(refused) = cause::<Refused>(&error) {
            return Self::of_policy(host, refused);
        }
        // The library types these by their text alone.
        let kind = error.to_string();
        let detail = error.source().map(ToString::to_string).unwrap_or_default();
        if kind.starts_with("invalid configuration") && detail == "password missing" {
            Self::of_policy(host, &Refused::NoPassword)
        } else if kind.starts_with("authentication error") {
            Self::of_policy(host, &Refused::Scram(detail))
        } else if kind.starts_with("unexpected message")
            || kind.starts_with("error parsing")
            || kind.starts_with("error communicating") && is_nonsense(&error)
        {
            Self::Protocol { host, message: format!("{kind} {detail}").trim_end().to_owned() }
        } else {
            Self::Unreachable { host, source: Box::new(error) }
        }
    }

    /// An error of a connection before it has a session, or of the replication session.
    pub(crate) fn of_wire(host: &str, error: &WireError) -> Self {
        let host = host.to_owned();
        match error {
            WireError::Server(error) => Self::of_server(host, error.sqlstate, error.text()),
            WireError::NoTls => {
                let fault = TlsFault::Unsupported;
                Self::Tls { host, message: error.to_string(), fault }
            }
            WireError::Io(source) => match cause::<rustls::Error>(source.as_ref()) {
                Some(tls) => Self::of_tls(host, tls.to_string()),
                // By itself, so that its kind is seen.
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

    /// What the server asks for and does not get.
    fn of_policy(host: String, refused: &Refused) -> Self {
        match refused {
            Refused::Flood | Refused::Frame(_) | Refused::OutOfOrder(_) => {
                Self::Protocol { host, message: refused.to_string() }
            }
            refused => Self::Policy { host, refused: refused.clone() },
        }
    }

    fn of_server(host: String, sqlstate: Option<SqlState>, message: String) -> Self {
        let Some(code) = sqlstate else {
            return Self::Server { host, sqlstate, message };
        };
        if let Some(advice) = advice(code.as_str(), &message) {
            return Self::Configuration { host, sqlstate, message, advice };
        }
        // 53400 is a limit that someone must raise.
        let transient =
            ["08", "53", "57"].contains(&&code.as_str()[..2]) || code.as_str() == "58030";
        if transient && code.as_str() != "53400" {
            Self::Transient { host, sqlstate: code, message }
        } else {
            Self::Server { host, sqlstate, message }
        }
    }

    fn of_tls(host: String, mut message: String) -> Self {
        // By the second, so that each attempt's text would be another.
        if let Some(at) = message.find(": verification time ") {
            message.truncate(at);
        }
        let fault = TlsFault::of(&message);
        Self::Tls { host, message, fault }
    }
}

/// What TLS fails by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsFault {
    /// The server has none.
    Unsupported,
    /// The server's certificate has no names that count.
    Nameless,
    /// The server's certificate is for other names.
    WrongName,
    /// Nobody who is trusted has signed it.
    UnknownIssuer,
    /// It is an authority's own.
    Authority,
    /// It is too old.
    Expired,
    /// Anything else.
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
            // An authority that was made anew under its old name signs in another way.
            Self::UnknownIssuer
        } else if says("CaUsedAsEndEntity") {
            Self::Authority
        } else if says("expired") || says("Expired") {
            Self::Expired
        } else {
            Self::Other
        }
    }

    /// What to do.
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

/// What to do about a refusal that only a change ends.
fn advice(sqlstate: &str, message: &str) -> Option<&'static str> {
    Some(match sqlstate {
        "28P01" => "the password is wrong, or the user does not exist",
        // PostgreSQL 14 to 18 give it to a missing line of pg_hba.conf, and to a role that does not
        // exist or may not log in: only the text says which.
        "28000" if message.contains("pg_hba.conf") => {
            "add a hostssl line with scram-sha-256 for this user, database and address to \
             pg_hba.conf, or change sslmode"
        }
        "28000" => "see that the user exists, may log in, and may use this method of pg_hba.conf",
        "3D000" => "name an existing database by dbname",
        "57P04" => "the database was dropped: name an existing one by dbname",
        "08P01" => {
            "this may be a connection pooler: connect to PostgreSQL itself, since a pooler \
             passes no replication"
        }
        "42501" => {
            "give the role what it lacks: for the replication session that is \
             ALTER ROLE ... REPLICATION"
        }
        _ => return None,
    })
}

/// What an error comes of, where it is of that type.
fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        // An I/O error hides what it wraps from `source`.
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

/// Whether what came was no message at all: the library says so in an I/O error.
fn is_nonsense(error: &tokio_postgres::Error) -> bool {
    error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|error| error.kind() == io::ErrorKind::InvalidInput)
}

/// A server's words, fit to be shown.
fn said(text: &str) -> String {
    at_most(MOST, text)
}

fn bracketed(sqlstate: Option<SqlState>) -> String {
    sqlstate.map_or_else(String::new, |code| format!(" (SQLSTATE {code})"))
}

/// Each failure with its causes, which no chain of sources could hold.
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
        let error = ServerError { sqlstate, message: message.to_owned(), ..Default::default() };
        ConnectError::of_wire("db:5432", &WireError::Server(error))
    }

    #[test]
    fn refusals_are_told_apart_by_who_can_end_them() {
        for code in ["57P03", "57P01", "53300", "08006"] {
            let error = of_code("not now", code);
            assert!(matches!(error, ConnectError::Transient { .. }), "{code}");
            assert!(error.is_worth_another_try());
            assert_eq!(error.sqlstate(), SqlState::new(code));
        }
        for code in ["28P01", "28000", "3D000", "08P01", "42501", "57P04"] {
            let error = of_code("no", code);
            assert!(matches!(error, ConnectError::Configuration { .. }), "{code}");
            assert!(!error.is_worth_another_try());
        }
        for code in ["42704", "55006", "53400", "XX000"] {
            let error = of_code("no", code);
            assert!(matches!(error, ConnectError::Server { .. }), "{code}");
            assert_eq!(error.to_string(), format!("db:5432: no (SQLSTATE {code})"));
        }
        assert!(matches!(of_code("no code", ""), ConnectError::Server { sqlstate: None, .. }));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let text = of_code("database \"x\" does not exist", "3D000").to_string();
        assert_eq!(
            text,
            "db:5432 refuses: database \"x\" does not exist (SQLSTATE 3D000): \
             name an existing database by dbname"
        );
    }

    #[test]
    fn a_servers_words_are_one_short_line_with_the_advice_behind() {
        let message = format!("no\nok\u{1b}[2K{}", "x".repeat(100_000));
        for code in ["28P01", "57P03", "XX000"] {
            let text = of_code(&message, code).to_string();
            assert!(text.contains(r"no\nok\u{1b}[2Kxxx") && text.len() < 3000, "{text}");
            assert!(text.contains(code), "{text}");
        }
        assert!(of_code(&message, "28P01").to_string().ends_with("or the user does not exist"));
        let host = "db".to_owned();
        let error = ConnectError::NoHost(vec![ConnectError::Protocol { host, message }]);
        assert!(!error.to_string().contains(char::is_control), "{error}");
    }

    fn of_tls(error: rustls::Error) -> ConnectError {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        ConnectError::of_wire("db", &error.into())
    }

    #[test]
    fn a_line_that_broke_in_the_handshake_is_worth_another_try() {
        let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        for error in kinds.into_iter().map(io::Error::from) {
            assert!(ConnectError::of_wire("db", &error.into()).is_worth_another_try());
        }
        let issuer = rustls::CertificateError::UnknownIssuer;
        let unknown = of_tls(rustls::Error::InvalidCertificate(issuer));
        assert!(!unknown.is_worth_another_try());
        assert!(unknown.to_string().contains("sslrootcert"));
    }

    #[test]
    fn an_expired_certificate_is_told_of_in_the_same_words_each_time() {
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
    fn what_the_policy_refuses_is_for_the_operator_and_nonsense_is_not() {
        for refused in [Refused::NoPassword, Refused::Unasked, Refused::Iterations("9".into())] {
            let error = ConnectError::of_wire("db", &refused.into());
            assert!(matches!(error, ConnectError::Policy { .. }), "{error}");
            assert!(!error.is_worth_another_try());
        }
        let error = ConnectError::of_wire("db", &Refused::Flood.into());
        assert!(matches!(error, ConnectError::Protocol { .. }), "{error}");
    }
}
