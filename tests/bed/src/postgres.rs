//! A PostgreSQL server of a chosen major version, with its own data and port.
//!
//! The bed connects through the socket as the superuser, which stays possible whatever
//! `pg_hba.conf` a test writes. Slots, publications and decoding are up to the test.

mod install;
mod snapshot;
mod standby;
mod upgrade;
mod wal;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::cache;
use crate::disk::SmallDisk;
use crate::error::{BedError, Doing};
use crate::os_account::OsAccount;
use crate::port::Port;
use crate::server::{READY, Server, children_of, signal};

use install::install_tools;
pub(crate) use install::{install, of_the_system};

pub use snapshot::DataSnapshot;
pub use standby::{PausedReceiver, STANDBY_SLOT};

/// A major version of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Major {
    V14,
    V15,
    V16,
    V17,
    V18,
}

impl Major {
    pub const ALL: [Self; 5] = [Self::V14, Self::V15, Self::V16, Self::V17, Self::V18];

    pub fn number(self) -> u8 {
        match self {
            Self::V14 => 14,
            Self::V15 => 15,
            Self::V16 => 16,
            Self::V17 => 17,
            Self::V18 => 18,
        }
    }

    /// The newest that the system itself has installed.
    pub fn of_the_system() -> Option<Self> {
        Self::ALL.into_iter().rev().find(|major| of_the_system(*major).is_some())
    }
}

/// A way to stop, as in [the manual](https://www.postgresql.org/docs/current/server-shutdown.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Waits until the sessions end by themselves.
    Smart,
    /// Ends the sessions, then writes a shutdown checkpoint.
    Fast,
    /// Ends at once; the next start recovers.
    Immediate,
}

impl Stop {
    fn signal(self) -> Signal {
        match self {
            Self::Smart => Signal::TERM,
            Self::Fast => Signal::INT,
            Self::Immediate => Signal::QUIT,
        }
    }
}

/// What a server is to be like; [`PostgresBuilder::start`] makes it.
#[derive(Clone, Debug)]
pub struct PostgresBuilder {
    major: Major,
    encoding: String,
    own_identity: bool,
    has_tools: bool,
    hba: Option<String>,
    disk_bytes: Option<u64>,
    tls: Option<(PathBuf, PathBuf)>,
    client_root: Option<PathBuf>,
    language: Option<String>,
    settings: Vec<(String, String)>,
}

impl PostgresBuilder {
    fn new(major: Major) -> Self {
        let settings = [
            ("wal_level", "logical"),
            ("max_wal_senders", "20"),
            ("max_replication_slots", "20"),
            ("max_prepared_transactions", "20"),
            ("fsync", "off"),
            // Its segments lie in the data directory, so a killed server leaves none elsewhere.
            ("dynamic_shared_memory_type", "mmap"),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
        ];
        Self {
            major,
            encoding: "UTF8".to_owned(),
            own_identity: false,
            has_tools: false,
            hba: None,
            disk_bytes: None,
            tls: None,
            client_root: None,
            language: None,
            settings: settings.map(|(name, value)| (name.into(), value.into())).into(),
        }
    }

    /// A line of `postgresql.conf`; a later one of the same name wins.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn wal_sender_timeout(self, timeout: Duration) -> Self {
        self.setting("wal_sender_timeout", &format!("{}ms", timeout.as_millis()))
    }

    /// The encoding of the template databases, for example `LATIN1`; the locale is C.
    #[must_use]
    pub fn encoding(mut self, encoding: &str) -> Self {
        encoding.clone_into(&mut self.encoding);
        self
    }

    /// The whole text of `pg_hba.conf` for connections over TCP.
    #[must_use]
    pub fn hba(mut self, text: &str) -> Self {
        self.hba = Some(text.to_owned());
        self
    }

    /// A disk of its own for the data directory, of that size. It takes root.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk_bytes = Some(bytes);
        self
    }

    /// TLS on, with this certificate and key (PEM files, copied).
    #[must_use]
    pub fn tls(mut self, certificate: &Path, key: &Path) -> Self {
        self.tls = Some((certificate.to_owned(), key.to_owned()));
        self.setting("ssl", "on")
    }

    /// Trusts the clients' certificates of this authority (with TLS on, and where
    /// [`PostgresBuilder::hba`] asks for them).
    #[must_use]
    pub fn client_authority(mut self, root: &Path) -> Self {
        self.client_root = Some(root.to_owned());
        self.setting("ssl_ca_file", "root.crt")
    }

    /// The language of its messages, such as `de_DE`. The packages of Linux distributions have
    /// translations, others do not: see [`Major::of_the_system`].
    #[must_use]
    pub fn language(mut self, language: &str) -> Self {
        let locale = format!("{language}.UTF-8");
        self.language = Some(locale.clone());
        self.setting("lc_messages", &locale)
    }

    /// Gives the cluster a system identifier of its own, which costs a second.
    ///
    /// Without it all servers of one major and encoding are copies that share one.
    #[must_use]
    pub fn own_identity(mut self) -> Self {
        self.own_identity = true;
        self
    }

    /// With the programs of PostgreSQL's client packages, such as `pg_upgrade` and `pg_dump`, and an
    /// identity of its own.
    #[must_use]
    pub fn tools(mut self) -> Self {
        self.has_tools = true;
        self.own_identity()
    }

    /// Starts it and awaits that it accepts connections.
    pub async fn start(self) -> Postgres {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start(self) -> Result<Postgres, BedError> {
        let server = tokio::task::spawn_blocking(move || self.lay_out())
            .await
            .expect("laying out a cluster does not panic")?;
        server.try_start_again().await?;
        Ok(server)
    }

    /// A cluster on disk with its settings, not running yet.
    fn lay_out(self) -> Result<Postgres, BedError> {
        let binaries =
            if self.has_tools { install_tools(self.major)? } else { install(self.major)? };
        let account = OsAccount::of_postgres()?;
        let server = Server::new("pg", Signal::QUIT)?;
        let port = Port::reserve()?;
        let data = server.directory().join("data");
        let sockets = server.directory().join("sock");
        cache::make_open(&sockets)?;
        account.own(&sockets)?;
        account.own(&server.cleanup().run_directory())?;
        let disk = self.disk_bytes.map(|bytes| SmallDisk::mount(&data, bytes)).transpose()?;
        if self.own_identity {
            cache::make_open(&data)?;
            account.own(&data)?;
            // A cluster from before 18 has no checksums, and `pg_upgrade` does not add them.
            let is_like_older = self.has_tools && self.major >= Major::V18;
            let arguments: &[_] = if is_like_older { &["--no-data-checksums"] } else { &[] };
            install::init(&binaries, account, &self.encoding, &data, arguments)?;
        } else {
            let template = install::template(&binaries, account, &self.encoding)?;
            let mut copy = Command::new("cp");
            copy.args(["-a", "--no-target-directory"]).arg(template).arg(&data);
            cache::run(&mut copy, "cp", "coreutils")?;
        }
        let locales = self.language.as_deref();
        let locales = locales.map(|name| install::locale(server.directory(), name)).transpose()?;
        let postgres = Postgres {
            locales,
            _disk: disk,
            server,
            account,
            program: binaries.join("postgres"),
            major: self.major,
            port,
            hba: Mutex::new(self.hba),
        };
        postgres.write_settings(&self.settings)?;
        postgres.write_hba()?;
        if let Some((certificate, key)) = &self.tls {
            postgres.write_certificate(certificate, key)?;
        }
        if let Some(root) = &self.client_root {
            postgres.write_private(root, "root.crt")?;
        }
        Ok(postgres)
    }
}

/// A running (or stopped) server. It is removed with its data on drop.
#[derive(Debug)]
pub struct Postgres {
    /// First, since the directory is not removed while it is there.
    _disk: Option<SmallDisk>,
    server: Server,
    account: OsAccount,
    program: PathBuf,
    major: Major,
    port: Port,
    hba: Mutex<Option<String>>,
    /// Where its locales are, if not where the system's are.
    locales: Option<PathBuf>,
}

impl Postgres {
    pub fn builder(major: Major) -> PostgresBuilder {
        PostgresBuilder::new(major)
    }

    /// A server with logical decoding on and all else as usual.
    pub async fn start(major: Major) -> Self {
        Self::builder(major).start().await
    }

    pub fn major(&self) -> Major {
        self.major
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The directory of its Unix socket, as a `host` of a connection string.
    pub fn socket_dir(&self) -> PathBuf {
        self.server.directory().join("sock")
    }

    pub fn data_dir(&self) -> PathBuf {
        self.server.directory().join("data")
    }

    /// The address of the superuser on the database `postgres`; no password.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    pub fn url_for(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.port())
    }

    /// The process id of the postmaster, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self, lines: usize) -> String {
        self.server.log_tail(lines)
    }

    /// A session of the superuser; it ends when the client is dropped.
    pub async fn client(&self) -> Client {
        self.client_of("postgres").await
    }

    /// A session of the superuser on another database.
    pub async fn client_of(&self, database: &str) -> Client {
        self.connect(database)
            .await
            .unwrap_or_else(|error| panic!("connecting to {database}: {}", spelled(&error)))
    }

    async fn connect(&self, database: &str) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::Config::new()
            .host_path(self.socket_dir())
            .port(self.port())
            .user("postgres")
            .dbname(database)
            .application_name("walpost-bed")
            .connect(NoTls)
            .await?;
        // The connection ends with its client; an error there shows at the client.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Runs statements in a session of their own; several make one transaction.
    pub async fn execute(&self, sql: &str) {
        if let Err(error) = self.client().await.batch_execute(sql).await {
            panic!("{sql}: {}", spelled(&error));
        }
    }

    /// The first column of the first row, as text; nothing for no row or NULL.
    pub async fn query_text(&self, sql: &str) -> Option<String> {
        self.query_rows(sql).await.into_iter().next()?.into_iter().next()?
    }

    /// The same of a server that may not run.
    pub async fn try_query_text(&self, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
        let messages = self.connect("postgres").await?.simple_query(sql).await?;
        Ok(rows_of(&messages).into_iter().next().and_then(|row| row.into_iter().next()?))
    }

    /// All rows, all columns, as text.
    pub async fn query_rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let answer = self.client().await.simple_query(sql).await;
        rows_of(&answer.unwrap_or_else(|error| panic!("{sql}: {}", spelled(&error))))
    }

    /// Asks it to stop and returns at once.
    pub fn begin_stop(&self, how: Stop) {
        self.server.signal(how.signal());
    }

    /// Asks it to stop; whether it had stopped within the deadline.
    pub async fn stop(&self, how: Stop, deadline: Duration) -> bool {
        self.begin_stop(how);
        self.stopped(deadline).await
    }

    /// Whether it had stopped within the deadline.
    pub async fn stopped(&self, deadline: Duration) -> bool {
        self.server.ended(deadline).await;
        self.pid().is_none()
    }

    /// Kills the postmaster and all its children with SIGKILL; returns once they have exited.
    pub async fn kill9(&self) {
        self.server.kill_all().await;
    }

    /// Freezes all its processes (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        // The postmaster first, so that it starts no others.
        self.server.signal(Signal::STOP);
        for pid in self.pid().into_iter().flat_map(children_of) {
            signal(pid, Signal::STOP);
        }
    }

    /// Thaws them.
    pub fn resume(&self) {
        for pid in self.pid().into_iter().flat_map(children_of) {
            signal(pid, Signal::CONT);
        }
        self.server.signal(Signal::CONT);
    }

    /// Stops its background writer with SIGSTOP, until the server ends.
    pub async fn pause_background_writer(&self) {
        let pid = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'";
        let pid = self.query_text(pid).await.expect("a server has one");
        signal(pid.parse().expect("a process id"), Signal::STOP);
    }

    /// Starts a stopped server on its port with its data, and awaits that it is ready.
    pub async fn start_again(&self) {
        self.try_start_again().await.unwrap_or_else(|error| panic!("{error}"));
    }

    pub async fn try_start_again(&self) -> Result<(), BedError> {
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = self.server.cleanup().launcher(&self.program);
        command.arg("-D").arg(self.data_dir()).stdin(std::process::Stdio::null());
        command.stdout(log).stderr(errors).current_dir("/").env_remove("PGDATA");
        if let Some(locales) = &self.locales {
            command.env("LOCPATH", locales);
        }
        self.account.apply(&mut command);
        self.server.launch(&mut command, |_| ())?;
        let ask = async || match self.connect("postgres").await {
            Err(error) if !answers(&error) => Err(spelled(&error)),
            _ => Ok(()),
        };
        self.server.ready(format!("PostgreSQL {}", self.major.number()), ask).await
    }

    /// Stops it (a minute is given) and starts it again.
    pub async fn restart(&self, how: Stop) {
        let stopped = self.stop(how, Duration::from_secs(60)).await;
        assert!(stopped, "PostgreSQL did not stop ({how:?}):\n{}", self.log_tail(10));
        self.start_again().await;
    }

    /// Replaces `pg_hba.conf` for connections over TCP, in force for new connections on return.
    pub async fn change_hba(&self, text: &str) {
        *self.hba.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
        self.write_hba().unwrap_or_else(|error| panic!("{error}"));
        self.reload().await;
    }

    /// Replaces the certificate of a server with TLS, in force for new connections on return.
    pub async fn change_certificate(&self, certificate: &Path, key: &Path) {
        self.write_certificate(certificate, key).unwrap_or_else(|error| panic!("{error}"));
        self.reload().await;
    }

    async fn reload(&self) {
        let loaded = "SELECT pg_conf_load_time()::text";
        let before = self.query_text(loaded).await;
        self.execute("SELECT pg_reload_conf()").await;
        crate::eventually(READY, "the reload", async || self.query_text(loaded).await != before)
            .await;
    }

    fn write_settings(&self, settings: &[(String, String)]) -> Result<(), BedError> {
        let path = self.data_dir().join("postgresql.conf");
        let mut text = fs::read_to_string(&path).doing(|| format!("reading {}", path.display()))?;
        let sockets = self.socket_dir();
        let own = [
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("port", self.port().to_string()),
            ("unix_socket_directories", sockets.display().to_string()),
        ];
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let asked = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(asked) {
            let quoted = value.replace('\'', "''");
            let _ = writeln!(text, "{name} = '{quoted}'");
        }
        fs::write(&path, text).doing(|| format!("writing {}", path.display()))
    }

    /// Under the names that PostgreSQL looks for.
    fn write_certificate(&self, certificate: &Path, key: &Path) -> Result<(), BedError> {
        self.write_private(certificate, "server.crt")?;
        self.write_private(key, "server.key")
    }

    /// Copies a file into the data directory, for the server alone.
    fn write_private(&self, from: &Path, name: &str) -> Result<(), BedError> {
        let place = self.data_dir().join(name);
        fs::copy(from, &place).doing(|| format!("copying {}", from.display()))?;
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&place, private).doing(|| format!("closing {name}"))?;
        self.account.own(&place)
    }

    fn write_hba(&self) -> Result<(), BedError> {
        let hba = self.hba.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(text) = hba.as_ref() else {
            return Ok(());
        };
        let path = self.data_dir().join("pg_hba.conf");
        fs::write(&path, format!("local all postgres trust\n{text}\n"))
            .doing(|| format!("writing {}", path.display()))
    }
}

pub(crate) fn rows_of(messages: &[SimpleQueryMessage]) -> Vec<Vec<Option<String>>> {
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
        }
        _ => None,
    };
    messages.iter().filter_map(row).collect()
}

/// An error that only a server which accepts connections can send.
fn answers(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| *code != SqlState::CANNOT_CONNECT_NOW)
}

pub(crate) fn spelled(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{} ({})", server.message(), server.code().code()),
        None => error.to_string(),
    }
}
