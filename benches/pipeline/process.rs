//! What a process has used, by the operating system's account (proc(5)).

use std::fs;
use std::time::Duration;

/// A running process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    /// Processor time so far, in user and in system mode, of all its threads.
    pub(crate) fn cpu(self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 =
            fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// Resident memory, in MiB.
    pub(crate) fn resident(self) -> f64 {
        self.mebibytes("VmRSS:")
    }

    /// The most that it has been.
    pub(crate) fn peak(self) -> f64 {
        self.mebibytes("VmHWM:")
    }

    fn mebibytes(self, field: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kibibytes.unwrap_or(f64::NAN) / 1024.0
    }
}
