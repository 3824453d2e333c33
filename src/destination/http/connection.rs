//! A connection to an endpoint: TCP or TLS, HTTP/1.1.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::config::HttpConfig;
use crate::destination::parts::attempts::{Failure, chain};
use crate::destination::parts::dial::{dial, tls};

/// Timeout for TLS.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// How soon a server closes a connection that it does not want: one without a client certificate, which
/// TLS 1.3 rejects after the client's handshake, or one of a load balancer without a server behind it.
const UNWANTED_WITHIN: Duration = Duration::from_secs(1);

/// An open connection. It is closed on drop, whatever is in flight.
pub(crate) struct Connection {
    pub(super) sender: SendRequest<Full<Bytes>>,
    address: String,
    driver: JoinHandle<hyper::Result<()>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Completes once the connection has ended.
    pub(super) async fn ended(&mut self) -> Failure {
        let reason = match (&mut self.driver).await {
            Ok(Err(error)) => chain(&error),
            Ok(Ok(())) | Err(_) => "it closed the connection at once".to_owned(),
        };
        Failure::Unreachable(format!("{}: {reason}", self.address))
    }

    /// Fails if the server closes the new connection before anything is sent.
    pub(crate) async fn is_wanted(&mut self) -> Result<(), Failure> {
        timeout(UNWANTED_WITHIN, self.ended()).await.map_or(Ok(()), Err)
    }
}

/// Connects to the server of the configured URL.
pub(crate) async fn connect(config: &HttpConfig) -> Result<Connection, Failure> {
    let address = config.url.address();
    let unreachable = |reason: String| Failure::Unreachable(format!("{address}: {reason}"));
    let stream = dial(&config.url.host, config.url.port).await.map_err(unreachable)?;
    if !config.url.tls {
        return open(stream, &address).await.map_err(unreachable);
    }
    let name = ServerName::try_from(config.url.host.clone())
        .map_err(|error| unreachable(error.to_string()))?;
    let identity = config.identity.as_ref();
    let identity = identity.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
    let settings = tls(config.roots.as_deref(), "http.ca_file", identity);
    let connector = TlsConnector::from(Arc::new(settings.map_err(Failure::Unusable)?));
    let stream = timeout(TLS_TIMEOUT, connector.connect(name, stream)).await;
    let stream = stream
        .map_err(|_| unreachable(format!("TLS: no answer within {TLS_TIMEOUT:?}")))?
        .map_err(|error| unreachable(format!("TLS: {error}")))?;
    open(stream, &address).await.map_err(unreachable)
}

async fn open<S>(stream: S, address: &str) -> Result<Connection, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let opened = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(|error| chain(&error))?;
    let driver = tokio::spawn(connection);
    Ok(Connection { sender, address: address.to_owned(), driver })
}

/// Whether a connection failed by TLS, such as by the server's alert.
pub(super) fn is_of_tls(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if inner.is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>) {
            return true;
        }
        next = error.source();
    }
    false
}
