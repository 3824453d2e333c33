//! One server for all tests, each of which has a database of its own.
//!
//! The programs are those of `PATH`, or the newest of Debian's packages. A shell watches over the
//! server: when the tests end, however they end, its input ends, and it stops the server by its
//! process id and removes the data.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

/// How long the server may take to accept its first connection.
const READY: Duration = Duration::from_secs(60);

/// Starts the server given as `$2`…, and stops it at the end of the input.
const WATCH: &str = r#"
directory="$1"; shift
"$@" >"$directory/log" 2>&1 </dev/null & server=$!
read -r _
kill -QUIT "$server"; wait "$server"
rm -rf "$directory"
"#;

struct Server {
    port: u16,
    directory: PathBuf,
    /// Its input ends with this process.
    _watch: Child,
}

/// A database of one test, with walpost's outbox and a table of orders.
pub(crate) struct Database {
    port: u16,
    name: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let server = tokio::task::spawn_blocking(server).await.expect("the server starts");
        let admin = server.ready().await;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database is made");
        let database = Self { port: server.port, name };
        database.execute(include_str!("../../../../sql/01-schema.sql")).await;
        // In the order of the insertions, where they are made under one lock.
        database.execute("ALTER TABLE public.outbox ADD seq bigserial").await;
        database
            .execute(
                "CREATE TABLE orders (id int PRIMARY KEY, version int NOT NULL DEFAULT 0);
                 INSERT INTO orders VALUES (7), (8)",
            )
            .await;
        database
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn url(&self) -> String {
        self.url_by(self.port)
    }

    /// By way of a proxy.
    pub(crate) fn url_by(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{}", self.name)
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.url()).await
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client()
            .await
            .batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// A row of texts.
    pub(crate) async fn row(&self, sql: &str) -> Vec<Option<String>> {
        let mut rows = self.rows(sql).await;
        assert_eq!(rows.len(), 1, "{sql}");
        rows.remove(0)
    }

    /// All rows, as texts.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let messages = self.client().await.simple_query(sql).await.expect("a query");
        let rows = messages.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.map(|row| (0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()).collect()
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let row = self.row(sql).await;
        row[0].as_deref().and_then(|text| text.parse().ok()).expect("a number")
    }

    /// How many events there are.
    pub(crate) async fn events(&self) -> i64 {
        self.number("SELECT count(*) FROM public.outbox").await
    }

    /// The version of order 7.
    pub(crate) async fn version(&self) -> i64 {
        self.number("SELECT version FROM orders WHERE id = 7").await
    }

    /// Ends a session and waits until it has ended.
    pub(crate) async fn terminate(&self, pid: i32) {
        self.rows(&format!("SELECT pg_terminate_backend({pid})")).await;
        self.ended(pid).await;
    }

    /// Waits until a session has ended.
    pub(crate) async fn ended(&self, pid: i32) {
        let client = self.client().await;
        for _ in 0..3000 {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1";
            let row = client.query_one(sql, &[&pid]).await.expect("a query");
            if row.get::<_, i64>(0) == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("session {pid} does not end");
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    // Its errors show at the client.
    tokio::spawn(connection);
    client
}

pub(crate) async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.expect("a pid").get(0)
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

impl Server {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
        let port = port.port();
        let name = format!("walpost-outbox-{}-{port}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        let account = account();
        if let Some((uid, gid)) = account {
            chown(&directory, Some(uid), Some(gid)).expect("root may give it away");
        }
        let data = directory.join("data");
        let binaries = binaries();
        let mut init = Command::new(binaries.join("initdb"));
        init.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]);
        init.arg(&data).stdout(Stdio::null()).current_dir("/");
        apply(account, &mut init);
        assert!(init.status().expect("initdb runs").success(), "initdb failed");

        let mut watch = Command::new("sh");
        watch.args(["-c", WATCH, "sh"]).arg(&directory).arg(binaries.join("postgres"));
        watch.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "wal_level=logical",
            "shared_buffers=16MB",
            "dynamic_shared_memory_type=mmap",
        ] {
            watch.args(["-c", setting]);
        }
        watch.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        apply(account, &mut watch);
        let watch = watch.spawn().expect("sh runs");
        Self { port, directory, _watch: watch }
    }

    /// A session of the superuser.
    async fn ready(&self) -> Client {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", self.port);
        let begun = Instant::now();
        loop {
            match tokio_postgres::connect(&url, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return client;
                }
                Err(_) if begun.elapsed() < READY => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => {
                    let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                    panic!("PostgreSQL does not start: {error}\n{log}");
                }
            }
        }
    }
}

/// Where the server's programs are.
fn binaries() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<_> = debian
        .filter_map(|entry| {
            let major: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((major, entry.path().join("bin")))
        })
        .collect();
    debian.sort();
    let all = std::env::split_paths(&path).chain(debian.into_iter().rev().map(|(_, path)| path));
    all.filter(|path| ["initdb", "postgres"].iter().all(|it| path.join(it).is_file()))
        .map(|path| fs::canonicalize(path.join("postgres")).map_or(path, |it| parent(&it)))
        .next()
        .expect("PostgreSQL's server is installed")
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_owned()
}

/// The system's `postgres`, if root runs the tests: the server refuses to run as root.
fn account() -> Option<(u32, u32)> {
    let own = fs::metadata("/proc/self").ok()?;
    if std::os::unix::fs::MetadataExt::uid(&own) != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("the users can be read");
    let found = users.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let [name, _, uid, gid, ..] = fields.as_slice() else { return None };
        (*name == "postgres").then(|| Some((uid.parse().ok()?, gid.parse().ok()?)))?
    });
    Some(found.expect("root needs a user `postgres` to run the server as"))
}

fn apply(account: Option<(u32, u32)>, command: &mut Command) {
    if let Some((uid, gid)) = account {
        command.uid(uid).gid(gid);
    }
}
