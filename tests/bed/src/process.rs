//! What a process has used, by the operating system's account (proc(5)).

use std::fs;
use std::time::Duration;

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

    fn memory_bytes(self, field: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kibibytes * 1024)
    }

    /// Processor time used so far in user and system mode, while it runs.
    pub fn cpu_time(self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
        let user: u64 = fields.next()?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        let per_second = rustix::param::clock_ticks_per_second();
        Some(Duration::from_millis((user + system) * 1000 / per_second))
    }
}
