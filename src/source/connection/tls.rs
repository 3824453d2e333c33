//! The TLS configuration of all connections, from a `ConnInfo`: how far the server's certificate is
//! verified, and against which roots. Opens no connection.
//!
//! Differences from libpq: `sslrootcert=system`, and `verify-full` without a root file, use the
//! operating system's CA bundle; names are verified against subjectAltName only, never the common
//! name; and a self-signed server certificate cannot be its own root, because it is not a CA
//! certificate. The minimum version is TLS 1.2.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::conninfo::{ConnInfo, Roots, SslMode};

/// The paths at which common operating systems store their bundle of trusted CA certificates.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

/// Makes ring the process's default TLS cryptography provider. Call it first in `main`; later calls
/// change nothing.
pub fn install_crypto_provider() {
    // Fails if a provider is already installed, which is fine.
    let _ = ring::default_provider().install_default();
}

/// Why TLS cannot be configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A PEM file that cannot be read or has unexpected content.
    #[error("{what} {}: {reason}", path.display())]
    File { what: &'static str, path: PathBuf, reason: String },
    /// No CA bundle of the operating system was found.
    #[error(
        "no root certificates of the system were found: install its CA certificates, or name \
         a file by sslrootcert or SSL_CERT_FILE"
    )]
    NoSystemRoots,
    /// A certificate and key that do not match, or are unusable for another reason.
    #[error("the client certificate or its key cannot be used: {0}")]
    ClientCertificate(Error),
    /// The roots are unusable.
    #[error("the root certificates cannot be used: {0}")]
    Roots(String),
}

/// TLS as configured by a `ConnInfo`.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    pub(crate) fn new(conninfo: &ConnInfo) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let root_file = match (conninfo.sslmode.verifies(), &conninfo.roots) {
            (false, _) => None,
            (true, Roots::File(path)) => Some(path.clone()),
            (true, Roots::System) => Some(system_bundle().ok_or(TlsError::NoSystemRoots)?),
        };
        let verifier: Arc<dyn ServerCertVerifier> = match &root_file {
            None => Arc::new(AnyCertificate(Arc::clone(&provider))),
            Some(path) => {
                let roots = Arc::new(read_roots(path)?);
                let webpki =
                    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
                        .build()
                        .map_err(|error| TlsError::Roots(error.to_string()))?;
                if conninfo.sslmode == SslMode::VerifyFull {
                    webpki
                } else {
                    Arc::new(AnyName(webpki))
                }
            }
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Roots(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match &conninfo.client_certificate {
            None => builder.with_no_client_auth(),
            Some(client) => {
                let chain = read_certificates("client certificate", &client.certificate)?;
                require_private(&client.key)?;
                let key = PrivateKeyDer::from_pem_file(&client.key)
                    .map_err(|error| unreadable("private key", &client.key, &error))?;
                builder.with_client_auth_cert(chain, key).map_err(TlsError::ClientCertificate)?
            }
        };
        Ok(Self(Arc::new(config)))
    }

    /// The configuration for handshakes.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

/// The operating system's CA bundle.
pub(crate) fn system_bundle() -> Option<PathBuf> {
    env::var_os("SSL_CERT_FILE")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| SYSTEM_BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()))
}

fn unreadable(
    what: &'static str,
    path: &std::path::Path,
    error: &rustls::pki_types::pem::Error,
) -> TlsError {
    let reason = match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            "it has none in PEM form (a private key must not be encrypted)".to_owned()
        }
        other => other.to_string(),
    };
    TlsError::File { what, path: path.to_owned(), reason }
}

fn read_certificates(
    what: &'static str,
    path: &std::path::Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    use rustls::pki_types::pem::Error::NoItemsFound;
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(what, path, &error))?;
    if certificates.is_empty() {
        return Err(unreadable(what, path, &NoItemsFound));
    }
    Ok(certificates)
}

/// Requires that other users cannot read the key, by libpq's rule: the group may read a file owned
/// by root, because services often get their key this way
/// (<https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-CLIENTCERT>).
fn require_private(path: &Path) -> Result<(), TlsError> {
    let refused =
        |reason: String| TlsError::File { what: "private key", path: path.to_owned(), reason };
    let metadata = fs::metadata(path).map_err(|error| refused(error.to_string()))?;
    if !metadata.is_file() {
        return Err(refused("is not a plain file".to_owned()));
    }
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & forbidden == 0 {
        return Ok(());
    }
    Err(refused(format!(
        "has mode {:04o}, so that others can read it: make it 0600 or less, or 0640 or less where \
         root owns it",
        metadata.mode() & 0o7777
    )))
}

fn read_roots(path: &std::path::Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let certificates = read_certificates("root certificate file", path)?;
    // A system bundle may contain certificates that cannot be parsed: they are skipped.
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(TlsError::Roots(format!("{} has no usable one", path.display())));
    }
    Ok(roots)
}

/// Accepts any certificate, for the modes below `verify-ca`. The server must still prove that it
/// has the certificate's key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// `verify-ca`: verifies the chain, but not the name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let checked =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match checked {
            // The name is verified last, so this error implies a valid chain.
            Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A time at which the certificates in `testdata` are valid.
    const NOW_SECONDS: u64 = 1_795_361_383;

    fn set_up(text: &str) -> Result<Tls, TlsError> {
        let environment = |name: &str| (name == "USER").then(|| "me".to_owned());
        Tls::new(&ConnInfo::resolve(Some(text), &environment).expect("sound"))
    }

    #[test]
    fn no_roots_are_needed_without_verification() {
        for mode in ["disable", "allow", "prefer", "require"] {
            assert!(set_up(&format!("sslmode={mode}")).is_ok(), "{mode}");
        }
    }

    #[test]
    fn a_file_without_certificates_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("roots.pem");
        for content in
            ["", "not PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            std::fs::write(&path, content).expect("written");
            let text = format!("sslmode=verify-ca sslrootcert={}", path.display());
            let error = set_up(&text).err().expect("refused").to_string();
            assert!(error.contains("roots.pem"), "{error}");
        }
        let text = format!("sslmode=require sslcert={0} sslkey={0}", path.display());
        std::fs::write(&path, "").expect("written");
        assert!(set_up(&text).is_err());
    }

    /// The result of `verify-ca` for this certificate, for a server named `db`.
    fn under_verify_ca(certificate: &[u8], roots: &str) -> Result<(), Error> {
        let path = format!("{}/src/source/connection/testdata/{roots}", env!("CARGO_MANIFEST_DIR"));
        let webpki = WebPkiServerVerifier::builder_with_provider(
            Arc::new(read_roots(std::path::Path::new(&path)).expect("roots")),
            Arc::new(ring::default_provider()),
        );
        let verifier = AnyName(webpki.build().expect("built"));
        let certificate = CertificateDer::from_pem_slice(certificate).expect("a certificate");
        let name = ServerName::try_from("db").expect("a name");
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW_SECONDS));
        verifier.verify_server_cert(&certificate, &[], &name, &[], now).map(drop)
    }

    #[test]
    fn verify_ca_accepts_any_name_but_no_other_authority() {
        const NAMED: &[u8] = include_bytes!("testdata/named.pem");
        const NAMELESS: &[u8] = include_bytes!("testdata/nameless.pem");
        under_verify_ca(NAMED, "ca.pem").expect("sound");
        under_verify_ca(NAMELESS, "ca.pem").expect("sound");
        let stranger = under_verify_ca(NAMED, "other-ca.pem").expect_err("another authority");
        assert!(stranger.to_string().contains("UnknownIssuer"), "{stranger}");
    }

    #[test]
    fn a_private_key_that_others_can_read_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let key = directory.path().join("key.pem");
        std::fs::write(&key, "").expect("written");
        let is_roots = std::fs::metadata(&key).expect("there").uid() == 0;
        for (mode, fits) in [
            (0o600, true),
            (0o400, true),
            (0o640, is_roots),
            (0o440, is_roots),
            (0o660, false),
            (0o644, false),
            (0o604, false),
            (0o650, false),
        ] {
            std::fs::set_permissions(&key, Permissions::from_mode(mode)).expect("changed");
            let result = require_private(&key);
            assert_eq!(result.is_ok(), fits, "{mode:o}");
            if let Err(error) = result {
                let text = error.to_string();
                assert!(text.contains(&format!("{mode:04o}")) && text.contains("0600"), "{text}");
            }
        }
        assert!(require_private(directory.path()).is_err());
        assert!(require_private(&directory.path().join("none")).is_err());
    }
}
