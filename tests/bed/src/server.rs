//! One server process: started, signalled, awaited, killed, restarted.
//!
//! Its owner decides what it runs and when it is ready.

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use crate::cleanup::CleanupGuard;
use crate::error::{BedError, Doing};
use crate::eventually::{within, within_blocking};

/// How long a server may take until it answers, recovery of its data included: one limit for all.
pub(crate) const READY: Duration = Duration::from_secs(120);

/// How long one question may take that asks whether it does. A connection to a server that is just
/// starting may stay without an answer.
const ANSWER: Duration = Duration::from_secs(20);

/// How long a server may take to shut down when its handle is dropped.
const FAREWELL: Duration = Duration::from_secs(6);

#[derive(Debug)]
pub(crate) struct Server {
    cleanup: CleanupGuard,
    gentle: Signal,
    child: Mutex<Option<Child>>,
    last_exit: Mutex<Option<ExitStatus>>,
}

impl Server {
    /// `gentle` ends it at once but leaves nothing behind.
    pub(crate) fn new(name: &str, gentle: Signal) -> Result<Self, BedError> {
        let signal_name = match gentle {
            Signal::QUIT => "QUIT",
            Signal::TERM => "TERM",
            _ => "KILL",
        };
        Ok(Self {
            cleanup: CleanupGuard::new(name, signal_name)?,
            gentle,
            child: Mutex::new(None),
            last_exit: Mutex::new(None),
        })
    }

    pub(crate) fn cleanup(&self) -> &CleanupGuard {
        &self.cleanup
    }

    pub(crate) fn directory(&self) -> &Path {
        self.cleanup.directory()
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.directory().join("log")
    }

    /// The log, opened so that a restarted server continues where the last one ended.
    pub(crate) fn log(&self) -> Result<File, BedError> {
        let path = self.log_path();
        File::options()
            .create(true)
            .append(true)
            .open(&path)
            .doing(|| format!("opening {}", path.display()))
    }

    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<_> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Starts the command; `take` gets the child for its pipes before it is stored.
    pub(crate) fn launch(
        &self,
        command: &mut Command,
        take: impl FnOnce(&mut Child),
    ) -> Result<(), BedError> {
        assert!(self.pid().is_none(), "it runs already");
        let mut child = command.spawn().doing(|| "starting a process".into())?;
        take(&mut child);
        *self.child() = Some(child);
        Ok(())
    }

    /// Awaits that the process answers; an error has the last lines of its log.
    pub(crate) async fn ready<E: Display>(
        &self,
        name: impl Display,
        mut ask: impl AsyncFnMut() -> Result<(), E>,
    ) -> Result<(), BedError> {
        let ready = within(READY, async || match timeout(ANSWER, ask()).await {
            Ok(Ok(())) => Ok(Ok(())),
            _ if self.pid().is_none() => Ok(Err("it ended".to_owned())),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer".to_owned()),
        });
        let (Ok(Err(reason)) | Err(reason)) = ready.await else { return Ok(()) };
        Err(BedError::Start { server: name.to_string(), reason, log: self.log_tail(15) })
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.reap();
        self.child().as_ref().map(Child::id)
    }

    /// How it ended; nothing while it runs or before its first start.
    pub(crate) fn exit(&self) -> Option<ExitStatus> {
        self.pid()
            .is_none()
            .then(|| *self.last_exit.lock().unwrap_or_else(PoisonError::into_inner))
            .flatten()
    }

    fn reap(&self) {
        let mut child = self.child();
        let ended = child.as_mut().and_then(|one| one.try_wait().ok().flatten());
        if let Some(status) = ended {
            *child = None;
            *self.last_exit.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
            self.cleanup.forget_process();
        }
    }

    /// Sends a signal; does nothing if the process has exited.
    pub(crate) fn signal(&self, signal: Signal) {
        self.reap();
        // The child is unreaped under the lock: the id is still its own.
        if let Some(child) = self.child().as_ref() {
            crate::server::signal(child.id(), signal);
        }
    }

    /// How it ended, or nothing when it did not in time.
    pub(crate) async fn ended(&self, deadline: Duration) -> Option<ExitStatus> {
        let _ = within(deadline, async || self.pid().is_none()).await;
        self.exit()
    }

    /// Asks it to stop (SIGTERM); whether it had stopped within the deadline.
    pub(crate) async fn stop(&self, deadline: Duration) -> bool {
        self.signal(Signal::TERM);
        self.ended(deadline).await;
        self.pid().is_none()
    }

    /// Kills it and its children with SIGKILL, and awaits that they have exited.
    pub(crate) async fn kill_all(&self) {
        let Some(pid) = self.pid() else { return };
        // The child is unreaped: the id is still its own.
        kill_family(pid).await;
        self.ended(FAREWELL).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        self.signal(self.gentle);
        if within_blocking(FAREWELL, || self.pid().is_none()).is_err() {
            self.signal(Signal::KILL);
            let _ = within_blocking(FAREWELL, || self.pid().is_none());
        }
    }
}

/// Sends a signal to a process that may have exited.
pub(crate) fn signal(id: u32, signal: Signal) {
    let _ = kill_process(pid_of(id), signal);
}

/// Kills a process and its children with SIGKILL, and awaits that they have exited.
pub(crate) async fn kill_family(pid: u32) {
    let family: Vec<_> = std::iter::once(pid).chain(children_of(pid)).collect();
    for one in &family {
        signal(*one, Signal::KILL);
    }
    let _ = within(FAREWELL, async || family.iter().all(|pid| !is_alive(*pid))).await;
}

fn pid_of(id: u32) -> Pid {
    let id = i32::try_from(id).expect("Linux process ids fit an i32");
    Pid::from_raw(id).expect("a process that we know of is not 0")
}

/// State and parent of a process, from `/proc/PID/stat`.
fn state_and_parent(pid: u32) -> io::Result<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything, so read behind the last one.
    let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let state = fields.next().and_then(|field| field.chars().next());
    let parent = fields.next().and_then(|field| field.parse().ok());
    state.zip(parent).ok_or(io::ErrorKind::InvalidData.into())
}

fn is_alive(pid: u32) -> bool {
    matches!(state_and_parent(pid), Ok((state, _)) if state != 'Z' && state != 'X')
}

pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|one| matches!(state_and_parent(*one), Ok((_, parent)) if parent == pid))
        .collect()
}
