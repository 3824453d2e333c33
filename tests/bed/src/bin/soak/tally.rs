//! What was done and what came of it, as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use walpost_bed::oracle::Verdict;

use crate::fault::Fault;
use crate::stage::Stage;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    faults: BTreeMap<Fault, Done>,
    restarts: u64,
    killed_meanwhile: u64,
    /// Rows that were confirmed while no record showed them.
    pub(crate) passed_over: usize,
    rows: usize,
    lost: usize,
    duplicates: usize,
    out_of_order: usize,
    foreign: usize,
}

#[derive(Debug, Default)]
struct Done {
    times: u64,
    longest: Duration,
}

impl Tally {
    /// A fault was committed, and delivery went on so long after its end.
    pub(crate) fn add(&mut self, fault: Fault, pause: Duration, stage: &Stage) {
        (self.restarts, self.killed_meanwhile) = (stage.restarts, stage.killed_meanwhile);
        let done = self.faults.entry(fault).or_default();
        done.times += 1;
        done.longest = done.longest.max(pause);
    }

    /// What came of the rows of an epoch.
    pub(crate) fn judged(&mut self, verdict: &Verdict) {
        self.rows += verdict.expected;
        self.lost += verdict.missing.len();
        self.duplicates += verdict.duplicates.len();
        self.out_of_order += verdict.out_of_order.len() + verdict.scattered.len();
        self.foreign +=
            verdict.rolled_back.len() + verdict.unexpected.len() + verdict.wrong_key.len();
    }

    pub(crate) fn kills(&self) -> u64 {
        self.faults.values().map(|done| done.times).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | kills | longest pause until delivery went on |")?;
        writeln!(f, "|---|--:|--:|")?;
        for (fault, done) in &self.faults {
            let pause = done.longest.as_secs_f64();
            writeln!(f, "| {} | {} | {pause:.1} s |", fault.name(), done.times)?;
        }
        let longest = self.faults.values().map(|done| done.longest).max().unwrap_or_default();
        writeln!(f, "| all | {} | {:.1} s |", self.kills(), longest.as_secs_f64())?;
        let Self { restarts, killed_meanwhile, passed_over, rows, .. } = self;
        let Self { lost, duplicates, out_of_order, foreign, .. } = self;
        write!(
            f,
            "\nwalpost started again {restarts} times, {killed_meanwhile} of them while something \
             else was away\nrows {rows}, lost {lost}, duplicates {duplicates}, out of order \
             {out_of_order}, rolled back or unknown {foreign}, confirmed but not published \
             {passed_over}"
        )
    }
}
