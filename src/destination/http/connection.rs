//! A connection to an endpoint: TCP or TLS, HTTP/1.1.

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::config::HttpConfig;
use crate::destination::parts::Failure;
use crate::destination::parts::attempts::chain;
use crate::destination::parts::dial::{dial, secured};

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
    let url = &config.url;
    let server = (&*url.host, url.port);
    let stream = secured(dial(server).await?, server, url.tls.then_some(&config.tls)).await?;
    let opened = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened
        .map_err(|error| Failure::Unreachable(format!("{}: {}", url.address(), chain(&error))))?;
    Ok(Connection { sender, address: url.address(), driver: tokio::spawn(connection) })
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
