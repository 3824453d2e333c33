//! Checks whether PostgreSQL accepts walpost's SQL connection and replication session. Rejections
//! are classified by SQLSTATE, and by the message if that is not sufficient.

use std::error::Error as StdError;
use std::io;

use postgres_protocol::escape::escape_identifier;

use super::findings::{Finding, Findings};
use crate::conninfo::{ConnInfo, Host};
use crate::setup::Hosting;
use crate::source::{self, ConnectError, Control, Refused, Security, TlsFault};

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

/// Opens a replication session as `run` would, and closes it. Returns whether further checks make
/// sense: behind a connection pooler each connection may reach another server.
pub(crate) async fn replication(
    conninfo: &ConnInfo,
    control: &Control,
    service: Hosting,
    findings: &mut Findings,
) -> bool {
    const SUBJECT: &str = "replication";
    let error = match source::identify_server(conninfo, control, APPLICATION_NAME).await {
        Ok((system_identifier, timeline)) => {
            let text = format!(
                "{} may replicate: system identifier {}, timeline {}",
                conninfo.user, system_identifier, timeline
            );
            findings.add(Finding::ok((SUBJECT, "replication"), text));
            return true;
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
            true
        }
        Some("53300") => {
            let finding = Finding::error(("max_wal_senders", "max_wal_senders"), said(&error))
                .why("each replication connection uses a WAL sender, and all are in use")
                .sql(
                    "ALTER SYSTEM SET max_wal_senders = 20; -- or end a session of \
                     pg_stat_replication; then restart PostgreSQL",
                );
            findings.add(finding);
            true
        }
        // A server that is not PostgreSQL rejects the startup message, or a command that it cannot
        // parse.
        Some("08P01" | "42601" | "0A000") | None if !is_of_access(&error) => {
            let text = format!(
                "an ordinary connection works, a replication connection does not: {}",
                said(&error)
            );
            findings.add(pooler(text, SUBJECT));
            false
        }
        _ => {
            findings.add(connect_finding(&error, conninfo, SUBJECT));
            true
        }
    }
}

/// Whether the failure has its own classification without a SQLSTATE.
fn is_of_access(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::Configuration { sqlstate: None, .. }
            | ConnectError::Policy { .. }
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
        ConnectError::Transient { message, sqlstate, .. } if sqlstate.as_str() == "53300" => {
            too_many(error, message, conninfo, subject)
        }
        ConnectError::Transient { .. } => {
            Finding::error((subject, "server_unavailable"), said(error))
                .why("the server is starting, stopping or recovering; `run` waits for it")
                .advice("wait until the server accepts connections; if it does not, read its log")
        }
        ConnectError::Policy { refused, .. } => policy(error, refused, conninfo, subject),
        ConnectError::Configuration { sqlstate, message, .. } => {
            let code = sqlstate.as_ref().map_or("", |code| code.as_str());
            configuration(error, code, message, conninfo, subject)
        }
        ConnectError::Server { .. } => {
            Finding::error((subject, "connection_refused_by_server"), said(error))
                .why("`run` would be rejected with the same error")
                .advice("read the server's log")
        }
    }
}

fn unreachable(error: &ConnectError, subject: &'static str) -> Finding {
    let text = said(error);
    let is_of_a_name = text.contains("failed to lookup address") || text.contains("has no address");
    let finding = |code| Finding::error((subject, code), text.clone());
    match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => finding(
            "connection_refused",
        )
        .why("no server listens at this address")
        .advice(
            "start PostgreSQL, or correct host and port in --source; listen_addresses and port in \
             postgresql.conf say where it listens",
        ),
        _ if is_of_a_name => finding("host_unknown")
            .why("the host name cannot be resolved to an address")
            .advice("correct the host in --source, or name resolution on this machine"),
        _ => finding("connection_broken")
            .why("the connection was closed before the session was established")
            .advice("read the server's log, and check what is in between (firewall, proxy)"),
    }
}

fn too_many(
    error: &ConnectError,
    message: &str,
    conninfo: &ConnInfo,
    subject: &'static str,
) -> Finding {
    let finding = Finding::error((subject, "connection_limit"), said(error))
        .why("walpost uses an ordinary connection and a replication connection");
    if message.contains("for role") {
        finding
            .sql(format!("ALTER ROLE {} CONNECTION LIMIT -1;", escape_identifier(&conninfo.user)))
    } else if message.contains("for database") {
        let database = escape_identifier(&conninfo.dbname);
        finding.sql(format!("ALTER DATABASE {database} CONNECTION LIMIT -1;"))
    } else {
        finding.sql(
            "ALTER SYSTEM SET max_connections = 200; -- or end idle sessions; then restart \
             PostgreSQL",
        )
    }
}

/// A rejection that needs a change of configuration.
fn configuration(
    error: &ConnectError,
    sqlstate: &str,
    message: &str,
    conninfo: &ConnInfo,
    subject: &'static str,
) -> Finding {
    let finding = |code| Finding::error((subject, code), said(error));
    let role = escape_identifier(&conninfo.user);
    let database = escape_identifier(&conninfo.dbname);
    match sqlstate {
        "28000" if message.contains("pg_hba.conf") => finding("pg_hba")
            .why(
                "pg_hba.conf does not allow this role to connect to this database from this \
                 address",
            )
            .advice(hba_advice(message, conninfo)),
        "28000" if message.contains("not permitted to log in") => finding("role_login")
            .why("a role without LOGIN cannot connect")
            .sql(format!("ALTER ROLE {role} LOGIN;")),
        "28000" if message.contains("does not exist") => finding("role_missing")
            .why("walpost logs in as this role")
            .sql(format!("CREATE ROLE {role} LOGIN REPLICATION;")),
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

/// A line for `pg_hba.conf` that permits this connection.
fn hba_advice(message: &str, conninfo: &ConnInfo) -> String {
    // For example: no pg_hba.conf entry for host "192.0.2.7", user "a", database "b", no encryption
    let address = message.split_once("for host \"").and_then(|(_, rest)| rest.split('"').next());
    let address = address.unwrap_or("192.0.2.10");
    let width = if address.contains(':') { 128 } else { 32 };
    let is_plain = message.contains("no encryption") || message.contains("SSL off");
    let mode = if is_plain { ", and set sslmode=verify-full in --source" } else { "" };
    format!(
        "add this line to pg_hba.conf, above any line that rejects the connection: `hostssl  {}  \
         {}  {address}/{width}  scram-sha-256`, then run SELECT pg_catalog.pg_reload_conf();{mode}",
        conninfo.dbname, conninfo.user
    )
}

/// The server rejects the password.
fn authentication(error: &ConnectError, conninfo: &ConnInfo, subject: &'static str) -> Finding {
    Finding::error((subject, "authentication"), said(error))
        .why(
            "the server rejects the credentials, and does not reveal whether the role or the \
             password is wrong",
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
        ConnectError::Configuration { host, sqlstate: Some(code), message, .. } => {
            format!("{host} refuses: {message} (SQLSTATE {code})")
        }
        ConnectError::Configuration { host, message, .. } => format!("{host} refuses: {message}"),
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
