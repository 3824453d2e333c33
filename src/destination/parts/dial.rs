//! TCP connections to servers, and TLS on them.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Failure;

/// Timeout for each address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for TLS.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// How long data may stay unacknowledged by the server's kernel, and how soon an idle connection is
/// probed.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(15);

/// Connects to a server's first address that accepts. The error is the last one's.
pub(crate) async fn dial((host, port): (&str, u16)) -> Result<TcpStream, Failure> {
    let connected = connect(host, port).await;
    connected.map_err(|reason| {
        Failure::Unreachable(format!("{}: {reason}", super::url::address(host, port)))
    })
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let found = timeout(CONNECT_TIMEOUT, lookup_host((host, port))).await;
    let found = found.map_err(|_| "its name was not resolved in time".to_owned())?;
    let mut failed = "its name has no address".to_owned();
    for one in found.map_err(|error| error.to_string())? {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(one)).await {
            Ok(Ok(stream)) => {
                let socket = SockRef::from(&stream);
                let keepalive = TcpKeepalive::new()
                    .with_time(DEAD_PEER_TIMEOUT)
                    .with_interval(DEAD_PEER_TIMEOUT / 3);
                stream
                    .set_nodelay(true)
                    .and_then(|()| socket.set_tcp_keepalive(&keepalive))
                    .and_then(|()| socket.set_tcp_user_timeout(Some(DEAD_PEER_TIMEOUT)))
                    .map_err(|error| error.to_string())?;
                return Ok(stream);
            }
            Ok(Err(error)) => failed = error.to_string(),
            Err(_) => failed = format!("no connection within {CONNECT_TIMEOUT:?}"),
        }
    }
    Err(failed)
}

/// A connection, with TLS or without.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// How TLS to a server is set up: by PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The authorities that are trusted; `None`: the system has none.
    pub(crate) roots: Option<PathBuf>,
    /// The setting of [`Tls::roots`].
    pub(crate) named: &'static str,
    /// The client's certificate and its private key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// The settings of a client; the files are read now.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, Failure> {
        self.read().map_err(|reason| Failure::Unusable(format!("TLS cannot be set up: {reason}")))
    }

    fn read(&self) -> Result<ClientConfig, String> {
        let path = self.roots.as_ref().ok_or_else(|| {
            format!("no root certificates of the system were found: set {}", self.named)
        })?;
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(super::roots::roots(path)?);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = config.with_root_certificates(store);
        let Some((certificate, key)) = &self.identity else {
            return Ok(config.with_no_client_auth());
        };
        let failed = |path: &Path, error: &dyn ToString| {
            format!("{}: {}", path.display(), error.to_string())
        };
        let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
        let chain = chain.map_err(|error| failed(certificate, &error))?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
        config.with_client_auth_cert(chain, secret).map_err(|error| failed(certificate, &error))
    }

    /// TLS over a connection to this server.
    async fn over(
        &self,
        stream: TcpStream,
        (host, port): (&str, u16),
    ) -> Result<Box<dyn Stream>, Failure> {
        let address = super::url::address(host, port);
        let failed = |error: &dyn Display| Failure::Unreachable(format!("{address}: TLS: {error}"));
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
        let connector = TlsConnector::from(Arc::new(self.client_config()?));
        let stream = timeout(TLS_TIMEOUT, connector.connect(name, stream)).await;
        let late = |_| failed(&format!("no answer within {TLS_TIMEOUT:?}"));
        Ok(Box::new(stream.map_err(late)?.map_err(|error| failed(&error))?))
    }
}

/// Sets TLS up over a connection to this server, if that is asked for.
pub(crate) async fn secured(
    stream: TcpStream,
    server: (&str, u16),
    tls: Option<&Tls>,
) -> Result<Box<dyn Stream>, Failure> {
    match tls {
        None => Ok(Box::new(stream)),
        Some(tls) => tls.over(stream, server).await,
    }
}
