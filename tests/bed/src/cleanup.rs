//! A temporary directory, and a watchdog that outlives this process.
//!
//! The watchdog is a shell at the other end of a pipe. When the pipe closes (the guard was dropped,
//! or this process died in any way) it stops the server whose process id is in `run/pid`, and a
//! PostgreSQL that this one has left in `data`, frees the shared memory of a killed PostgreSQL,
//! unmounts what was mounted there, and removes the directory. Servers write that file before they
//! exec, so none ever runs unnoticed; a server that starts too late finds no `run` and gives up.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cache::make_open;
use crate::error::{BedError, Doing};

const WATCHDOG: &str = r#"
dir=$1 gentle=$2
await_end() {
  turns=0
  while [ $turns -lt 160 ]; do
    # A dead process that nobody has reaped yet is dead enough.
    case $(sed 's/.*) //' "/proc/$pid/stat") in ''|[ZX]*) break ;; esac
    sleep 0.05
    turns=$((turns + 1))
  done
}
while read -r _; do :; done
mv "$dir/run" "$dir/ended" 2>/dev/null && sleep 0.05
if [ -s "$dir/ended/pid" ]; then
  read -r pid <"$dir/ended/pid"
  kill -s CONT "$pid"
  kill -s "$gentle" "$pid"
  await_end
  kill -s KILL -- "-$pid" "$pid"
fi 2>/dev/null
# Patroni starts its PostgreSQL apart.
if [ -s "$dir/data/postmaster.pid" ]; then
  read -r pid <"$dir/data/postmaster.pid"
  if [ "$(readlink "/proc/$pid/cwd")" = "$dir/data" ]; then
    kill -s QUIT "$pid"
    await_end
    kill -s KILL "$pid"
  fi
fi 2>/dev/null
if [ -f "$dir/data/postmaster.pid" ]; then
  set -- $(sed -n 7p "$dir/data/postmaster.pid")
  [ -n "$2" ] && ipcrm -m "$2" 2>/dev/null
fi
while read -r _ at _; do
  case $at in "$dir"/*) umount -l "$at" ;; esac
done </proc/mounts 2>/dev/null
# A copy that was under way when its starter died may still be writing.
turns=0
while rm -rf -- "$dir"; [ -e "$dir" ] && [ $turns -lt 100 ]; do
  sleep 0.1
  turns=$((turns + 1))
done 2>/dev/null
"#;

const LAUNCH: &str = r#"echo $$ >"$1/run/pid" || exit 127; shift; exec "$@""#;

#[derive(Debug)]
pub(crate) struct CleanupGuard {
    directory: PathBuf,
    watchdog: Child,
}

impl CleanupGuard {
    /// `gentle` is the name of the signal with which the server ends by itself.
    pub(crate) fn new(name: &str, gentle: &str) -> Result<Self, BedError> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let count = MADE.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let directory = std::env::temp_dir().join(format!(
            "walpost-{name}-{}-{count}-{}",
            std::process::id(),
            now.subsec_nanos()
        ));
        // The watchdog first, so that the directory is never unwatched.
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&directory)
            .arg(gentle)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .doing(|| "starting a watchdog".into())?;
        make_open(&directory.join("run"))?;
        Ok(Self { directory, watchdog })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn run_directory(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// A command that makes itself known to the watchdog before it becomes `program`.
    pub(crate) fn launcher(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", LAUNCH, "launch"]).arg(&self.directory).arg(program).process_group(0);
        command
    }

    /// Its process id may belong to another process from now on.
    pub(crate) fn forget_process(&self) {
        // It may be gone already; a second removal is no harm.
        let _ = fs::remove_file(self.run_directory().join("pid"));
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}
