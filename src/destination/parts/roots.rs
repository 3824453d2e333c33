//! The authorities whose certificates are trusted.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The certificates in a PEM file that can be trusted: at least one. A system bundle may contain
/// certificates that cannot be parsed: they are not used.
pub(crate) fn roots(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error: &dyn ToString| format!("{}: {}", path.display(), error.to_string());
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| failed(&error))?;
    let mut store = RootCertStore::empty();
    let is_usable = |one: &CertificateDer<'static>| store.add(one.clone()).is_ok();
    let usable: Vec<_> = certificates.into_iter().filter(is_usable).collect();
    if usable.is_empty() { Err(failed(&"it contains no usable certificate")) } else { Ok(usable) }
}
