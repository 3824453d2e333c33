//! Opens the control connection, and opens the replication session to the same server in the same
//! way. Runs no statement except the one for `target_session_attrs`.
//!
//! As in libpq, `prefer` falls back to a connection without TLS if the server does not support TLS,
//! the handshake fails, or `pg_hba.conf` has no matching line for TLS; `allow` is the reverse. The
//! replication session does not repeat that choice: it uses TLS if and only if the control
//! connection does.
//!
//! Both kinds of connection check the server's messages by the same policy: see [`wire`].

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::lookup_host;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{ChannelBinding as Binding, SslMode as Negotiated, SslNegotiation};
use tokio_postgres::{Client, Config, Connection, SimpleQueryMessage};

use super::error::{ConnectError, UnknownHost};
use super::tls::Tls;
use crate::conninfo::{ChannelBinding, ConnInfo, Host, HostAddress, SslMode, TargetSession};
use crate::source::wire;
use crate::source::wire::{
    AnswerLimit, Guard, Handshaken, Lifted, Login, Method, Policy, Security, Socket,
};

/// The server that was reached, and how.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// The host, as named in the connection string.
    pub(crate) host: Host,
    /// The resolved address; `None` for a Unix socket.
    pub(crate) address: Option<IpAddr>,
    /// TLS, if the connection uses it.
    pub(crate) tls: Option<Tls>,
}

impl Endpoint {
    /// Whether the server is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.address.is_none_or(|address| address.to_canonical().is_loopback())
    }

    /// The TLS configuration, and the server name for SNI and, if names are verified, for
    /// verification.
    pub(crate) fn tls(&self) -> Option<(Arc<rustls::ClientConfig>, &str)> {
        match (&self.tls, &self.host.address) {
            (Some(tls), HostAddress::Tcp { name, .. }) => Some((tls.config(), name.as_str())),
            _ => None,
        }
    }
}

/// A client for SQL statements. Dropping it ends the connection, even if the server does not
/// respond.
#[derive(Debug)]
pub(crate) struct SqlClient {
    client: Client,
    connection: AbortHandle,
    answer_limit: AnswerLimit,
}

impl SqlClient {
    /// Allows large responses, for a statement whose rows are read one by one and may have any
    /// size. The guard must live from before the statement starts until its last row.
    pub(crate) fn large_rows(&self) -> Lifted {
        self.answer_limit.lift()
    }
}

/// How long a connection whose client was dropped may take to terminate. Without the limit it would
/// wait forever for a pending response, or read on while the server floods it.
const TERMINATION_LIMIT: Duration = Duration::from_secs(1);

impl Deref for SqlClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for SqlClient {
    fn drop(&mut self) {
        let connection = self.connection.clone();
        let Ok(runtime) = Handle::try_current() else { return connection.abort() };
        runtime.spawn(async move {
            sleep(TERMINATION_LIMIT).await;
            connection.abort();
        });
    }
}

/// The control connection.
pub(crate) struct Control {
    /// Runs SQL statements.
    pub(crate) client: Arc<SqlClient>,
    /// Finishes when the connection has ended. The error has the server's SQLSTATE, if it sent one,
    /// such as 57P01 at shutdown.
    pub(crate) ended: JoinHandle<Result<(), tokio_postgres::Error>>,
    /// The server to which the replication session must connect.
    pub(crate) endpoint: Endpoint,
    /// How the connection is secured.
    pub(crate) security: Security,
}

/// Opens the control connection to the first host that accepts a session, with `connect_timeout`
/// for each address.
///
/// A host that rejects it for a reason that requires a change of configuration is the last one
/// tried. `application_name` is used if the connection string has none. Dropping the future cancels
/// the attempt and leaves nothing behind.
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
                Err(error) if error.is_retryable() => failures.push(error),
                done => return done,
            }
        }
    }
    Err(match failures.pop() {
        Some(only) if failures.is_empty() => only,
        last => ConnectError::NoHost(failures.into_iter().chain(last).collect()),
    })
}

/// Opens another SQL connection to the server that `control` reached, in the same way.
pub(crate) async fn auxiliary(
    conninfo: &ConnInfo,
    endpoint: &Endpoint,
    application_name: &str,
) -> Result<Control, ConnectError> {
    let attempt = Attempt { conninfo, application_name, tls: endpoint.tls.as_ref() };
    let after = conninfo.connect_timeout;
    let opened = attempt.open(&endpoint.host, endpoint.address, attempt.tls);
    timeout(after, opened)
        .await
        .unwrap_or_else(|_| Err(ConnectError::TimedOut { host: endpoint.host.to_string(), after }))
}

/// The parameters that all attempts share.
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
                Err(error) if error.is_retryable() => failure = Some(error),
                done => return done,
            }
        }
        Err(failure.unwrap_or_else(|| ConnectError::Unreachable {
            host: host.to_string(),
            source: Box::new(UnknownHost(None)),
        }))
    }

    /// The addresses to try; `None` is a Unix socket.
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
                let source = Box::new(UnknownHost(Some(source)));
                Err(ConnectError::Unreachable { host: host.to_string(), source })
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
                Err(error) if may_succeed_in_other_mode(&error) => {
                    self.open(host, address, Some(tls)).await.map_err(|_| error)
                }
                done => done,
            },
            (Some(tls), SslMode::Prefer) => match self.open(host, address, Some(tls)).await {
                Err(ConnectError::Tls { .. }) => plain.await,
                Err(error) if may_succeed_in_other_mode(&error) => plain.await.map_err(|_| error),
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
        let Self { conninfo, application_name, .. } = *self;
        let endpoint = Endpoint { host: host.clone(), address, tls: tls.cloned() };
        let name = host.to_string();
        let failed = |error| ConnectError::of_wire(&name, &error);
        let keepalive = &conninfo.keepalive;
        let socket = Socket::connect(host, address, keepalive, true)
            .await
            .map_err(|error| failed(error.into()))?;
        let from = socket.local_address();
        let line = wire::secure(socket, endpoint.tls()).await.map_err(failed)?;
        let version = line.tls_version();
        let guard = Guard::new(line, policy(conninfo));
        let (method, answer_limit) = (guard.method(), guard.answer_limit());
        let config = control_config(conninfo, host, application_name);
        let (client, connection) = begin(&config, guard)
            .await
            .map_err(|error| ConnectError::of_control(&name, error).reached_from(from))?;
        let method = method.get().copied().unwrap_or(Method::None);
        let security = Security { tls: version, method, is_local: endpoint.is_local() };
        let ended = tokio::spawn(connection);
        let connection = ended.abort_handle();
        let client = Arc::new(SqlClient { client, connection, answer_limit });
        Ok(Control { client, ended, endpoint, security })
    }
}

/// Whether `pg_hba.conf` may have a line for the other mode, with or without TLS. A wrong password
/// is not such a case: retrying would send it unencrypted.
fn may_succeed_in_other_mode(error: &ConnectError) -> bool {
    error.sqlstate().is_some_and(|code| code.as_str() == "28000")
}

/// Starts a session on a connection that already has TLS or needs none.
async fn begin<S>(
    config: &Config,
    guard: Guard<S>,
) -> Result<(Client, Connection<Guard<S>, Guard<S>>), tokio_postgres::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    config.connect_raw(guard, Handshaken).await
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

fn control_config(conninfo: &ConnInfo, host: &Host, application_name: &str) -> Config {
    let mut config = Config::new();
    config
        .user(&conninfo.user)
        .dbname(&conninfo.dbname)
        .application_name(conninfo.application_name.as_deref().unwrap_or(application_name))
        // `tokio-postgres` treats the stream as already encrypted.
        .ssl_mode(Negotiated::Require)
        .ssl_negotiation(SslNegotiation::Direct)
        .channel_binding(match conninfo.channel_binding {
            ChannelBinding::Disable => Binding::Disable,
            ChannelBinding::Prefer => Binding::Prefer,
            ChannelBinding::Require => Binding::Require,
        });
    config.options(session_options(conninfo, ""));
    if let Some(password) = conninfo.password_for(host) {
        config.password(password.expose_secret());
    }
    config
}

/// The replication session's login.
///
/// `extra_options` are command-line options such as `-c datestyle=ISO`.
pub(crate) fn replication_login<'a>(
    conninfo: &'a ConnInfo,
    endpoint: &Endpoint,
    application_name: &'a str,
    extra_options: &str,
) -> Login<'a> {
    Login {
        user: &conninfo.user,
        dbname: &conninfo.dbname,
        password: conninfo.password_for(&endpoint.host),
        application_name: conninfo.application_name.as_deref().unwrap_or(application_name),
        options: session_options(conninfo, extra_options),
        policy: policy(conninfo),
    }
}

/// Unqualified names in a statement refer to PostgreSQL's own objects, even if another role has
/// created objects of the same name in some schema, and whatever `search_path` is set for the role
/// or database. Functions and operators are never looked up in the temporary schema
/// (<https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-SEARCH-PATH>).
const SEARCH_PATH: &str = "-c search_path=pg_catalog,pg_temp";

/// The command-line options of every session: those of the connection string, then `extra`, then
/// [`SEARCH_PATH`], because the last setting of a parameter wins.
fn session_options(conninfo: &ConnInfo, extra: &str) -> String {
    let given = conninfo.options.as_deref().unwrap_or_default();
    let all = [given, extra, SEARCH_PATH].into_iter().filter(|options| !options.is_empty());
    all.collect::<Vec<_>>().join(" ")
}

fn policy(conninfo: &ConnInfo) -> Policy {
    Policy { require_auth: conninfo.require_auth, channel_binding: conninfo.channel_binding }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
