//! The fingerprint that reveals a change of the publication.

/// The catalog rows of the publication and its outbox tables, as text: equal fingerprints mean that
/// no row was omitted in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublicationFingerprint(String);

impl PublicationFingerprint {
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The OID of the publication, if it exists.
    pub(super) fn publication(&self) -> Option<&str> {
        let part = self.0.split(", ").find_map(|part| part.strip_prefix("publication "))?;
        part.split(' ').next()
    }
}
