//! The loop around the core: it receives, produces, confirms, reconnects and
//! stops as the core says, and decides nothing about delivery itself.
//!
//! Everything runs on one task. The replication session answers keepalives on
//! a task of its own, so that PostgreSQL never waits for Kafka; Kafka's client
//! has its own threads.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::core::{Core, Counters, Taken};
use super::ends::{RelayError, RelaySettings, Summary, Until};
use super::news::News;
use super::pace::Pace;
use super::stall::Stall;
use super::standby::Standby;
use super::stop::{Order, StopReceiver};
use super::waits::{Backoff, backoff, wait_until};
use crate::ledger::StreamError;
use crate::lsn::Lsn;
use crate::pgoutput::Message;
use crate::sink::{Condition, Outcome, Report, Sink};
use crate::source::{Feed, Mark, Received, Resume, ServerIdentity, Source, SourceError};

/// Messages taken in a row before reports and signals are looked at.
const BATCH: u32 = 256;

/// How often acknowledgements are looked at while messages are taken: as often
/// as confirmations are sent.
const REPORTS_INTERVAL: Duration = Duration::from_millis(50);

/// Longest wait between two attempts at PostgreSQL, and between two replays.
const BACKOFF_LIMIT: Duration = Duration::from_secs(5);

/// A session that lasted this long was a good one: the next is opened at once.
const GOOD_SESSION: Duration = Duration::from_secs(10);

/// For how long a broker that refuses the credentials may never have taken them.
const BEGINNING: Duration = Duration::from_secs(30);

/// How soon a record that the sink had no room for is offered again where no
/// report comes: room is made a little after the report.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Instead of a way out that would lead past what is not delivered.
const UNDELIVERED: &str = "records before it were not delivered in time: start walpost again first";

/// Longest wait for a slot that another walpost holds: the standby takes over
/// this soon after the other has gone.
const IN_USE_LIMIT: Duration = Duration::from_secs(1);

/// A relay: built, run once, and gone.
pub struct Relay<P, S> {
    core: Core,
    sink: S,
    source: P,
    settings: RelaySettings,
    stop: StopReceiver,
    known: Option<Known>,
    until: Option<Lsn>,
    /// Nothing more is to begin, for a reason of the relay's own.
    leaving: bool,
    /// The last confirmation was seen to arrive.
    finished: bool,
    /// Set once stopping began.
    deadline: Option<Instant>,
    /// When it was made.
    began: Instant,
    reconnect_delay: Backoff,
    reports: Vec<Report>,
    delivered: u64,
    news: News,
    stall: Stall,
    /// A and the verdicts when the last replay began: where neither has risen since, the
    /// next replay has to wait longer.
    reached_at_replay: Option<(Lsn, u64)>,
    replay_delay: Backoff,
    warned: Counters,
}

/// What positions belong to: the last session's server and publication.
struct Known {
    identity: ServerIdentity,
    mark: Mark,
    walsender: Option<i32>,
}

/// How a session ended, where the relay goes on or is done.
enum Ended {
    Lost(SourceError),
    /// It is of no use to connect again.
    Failed(SourceError),
    Replay,
    Done,
}

/// What became of connecting.
enum Opened<F> {
    Session(Box<F>),
    /// Stopping came first.
    Stopped,
    /// It is of no use to try again.
    Never(SourceError),
}

impl<P: Source, S: Sink> Relay<P, S> {
    /// A relay from `source` through `core` to `sink`, stopped through `stop`.
    pub fn new(
        core: Core,
        sink: S,
        source: P,
        settings: RelaySettings,
        stop: StopReceiver,
    ) -> Self {
        Self {
            core,
            sink,
            source,
            settings,
            stop,
            known: None,
            until: None,
            leaving: false,
            finished: false,
            deadline: None,
            began: Instant::now(),
            reconnect_delay: backoff(BACKOFF_LIMIT),
            reports: Vec::new(),
            delivered: 0,
            news: News::default(),
            stall: Stall::new(Instant::now()),
            reached_at_replay: None,
            replay_delay: backoff(BACKOFF_LIMIT),
            warned: Counters::default(),
        }
    }

    /// Runs until it is told to stop, has reached its end, or a person must act.
    ///
    /// Give it a runtime of one thread and of its own: in a dense stream it rests
    /// by putting its thread to sleep, half a millisecond at a time.
    pub async fn run(mut self) -> Result<Summary, RelayError> {
        loop {
            let session = match self.connect().await? {
                Opened::Session(session) => session,
                Opened::Stopped => return self.outcome(),
                Opened::Never(error) => return self.leave(error).await,
            };
            let began = Instant::now();
            match self.stream(*session).await? {
                Ended::Done => return self.outcome(),
                Ended::Failed(error) => return self.leave(error).await,
                Ended::Lost(error) => {
                    tracing::warn!(%error, confirmed = %self.core.confirmable(), "lost PostgreSQL, connecting again");
                    self.core.session_lost();
                    if !self.pause_after(began).await? {
                        return self.outcome();
                    }
                }
                Ended::Replay => {
                    if !self.replace_producer().await? {
                        return self.outcome();
                    }
                }
            }
        }
    }

    /// Waits before the next session where the last one, begun at `began`, broke
    /// at once; false when stopping came first.
    async fn pause_after(&mut self, began: Instant) -> Result<bool, RelayError> {
        if began.elapsed() >= GOOD_SESSION {
            self.reconnect_delay = backoff(BACKOFF_LIMIT);
            return Ok(true);
        }
        let delay = self.reconnect_delay.next().unwrap_or(BACKOFF_LIMIT);
        Ok(self.meanwhile(sleep(delay)).await?.is_some())
    }

    /// Delivers what is in flight, which a lost slot would not hand out again,
    /// and ends with `error`.
    async fn leave(mut self, error: SourceError) -> Result<Summary, RelayError> {
        if self.core.in_flight().0 > 0 {
            tracing::error!(%error, "PostgreSQL cannot be used any more");
        }
        self.core.session_lost();
        self.leaving = true;
        self.meanwhile(std::future::pending::<()>()).await?;
        let SourceError::Encoding(_) = error else { return Err(error.into()) };
        let delivered = self.core.is_drained() && self.core.undelivered() == 0;
        let way_out = if delivered {
            SourceError::way_out_of_encoding(self.source.slot(), self.core.resume_at())
        } else {
            UNDELIVERED.to_owned()
        };
        Err(SourceError::Undecodable(format!("{error}. {way_out}")).into())
    }

    /// A session, however long it takes.
    async fn connect(&mut self) -> Result<Opened<P::Feed>, RelayError> {
        let mut delays = backoff(BACKOFF_LIMIT);
        let mut told: Option<SourceError> = None;
        let mut standby = Standby::new(self.known.as_ref().map(|known| known.mark.clone()));
        loop {
            let resume = self.resume(&standby);
            let source = self.source.clone();
            let Some(opened) = self.meanwhile(source.open(&resume)).await? else {
                return Ok(Opened::Stopped);
            };
            let error = match opened {
                Ok(session) => {
                    let passed = session.start() > self.core.confirmable();
                    if passed && self.known.is_some() && !self.give_way(session.start()).await? {
                        return Ok(Opened::Stopped);
                    }
                    self.connected(&session);
                    return Ok(Opened::Session(Box::new(session)));
                }
                Err(error) => error,
            };
            if let SourceError::InUse { holder: Some(holder), .. } = &error {
                standby.saw(holder.is_walpost, &holder.mark, Instant::now());
            }
            let limit = match &error {
                SourceError::Lost(_) => BACKOFF_LIMIT,
                SourceError::Access(_) if self.known.is_some() => BACKOFF_LIMIT,
                SourceError::InUse { .. } => IN_USE_LIMIT,
                _ => return Ok(Opened::Never(error)),
            };
            let delay = delays.next().unwrap_or(limit).min(limit);
            if told.as_ref() == Some(&error) {
                tracing::debug!(%error, ?delay, "PostgreSQL still cannot be used");
            } else if matches!(error, SourceError::InUse { .. }) {
                tracing::info!("{error}");
            } else {
                tracing::warn!(%error, "PostgreSQL cannot be used, trying again until it can");
            }
            told = Some(error);
            if self.meanwhile(sleep(delay)).await?.is_none() {
                return Ok(Opened::Stopped);
            }
        }
    }

    fn resume(&self, standby: &Standby) -> Resume {
        let mark = standby.mark().cloned();
        match &self.known {
            None => Resume::AtSlot { mark },
            Some(known) => Resume::At {
                identity: known.identity.clone(),
                mark: mark.unwrap_or_default(),
                walsender: known.walsender,
                confirmed: self.core.confirmable(),
                start: self.core.resume_at(),
                after_another: standby.is_after_another(),
            },
        }
    }

    /// Another relay held the slot in between and has delivered up to `start`:
    /// what this one has in flight is of the past. False when stopping came first.
    async fn give_way(&mut self, start: Lsn) -> Result<bool, RelayError> {
        let ours = self.core.confirmable();
        tracing::info!(%ours, %start, "another walpost has gone on in between: going on where it ended");
        self.new_producer().await
    }

    fn connected(&mut self, session: &P::Feed) {
        self.core.connected(session.start(), session.tables());
        if self.known.is_none() {
            self.until = self.settings.until.map(|until| match until {
                Until::Current => session.flushed(),
                Until::Lsn(lsn) => lsn,
            });
        }
        let identity = session.identity().clone();
        let (mark, walsender) = (session.mark().clone(), session.walsender());
        self.known = Some(Known { identity: identity.clone(), mark, walsender });
        if self.news.is_told() {
            // What is tried every few seconds is no news.
            tracing::debug!(confirmed = %self.core.confirmable(), "streaming from PostgreSQL");
            return;
        }
        tracing::info!(
            slot = self.source.slot(),
            confirmed = %self.core.confirmable(),
            system_identifier = %identity.system_identifier,
            timeline = identity.timeline,
            "streaming from PostgreSQL"
        );
    }

    /// Streams until the session ends or the relay has to act beyond it.
    async fn stream(&mut self, mut session: P::Feed) -> Result<Ended, RelayError> {
        let mut held: Option<Message> = None;
        let mut pace = Pace::new(Instant::now());
        let mut look = interval(REPORTS_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Before what is held is offered again: reports are what it waits for.
            self.take_reports();
            let step = self.take_batch(&mut session, &mut held);
            self.settle()?;
            if self.see_whether_reached() {
                self.settle()?;
            }
            session.confirm(self.core.confirmable());
            let taken = match step {
                Ok(taken) => taken,
                Err(error) => return Ok(failed_or_lost(error)),
            };
            if self.is_done() {
                self.finish(session).await?;
                return Ok(Ended::Done);
            }
            if self.core.wants_replay().is_some() {
                return Ok(Ended::Replay);
            }
            let reading = held.is_none() && self.core.wants_input();
            if let Some(rest) = pace.taken(taken, Instant::now())
                && reading
                && !session.is_backed_up()
            {
                // The thread itself: whatever else it has to do can wait as long.
                std::thread::sleep(rest);
            }
            let waiting = self.core.in_flight().0 > 0;
            let retry = held.is_some().then(|| Instant::now() + RETRY_AFTER);
            let wake = retry.into_iter().chain(self.deadline).min();
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.stirred(!reading) => {}
                received = session.next(reading) => {
                    let step = received.and_then(|received| self.take(received, &mut held));
                    if let Err(error) = step {
                        return Ok(failed_or_lost(error));
                    }
                }
                _ = look.tick(), if waiting => {}
                () = wait_until(wake) => {}
            }
        }
    }

    /// Takes what has come already, as far as the core wants it; gives how many
    /// messages that were.
    fn take_batch(
        &mut self,
        session: &mut P::Feed,
        held: &mut Option<Message>,
    ) -> Result<u32, SourceError> {
        if self.core.wants_input()
            && let Some(message) = held.take()
        {
            self.take(Received::Message(message), held)?;
        }
        for taken in 0..BATCH {
            if held.is_some() || !self.core.wants_input() {
                return Ok(taken);
            }
            let Some(received) = session.try_next() else {
                return Ok(taken);
            };
            self.take(received?, held)?;
        }
        Ok(BATCH)
    }

    fn take(&mut self, received: Received, held: &mut Option<Message>) -> Result<(), SourceError> {
        match received {
            Received::Keepalive(wal_end) => self.core.keepalive(wal_end),
            Received::Message(message) => {
                crate::crash::point!("received");
                let broken = |error: StreamError| {
                    SourceError::Lost(format!("PostgreSQL's stream broke its rules: {error}"))
                };
                if self.core.receive(&message, &mut self.sink).map_err(broken)? == Taken::NotYet {
                    *held = Some(message);
                }
            }
        }
        Ok(())
    }

    /// Credits what has been reported.
    fn take_reports(&mut self) {
        self.sink.take_reports(&mut self.reports);
        for report in self.reports.drain(..) {
            match report.outcome {
                Outcome::Delivered => {
                    self.delivered += 1;
                    self.core.delivered(report.seq);
                    crate::crash::point!("acknowledged");
                }
                Outcome::Lost(reason) => self.core.lost(report.seq, &reason),
                Outcome::Refused(refusal) => self.core.refused(report.seq, &refusal),
                Outcome::Purged => self.core.purged(report.seq),
            }
        }
    }

    /// Credits reports, tells of changes, and sees whether to begin stopping.
    fn settle(&mut self) -> Result<(), RelayError> {
        self.take_reports();
        self.tell_of_the_sink()?;
        self.tell_of_refused_messages();
        self.news.put_aside(self.core.take_put_aside());
        if self.stop.order() == Order::Abort {
            return Err(RelayError::Aborted);
        }
        let told = self.leaving || self.stop.order() == Order::Drain;
        if told {
            self.core.drain();
        }
        // A halt has all the time that it takes to deliver what is before it.
        if told && self.deadline.is_none() {
            // A quarter of the time, at most two seconds, is kept for the last confirmation.
            let kept = (self.settings.drain_timeout / 4).min(Duration::from_secs(2));
            self.deadline = Some(Instant::now() + self.settings.drain_timeout.saturating_sub(kept));
            let (records, bytes) = self.core.in_flight();
            tracing::info!(records, bytes, "stopping: delivering what is in flight");
        }
        Ok(())
    }

    /// Leaves once `until` can be confirmed: only where there is a session to
    /// confirm it by. True where it is reached just now.
    fn see_whether_reached(&mut self) -> bool {
        let reached = self.until.is_some_and(|until| self.core.confirmable() >= until);
        let now = reached && !self.leaving;
        self.leaving |= reached;
        now
    }

    fn tell_of_the_sink(&mut self) -> Result<(), RelayError> {
        // Whether a refused password is that of a wrong configuration, rather than
        // one that was changed under way.
        let beginning = self.delivered == 0 && self.began.elapsed() < BEGINNING;
        for condition in self.sink.take_conditions() {
            match condition {
                Condition::Unauthenticated(reason) if beginning => {
                    return Err(RelayError::Unauthenticated(reason));
                }
                Condition::Broken(reason) => self.core.producer_broken(&reason),
                other => {
                    self.stall.heard(&other);
                    self.news.heard(other, self.delivered);
                }
            }
        }
        let (records, _) = self.core.in_flight();
        let matters = records > 0 || self.delivered == 0;
        let failed = self.core.suspects() || self.core.halted().is_some();
        self.news.tell(self.delivered, matters, failed);
        let (oldest, confirmed) = (self.core.oldest_in_flight(), self.core.confirmable());
        let replays = self.core.wants_replay().is_some();
        if !replays && self.stall.is_out_of_patience(oldest, confirmed, Instant::now()) {
            self.core
                .producer_broken("no acknowledgement came for long, though the brokers answer");
        }
        Ok(())
    }

    fn tell_of_refused_messages(&mut self) {
        let counters = self.core.counters();
        if counters.refused_messages > self.warned.refused_messages {
            tracing::warn!(
                count = counters.refused_messages,
                "refused logical messages that were emitted outside a transaction: they have no \
                 position that survives a replay; emit them with pg_logical_emit_message(true, …)"
            );
            self.warned = counters;
        }
    }

    fn is_done(&self) -> bool {
        self.core.is_drained() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Ends the session with the last confirmation.
    async fn finish(&mut self, session: P::Feed) -> Result<(), RelayError> {
        let confirmed = self.core.confirmable();
        let within = (self.settings.drain_timeout / 4).min(Duration::from_secs(2));
        let finished = tokio::select! {
            biased;
            finished = session.finish(confirmed, within) => finished,
            () = self.stop.aborted() => return Err(RelayError::Aborted),
        };
        match finished {
            Ok(()) => {
                self.finished = true;
                tracing::info!(%confirmed, "confirmed to PostgreSQL");
            }
            Err(error) => match failed_or_lost(error) {
                Ended::Failed(error) => return Err(error.into()),
                Ended::Lost(error) => tracing::warn!(%error, "the next start may repeat records"),
                Ended::Replay | Ended::Done => {}
            },
        }
        Ok(())
    }

    /// Throws the producer away and begins again at A; false when stopping
    /// came first.
    async fn replace_producer(&mut self) -> Result<bool, RelayError> {
        let reason = self.core.wants_replay().unwrap_or("asked for").to_owned();
        let from = self.core.confirmable();
        let reached = (from, self.core.verdicts());
        if self.reached_at_replay.is_none_or(|then| reached > then) {
            self.replay_delay = backoff(BACKOFF_LIMIT);
        }
        let delay = self.replay_delay.next().unwrap_or(BACKOFF_LIMIT);
        self.news.replay(reason, from, delay, self.delivered);
        self.reached_at_replay = Some(reached);
        Ok(self.new_producer().await? && self.meanwhile(sleep(delay)).await?.is_some())
    }

    /// Puts a new producer in the place of the old one; false when stopping came first.
    async fn new_producer(&mut self) -> Result<bool, RelayError> {
        tokio::select! {
            biased;
            replaced = self.sink.replace_producer() => replaced?,
            // The old one may take its time, and nothing of it counts any more.
            () = self.stop.changed() => return self.settle().map(|()| false),
            () = wait_until(self.deadline) => return Ok(false),
        }
        // The refusal may be among the last reports, behind the failure that it caused.
        self.take_reports();
        self.core.producer_replaced();
        Ok(true)
    }

    /// Waits for `future` while reports are credited and orders obeyed; `None`
    /// when the relay is done first.
    async fn meanwhile<F: Future>(&mut self, future: F) -> Result<Option<F::Output>, RelayError> {
        let mut future = std::pin::pin!(future);
        loop {
            self.settle()?;
            if self.is_done() {
                return Ok(None);
            }
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.stirred(true) => {}
                output = &mut future => return Ok(Some(output)),
                () = wait_until(self.deadline) => {}
            }
        }
    }

    fn outcome(self) -> Result<Summary, RelayError> {
        if let Some(halt) = self.core.halted() {
            let way_out = if self.core.is_drained() {
                halt.way_out(self.source.slot())
            } else {
                UNDELIVERED.to_owned()
            };
            return Err(RelayError::Halt { halt: Box::new(halt.clone()), way_out });
        }
        // Told to stop before that is no success either: scripts go on after one.
        if self.settings.until.is_some() && self.until.is_none() {
            return Err(RelayError::Unbegun);
        }
        let reached = self.leaving && self.finished;
        let confirmed = self.core.confirmable();
        match self.until.filter(|_| !reached) {
            Some(until) if confirmed >= until => return Err(RelayError::Unconfirmed(until)),
            Some(until) => return Err(RelayError::Unreached { until, confirmed }),
            None => {}
        }
        Ok(Summary {
            counters: self.core.counters(),
            delivered: self.delivered,
            confirmed,
            undrained: self.core.undelivered(),
        })
    }
}

fn failed_or_lost(error: SourceError) -> Ended {
    match error {
        SourceError::Lost(_) | SourceError::Access(_) | SourceError::InUse { .. } => {
            Ended::Lost(error)
        }
        SourceError::Setup(_)
        | SourceError::Slot(_)
        | SourceError::Undecodable(_)
        | SourceError::Encoding(_) => Ended::Failed(error),
    }
}
