//! How a sink keeps records that have to wait for the first one of their partition, and sends them
//! once it is acknowledged.

use super::{KafkaSink, max_record_bytes};
use crate::destination::kafka::first_batch_gate::{Admission, PartitionKey};
use crate::destination::kafka::held_records::HeldRecord;
use crate::ledger::Seq;
use crate::outlet::ProduceError;
use crate::record::Record;
use crate::sink::{Outcome, Report};

/// More than a record and one of its headers are longer in a request than their bytes.
const SIZE_MARGIN_BYTES: usize = 1024;
const HEADER_MARGIN_BYTES: usize = 32;

impl KafkaSink {
    /// Whether it can be kept. One that the producer may refuse for its size is not: it refuses that
    /// where the record is offered, which costs no replay.
    pub(super) fn can_hold(&self, record: &Record<'_>) -> bool {
        let bytes = record.bytes() + SIZE_MARGIN_BYTES + record.headers.len() * HEADER_MARGIN_BYTES;
        !self.held.is_full() && bytes as u64 <= max_record_bytes(&self.config)
    }

    /// Keeps a record, as production `seq`.
    pub(super) fn hold(&mut self, seq: Seq, key: PartitionKey, record: &Record<'_>) {
        self.keep(HeldRecord::new(seq, key, record));
        self.note_produced(seq, record);
    }

    /// Takes what became of records, new ones in `new`: sends those that waited for them, or discards
    /// them after a failure.
    pub(super) fn settle_held(&mut self, new: &mut Vec<Report>, before: usize) {
        let mut releases = self.held.is_unfinished;
        for report in &new[before..] {
            if report.outcome == Outcome::Delivered {
                let pool = self.pool.as_mut();
                releases |= pool.is_some_and(|pool| pool.placement.delivered(report.seq));
            } else if self.first_seq.is_some_and(|first| first <= report.seq) {
                // Earlier ones are of producers that were replaced.
                self.held.has_failed = true;
            }
        }
        if releases && !self.held.has_failed {
            new.extend(self.release());
        }
        if self.held.has_failed {
            self.held.purge(new);
        }
    }

    /// Offers the records that are kept again, in their order. Returns what became of one that cannot
    /// be sent.
    fn release(&mut self) -> Option<Report> {
        let pool = self.pool.as_mut()?;
        pool.placement.begin_again();
        self.held.is_unfinished = false;
        let mut waiting = std::mem::take(&mut self.held.records);
        let mut failure = None;
        while let Some(one) = waiting.pop_front() {
            let outcome = match self.offer_again(&one) {
                Ok(true) => continue,
                Ok(false) => {
                    self.keep(one);
                    continue;
                }
                Err(ProduceError::Full) => {
                    self.held.is_unfinished = true;
                    self.keep(one);
                    break;
                }
                Err(ProduceError::Refused(refusal)) => Outcome::Refused(refusal),
                Err(ProduceError::Suspect(refusal)) => Outcome::Suspect(refusal),
                Err(ProduceError::Broken(reason)) => Outcome::Lost(reason),
            };
            self.held.has_failed = true;
            failure = Some(Report::new(one.seq, outcome));
            break;
        }
        for one in waiting {
            self.keep(one);
        }
        failure
    }

    /// Whether it was sent.
    fn offer_again(&mut self, one: &HeldRecord) -> Result<bool, ProduceError> {
        let key = one.partition_key;
        let Some(pool) = &mut self.pool else { return Ok(false) };
        let admission = pool.placement.admission(one.topic(), Some(key));
        if admission == Admission::Wait {
            return Ok(false);
        }
        self.send(one.seq, &one.record(), Some(key), admission).map(|()| true)
    }

    fn keep(&mut self, mut one: HeldRecord) {
        if let Some(pool) = &mut self.pool {
            let key = pool.placement.keep(one.topic(), one.partition_key);
            one.place(key);
        }
        self.held.records.push_back(one);
    }
}
