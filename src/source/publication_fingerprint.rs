//! What tells whether a publication was changed.

/// What the catalogs hold of the publication and its outbox tables: equal where
/// nothing was changed that could have kept a row back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublicationFingerprint(String);

impl PublicationFingerprint {
    /// The mark of that text.
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The publication's own part: its id, where there is one.
    pub(super) fn publication(&self) -> Option<&str> {
        let part = self.0.split(", ").find_map(|part| part.strip_prefix("publication "))?;
        part.split(' ').next()
    }
}
