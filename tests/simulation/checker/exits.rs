//! How a process may end.

use walpost::Lsn;
use walpost::record::Policy;
use walpost::relay::Summary;
use walpost::source::{SlotError, SourceError};

use super::{Checker, Process, SLACK_MS, Verdict};
use crate::trace::{Exit, InjectedFault};
use crate::wal::Poison;

impl Checker<'_> {
    /// A process ends as its schedule allows, in time, and reports the right state.
    pub(super) fn exited(&mut self, now_ms: u64, number: usize, exit: &Exit) -> Verdict {
        let process = self.processes.remove(&number).unwrap_or_default();
        let wrong = |why: &str| Err(format!("process {number} ended by {exit:?}: {why}"));
        if let Some(stop) = process.second_stop_ms
            && now_ms > stop + SLACK_MS
        {
            return wrong("late after a second stop signal");
        }
        if let Some(stop) = process.stop_ms
            && now_ms > stop + self.schedule.drain_timeout_ms + SLACK_MS
        {
            return wrong("later than its drain timeout");
        }
        if let Exit::Clean(_) | Exit::Unconfirmed = exit
            && process.feeds.was_left_late()
        {
            return wrong("after a stop signal, it closed its feed without a last confirmation");
        }
        match exit {
            Exit::Clean(summary) => match self.clean(now_ms, &process, summary) {
                Some(why) => wrong(&why),
                None => Ok(()),
            },
            Exit::Aborted if process.second_stop_ms.is_none() => wrong("only one stop signal"),
            Exit::Unconfirmed if !process.until => wrong("it had no `--until`"),
            Exit::Unconfirmed if self.has_no_excuse(&process) => {
                wrong("it closed its feed without a last confirmation")
            }
            Exit::Halted { .. } if self.schedule.policy != Policy::Halt => {
                wrong("a policy handles the event")
            }
            Exit::Halted { commit, ordinal, sure, .. } => {
                match self.halted(*commit, *ordinal, *sure) {
                    Some(why) => wrong(&why),
                    None => Ok(()),
                }
            }
            Exit::Source(error) if !self.may_fail_with(error) => {
                wrong("no such fault was injected")
            }
            Exit::Sink if !self.was(InjectedFault::ReplacementFails) => {
                wrong("no replacement failed")
            }
            Exit::Unauthenticated if !self.was(InjectedFault::Unauthenticated) => wrong("untrue"),
            Exit::Killed
            | Exit::Aborted
            | Exit::Unconfirmed
            | Exit::Sink
            | Exit::Unauthenticated
            | Exit::Source(_) => Ok(()),
        }
    }

    fn clean(&self, now_ms: u64, process: &Process, summary: &Summary) -> Option<String> {
        if process.stop_ms.is_none() && !process.until {
            return Some("no stop signal".into());
        }
        // The server may forget the position before the process has ended.
        if process.until && Some(self.slot.max(process.reached)) < process.reaches {
            return Some("it has not reached its target".into());
        }
        if process.confirmed > summary.confirmed {
            return Some(format!("{} was confirmed", process.confirmed));
        }
        // If it stopped within the time limit, and session and producer worked to the end, the next
        // start repeats nothing of what it read in that session.
        let had_a_session = process.took && !process.cut_off && process.let_go_ms == Some(now_ms);
        let in_time = |stop: u64| now_ms < stop + self.schedule.drain_timeout_ms * 3 / 4;
        // What is published before a position that PostgreSQL has forgotten is confirmed with it.
        let is_sent_again = summary.confirmed < self.state;
        // In exactly-once mode a failed commit repeats nothing.
        let undisturbed = had_a_session
            && !is_sent_again
            && !self.schedule.exactly_once
            && process.stop_ms.is_some_and(in_time)
            && !process.failed
            && summary.undrained == 0;
        if undisturbed {
            if process.produced >= summary.confirmed && process.produced > Lsn::ZERO {
                return Some(format!("the transaction at {} is repeated", process.produced));
            }
            // The last advance of the slot may be rejected, or take too long.
            let may_fail = process.feeds.in_batches()
                && (self.was(InjectedFault::SlotHeld) || self.was(InjectedFault::MoveSlow));
            let in_time = self.schedule.drain_timeout_ms > 4000;
            if self.slot < summary.confirmed && in_time && !may_fail {
                return Some(format!("the slot is at {}", self.slot));
            }
        }
        None
    }

    /// Whether a process with `--until` had everything it needs to confirm the end.
    fn has_no_excuse(&self, process: &Process) -> bool {
        let is_alone = self.schedule.walposts == 1 && process.opened > 0;
        let is_undisturbed = self.faults.is_empty() && self.schedule.poison.is_none();
        let has_time = self.schedule.drain_timeout_ms > 4000;
        is_alone && is_undisturbed && has_time && process.stop_ms.is_none()
    }

    /// The halt is at a rejected event, and everything before it is delivered if the error says so.
    fn halted(&self, commit: Lsn, ordinal: u32, sure: bool) -> Option<String> {
        let place = |event: &crate::wal::Event| (event.commit, event.ordinal);
        let at = self.log.events.iter().position(|event| place(event) == (commit, ordinal));
        let Some(at) = at.filter(|at| self.log.events[*at].poison != Poison::None) else {
            return Some("that event can be delivered".into());
        };
        // In exactly-once mode its own transaction is not published in part.
        let is_own = |event: usize| self.log.events[event].commit == commit;
        let missing = |event: &usize| {
            let given_up = self.given_up.contains(&self.log.events[*event].item);
            let is_pending = self.schedule.exactly_once && is_own(*event);
            !given_up && !is_pending && !self.appended.contains(event)
        };
        let missing = (0..at).find(missing).filter(|_| sure);
        missing.map(|event| format!("event {event} before it was not delivered"))
    }

    fn may_fail_with(&self, error: &SourceError) -> bool {
        let others = self.schedule.walposts > 1;
        match error {
            SourceError::Slot(SlotError::Undelivered { error, .. }) => {
                self.may_fail_with(&SourceError::Slot((**error).clone()))
            }
            SourceError::Slot(SlotError::Advanced { .. }) => {
                others || self.was(InjectedFault::SlotMoved) || !self.given_up.is_empty()
            }
            SourceError::Slot(SlotError::AheadOfState { .. } | SlotError::MadeAgain { .. }) => {
                self.was(InjectedFault::SlotMoved)
                    || self.was(InjectedFault::SlotDropped)
                    || !self.given_up.is_empty()
            }
            SourceError::Slot(SlotError::BehindState { .. } | SlotError::OtherState { .. }) => {
                self.was(InjectedFault::ServerRestored)
            }
            // A server that crashes may forget a position that an operator has accepted.
            SourceError::Slot(SlotError::OtherHistory { .. }) => {
                self.was(InjectedFault::ServerRestored)
                    || self.was(InjectedFault::SlotMoved)
                    || self.was(InjectedFault::SlotDropped)
                    || !self.given_up.is_empty()
            }
            SourceError::Slot(SlotError::PartlyPublished { .. }) => {
                self.was(InjectedFault::LayoutChanged)
            }
            SourceError::Slot(SlotError::OtherServer { .. }) => {
                self.was(InjectedFault::OtherServer)
            }
            SourceError::Slot(_) => self.was(InjectedFault::SlotDropped),
            SourceError::Access(_) => self.was(InjectedFault::AccessRefused),
            _ => false,
        }
    }
}
