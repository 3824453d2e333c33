//! What a destination promises of the rows of a database, and how tests assert it.

use std::ops::Deref;

use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::oracle::Verdict;
use walpost_bed::writer::Writer;
use walpost_bed::{Consumed, SinkFixture};

/// A fixture that knows what its destination promises. Rows that were rolled back must not be there.
pub trait Promise: Deref<Target = SinkFixture> {
    /// Whether it has each row once, even after kills; otherwise at least once, in order.
    const ONCE: bool;

    /// Everything that a consumer of it has read, or can read.
    async fn records(&self) -> Vec<Consumed>;

    /// The oracle on everything: the table against the destination.
    async fn judge(&self) -> Verdict {
        self.judge_with(&[]).await
    }

    async fn judge_with(&self, rolled_back: &[String]) -> Verdict {
        self.verdict(&self.records().await, rolled_back).await
    }

    /// The same once the writer has stopped and everything is confirmed.
    async fn judge_after(&self, writer: Writer) -> Verdict {
        let rolled_back = writer.stop().await;
        self.confirmed(LONG_TIMEOUT).await;
        self.judge_with(&rolled_back).await
    }

    /// Everything is confirmed, and it has each row once.
    async fn assert_exact(&self) {
        self.confirmed(LONG_TIMEOUT).await;
        self.judge().await.assert_exact();
    }

    /// The same once the writer has stopped.
    async fn assert_exact_after(&self, writer: Writer) {
        self.judge_after(writer).await.assert_exact();
    }

    /// Once the writer has stopped, it has the rows as it promises.
    async fn assert_kept_after(&self, writer: Writer) {
        self.assert_is_kept(&self.judge_after(writer).await);
    }

    /// It has the rows as it promises.
    async fn assert_kept(&self, rolled_back: &[String]) {
        self.assert_is_kept(&self.judge_with(rolled_back).await);
    }

    fn assert_is_kept(&self, verdict: &Verdict) {
        if Self::ONCE {
            verdict.assert_exact();
        } else {
            verdict.assert_ok();
        }
    }
}
