//! TCP connections to servers, and TLS on them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// Timeout for each address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long data may stay unacknowledged by the server's kernel, and how soon an idle connection is
/// probed.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(15);

/// Connects to the first address of `host` that accepts. The error is the last one's.
pub(crate) async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
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

/// TLS that trusts the authorities in the PEM file `roots`, which the setting `named` names, with a
/// certificate of the client's and its private key, both PEM files.
pub(crate) fn tls(
    roots: Option<&Path>,
    named: &str,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, String> {
    let unusable = |reason: String| format!("TLS cannot be set up: {reason}");
    let path = roots.ok_or_else(|| {
        unusable(format!("no root certificates of the system were found: set {named}"))
    })?;
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(super::roots::roots(path)?);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?;
    let config = config.with_root_certificates(store);
    let Some((certificate, key)) = identity else { return Ok(config.with_no_client_auth()) };
    let failed = |path: &Path, error: &dyn ToString| {
        unusable(format!("{}: {}", path.display(), error.to_string()))
    };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| failed(certificate, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
    config.with_client_auth_cert(chain, secret).map_err(|error| failed(certificate, &error))
}
