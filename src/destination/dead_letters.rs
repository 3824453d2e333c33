//! Taking dead letters from where they are stored, for the command that publishes their events again.

use std::future::ready;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::parts::Failure;
use super::published::LocalFuture;
use crate::config::ConfigError;
use crate::ledger::Seq;
use crate::outlet::{ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{Condition, Outcome, Report, Sink, SinkError};

/// Maximum time to wait for a record's acknowledgement.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a record may be rejected with an answer that may be about it, or about the destination, before the
/// letter is kept.
const ATTEMPTS: u32 = 3;

/// How long to wait before a record is offered again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The dead letters of a destination, one at a time.
pub(crate) trait DeadLetters {
    /// The next one that is not processed, up to the end that there was at the start; `None`: that was all.
    /// What is not processed before this is called again is kept.
    fn next(&mut self) -> LocalFuture<'_, Result<Option<StoredLetter>, LettersError>>;

    /// Publishes the letter that came last, and only then counts it as processed.
    fn publish<'a, 'r: 'a>(
        &'a mut self,
        restored: Restored<'a, 'r>,
    ) -> LocalFuture<'a, Result<PutBack, LettersError>>;

    /// Counts what came last as processed, which is a duplicate of a published letter, or no letter.
    fn pass(&mut self, what: Passed) -> LocalFuture<'_, Result<(), LettersError>>;

    /// Stores the progress.
    fn commit(&mut self) -> LocalFuture<'_, Result<(), LettersError>>;

    /// Gives back what is kept.
    fn close(&mut self) -> LocalFuture<'_, Result<(), LettersError>>;
}

/// Dead letters that are being opened.
pub(crate) type OpenLetters<'a> = LocalFuture<'a, Result<Box<dyn DeadLetters>, LettersError>>;

/// The work of a [`DeadLetters`], for each destination.
pub(super) trait LetterStore {
    /// Whether letters stay where they are, and the progress passes what is no letter.
    const KEEPS_LETTERS: bool;

    /// The work of [`DeadLetters::next`].
    async fn take(&mut self) -> Result<Option<StoredLetter>, LettersError>;

    /// The work of [`DeadLetters::publish`].
    async fn put_back(&mut self, restored: Restored<'_, '_>) -> Result<PutBack, LettersError>;

    /// The progress passes what was taken last, or it is removed.
    async fn processed(&mut self) -> Result<(), LettersError>;

    /// The work of [`DeadLetters::commit`]: nothing where each letter is removed.
    async fn store_progress(&mut self) -> Result<(), LettersError> {
        Ok(())
    }

    /// The work of [`DeadLetters::close`]: nothing where letters are not taken away.
    async fn give_back(&mut self) -> Result<(), LettersError> {
        Ok(())
    }
}

impl<S: LetterStore> DeadLetters for S {
    fn next(&mut self) -> LocalFuture<'_, Result<Option<StoredLetter>, LettersError>> {
        Box::pin(self.take())
    }

    fn publish<'a, 'r: 'a>(
        &'a mut self,
        restored: Restored<'a, 'r>,
    ) -> LocalFuture<'a, Result<PutBack, LettersError>> {
        Box::pin(self.put_back(restored))
    }

    fn pass(&mut self, what: Passed) -> LocalFuture<'_, Result<(), LettersError>> {
        if what == Passed::NoLetter && !S::KEEPS_LETTERS {
            return Box::pin(ready(Ok(())));
        }
        Box::pin(self.processed())
    }

    fn commit(&mut self) -> LocalFuture<'_, Result<(), LettersError>> {
        Box::pin(self.store_progress())
    }

    fn close(&mut self) -> LocalFuture<'_, Result<(), LettersError>> {
        Box::pin(self.give_back())
    }
}

/// The letters that `opening` opens.
#[allow(clippy::unnecessary_wraps, reason = "a destination may have none")]
pub(super) fn open_letters<'a, S: LetterStore + 'static>(
    opening: impl Future<Output = Result<S, LettersError>> + 'a,
) -> Option<OpenLetters<'a>> {
    Some(Box::pin(async { Ok(Box::new(opening.await?) as Box<dyn DeadLetters>) }))
}

/// The record of a letter's event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Restored<'a, 'r> {
    /// The place of the letter, for errors.
    pub(crate) place: &'a str,
    /// The event's position.
    pub(crate) position: EventPosition,
    pub(crate) record: &'a Record<'r>,
}

/// What became of a letter.
#[derive(Debug)]
pub(crate) enum PutBack {
    /// Its event is published, and the letter is processed.
    Published,
    /// The record is rejected, and the letter is kept.
    Refused(Refusal),
    /// Somebody else has removed the letter meanwhile.
    #[cfg_attr(
        not(feature = "destinations"),
        allow(dead_code, reason = "a topic of Kafka keeps its letters")
    )]
    Gone,
}

/// What is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// A letter that is published already.
    Duplicate,
    /// A record of somebody else's. Where letters are removed, it is left.
    NoLetter,
}

/// Which letters.
#[derive(Debug, Clone, Default)]
pub(crate) struct LettersAt {
    /// Another place than the configured one.
    pub(crate) from: Option<String>,
    /// The consumer group of Kafka that has the progress.
    pub(crate) group: Option<String>,
}

/// A dead letter as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredLetter {
    /// Where it is, for lines and errors.
    pub(crate) place: String,
    /// The part of the store in which letters of a key have an order.
    pub(crate) lane: i32,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

impl StoredLetter {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(one, _)| one == name)?;
        Some(&found.1)
    }
}

/// Why dead letters cannot be taken or published. What was processed until then stays so.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LettersError {
    /// An invalid value in the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A client cannot be created.
    #[error(transparent)]
    Client(#[from] SinkError),
    /// The destination does not answer as it should.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The place of the letters does not exist.
    #[error(
        "there is no {0}: no dead letter was written yet, or they are elsewhere (--from, \
         poison.dead_letter_topic)"
    )]
    Nowhere(String),
    /// A record was not acknowledged.
    #[error("the letter at {place} could not be delivered for now, and is kept: {reason}")]
    Undelivered { place: String, reason: String },
    /// Kept and processed dead letters alternate too often.
    #[error(
        "the letter at {place} is kept: no more of its partition can be marked as done, since too \
         many before it are kept; replay those first, without --cause"
    )]
    Scattered { place: String },
    /// Another client writes the progress.
    #[error(
        "another replay is running for {0}, and continues alone; letters of the last seconds may \
         have been published by both"
    )]
    Another(String),
}

/// A sink for one record at a time.
pub(super) struct OneAtATime {
    sink: Box<dyn Sink>,
    last: Seq,
}

impl OneAtATime {
    pub(super) fn new(sink: impl Sink + 'static) -> Self {
        Self { sink: Box::new(sink), last: Seq::FIRST }
    }

    /// Publishes a record, and waits for the acknowledgement, unless it is rejected.
    pub(super) async fn deliver(
        &mut self,
        restored: Restored<'_, '_>,
    ) -> Result<PutBack, LettersError> {
        let put_back = self.outcome(restored).await?;
        crate::crash_points::point!("replayed");
        Ok(put_back)
    }

    async fn outcome(&mut self, restored: Restored<'_, '_>) -> Result<PutBack, LettersError> {
        let deadline = Instant::now() + DELIVERY_TIMEOUT;
        let mut reason = format!("no acknowledgement came within {DELIVERY_TIMEOUT:?}");
        let mut suspected = 0;
        loop {
            let outcome = self.attempt(restored, deadline, &mut reason).await?;
            if outcome == Some(Outcome::Delivered) {
                return Ok(PutBack::Published);
            }
            self.sink.replace_producer().await?;
            // The rejection may be reported after the failure that it caused.
            let mut last = Vec::new();
            self.sink.take_reports(&mut last);
            let last = last.into_iter().filter(|report| report.seq == self.last);
            for outcome in outcome.into_iter().chain(last.map(|report| report.outcome)) {
                match outcome {
                    Outcome::Delivered => return Ok(PutBack::Published),
                    Outcome::Refused(refusal) => return Ok(PutBack::Refused(refusal)),
                    // Whether it is the letter's fault is not known: it is tried again.
                    Outcome::Suspect(refusal) => {
                        suspected += 1;
                        if suspected == ATTEMPTS {
                            return Ok(PutBack::Refused(refusal));
                        }
                        reason = refusal.reason;
                    }
                    Outcome::Lost(why) => reason = why,
                    Outcome::Purged => {}
                }
            }
            if Instant::now() >= deadline {
                let place = restored.place.to_owned();
                return Err(LettersError::Undelivered { place, reason });
            }
            sleep(RETRY_PAUSE * 10).await;
        }
    }

    /// One production; `None` if it timed out.
    async fn attempt(
        &mut self,
        Restored { position, record, .. }: Restored<'_, '_>,
        deadline: Instant,
        reason: &mut String,
    ) -> Result<Option<Outcome>, LettersError> {
        self.last = self.last.plus(1);
        let mut reports: Vec<Report> = Vec::new();
        loop {
            self.sink.take_reports(&mut reports);
            match self.sink.produce(self.last, position, record) {
                Ok(()) => break,
                Err(ProduceError::Full) if Instant::now() < deadline => {
                    if let Some(outcome) = self.condition(reason)? {
                        return Ok(Some(outcome));
                    }
                    sleep(RETRY_PAUSE).await;
                }
                Err(ProduceError::Full) => return Ok(None),
                Err(ProduceError::Refused(refusal)) => return Ok(Some(Outcome::Refused(refusal))),
                Err(ProduceError::Suspect(refusal)) => return Ok(Some(Outcome::Suspect(refusal))),
                Err(ProduceError::Broken(why)) => return Ok(Some(Outcome::Lost(why))),
            }
        }
        // What is collected is sent by the first call of this.
        loop {
            self.sink.take_reports(&mut reports);
            if let Some(report) = reports.drain(..).find(|report| report.seq == self.last) {
                return Ok(Some(report.outcome));
            }
            if let Some(outcome) = self.condition(reason)? {
                return Ok(Some(outcome));
            }
            if timeout_at(deadline, self.sink.wait_for_events(true)).await.is_err() {
                return Ok(None);
            }
        }
    }

    /// What the sink reports of itself: an outcome of the record if it is lost by that.
    fn condition(&mut self, reason: &mut String) -> Result<Option<Outcome>, LettersError> {
        for condition in self.sink.take_conditions() {
            match condition {
                Condition::Unauthenticated(why) => {
                    let why = format!("the credentials are refused: {why}");
                    return Err(Failure::Unauthenticated(why).into());
                }
                Condition::Broken(why) | Condition::Regressed(why) => {
                    return Ok(Some(Outcome::Lost(why)));
                }
                Condition::Unreachable(why) | Condition::Stalled { reason: why, .. } => {
                    *reason = why;
                }
                Condition::Flowing | Condition::Repartitioned { .. } => {}
            }
        }
        Ok(None)
    }
}
