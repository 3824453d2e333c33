//! A PostgreSQL cluster under Patroni: etcd, and members on ports of 127.0.0.1.
//!
//! Patroni is of `tests/bed/patroni/requirements.txt`, etcd the system's. Synchronous mode is on, so
//! that a failover keeps each commit that was acknowledged. A member that cannot follow the new
//! leader is copied from it again.

mod install;

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config, NoTls};

use crate::error::{BedError, Doing};
use crate::eventually::{eventually, within};
use crate::http;
use crate::os_account::OsAccount;
use crate::port::Port;
use crate::postgres::{Major, rows_of, spelled};
use crate::server::{Server, kill_family, signal};

const SCOPE: &str = "bed";

const MEMBERS: usize = 3;

/// How long a leader, or a standby that is copied, may take. Patroni notices the end of a leader
/// after 20 s.
const SETTLED: Duration = Duration::from_secs(180);

/// How long an attempt to connect to a member may take.
const CONNECT: Duration = Duration::from_secs(2);

/// What a cluster is to be like; [`PatroniBuilder::start`] makes it.
#[derive(Clone, Debug)]
pub struct PatroniBuilder {
    major: Major,
    awaits_standbys: bool,
    synchronizes: bool,
}

impl PatroniBuilder {
    /// Each member names the slots of all others in `synchronized_standby_slots`.
    #[must_use]
    pub fn awaits_standbys(mut self) -> Self {
        self.awaits_standbys = true;
        self
    }

    /// Standbys do not synchronize failover slots (`sync_replication_slots`).
    #[must_use]
    pub fn without_synchronization(mut self) -> Self {
        self.synchronizes = false;
        self
    }

    /// Starts it, and awaits that all standbys follow the leader.
    pub async fn start(self) -> Patroni {
        let laid_out = tokio::task::spawn_blocking(move || Patroni::lay_out(&self));
        let laid_out = laid_out.await.expect("laying out a cluster does not panic");
        let patroni = laid_out.unwrap_or_else(|error| panic!("{error}"));
        patroni.etcd.start().await.unwrap_or_else(|error| panic!("{error}"));
        for member in &patroni.members {
            patroni.launch(member).unwrap_or_else(|error| panic!("{error}"));
        }
        patroni.settled().await;
        patroni
    }
}

/// The running cluster. It is removed with its data on drop.
#[derive(Debug)]
pub struct Patroni {
    members: Vec<Member>,
    etcd: Etcd,
    major: Major,
    python: PathBuf,
    account: OsAccount,
}

#[derive(Debug)]
struct Member {
    server: Server,
    name: String,
    sql: Port,
    rest: Port,
}

/// How a cluster changed its leader.
#[derive(Clone, Debug)]
pub struct Change {
    pub from: String,
    pub to: String,
}

impl Patroni {
    pub fn builder(major: Major) -> PatroniBuilder {
        PatroniBuilder { major, awaits_standbys: false, synchronizes: major >= Major::V17 }
    }

    fn lay_out(wanted: &PatroniBuilder) -> Result<Self, BedError> {
        let account = OsAccount::of_postgres()?;
        let python = install::python()?;
        let etcd = Etcd::new()?;
        let programs = etcd.server.directory().join("bin");
        install::programs(wanted.major, &programs)?;
        let members: Result<Vec<_>, BedError> = (1..=MEMBERS)
            .map(|number| {
                Ok(Member {
                    server: Server::new("patroni", Signal::KILL)?,
                    name: format!("pg{number}"),
                    sql: Port::reserve()?,
                    rest: Port::reserve()?,
                })
            })
            .collect();
        let patroni = Self { members: members?, etcd, major: wanted.major, python, account };
        for member in &patroni.members {
            account.own(member.server.directory())?;
            account.own(&member.server.cleanup().run_directory())?;
            let text = patroni.configuration(member, wanted, &programs);
            let path = member.configuration();
            fs::write(&path, text).doing(|| format!("writing {}", path.display()))?;
        }
        Ok(patroni)
    }

    /// <https://patroni.readthedocs.io/en/latest/yaml_configuration.html>
    fn configuration(&self, member: &Member, wanted: &PatroniBuilder, programs: &Path) -> String {
        let Member { name, sql, rest, server } = member;
        let (sql, rest) = (sql.number(), rest.number());
        let directory = server.directory().display();
        let etcd = self.etcd.client.number();
        let python = self.python.display();
        let programs = programs.display();
        let synchronizes = if wanted.synchronizes { "sync_replication_slots: 'on'" } else { "" };
        let mut text = format!(
            "scope: {SCOPE}
name: {name}
etcd3: {{host: '127.0.0.1:{etcd}'}}
restapi: {{listen: '127.0.0.1:{rest}', connect_address: '127.0.0.1:{rest}'}}
bootstrap:
  initdb: [encoding: UTF8, locale: C, no-sync]
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 5
    synchronous_mode: true
    maximum_lag_on_failover: 1000000000
    postgresql:
      use_pg_rewind: false
      remove_data_directory_on_diverged_timelines: true
      parameters:
        wal_level: logical
        hot_standby_feedback: 'on'
        max_wal_senders: 20
        max_replication_slots: 20
        fsync: 'off'
        dynamic_shared_memory_type: mmap
        {synchronizes}
"
        );
        let _ = write!(
            text,
            "postgresql:
  listen: '127.0.0.1:{sql}'
  connect_address: '127.0.0.1:{sql}'
  data_dir: {directory}/data
  bin_dir: {programs}
  pgpass: {directory}/pgpass
  create_replica_methods: [copy]
  copy: {{command: '{python} {programs}/copy_member'}}
  pg_hba: ['local all all trust', 'host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust']
  authentication: {{superuser: {{username: postgres}}, replication: {{username: postgres}}}}
  parameters:
    unix_socket_directories: {directory}
"
        );
        if wanted.awaits_standbys {
            let others =
                self.members.iter().map(|other| &other.name).filter(|other| *other != name);
            let others: Vec<_> = others.map(String::as_str).collect();
            let _ = writeln!(text, "    synchronized_standby_slots: '{}'", others.join(","));
        }
        text
    }

    fn launch(&self, member: &Member) -> Result<(), BedError> {
        let log = member.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = member.server.cleanup().launcher(&self.python);
        command.args(["-m", "patroni"]).arg(member.configuration());
        command.stdin(Stdio::null()).stdout(log).stderr(errors).current_dir("/");
        for (name, _) in std::env::vars_os() {
            if ["PG", "PATRONI"]
                .iter()
                .any(|one| name.as_encoded_bytes().starts_with(one.as_bytes()))
            {
                command.env_remove(name);
            }
        }
        self.account.apply(&mut command);
        member.server.launch(&mut command, |_| ())
    }

    /// The address of the leader for walpost: all members, as in the documentation.
    pub fn source(&self) -> String {
        let hosts: Vec<_> = self
            .members
            .iter()
            .map(|member| format!("127.0.0.1:{}", member.sql.number()))
            .collect();
        format!("postgres://postgres@{}/postgres?target_session_attrs=read-write", hosts.join(","))
    }

    /// The same for other clients.
    pub fn leaders_address(&self) -> Config {
        let mut config = Config::new();
        for member in &self.members {
            config.host("127.0.0.1").port(member.sql.number());
        }
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        common(&mut config);
        config
    }

    pub fn major(&self) -> Major {
        self.major
    }

    /// The names of the members.
    pub fn names(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.name.as_str()).collect()
    }

    fn member(&self, name: &str) -> &Member {
        let found = self.members.iter().find(|member| member.name == name);
        found.unwrap_or_else(|| panic!("no member {name}"))
    }

    /// Runs statements on the leader; several make one transaction.
    pub async fn execute(&self, sql: &str) {
        self.try_rows(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// All rows, all columns, as text, of the leader.
    pub async fn query_rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.try_rows(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The same, where there may be no leader.
    pub async fn try_rows(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
        rows(&self.leaders_address(), sql).await
    }

    /// The first column of the first row on the leader, as text; nothing for no row, NULL, or where
    /// there is no leader.
    pub async fn query_text(&self, sql: &str) -> Option<String> {
        first(self.try_rows(sql).await.ok()?)
    }

    /// The same on a member.
    pub async fn query_text_of(&self, name: &str, sql: &str) -> Option<String> {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.member(name).sql.number());
        common(&mut config);
        first(rows(&config, sql).await.ok()?)
    }

    /// The member that takes writes.
    pub async fn leader(&self) -> Option<String> {
        // A member's directory has its socket.
        self.query_text(
            "SELECT regexp_replace(current_setting('unix_socket_directories'), '.*/', '')",
        )
        .await
        .and_then(|directory| {
            let of = |member: &&Member| member.server.directory().ends_with(&directory);
            self.members.iter().find(of).map(|member| member.name.clone())
        })
    }

    /// Awaits a leader, that all other members that run follow it, and that Patroni has recorded one
    /// of them as synchronous: without that it promotes none; returns the leader.
    pub async fn settled(&self) -> String {
        let running = self.members.iter().filter(|one| one.server.pid().is_some()).count();
        eventually(SETTLED, "a leader, and standbys that follow it", async || {
            let query = "SELECT count(*)
                           FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid
                          WHERE state = 'streaming' AND slot_type = 'physical'";
            let following = self.query_text(query).await;
            if following != Some((running - 1).to_string()) {
                return Err(self.state(&format!("{following:?} follow")));
            }
            let leader = self.leader().await.ok_or("no leader")?;
            let rest = self.member(&leader).rest.number();
            let cluster = http::request(rest, "GET", "/cluster", "").await?;
            let members = cluster["members"].as_array().ok_or("no members")?;
            let is_synchronous = members.iter().any(|one| one["role"] == "sync_standby");
            if is_synchronous { Ok(leader) } else { Err(self.state(&cluster.to_string())) }
        })
        .await
    }

    fn state(&self, seen: &str) -> String {
        let logs =
            self.members.iter().map(|one| format!("{}: {}", one.name, one.server.log_tail(3)));
        format!("{seen}; {}", logs.collect::<Vec<_>>().join("; "))
    }

    /// `patronictl switchover` to a synchronous standby.
    pub async fn switch_over(&self) -> Change {
        let from = self.settled().await;
        // It may refuse for a moment, for instance before it has seen a member's last state.
        let refused = within(SETTLED, async || {
            let text = self.control(&["switchover", SCOPE, "--leader", &from, "--force"]).await?;
            if text.contains("Successfully switched over") { Ok(()) } else { Err(text) }
        });
        refused.await.unwrap_or_else(|refused| panic!("patronictl switchover: {refused}"));
        self.new_leader(from).await
    }

    /// Kills the leader's PostgreSQL and its Patroni (SIGKILL), and awaits another leader.
    pub async fn fail_over(&self) -> Change {
        let from = self.settled().await;
        self.kill9(&from).await;
        self.new_leader(from).await
    }

    /// The same, after the leader has written `sql` to its own disk, and no standby has received it.
    /// `published` awaits what follows from it.
    pub async fn fail_over_and_lose(&self, sql: &str, published: impl AsyncFnOnce()) -> Change {
        let from = self.settled().await;
        let receivers = self.wal_receivers(&from).await;
        for pid in &receivers {
            signal(*pid, Signal::STOP);
        }
        let (leader, sql) = (self.leaders_address(), sql.to_owned());
        // The COMMIT waits for the synchronous standby.
        let commit = tokio::spawn(async move { rows(&leader, &sql).await });
        published().await;
        assert!(!commit.is_finished(), "a standby has received it");
        self.kill9(&from).await;
        for pid in receivers {
            // It ends before it reads what its socket has.
            signal(pid, Signal::TERM);
            signal(pid, Signal::CONT);
        }
        self.new_leader(from).await
    }

    /// The processes of the standbys that receive WAL.
    async fn wal_receivers(&self, leader: &str) -> Vec<u32> {
        let mut pids = Vec::new();
        for name in self.names().into_iter().filter(|name| *name != leader) {
            let pid = self.query_text_of(name, "SELECT pid FROM pg_stat_wal_receiver").await;
            pids.push(pid.and_then(|pid| pid.parse().ok()).expect("a standby receives WAL"));
        }
        pids
    }

    async fn new_leader(&self, from: String) -> Change {
        let to = eventually(SETTLED, "another leader", async || {
            self.leader().await.filter(|leader| *leader != from).ok_or_else(|| self.state("none"))
        })
        .await;
        Change { from, to }
    }

    /// Kills a member's Patroni and PostgreSQL with SIGKILL; returns once they have exited.
    pub async fn kill9(&self, name: &str) {
        let member = self.member(name);
        let postmaster = member.postmaster();
        member.server.kill_all().await;
        if let Some(pid) = postmaster {
            kill_family(pid).await;
        }
    }

    /// Starts the Patroni of a killed member.
    pub fn start_again(&self, name: &str) {
        self.launch(self.member(name)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Changes the dynamic configuration, as in `patronictl edit-config --set`.
    pub async fn configure(&self, setting: &str) {
        let done = self.control(&["edit-config", SCOPE, "--force", "--set", setting]).await;
        done.unwrap_or_else(|error| panic!("{setting}: {error}"));
    }

    /// `patronictl`; its output, or why it failed.
    async fn control(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.python);
        // The virtual environment was moved, so its scripts do not find their interpreter.
        command.args(["-c", "from patroni.ctl import ctl; ctl()", "-c"]);
        command.arg(self.members[0].configuration()).args(arguments).current_dir("/");
        let done = tokio::task::spawn_blocking(move || command.output()).await;
        let done = done.expect("no panic").map_err(|error| error.to_string())?;
        let text = [done.stdout, done.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        if done.status.success() { Ok(text) } else { Err(text) }
    }

    /// The last lines of a member's log, with those of its PostgreSQL.
    pub fn log_tail(&self, name: &str, lines: usize) -> String {
        self.member(name).server.log_tail(lines)
    }
}

impl Member {
    fn configuration(&self) -> PathBuf {
        self.server.directory().join("patroni.yml")
    }

    /// The process id of its PostgreSQL, if it runs.
    fn postmaster(&self) -> Option<u32> {
        let data = self.server.directory().join("data");
        let pid = fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let pid = pid.lines().next()?.parse().ok()?;
        let works_in = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (works_in == data).then_some(pid)
    }
}

#[derive(Debug)]
struct Etcd {
    server: Server,
    client: Port,
    peer: Port,
}

impl Etcd {
    fn new() -> Result<Self, BedError> {
        let server = Server::new("etcd", Signal::TERM)?;
        Ok(Self { server, client: Port::reserve()?, peer: Port::reserve()? })
    }

    async fn start(&self) -> Result<(), BedError> {
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let [client, peer] =
            [&self.client, &self.peer].map(|port| format!("http://127.0.0.1:{}", port.number()));
        let program = Path::new("/usr/bin/etcd");
        if !program.exists() {
            return Err(BedError::Missing { program: "etcd", package: "etcd-server" });
        }
        let mut command = self.server.cleanup().launcher(program);
        command.arg("--data-dir").arg(self.server.directory().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())?;
        let address = (Ipv4Addr::LOCALHOST, self.client.number());
        self.server.ready("etcd", async || TcpStream::connect(address).map(drop)).await
    }
}

fn common(config: &mut Config) {
    config.user("postgres").dbname("postgres").connect_timeout(CONNECT);
}

async fn rows(config: &Config, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
    let (client, connection) = config.connect(NoTls).await.map_err(|error| spelled(&error))?;
    // The connection ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    ask(&client, sql).await.map_err(|error| spelled(&error))
}

async fn ask(
    client: &Client,
    sql: &str,
) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
    Ok(rows_of(&client.simple_query(sql).await?))
}

fn first(rows: Vec<Vec<Option<String>>>) -> Option<String> {
    rows.into_iter().next()?.into_iter().next()?
}
