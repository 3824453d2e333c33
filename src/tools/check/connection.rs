//! Checks whether PostgreSQL accepts walpost's SQL connection and replication session. Rejections
//! are classified by SQLSTATE, and by the function of the server that reports them if that is not
//! sufficient: never by their texts, which are in the server's language. A server that does not name
//! its functions gets a fix that lists what may be wrong.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;

use postgres_protocol::escape::{escape_identifier, escape_literal};

use crate::conninfo::{ConnInfo, Host, SslMode};
use crate::findings::{Finding, Findings};
use crate::source::{
    self, ConnectError, Control, HBA_ROUTINE, Refused, Security, ServerError, TlsFault,
    UnknownHost, said_by_server,
};
use crate::tools::setup::Hosting;

/// The functions of PostgreSQL's source code that look at the role and at the database of a session.
const ROLE_ROUTINE: &str = "InitializeSessionUserId";
const DATABASE_ROUTINE: &str = "CheckMyDatabase";

/// The `application_name` of a check.
pub(crate) const APPLICATION_NAME: &str = "walpost check";

const SUBJECT: &str = "connection";

/// Opens the SQL connection.
pub(crate) async fn control(conninfo: &ConnInfo, findings: &mut Findings) -> Option<Control> {
    match source::control(conninfo, APPLICATION_NAME).await {
        Ok(control) => {
            let security = control.security;
            let text = format!("to {conninfo} ({security})");
            findings.add(Finding::ok((SUBJECT, "connection"), text));
            if let Some(finding) = exposed(conninfo, &control.endpoint.host, security) {
                findings.add(finding);
            }
            Some(control)
        }
        Err(error) => {
            findings.add(connect_finding(&error, conninfo, SUBJECT));
            None
        }
    }
}

/// What others on the network can read.
fn exposed(conninfo: &ConnInfo, host: &Host, security: Security) -> Option<Finding> {
    if !security.is_readable() {
        return None;
    }
    let advice = format!(
        "set ssl = on in postgresql.conf, allow walpost in pg_hba.conf only by a line such as \
         `hostssl  {}  {}  192.0.2.10/32  scram-sha-256`, and set sslmode=verify-full in --source",
        conninfo.dbname, conninfo.user
    );
    if !security.shows_password() {
        let text = format!("the connection to {host} does not use TLS");
        let finding = Finding::warning((SUBJECT, "plaintext"), text)
            .why("anyone on the network path can read and change all data");
        return Some(finding.advice(advice));
    }
    let text = format!("the password was sent to {host} without TLS (method {})", security.method);
    let finding = Finding::warning((SUBJECT, "password_exposed"), text).why(
        "anyone on the network path can read the password, or a response that lets them log in",
    );
    Some(finding.advice(format!("{advice}; then change the password")))
}

/// Whether replication connections are possible.
pub(crate) enum Replication {
    /// Replication connections work, to this server.
    Works { system_identifier: String, timeline: u32 },
    /// Replication connections are refused; the server can be queried otherwise.
    Refused,
    /// What answers is not PostgreSQL itself.
    Pooled,
}

/// Opens a replication session as `run` would, and closes it. Returns whether further checks make
/// sense: behind a connection pooler each connection may reach another server.
pub(crate) async fn replication(
    conninfo: &ConnInfo,
    control: &Control,
    service: Hosting,
    findings: &mut Findings,
) -> Replication {
    const SUBJECT: &str = "replication";
    let error = match source::identify_server(conninfo, control, APPLICATION_NAME).await {
        Ok((system_identifier, timeline)) => {
            let text = format!(
                "{} may replicate: system identifier {}, timeline {}",
                conninfo.user, system_identifier, timeline
            );
            findings.add(Finding::ok((SUBJECT, "replication"), text));
            return Replication::Works { system_identifier, timeline };
        }
        Err(error) => error,
    };
    let code = error.sqlstate();
    match code.as_ref().map(source::SqlState::as_str) {
        Some("42501") => {
            let text = format!("role {} is not allowed to start replication", conninfo.user);
            let finding = Finding::error(("role", "role_replication"), text)
                .why("PostgreSQL rejects its replication connection")
                .sql(service.grant_replication(&conninfo.user));
            findings.add(finding);
            Replication::Refused
        }
        Some("53300") if !error.server_error().is_some_and(is_of_limit) => {
            let finding = Finding::error(("max_wal_senders", "max_wal_senders"), said(&error))
                .why("each replication connection uses a WAL sender, and all are in use")
                .sql(
                    "ALTER SYSTEM SET max_wal_senders = 20; -- or end a session of \
                     pg_stat_replication; then restart PostgreSQL",
                );
            findings.add(finding);
            Replication::Refused
        }
        // A server that is not PostgreSQL rejects the startup message, or a command that it cannot
        // parse.
        Some("08P01" | "42601" | "0A000") | None if !is_of_access(&error) => {
            let text = format!(
                "an ordinary connection works, a replication connection does not: {}",
                said(&error)
            );
            findings.add(pooler(text, SUBJECT));
            Replication::Pooled
        }
        _ => {
            findings.add(connect_finding(&error, conninfo, SUBJECT));
            Replication::Refused
        }
    }
}

/// Whether the failure has its own classification without a SQLSTATE.
fn is_of_access(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::Policy { .. }
            | ConnectError::Tls { .. }
            | ConnectError::TlsSetUp(_)
            | ConnectError::TimedOut { .. }
    )
}

fn pooler(text: String, subject: &'static str) -> Finding {
    Finding::error((subject, "connection_pooler"), text)
        .why(
            "a connection pooler or proxy supports neither replication connections nor session \
             options; walpost must connect to the server directly",
        )
        .advice(
            "set host and port in --source to those of the server, not of the pooler (PgBouncer's \
             default port is 6432; host names of hosted poolers often contain `-pooler` or \
             `pooler.`)",
        )
}

/// The finding for a failed connection.
fn connect_finding(error: &ConnectError, conninfo: &ConnInfo, subject: &'static str) -> Finding {
    match error {
        ConnectError::Tls { fault, .. } => tls(error, *fault, subject),
        ConnectError::TlsSetUp(_) => Finding::error((subject, "tls_files"), said(error))
            .why("walpost needs these files to verify the server or to authenticate")
            .advice(
                "correct sslrootcert, sslcert or sslkey in --source, and make the files readable \
                 for walpost's user",
            ),
        ConnectError::TimedOut { .. } => {
            Finding::error((subject, "connection_timeout"), said(error))
                .why(
                    "nothing answers at this address: usually it is wrong, or a firewall drops \
                     the packets",
                )
                .advice(
                    "correct host and port in --source, and let packets from this machine through \
                     the firewall",
                )
        }
        ConnectError::WrongSession { .. } => {
            Finding::error((subject, "target_session_attrs"), said(error))
                .why("`run` waits until one of the hosts is such a server")
                .advice("list all hosts in --source, or change target_session_attrs")
        }
        ConnectError::NoHost(_) => Finding::error((subject, "no_host"), said(error))
            .why("none of the hosts can be used")
            .advice("correct --source; the reason for each host is in the line above"),
        ConnectError::Protocol { .. } => Finding::error((subject, "not_postgresql"), said(error))
            .why("the program at this address is not a PostgreSQL server")
            .advice("correct host and port in --source"),
        ConnectError::Unreachable { .. } => unreachable(error, subject),
        ConnectError::Transient { error: reported, .. } if is_of(reported, "53300") => {
            too_many(error, reported, conninfo, subject)
        }
        ConnectError::Transient { .. } => {
            Finding::error((subject, "server_unavailable"), said(error))
                .why("the server is starting, stopping or recovering; `run` waits for it")
                .advice("wait until the server accepts connections; if it does not, read its log")
        }
        ConnectError::Policy { refused, .. } => policy(error, refused, conninfo, subject),
        ConnectError::Configuration { error: reported, from, .. } => {
            configuration(error, (reported, *from), conninfo, subject)
        }
        ConnectError::Server { .. } => {
            Finding::error((subject, "connection_refused_by_server"), said(error))
                .why("`run` would be rejected with the same error")
                .advice("read the server's log")
        }
    }
}

fn unreachable(error: &ConnectError, subject: &'static str) -> Finding {
    let is_of_a_name = error.source().is_some_and(<dyn StdError>::is::<UnknownHost>);
    let finding = |code| Finding::error((subject, code), said(error));
    match io_kind(error) {
        _ if is_of_a_name => finding("host_unknown")
            .why("the host name cannot be resolved to an address")
            .advice("correct the host in --source, or name resolution on this machine"),
        Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => finding(
            "connection_refused",
        )
        .why("no server listens at this address")
        .advice(
            "start PostgreSQL, or correct host and port in --source; listen_addresses and port in \
             postgresql.conf say where it listens",
        ),
        _ => finding("connection_broken")
            .why("the connection was closed before the session was established")
            .advice(
                "see that this is PostgreSQL's port, 5432 by default, and not another server's; read the \
                 server's log, and check what is in between (firewall, proxy)",
            ),
    }
}

/// Whether the server reports that SQLSTATE.
fn is_of(error: &ServerError, sqlstate: &str) -> bool {
    error.sqlstate.is_some_and(|code| code.as_str() == sqlstate)
}

/// Whether a limit of the role or of the database is reached.
fn is_of_limit(error: &ServerError) -> bool {
    error.is_of_routine(ROLE_ROUTINE) || error.is_of_routine(DATABASE_ROUTINE)
}

fn too_many(
    error: &ConnectError,
    reported: &ServerError,
    conninfo: &ConnInfo,
    subject: &'static str,
) -> Finding {
    let finding = Finding::error((subject, "connection_limit"), said(error))
        .why("walpost uses an ordinary connection and a replication connection");
    let (role, database) = (escape_identifier(&conninfo.user), escape_identifier(&conninfo.dbname));
    let of_role = format!("ALTER ROLE {role} CONNECTION LIMIT -1;");
    let of_database = format!("ALTER DATABASE {database} CONNECTION LIMIT -1;");
    let of_server = "ALTER SYSTEM SET max_connections = 200; -- or end idle sessions; then restart \
                     PostgreSQL";
    if reported.is_of_routine(ROLE_ROUTINE) {
        finding.sql(of_role)
    } else if reported.is_of_routine(DATABASE_ROUTINE) {
        finding.sql(of_database)
    } else if reported.routine.is_some() {
        finding.sql(of_server)
    } else {
        finding
            .advice(format!("raise the limit that is reached: {of_role} {of_database} {of_server}"))
    }
}

/// A rejection that needs a change of configuration, reported to that address of this machine.
fn configuration(
    error: &ConnectError,
    (reported, from): (&ServerError, Option<IpAddr>),
    conninfo: &ConnInfo,
    subject: &'static str,
) -> Finding {
    let finding = |code| Finding::error((subject, code), said(error));
    let role = escape_identifier(&conninfo.user);
    let database = escape_identifier(&conninfo.dbname);
    match reported.sqlstate.as_ref().map_or("", |code| code.as_str()) {
        "28000" if reported.is_of_routine(HBA_ROUTINE) => finding("pg_hba")
            .why(
                "pg_hba.conf does not allow this role to connect to this database from this \
                 address, or asks for a client certificate",
            )
            .advice(hba_advice(from, conninfo)),
        "28000" if reported.is_of_routine(ROLE_ROUTINE) => finding("role_login")
            .why("walpost logs in as this role, which does not exist or has no LOGIN")
            .sql(create_or_allow(&conninfo.user)),
        "28P01" | "28000" => authentication(error, conninfo, subject),
        "3D000" => finding("database_missing")
            .why("a logical slot belongs to one database, and this database does not exist")
            .advice(format!(
                "correct dbname in --source (`psql -l` lists the databases), or create it: CREATE \
                 DATABASE {database};"
            )),
        "42501" => finding("database_connect")
            .why("walpost connects to the database that contains the outbox")
            .sql(format!("GRANT CONNECT ON DATABASE {database} TO {role};")),
        // PostgreSQL itself accepts the options of every session that walpost opens.
        "08P01" => pooler(said(error), subject),
        _ => finding("connection_configuration")
            .why("`run` would be rejected with the same error")
            .advice("read the server's log"),
    }
}

/// The SQL that creates a role, or lets it log in: the server does not tell which it needs.
fn create_or_allow(user: &str) -> String {
    let (role, name) = (escape_identifier(user), escape_literal(user));
    format!(
        "DO $walpost$ BEGIN IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {}) THEN ALTER \
         ROLE {role} LOGIN; ELSE CREATE ROLE {role} LOGIN REPLICATION; END IF; END $walpost$;",
        name.trim_start()
    )
}

/// A line for `pg_hba.conf` that permits a connection from this address.
fn hba_advice(from: Option<IpAddr>, conninfo: &ConnInfo) -> String {
    let address = from.map(|address| address.to_canonical());
    let width = if address.is_some_and(|address| address.is_ipv6()) { 128 } else { 32 };
    let address = address.map_or_else(|| "192.0.2.10".to_owned(), |address| address.to_string());
    let is_encrypted =
        matches!(conninfo.sslmode, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull);
    let mode = if is_encrypted { "" } else { ", and set sslmode=verify-full in --source" };
    let certificate = if is_encrypted && conninfo.client_certificate.is_none() {
        "; if a line asks for a client certificate, set sslcert and sslkey in --source instead"
    } else {
        ""
    };
    format!(
        "add this line to pg_hba.conf, above any line that rejects the connection: `hostssl  {}  \
         {}  {address}/{width}  scram-sha-256`, with the address in the error above if that is another \
         one, then run SELECT pg_catalog.pg_reload_conf();{mode}{certificate}",
        conninfo.dbname, conninfo.user
    )
}

/// The server rejects the password.
fn authentication(error: &ConnectError, conninfo: &ConnInfo, subject: &'static str) -> Finding {
    Finding::error((subject, "authentication"), said(error))
        .why(
            "the server rejects the credentials, and does not reveal whether the role does not exist, has \
             no password, or has another one",
        )
        .advice(format!(
            "set the correct password in PGPASSWORD, a password file (~/.pgpass) or \
             WALPOST_SOURCE_URL_FILE; to change it: \\password {} in psql",
            escape_identifier(&conninfo.user)
        ))
}

/// The server requests a method that is not allowed.
fn policy(
    error: &ConnectError,
    refused: &Refused,
    conninfo: &ConnInfo,
    subject: &'static str,
) -> Finding {
    let (code, why) = match refused {
        Refused::NoPassword | Refused::Scram(_) => return authentication(error, conninfo, subject),
        Refused::Method { .. } | Refused::Unasked => {
            ("require_auth", "require_auth lists the authentication methods that walpost accepts")
        }
        Refused::Unbound(_) => {
            ("channel_binding", "channel_binding=require needs TLS and SCRAM-SHA-256-PLUS")
        }
        Refused::Iterations(_) => (
            "scram_iterations",
            "a hostile server could exhaust the CPU with a large iteration count",
        ),
        _ => ("authentication_unsupported", "walpost cannot authenticate to this server"),
    };
    Finding::error((subject, code), said(error)).why(why).advice(refused.advice())
}

fn tls(error: &ConnectError, fault: TlsFault, subject: &'static str) -> Finding {
    let (code, why) = match fault {
        TlsFault::Unsupported => ("tls_unsupported", "sslmode requires TLS"),
        TlsFault::Nameless => {
            ("tls_nameless", "walpost compares the host name only with the names in subjectAltName")
        }
        TlsFault::WrongName => {
            ("tls_name_mismatch", "it may not be the server that you mean to connect to")
        }
        TlsFault::UnknownIssuer => (
            "tls_unknown_authority",
            "no certificate authority that walpost trusts issued the server's certificate",
        ),
        TlsFault::Authority => (
            "tls_authority",
            "the certificate of a certificate authority is not a server certificate",
        ),
        TlsFault::Expired => (
            "tls_certificate_expired",
            "an expired certificate does not prove the server's identity",
        ),
        TlsFault::Other => ("tls", "the TLS handshake failed, and sslmode requires TLS"),
    };
    Finding::error((subject, code), said(error)).why(why).advice(fault.advice())
}

/// The error's message with those of its causes, but without advice.
fn said(error: &ConnectError) -> String {
    let mut text = match error {
        ConnectError::Configuration { host, error, .. } => {
            format!("{host} refuses: {}", said_by_server(error))
        }
        ConnectError::Policy { host, refused } => format!("{host} refuses: {refused}"),
        ConnectError::Tls { host, message, .. } => format!("{host}: TLS: {message}"),
        other => other.to_string(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// The kind of the system's error.
fn io_kind(error: &ConnectError) -> Option<io::ErrorKind> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Method;

    #[test]
    fn missing_tls_is_reported_with_a_fix() {
        let environment = |name: &str| (name == "USER").then(|| "me".to_owned());
        let conninfo = ConnInfo::resolve(Some("host=db dbname=shop"), &environment).expect("sound");
        let host = &conninfo.hosts()[0];
        let code = |tls, method, is_local| {
            let security = Security { tls, method, is_local };
            let finding = exposed(&conninfo, host, security)?;
            let shown = serde_json::to_value(&finding).expect("JSON");
            let fix = shown["fix"].as_str().expect("a fix").to_owned();
            assert!(fix.contains("`hostssl  shop  me") && !fix.contains("`host "), "{fix}");
            Some(shown["code"].as_str().expect("a code").to_owned())
        };
        assert_eq!(code(None, Method::Password, false).as_deref(), Some("password_exposed"));
        assert_eq!(code(None, Method::Md5, false).as_deref(), Some("password_exposed"));
        assert_eq!(code(None, Method::Scram, false).as_deref(), Some("plaintext"));
        assert_eq!(code(None, Method::Password, true), None);
        assert_eq!(code(Some("TLSv1.3"), Method::Password, false), None);
    }
}
