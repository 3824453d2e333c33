//! Events that wait for the commit.

use crate::record::Record;

/// The events of a transaction, in the order in which they were published.
///
/// `has_failed` once an event could not be kept or sent: the transaction may not be committed then.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pub(super) records: Vec<Record>,
    pub(super) has_failed: bool,
}

/// A place in a buffer, to which it returns when this is dropped.
#[derive(Debug)]
pub(super) struct Mark<'b> {
    buffer: &'b mut Buffer,
    len: usize,
    had_failed: bool,
    is_kept: bool,
}

impl Buffer {
    /// Marks the end of the buffer.
    pub(super) fn mark(&mut self) -> Mark<'_> {
        let (len, had_failed) = (self.records.len(), self.has_failed);
        Mark { buffer: self, len, had_failed, is_kept: false }
    }
}

impl Mark<'_> {
    /// The buffer, with all before and after the mark.
    pub(super) fn buffer(&mut self) -> &mut Buffer {
        self.buffer
    }

    /// Whether an event after the mark failed.
    pub(super) fn has_failed_since(&self) -> bool {
        self.buffer.has_failed && !self.had_failed
    }

    /// Keeps what came after the mark.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.buffer.records.truncate(self.len);
            self.buffer.has_failed = self.had_failed;
        }
    }
}
