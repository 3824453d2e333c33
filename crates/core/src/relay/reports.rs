//! What the destination reports of a production.

use super::Core;
use super::commits::CommitAt;
use super::isolation::TRIED_ALONE;
use crate::ledger::Seq;
use crate::outlet::Refusal;

impl Core {
    /// The broker acknowledged production `seq`.
    pub fn delivered(&mut self, seq: Seq) {
        self.note_accepted(seq);
        let Some(isolation) = &self.isolation else {
            self.ledger.delivered(seq);
            return;
        };
        let position = self.ledger.position(seq);
        // A record that was produced in isolation in a lost session is not produced again.
        let was_isolated = isolation.record.is_none() && position == Some(isolation.position);
        let is_new = self.ledger.delivered(seq);
        if was_isolated || self.is_isolated(seq) {
            self.isolation = None;
            self.verdicts += u64::from(self.accepted.is_kept);
            // In exactly-once mode it would be isolated again and again, if each time another record
            // makes the transaction fail.
            self.request_commit(CommitAt::Boundary);
        } else if is_new {
            if let Some(isolation) = &mut self.isolation {
                isolation.has_others = true;
            }
            self.other_accepted(seq);
        }
    }

    /// Production `seq` failed for a reason that may be temporary: it is produced again with
    /// everything after it.
    pub fn lost(&mut self, seq: Seq, reason: &str) {
        if let Some(failed) = self.ledger.failed(seq)
            && !self.probe_failed(seq, false)
        {
            self.isolate(failed);
            self.ask_for_replay(reason);
        }
    }

    /// Production `seq` was purged with its producer.
    pub fn purged(&mut self, seq: Seq) {
        if self.ledger.failed(seq).is_some() {
            self.ask_for_replay("the producer went down");
        }
    }

    /// The broker permanently rejected production `seq`.
    pub fn refused(&mut self, seq: Seq, refusal: &Refusal) {
        if self.is_isolated(seq) && self.ledger.failed(seq).is_some() {
            self.quarantine_or_halt(refusal);
        } else {
            self.refused_among_others(seq, &refusal.reason);
        }
    }

    /// Production `seq` was refused with an answer that may be about its record, or about everything:
    /// see the module `suspects`.
    pub fn suspected(&mut self, seq: Seq, refusal: &Refusal) {
        if self.is_isolated(seq) && self.ledger.failed(seq).is_some() {
            self.judge(refusal);
        } else {
            self.refused_among_others(seq, TRIED_ALONE);
        }
    }
}
