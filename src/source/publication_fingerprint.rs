//! The fingerprint by which a change of the publication is noticed.

/// The catalog rows of the publication and its outbox tables, as a text: equal fingerprints mean
/// that no row was left out in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublicationFingerprint(String);

impl PublicationFingerprint {
    /// The fingerprint with that text.
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The id of the publication, if there is one.
    pub(super) fn publication(&self) -> Option<&str> {
        let part = self.0.split(", ").find_map(|part| part.strip_prefix("publication "))?;
        part.split(' ').next()
    }
}
