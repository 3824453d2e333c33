//! The fingerprint that reveals a change of the publication.

/// The catalog rows of the publication and its outbox tables, as text: equal fingerprints mean that
/// no row was omitted in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublicationFingerprint(String);

impl PublicationFingerprint {
    pub(in crate::source) fn new(text: String) -> Self {
        Self(text)
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// A hash of it and of `further`, in hexadecimal.
    pub fn digest(&self, further: &str) -> String {
        use sha2::{Digest as _, Sha256};
        let digest = Sha256::new().chain_update(&self.0).chain_update([0]).chain_update(further);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest.finalize()[..8]);
        format!("{:016x}", u64::from_be_bytes(bytes))
    }

    /// The OID of the publication, if it exists.
    pub(in crate::source) fn publication(&self) -> Option<&str> {
        let part = self.0.split(", ").find_map(|part| part.strip_prefix("publication "))?;
        part.split(' ').next()
    }
}
