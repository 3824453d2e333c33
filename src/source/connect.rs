//! The way to a server: opens the control connection, and says how the
//! replication session is to be opened to the same server in the same way.
//! Runs no statement of its own but the one that `target_session_attrs` needs.
//!
//! `prefer` falls back to a plain connection, as in libpq, where the server
//! has no TLS, the handshake fails, or `pg_hba.conf` has no line for TLS; `allow`
//! is the other way about. The replication session does not choose again: it
//! is opened with or without TLS as the control connection was.
//!
//! The replication client's own TLS is narrower than ours, and this is where
//! that is made up for. It checks a name under `verify-ca` too: so it is given
//! a name out of the certificate that the control connection has verified. It
//! takes roots from one file: so it is given the one that the control
//! connection used. Below `verify-ca` it does not check the handshake's
//! signature; who asks for no verification gets none.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use pgwire_replication::ReplicationConfig;
use pgwire_replication::config::{SslMode as ReplicationSslMode, TlsConfig};
use postgres_protocol::escape::escape_identifier;
use secrecy::ExposeSecret;
use tokio::net::lookup_host;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{ChannelBinding, SslMode as ControlSslMode};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::refusal::ConnectError;
use super::tls::Tls;
use crate::conninfo::{ConnInfo, Host, HostAddress, SslMode, TargetSession};

/// How the connection that was opened is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Not at all.
    Plain,
    /// By TLS.
    Tls {
        /// The name to ask for and, if any is checked, to check.
        name: String,
        /// The roots that the certificate was checked against, if it was.
        root_file: Option<PathBuf>,
    },
}

/// The server that was reached, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The host as the connection string names it.
    pub(crate) host: Host,
    /// The address that its name had; none for a Unix socket.
    pub(crate) address: Option<IpAddr>,
    /// How the connection is protected.
    pub(crate) protection: Protection,
}

/// The control connection.
pub(crate) struct Control {
    /// To run statements with. Dropping it ends the connection.
    pub(crate) client: Arc<Client>,
    /// Done when the connection has ended; the error has the server's SQLSTATE
    /// where it gave one, such as 57P01 when it shuts down.
    pub(crate) ended: JoinHandle<Result<(), tokio_postgres::Error>>,
    /// Where the replication session is to go.
    pub(crate) endpoint: Endpoint,
}

/// Opens the control connection to the first host that gives a session, each
/// address in `connect_timeout`.
///
/// A host that refuses for a reason which only a change ends is the last one
/// tried. `application_name` is the session's name where the connection string
/// has none. Dropping the future gives up; nothing stays behind.
pub(crate) async fn control(
    conninfo: &ConnInfo,
    application_name: &str,
) -> Result<Control, ConnectError> {
    let tls = match conninfo.sslmode {
        SslMode::Disable => None,
        _ => Some(Tls::new(conninfo)?),
    };
    let attempt = Attempt { conninfo, application_name, tls: tls.as_ref() };
    let passes: &[TargetSession] = match &conninfo.target_session {
        TargetSession::PreferStandby => &[TargetSession::Standby, TargetSession::Any],
        one => &[*one],
    };
    let mut failures = Vec::new();
    for wanted in passes {
        for host in conninfo.hosts() {
            match attempt.host(host, *wanted).await {
                Err(error) if error.is_worth_another_try() => failures.push(error),
                done => return done,
            }
        }
    }
    Err(match failures.pop() {
        Some(only) if failures.is_empty() => only,
        last => ConnectError::NoHost(failures.into_iter().chain(last).collect()),
    })
}

/// Opens another ordinary connection to the server that `control` reached, in the same way.
pub(crate) async fn beside(
    conninfo: &ConnInfo,
    endpoint: &Endpoint,
    application_name: &str,
) -> Result<Control, ConnectError> {
    let tls = match endpoint.protection {
        Protection::Plain => None,
        Protection::Tls { .. } => Some(Tls::new(conninfo)?),
    };
    let attempt = Attempt { conninfo, application_name, tls: tls.as_ref() };
    let after = conninfo.connect_timeout;
    let opened = attempt.open(&endpoint.host, endpoint.address, attempt.tls);
    timeout(after, opened)
        .await
        .unwrap_or_else(|_| Err(ConnectError::TimedOut { host: endpoint.host.to_string(), after }))
}

/// What all attempts have in common.
struct Attempt<'a> {
    conninfo: &'a ConnInfo,
    application_name: &'a str,
    tls: Option<&'a Tls>,
}

impl Attempt<'_> {
    async fn host(&self, host: &Host, wanted: TargetSession) -> Result<Control, ConnectError> {
        let mut failure = None;
        for address in self.addresses(host).await? {
            let after = self.conninfo.connect_timeout;
            let attempt = timeout(after, self.address(host, address, wanted)).await;
            let timed_out = || Err(ConnectError::TimedOut { host: host.to_string(), after });
            match attempt.unwrap_or_else(|_| timed_out()) {
                Err(error) if error.is_worth_another_try() => failure = Some(error),
                done => return done,
            }
        }
        Err(failure.unwrap_or_else(|| ConnectError::Unreachable {
            host: host.to_string(),
            source: "its name has no address".into(),
        }))
    }

    /// The addresses to try; `None` stands for a Unix socket.
    async fn addresses(&self, host: &Host) -> Result<Vec<Option<IpAddr>>, ConnectError> {
        let name = match &host.address {
            HostAddress::Unix(_) => return Ok(vec![None]),
            HostAddress::Tcp { hostaddr: Some(address), .. } => return Ok(vec![Some(*address)]),
            HostAddress::Tcp { name, hostaddr: None } => name.as_str(),
        };
        let after = self.conninfo.connect_timeout;
        match timeout(after, lookup_host((name, host.port))).await {
            Ok(Ok(found)) => Ok(found.map(|address| Some(address.ip())).collect()),
            Ok(Err(source)) => {
                Err(ConnectError::Unreachable { host: host.to_string(), source: Box::new(source) })
            }
            Err(_) => Err(ConnectError::TimedOut { host: host.to_string(), after }),
        }
    }

    async fn address(
        &self,
        host: &Host,
        address: Option<IpAddr>,
        wanted: TargetSession,
    ) -> Result<Control, ConnectError> {
        let plain = self.open(host, address, None);
        let control = match (self.tls.filter(|_| address.is_some()), self.conninfo.sslmode) {
            (None, _) => plain.await,
            (Some(tls), SslMode::Allow) => match plain.await {
                Err(error) if is_for_the_other_way(&error) => {
                    self.open(host, address, Some(tls)).await.map_err(|_| error)
                }
                done => done,
            },
            (Some(tls), SslMode::Prefer) => match self.open(host, address, Some(tls)).await {
                Err(ConnectError::Tls { .. }) => plain.await,
                Err(error) if is_for_the_other_way(&error) => plain.await.map_err(|_| error),
                done => done,
            },
            (Some(tls), _) => self.open(host, address, Some(tls)).await,
        }?;
        let host = host.to_string();
        if is_such_a_session(&control.client, wanted, &host).await? {
            Ok(control)
        } else {
            Err(ConnectError::WrongSession { host, wanted })
        }
    }

    async fn open(
        &self,
        host: &Host,
        address: Option<IpAddr>,
        tls: Option<&Tls>,
    ) -> Result<Control, ConnectError> {
        let mut config = control_config(self.conninfo, host, address, self.application_name);
        let failed = |error| ConnectError::of_control(&host.to_string(), error);
        let (client, ended, protection) = if let Some(tls) = tls {
            config.ssl_mode(ControlSslMode::Require);
            let connector = MakeRustlsConnect::new(tls.config.clone());
            // That of a handshake whose session was refused afterwards.
            tls.take_presented_name();
            let (client, ended) = connect(&config, connector).await.map_err(failed)?;
            let name = tls.take_presented_name().unwrap_or_else(|| match &host.address {
                HostAddress::Tcp { name, .. } => name.clone(),
                HostAddress::Unix(_) => String::new(),
            });
            (client, ended, Protection::Tls { name, root_file: tls.root_file.clone() })
        } else {
            config.ssl_mode(ControlSslMode::Disable);
            let (client, ended) = connect(&config, NoTls).await.map_err(failed)?;
            (client, ended, Protection::Plain)
        };
        let endpoint = Endpoint { host: host.clone(), address, protection };
        Ok(Control { client: Arc::new(client), ended, endpoint })
    }
}

/// Whether `pg_hba.conf` may have a line for the other way, with or without TLS.
/// A wrong password is no such reason: it must not be sent in the open then.
fn is_for_the_other_way(error: &ConnectError) -> bool {
    error.sqlstate().is_some_and(|code| code.as_str() == "28000")
}

async fn connect<T>(
    config: &Config,
    tls: T,
) -> Result<(Client, JoinHandle<Result<(), tokio_postgres::Error>>), tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
    T::TlsConnect: TlsConnect<Socket>,
{
    let (client, connection) = config.connect(tls).await?;
    Ok((client, tokio::spawn(connection)))
}

async fn is_such_a_session(
    client: &Client,
    wanted: TargetSession,
    host: &str,
) -> Result<bool, ConnectError> {
    if wanted == TargetSession::Any {
        return Ok(true);
    }
    let sql = "SELECT pg_catalog.pg_is_in_recovery(), \
               pg_catalog.current_setting('transaction_read_only')";
    let answer =
        client.simple_query(sql).await.map_err(|error| ConnectError::of_control(host, error))?;
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((row.get(0) == Some("t"), row.get(1) == Some("on"))),
        _ => None,
    });
    let (in_recovery, read_only) = row.ok_or_else(|| ConnectError::Protocol {
        host: host.to_owned(),
        message: "a query has no row".to_owned(),
    })?;
    Ok(match wanted {
        TargetSession::Any | TargetSession::PreferStandby => true,
        TargetSession::ReadWrite => !in_recovery && !read_only,
        TargetSession::ReadOnly => in_recovery || read_only,
        TargetSession::Primary => !in_recovery,
        TargetSession::Standby => in_recovery,
    })
}

fn control_config(
    conninfo: &ConnInfo,
    host: &Host,
    address: Option<IpAddr>,
    application_name: &str,
) -> Config {
    let mut config = Config::new();
    match &host.address {
        HostAddress::Tcp { name, .. } => config.host(name),
        HostAddress::Unix(directory) => config.host_path(directory),
    };
    if let Some(address) = address {
        config.hostaddr(address);
    }
    config
        .port(host.port)
        .user(&conninfo.user)
        .dbname(&conninfo.dbname)
        .application_name(conninfo.application_name.as_deref().unwrap_or(application_name))
        .connect_timeout(conninfo.connect_timeout)
        .keepalives(conninfo.keepalive.enabled)
        .keepalives_idle(conninfo.keepalive.idle)
        .keepalives_interval(conninfo.keepalive.interval)
        .keepalives_retries(conninfo.keepalive.retries)
        .tcp_user_timeout(conninfo.keepalive.user_timeout)
        .channel_binding(if conninfo.channel_binding {
            ChannelBinding::Prefer
        } else {
            ChannelBinding::Disable
        });
    config.options(session_options(conninfo, ""));
    if let Some(password) = conninfo.password_for(host) {
        config.password(password.expose_secret());
    }
    config
}

/// How the replication session is opened to the server that the control
/// connection reached.
///
/// `extra_options` come after those of the connection string, so that they win;
/// they are command-line options such as `-c datestyle=ISO`. The result shows
/// the password in its `Debug`: never log it.
pub(crate) fn replication_config(
    conninfo: &ConnInfo,
    endpoint: &Endpoint,
    slot: &str,
    publication: &str,
    application_name: &str,
    extra_options: &str,
) -> ReplicationConfig {
    let host = match (&endpoint.host.address, endpoint.address) {
        (HostAddress::Unix(directory), _) => directory.to_string_lossy().into_owned(),
        (HostAddress::Tcp { .. }, Some(address)) => address.to_string(),
        (HostAddress::Tcp { name, .. }, None) => name.clone(),
    };
    let password = conninfo.password_for(&endpoint.host).map_or("", ExposeSecret::expose_secret);
    // The client puts both names into its command as they are.
    let config = ReplicationConfig::new(
        host,
        &conninfo.user,
        password,
        &conninfo.dbname,
        escape_identifier(slot),
        escape_identifier(publication),
    )
    .with_port(endpoint.host.port)
    .with_tls(replication_tls(conninfo, &endpoint.protection))
    .with_application_name(conninfo.application_name.as_deref().unwrap_or(application_name));
    config.with_options(session_options(conninfo, extra_options))
}

/// Names in a statement mean PostgreSQL's own objects, whatever a role that may create others has
/// put into a schema, and whatever `search_path` role and database have. Where a function or an
/// operator is looked up, the temporary schema is never searched
/// (<https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-SEARCH-PATH>).
const SEARCH_PATH: &str = "-c search_path=pg_catalog,pg_temp";

/// The command-line options of every session: those of the connection string, then `extra`, then
/// [`SEARCH_PATH`], since the last one of a name wins.
fn session_options(conninfo: &ConnInfo, extra: &str) -> String {
    let given = conninfo.options.as_deref().unwrap_or_default();
    let all = [given, extra, SEARCH_PATH].into_iter().filter(|options| !options.is_empty());
    all.collect::<Vec<_>>().join(" ")
}

fn replication_tls(conninfo: &ConnInfo, protection: &Protection) -> TlsConfig {
    let Protection::Tls { name, root_file } = protection else {
        return TlsConfig::disabled();
    };
    let mode = match (conninfo.sslmode, root_file) {
        (SslMode::VerifyFull, _) => ReplicationSslMode::VerifyFull,
        (SslMode::VerifyCa, _) | (_, Some(_)) => ReplicationSslMode::VerifyCa,
        _ => ReplicationSslMode::Require,
    };
    let client = conninfo.client_certificate.as_ref();
    TlsConfig {
        mode,
        ca_pem_path: root_file.clone(),
        sni_hostname: Some(name.clone()),
        client_cert_pem_path: client.map(|client| client.certificate.clone()),
        client_key_pem_path: client.map(|client| client.key.clone()),
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
