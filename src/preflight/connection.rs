//! Whether PostgreSQL lets walpost in: by the ordinary connection, and by the
//! replication session. What it refuses is told by its SQLSTATE, and where that says
//! too little by its words.

use std::error::Error as StdError;
use std::io;

use postgres_protocol::escape::escape_identifier;

use super::findings::{Finding, Findings};
use crate::conninfo::{ConnInfo, Host};
use crate::setup::Service;
use crate::source::{self, ConnectError, Control, Refused, Security, TlsFault};

/// What the server's views show of a check.
pub(crate) const APPLICATION_NAME: &str = "walpost check";

const SUBJECT: &str = "connection";

/// Opens the ordinary connection.
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
            findings.add(refusal(&error, conninfo, SUBJECT));
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
        "set ssl = on in postgresql.conf, let walpost in by a line such as `hostssl  {}  {}  \
         192.0.2.10/32  scram-sha-256` of pg_hba.conf alone, and set sslmode=verify-full in --source",
        conninfo.dbname, conninfo.user
    );
    if !security.shows_password() {
        let text = format!("the connection to {host} is without TLS");
        let finding = Finding::warning((SUBJECT, "plaintext"), text)
            .why("others on the network can read and change everything that passes");
        return Some(finding.advice(advice));
    }
    let text = format!("{host} was sent the password without TLS (method {})", security.method);
    let finding = Finding::warning((SUBJECT, "password_exposed"), text)
        .why("others on the network can read the password, or log in by what stands for it");
    Some(finding.advice(format!("{advice}; then change the password")))
}

/// Opens a replication session as `run` would, and leaves. Whether there is more to look
/// at: beyond a pooler there is another server each time.
pub(crate) async fn replication(
    conninfo: &ConnInfo,
    control: &Control,
    service: Service,
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
            let text = format!("role {} has no right to replicate", conninfo.user);
            let finding = Finding::error(("role", "role_replication"), text)
                .why("without it PostgreSQL refuses the replication connection")
                .sql(service.grant_replication(&conninfo.user));
            findings.add(finding);
            true
        }
        Some("53300") => {
            let finding = Finding::error(("max_wal_senders", "max_wal_senders"), said(&error))
                .why("each replication session takes a WAL sender, and none is free")
                .sql(
                    "ALTER SYSTEM SET max_wal_senders = 20; -- or end a session of \
                     pg_stat_replication; then restart PostgreSQL",
                );
            findings.add(finding);
            true
        }
        // What is no PostgreSQL refuses the startup message, or a command that it cannot parse.
        Some("08P01" | "42601" | "0A000") | None if !is_of_access(&error) => {
            let text =
                format!("the ordinary connection works and replication does not: {}", said(&error));
            findings.add(pooler(text, SUBJECT));
            false
        }
        _ => {
            findings.add(refusal(&error, conninfo, SUBJECT));
            true
        }
    }
}

/// Whether the failure has a name of its own without a SQLSTATE.
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
            "a connection pooler or proxy in between passes neither replication nor a session's \
             options: walpost needs the server itself",
        )
        .advice(
            "give --source the server's own host and port, not the pooler's (PgBouncer's is 6432 \
             as a rule; in hosted names it is often the part `-pooler` or `pooler.`)",
        )
}

/// The finding of a connection that was not made.
fn refusal(error: &ConnectError, conninfo: &ConnInfo, subject: &'static str) -> Finding {
    match error {
        ConnectError::Tls { fault, .. } => tls(error, *fault, subject),
        ConnectError::TlsSetUp(_) => Finding::error((subject, "tls_files"), said(error))
            .why("without these files the server or walpost cannot be verified")
            .advice(
                "correct sslrootcert, sslcert or sslkey in --source, and see that walpost's user \
                 may read what they name",
            ),
        ConnectError::TimedOut { .. } => {
            Finding::error((subject, "connection_timeout"), said(error))
                .why("nothing answers there: as a rule a firewall or a wrong address")
                .advice("correct host and port in --source, and let packets through from here")
        }
        ConnectError::WrongSession { .. } => {
            Finding::error((subject, "target_session_attrs"), said(error))
                .why("walpost waits until one of the hosts is such a server")
                .advice("name all hosts in --source, or change target_session_attrs")
        }
        ConnectError::NoHost(_) => Finding::error((subject, "no_host"), said(error))
            .why("none of the hosts can be used")
            .advice("see each host's reason above; correct --source"),
        ConnectError::Protocol { .. } => Finding::error((subject, "not_postgresql"), said(error))
            .why("what answers there is no PostgreSQL server")
            .advice("correct host and port in --source"),
        ConnectError::Unreachable { .. } => unreachable(error, subject),
        ConnectError::Transient { message, sqlstate, .. } if sqlstate.as_str() == "53300" => {
            too_many(error, message, conninfo, subject)
        }
        ConnectError::Transient { .. } => {
            Finding::error((subject, "server_unavailable"), said(error))
                .why("the server starts, stops or recovers; `run` waits for it")
                .advice("wait until it is up, or see its log")
        }
        ConnectError::Policy { refused, .. } => policy(error, refused, conninfo, subject),
        ConnectError::Configuration { sqlstate, message, .. } => {
            let code = sqlstate.as_ref().map_or("", |code| code.as_str());
            configuration(error, code, message, conninfo, subject)
        }
        ConnectError::Server { .. } => {
            Finding::error((subject, "connection_refused_by_server"), said(error))
                .why("`run` would be refused in the same words")
                .advice("see the server's log")
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
        .why("nobody listens there")
        .advice(
            "start PostgreSQL, or correct host and port in --source; listen_addresses and port of \
             postgresql.conf say where it listens",
        ),
        _ if is_of_a_name => finding("host_unknown")
            .why("without an address there is no connection")
            .advice("correct the host in --source, or the name service here"),
        _ => finding("connection_broken")
            .why("the connection was cut off before it was a session")
            .advice("see the server's log, and what lies between (firewall, proxy)"),
    }
}

fn too_many(
    error: &ConnectError,
    message: &str,
    conninfo: &ConnInfo,
    subject: &'static str,
) -> Finding {
    let finding = Finding::error((subject, "connection_limit"), said(error))
        .why("walpost takes an ordinary connection and a replication session");
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

/// A refusal that only a change ends.
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
            .why("pg_hba.conf says who may come in from where, and this is not in it")
            .advice(hba_advice(message, conninfo)),
        "28000" if message.contains("not permitted to log in") => finding("role_login")
            .why("a role without LOGIN opens no session")
            .sql(format!("ALTER ROLE {role} LOGIN;")),
        "28000" if message.contains("does not exist") => finding("role_missing")
            .why("walpost logs in as this role")
            .sql(format!("CREATE ROLE {role} LOGIN REPLICATION;")),
        "28P01" | "28000" => authentication(error, conninfo, subject),
        "3D000" => finding("database_missing")
            .why("logical replication is of one database, and there is none of this name")
            .advice(format!(
                "correct dbname in --source; the databases: psql -l; a new one: CREATE DATABASE \
                 {database};"
            )),
        "42501" => finding("database_connect")
            .why("walpost connects to the database that has the outbox")
            .sql(format!("GRANT CONNECT ON DATABASE {database} TO {role};")),
        // PostgreSQL itself takes the options of every session that walpost opens.
        "08P01" => pooler(said(error), subject),
        _ => finding("connection_configuration")
            .why("`run` would be refused in the same words")
            .advice("see the server's log"),
    }
}

/// A line for `pg_hba.conf` that lets this very connection in.
fn hba_advice(message: &str, conninfo: &ConnInfo) -> String {
    // Such as: no pg_hba.conf entry for host "192.0.2.7", user "a", database "b", no encryption
    let address = message.split_once("for host \"").and_then(|(_, rest)| rest.split('"').next());
    let address = address.unwrap_or("192.0.2.10");
    let width = if address.contains(':') { 128 } else { 32 };
    let is_plain = message.contains("no encryption") || message.contains("SSL off");
    let mode = if is_plain { ", and set sslmode=verify-full in --source" } else { "" };
    format!(
        "put this line into pg_hba.conf, above any that refuses: `hostssl  {}  {}  \
         {address}/{width}  scram-sha-256`, then SELECT pg_catalog.pg_reload_conf();{mode}",
        conninfo.dbname, conninfo.user
    )
}

/// The server does not take the password.
fn authentication(error: &ConnectError, conninfo: &ConnInfo, subject: &'static str) -> Finding {
    Finding::error((subject, "authentication"), said(error))
        .why(
            "the server does not believe who walpost says it is; it tells nobody whether role or \
             password is wrong",
        )
        .advice(format!(
            "give the right password in PGPASSWORD, a password file (~/.pgpass) or \
             WALPOST_SOURCE_URL_FILE; a new one: \\password {} in psql",
            escape_identifier(&conninfo.user)
        ))
}

/// What the server asks for is not allowed.
fn policy(
    error: &ConnectError,
    refused: &Refused,
    conninfo: &ConnInfo,
    subject: &'static str,
) -> Finding {
    let (code, why) = match refused {
        Refused::NoPassword | Refused::Scram(_) => return authentication(error, conninfo, subject),
        Refused::Method { .. } | Refused::Unasked => {
            ("require_auth", "require_auth names the methods that the server may ask for")
        }
        Refused::Unbound(_) => {
            ("channel_binding", "channel_binding=require takes TLS and SCRAM-SHA-256-PLUS")
        }
        Refused::Iterations(_) => {
            ("scram_iterations", "a server could keep walpost busy by a large number")
        }
        _ => ("authentication_unsupported", "walpost cannot answer the server"),
    };
    Finding::error((subject, code), said(error)).why(why).advice(refused.advice())
}

fn tls(error: &ConnectError, fault: TlsFault, subject: &'static str) -> Finding {
    let (code, why) = match fault {
        TlsFault::Unsupported => ("tls_unsupported", "sslmode asks for TLS"),
        TlsFault::Nameless => {
            ("tls_nameless", "a certificate counts for the names in subjectAltName alone")
        }
        TlsFault::WrongName => {
            ("tls_name_mismatch", "it may be another server than the one that was meant")
        }
        TlsFault::UnknownIssuer => {
            ("tls_unknown_authority", "nobody whom walpost trusts vouches for the server")
        }
        TlsFault::Authority => ("tls_authority", "an authority's certificate is not a server's"),
        TlsFault::Expired => {
            ("tls_certificate_expired", "an expired certificate proves nothing any more")
        }
        TlsFault::Other => ("tls", "without TLS there is no session"),
    };
    Finding::error((subject, code), said(error)).why(why).advice(fault.advice())
}

/// The error's own words and those of its causes, without what follows as advice.
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

/// What the system said.
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
    fn what_others_can_read_is_warned_of_and_mended_by_tls() {
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
