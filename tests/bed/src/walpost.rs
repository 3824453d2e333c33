//! The walpost program as an operator runs it: a process with arguments, an environment and
//! signals, whose output can be read while it runs.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use crate::error::{BedError, Doing};
use crate::eventually::within;
use crate::process::Process;
use crate::server::Server;

/// Variables of the tester's that would change what is tested.
const FOREIGN: [&str; 5] = ["PG", "DATABASE_URL", "WALPOST_", "KAFKA_", "RUST_LOG"];

/// How to run the program; [`WalpostBuilder::start`] does it.
#[derive(Clone, Debug)]
pub struct WalpostBuilder {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    log_file: Option<PathBuf>,
    keeps_position: bool,
}

impl WalpostBuilder {
    /// With the position where walpost keeps it by default; otherwise there is no state topic, unless one
    /// is named: tests share brokers, and some have none.
    #[must_use]
    pub fn keeps_position(mut self) -> Self {
        self.keeps_position = true;
        self
    }

    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        let more = arguments.into_iter().map(|one| one.as_ref().to_owned());
        self.arguments.extend(more);
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let pair = (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.environment.push(pair);
        self
    }

    /// Several variables.
    #[must_use]
    pub fn envs(self, variables: &[(String, String)]) -> Self {
        variables.iter().fold(self, |builder, (name, value)| builder.env(name, value))
    }

    /// Standard error goes to this file, and none of its lines are read.
    #[must_use]
    pub fn stderr_to(mut self, file: impl Into<PathBuf>) -> Self {
        self.log_file = Some(file.into());
        self
    }

    /// Starts it in an empty directory of its own ([`Walpost::directory`]).
    pub fn start(self) -> Walpost {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_start(self) -> Result<Walpost, BedError> {
        let server = Server::new("run", Signal::KILL)?;
        let directory = server.directory().join("work");
        fs::create_dir(&directory).doing(|| format!("making {}", directory.display()))?;
        let program = std::path::absolute(&self.program).doing(|| "the program's path".into())?;
        let mut command = server.cleanup().launcher(&program);
        command.args(&self.arguments).current_dir(&directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(self.stderr()?);
        for (name, _) in std::env::vars_os() {
            if FOREIGN.iter().any(|one| name.as_encoded_bytes().starts_with(one.as_bytes())) {
                command.env_remove(name);
            }
        }
        // Many run at a time, and one address is for one of them.
        command.env("WALPOST_ADMIN_LISTEN", "off");
        if !self.keeps_position {
            command.env("WALPOST_DELIVERY_STATE_TOPIC", "off");
        }
        if let Some(threshold) = std::env::var_os("BED_CATCH_UP_THRESHOLD") {
            command.env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", threshold);
        }
        command.envs(self.environment);
        let mirror = Arc::new(Mutex::new(server.log()?));
        let (mut stdout, mut stderr) = (None, None);
        server.launch(&mut command, |child| {
            let out = child.stdout.take().expect("stdout is piped");
            stdout = Some(Lines::read(out, Arc::clone(&mirror)));
            stderr = Some(match child.stderr.take() {
                Some(err) => Lines::read(err, mirror),
                None => Lines::read(std::io::empty(), mirror),
            });
        })?;
        Ok(Walpost { server, stdout: stdout.expect("launched"), stderr: stderr.expect("launched") })
    }

    fn stderr(&self) -> Result<Stdio, BedError> {
        let Some(path) = &self.log_file else {
            return Ok(Stdio::piped());
        };
        let file = fs::File::options().append(true).open(path);
        Ok(file.doing(|| format!("opening {}", path.display()))?.into())
    }
}

/// How many lines a failed test prints.
const LAST_LINES: usize = 40;

/// A running (or ended) program. Dropped, it is killed.
#[derive(Debug)]
pub struct Walpost {
    server: Server,
    stdout: Lines,
    stderr: Lines,
}

/// A failed test prints the last lines of each walpost that it has.
impl Drop for Walpost {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.stderr();
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            eprintln!("walpost {:?} said last:\n{}", self.pid(), last.join("\n"));
        }
    }
}

impl Walpost {
    /// `program` is [`crate::fixture::program`] in the tests of walpost.
    pub fn builder(program: impl AsRef<Path>) -> WalpostBuilder {
        WalpostBuilder {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            log_file: None,
            keeps_position: false,
        }
    }

    /// Its working directory.
    pub fn directory(&self) -> PathBuf {
        self.server.directory().join("work")
    }

    /// The file that has all its lines; it goes with this handle.
    pub fn log_path(&self) -> PathBuf {
        self.server.log_path()
    }

    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// The lines of standard output so far.
    pub fn stdout(&self) -> Vec<String> {
        self.stdout.kept().clone()
    }

    /// The lines of standard error so far.
    pub fn stderr(&self) -> Vec<String> {
        self.stderr.kept().clone()
    }

    /// Whether a line of either output has this text.
    pub fn said(&self, text: &str) -> bool {
        self.line_with(text, (0, 0)).is_some()
    }

    /// Whether a line after the mark has this text.
    pub fn said_after(&self, mark: (usize, usize), text: &str) -> bool {
        self.line_with(text, mark).is_some()
    }

    /// Where both outputs end now, for [`Walpost::await_line_after`].
    pub fn mark(&self) -> (usize, usize) {
        (self.stdout.kept().len(), self.stderr.kept().len())
    }

    fn line_with(&self, text: &str, mark: (usize, usize)) -> Option<String> {
        let outputs = [(&self.stdout, mark.0), (&self.stderr, mark.1)];
        outputs.iter().find_map(|(lines, from)| {
            let kept = lines.kept();
            let mut later = kept.iter().skip(*from);
            later.find(|line| line.contains(text)).cloned()
        })
    }

    /// Awaits a line of either output that has this text; panics with the last lines.
    pub async fn await_line(&self, text: &str, deadline: Duration) -> String {
        self.await_line_after((0, 0), text, deadline).await
    }

    /// As [`Walpost::await_line`], of the lines after the mark.
    pub async fn await_line_after(
        &self,
        mark: (usize, usize),
        text: &str,
        deadline: Duration,
    ) -> String {
        let found = within(deadline, async || self.line_with(text, mark)).await;
        found.unwrap_or_else(|_| {
            let state = match self.server.exit() {
                Some(status) => format!("it ended with {status}"),
                None => "it runs".to_owned(),
            };
            let tail = self.server.log_tail(15);
            panic!("not within {deadline:?}: a line with {text:?}; {state}; it said:\n{tail}")
        })
    }

    /// Panics with its last lines if it has ended.
    pub fn assert_runs(&self) {
        if let Some(status) = self.server.exit() {
            panic!("it ended with {status}; it said:\n{}", self.server.log_tail(15));
        }
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.server.signal(Signal::TERM);
    }

    /// SIGINT.
    pub fn interrupt(&self) {
        self.server.signal(Signal::INT);
    }

    /// SIGHUP.
    pub fn hangup(&self) {
        self.server.signal(Signal::HUP);
    }

    /// SIGSTOP: it stays connected and does nothing.
    pub fn pause(&self) {
        self.server.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.server.signal(Signal::CONT);
    }

    /// SIGKILL; returns once it has exited, with all its lines read.
    pub async fn kill9(&self) {
        self.server.kill_all().await;
        self.read_to_the_end(Duration::from_secs(10)).await;
    }

    /// How it ended, with all its lines read; nothing when it still runs at the deadline.
    pub async fn wait(&self, deadline: Duration) -> Option<ExitStatus> {
        let status = self.server.ended(deadline).await?;
        self.read_to_the_end(deadline).await;
        Some(status)
    }

    async fn read_to_the_end(&self, deadline: Duration) {
        let _ = within(deadline, async || self.stdout.ended() && self.stderr.ended()).await;
    }

    /// Resident memory in bytes, while it runs.
    pub fn rss_bytes(&self) -> Option<u64> {
        Process(self.pid()?).rss_bytes()
    }

    /// The highest that [`Walpost::rss_bytes`] has been.
    pub fn peak_rss_bytes(&self) -> Option<u64> {
        Process(self.pid()?).peak_rss_bytes()
    }

    /// Processor time used so far in user and system mode, while it runs.
    pub fn cpu_time(&self) -> Option<Duration> {
        Process(self.pid()?).cpu_time()
    }
}

/// The lines of one output, read as they come.
#[derive(Debug)]
struct Lines {
    kept: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

impl Lines {
    fn read(output: impl Read + Send + 'static, mirror: Arc<Mutex<fs::File>>) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&kept);
        let reader = std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                // The mirror is for people; memory has the line in any case.
                let mut file = mirror.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = file.write_all(&line);
                drop(file);
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
                shared.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                line.clear();
            }
        });
        Self { kept, reader }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<String>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> bool {
        self.reader.is_finished()
    }
}
