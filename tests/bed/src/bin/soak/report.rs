//! The results, as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use walpost_bed::oracle::Verdict;

use crate::fault::Fault;
use crate::services::Services;

#[derive(Debug, Default)]
pub(crate) struct Report {
    faults: BTreeMap<Fault, Done>,
    restarts: u64,
    killed_meanwhile: u64,
    /// Rows that were confirmed while no record showed them.
    pub(crate) unpublished: usize,
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

impl Report {
    /// Records a fault, and how long after its end delivery resumed.
    pub(crate) fn add_fault(&mut self, fault: Fault, pause: Duration, services: &Services) {
        (self.restarts, self.killed_meanwhile) = (services.restarts, services.killed_meanwhile);
        let done = self.faults.entry(fault).or_default();
        done.times += 1;
        done.longest = done.longest.max(pause);
    }

    /// What came of the rows of an epoch.
    pub(crate) fn add_verdict(&mut self, verdict: &Verdict) {
        self.rows += verdict.expected;
        self.lost += verdict.missing.len();
        self.duplicates += verdict.duplicates.len();
        self.out_of_order += verdict.out_of_order.len() + verdict.scattered.len();
        self.foreign +=
            verdict.rolled_back.len() + verdict.unexpected.len() + verdict.wrong_key.len();
    }

    /// The rows of the epochs that were judged to their end.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// What came of all that was judged, in a line.
    pub(crate) fn judged(&self) -> String {
        let Self { rows, lost, duplicates, out_of_order, foreign, unpublished, .. } = self;
        format!(
            "rows {rows}, lost {lost}, duplicates {duplicates}, out of order {out_of_order}, \
             rolled back or unknown {foreign}, confirmed but not published {unpublished}"
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | kills | longest pause until delivery resumed |")?;
        writeln!(f, "|---|--:|--:|")?;
        for (fault, done) in &self.faults {
            let pause = done.longest.as_secs_f64();
            writeln!(f, "| {} | {} | {pause:.1} s |", fault.name(), done.times)?;
        }
        let all = self.faults.values();
        let kills: u64 = all.clone().map(|done| done.times).sum();
        let longest = all.map(|done| done.longest).max().unwrap_or_default();
        writeln!(f, "| all | {kills} | {:.1} s |", longest.as_secs_f64())?;
        let Self { restarts, killed_meanwhile, .. } = self;
        writeln!(
            f,
            "\nwalpost restarted {restarts} times, {killed_meanwhile} of them killed while \
             something else was down"
        )?;
        f.write_str(&self.judged())
    }
}
