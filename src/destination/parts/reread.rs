//! A configuration that is read again with each connection.

use std::fmt;
use std::sync::Arc;

/// Resolves a configuration. It reads all sources again each time, so that a changed file takes
/// effect with the next connection.
pub struct Reread<C>(Arc<dyn Fn() -> Result<C, String> + Send + Sync>);

impl<C> Reread<C> {
    /// Resolves by this function, which reads everything again. Its error is shown to the operator.
    pub fn new(read: impl Fn() -> Result<C, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The current configuration.
    pub(crate) fn read(&self) -> Result<C, String> {
        (self.0)()
    }
}

impl<C> Clone for Reread<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> fmt::Debug for Reread<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reread")
    }
}
