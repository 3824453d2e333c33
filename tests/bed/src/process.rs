//! Resource usage of a process, from proc(5).

use std::fs;
use std::time::Duration;

use crate::server::children_of;

/// A process, by its id.
#[derive(Clone, Copy, Debug)]
pub struct Process(pub u32);

impl Process {
    /// Resident memory in bytes, while it runs.
    pub fn rss_bytes(self) -> Option<u64> {
        self.memory_bytes("VmRSS:")
    }

    /// The highest that [`Process::rss_bytes`] has been.
    pub fn peak_rss_bytes(self) -> Option<u64> {
        self.memory_bytes("VmHWM:")
    }

    /// Resident memory in bytes, of which each shared page counts in equal parts to all processes
    /// that have it: "Pss" of proc(5), while it runs.
    pub fn pss_bytes(self) -> Option<u64> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.0)).ok()?;
        kibibytes(&rollup, "Pss:")
    }

    fn memory_bytes(self, field: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?;
        kibibytes(&status, field)
    }

    /// Processor time used so far in user and system mode, while it runs.
    pub fn cpu_time(self) -> Option<Duration> {
        let [user, system, _, _] = self.ticks()?;
        Some(duration_of(user + system))
    }

    /// The same with its children, those that have ended too.
    pub fn family_cpu_time(self) -> Option<Duration> {
        // The ended ones last: one that ends meanwhile is counted twice rather than not at all.
        let living = children_of(self.0).into_iter().filter_map(|pid| Self(pid).cpu_time());
        let living: Duration = living.sum();
        Some(living + duration_of(self.ticks()?.into_iter().sum()))
    }

    /// Its own, in user and system mode, and those of its children that have ended.
    fn ticks(self) -> Option<[u64; 4]> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        let fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
        let ticks: Result<Vec<u64>, _> = fields.take(4).map(str::parse).collect();
        ticks.ok()?.try_into().ok()
    }
}

/// The bytes of a field of which the value is in KiB.
fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn duration_of(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
