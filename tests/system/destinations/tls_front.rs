//! TLS in front of a server that has none itself.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use walpost_bed::KeyPair;

/// A port that speaks TLS for another one.
pub struct TlsFront {
    port: u16,
    task: JoinHandle<()>,
}

impl TlsFront {
    /// In front of that port, with this certificate; with `clients`, it accepts only clients that have a
    /// certificate of that authority.
    pub async fn before(behind: u16, own: &KeyPair, clients: Option<&Path>) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(config(own, clients)));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    // The client is gone, or was not accepted.
                    let Ok(mut client) = acceptor.accept(stream).await else { return };
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", behind)).await else {
                        return;
                    };
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { port, task }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn config(own: &KeyPair, clients: Option<&Path>) -> ServerConfig {
    let chain: Vec<_> = CertificateDer::pem_file_iter(&own.certificate)
        .and_then(Iterator::collect)
        .expect("certificates");
    let key = PrivateKeyDer::from_pem_file(&own.key).expect("a key");
    let provider = Arc::new(ring::default_provider());
    let verifier = match clients {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(root) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(root).expect("a certificate")).expect("a root");
            let roots = Arc::new(roots);
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
            verifier.build().expect("a verifier")
        }
    };
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .expect("a pair")
}
