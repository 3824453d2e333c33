//! The metrics of the process, read at each scrape.

use std::fmt;
use std::time::SystemTime;

use procfs::process::{LimitValue, Process as Proc};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::metrics::names::process::{
    CPU_SECONDS, MAX_FDS, OPEN_FDS, RESIDENT_MEMORY, START_TIME, THREADS, VIRTUAL_MEMORY,
};
use crate::metrics::{Page, unix_seconds};

/// This process, as `/proc` shows it.
#[derive(Debug)]
pub(super) struct Process {
    /// When it started. Not from `/proc`: with systemd's `ProcSubset=pid` the kernel's boot time is
    /// not available there.
    pub(super) started: SystemTime,
}

/// The values read from `/proc`.
struct Figures {
    cpu_seconds: f64,
    resident: u64,
    virtual_size: u64,
    open_fds: u64,
    max_fds: Option<u64>,
    threads: i64,
}

impl Figures {
    #[allow(clippy::cast_precision_loss, reason = "no process is as old")]
    fn read() -> procfs::ProcResult<Self> {
        let process = Proc::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second() as f64;
        let max_fds = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(most) => Some(most),
            LimitValue::Unlimited => None,
        };
        Ok(Self {
            cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
            resident: stat.rss * procfs::page_size(),
            virtual_size: stat.vsize,
            open_fds: process.fd_count()? as u64,
            max_fds,
            threads: stat.num_threads,
        })
    }
}

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        page.gauge(&START_TIME, &unix_seconds(self.started))?;
        // Without /proc there are no other metrics.
        let Ok(figures) = Figures::read() else { return Ok(()) };
        page.counter(&CPU_SECONDS, figures.cpu_seconds)?;
        page.gauge(&RESIDENT_MEMORY, &figures.resident)?;
        page.gauge(&VIRTUAL_MEMORY, &figures.virtual_size)?;
        page.gauge(&OPEN_FDS, &figures.open_fds)?;
        if let Some(max_fds) = figures.max_fds {
            page.gauge(&MAX_FDS, &max_fds)?;
        }
        page.gauge(&THREADS, &figures.threads)
    }
}
