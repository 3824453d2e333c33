//! A connection to an endpoint: TCP or TLS, HTTP/1.1.

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
use crate::sink::attempts::Failure;
use crate::sink::dial::{dial, tls};

/// Timeout for TLS.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// An open connection. It is closed on drop, whatever is in flight.
pub(crate) struct Connection {
    pub(super) sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Connects to the server of the configured URL.
pub(crate) async fn connect(config: &HttpConfig) -> Result<Connection, Failure> {
    let address = config.url.address();
    let unreachable = |reason: String| Failure::Unreachable(format!("{address}: {reason}"));
    let stream = dial(&config.url.host, config.url.port).await.map_err(unreachable)?;
    if !config.url.tls {
        return open(stream).await.map_err(unreachable);
    }
    let name = ServerName::try_from(config.url.host.clone())
        .map_err(|error| unreachable(error.to_string()))?;
    let settings = tls(config.roots.as_deref(), "http.ca_file").map_err(Failure::Unusable)?;
    let connector = TlsConnector::from(Arc::new(settings));
    let stream = timeout(TLS_TIMEOUT, connector.connect(name, stream)).await;
    let stream = stream
        .map_err(|_| unreachable(format!("TLS: no answer within {TLS_TIMEOUT:?}")))?
        .map_err(|error| unreachable(format!("TLS: {error}")))?;
    open(stream).await.map_err(unreachable)
}

async fn open<S>(stream: S) -> Result<Connection, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let opened = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(|error| error.to_string())?;
    // Its error is that of the request.
    let driver = tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(Connection { sender, driver })
}
