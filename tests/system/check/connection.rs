//! Connections to PostgreSQL that fail.

use walpost_bed::{CertificateAuthority, Major};

use crate::fixture::{Fixture, sound, succeed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn correct_setup_has_no_warnings_and_no_errors() {
    let mut fixture = Fixture::new().await;
    // The role that `init` creates has enough privileges.
    fixture.log_in_as("walpost");
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_refused_by_postgresql_is_reported() {
    let mut fixture = Fixture::new().await;
    let right = std::mem::replace(&mut fixture.source, "postgres://postgres@127.0.0.1:1/x".into());
    let words = ["listen_addresses", "port"];
    let follow = async |fixture: &mut Fixture, _: &str| fixture.source.clone_from(&right);
    fixture.finding_with_advice("error", "connection_refused", &words, follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresolvable_host_is_reported() {
    let mut fixture = Fixture::new().await;
    let right = fixture.source.clone();
    fixture.source = "postgres://postgres@nosuch.invalid/x".into();
    let follow = async |fixture: &mut Fixture, _: &str| fixture.source.clone_from(&right);
    fixture.finding_with_advice("error", "host_unknown", &["host"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_pg_hba_entry_is_reported() {
    let lines = "host all postgres 127.0.0.1/32 trust\n";
    let authority = CertificateAuthority::new();
    let pair = authority.server("hba");
    let builder = sound(Major::V15).tls(&pair.certificate, &pair.key).hba(lines);
    let mut fixture = Fixture::on(builder).await;
    fixture.execute("ALTER ROLE walpost PASSWORD 'secret'").await;
    fixture.log_in_as("walpost:secret");
    let plain = fixture.source.clone();
    fixture.source.push_str("?sslmode=disable");
    // Never a method that sends the password in clear text.
    let follow = async |fixture: &mut Fixture, advice: &str| {
        let line = advice.split('`').nth(1).expect("the line stands in backticks");
        assert!(line.starts_with("hostssl "), "{line}");
        fixture.postgres.change_hba(&format!("{line}\n{lines}")).await;
        let root = authority.root();
        fixture.source = format!("{plain}?sslmode=verify-full&sslrootcert={}", root.display());
    };
    let words = ["127.0.0.1/32", "scram-sha-256", "pg_reload_conf", "sslmode=verify-full"];
    fixture.finding_with_advice("error", "pg_hba", &words, follow).await;
    fixture.check().await.finding("ok", "replication");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password_is_reported() {
    let lines = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    let mut fixture = Fixture::on(sound(Major::V15).hba(lines)).await;
    fixture.execute("ALTER ROLE walpost PASSWORD 'right'").await;
    fixture.log_in_as("walpost:mistaken");
    let follow = async |fixture: &mut Fixture, _: &str| fixture.log_in_as("walpost:right");
    fixture
        .finding_with_advice("error", "authentication", &["PGPASSWORD", "\\password"], follow)
        .await;
    // A missing line is as wrong.
    fixture.log_in_as("walpost");
    fixture.check().await.finding("error", "authentication");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_role_or_privilege_is_reported() {
    let mut fixture = Fixture::new().await;
    let database = fixture.database.clone();
    fixture.log_in_as("relay");
    let what = fixture.check().await.finding("error", "role_login")["what"].to_string();
    assert!(what.contains("Rolle »relay« existiert nicht"), "the server speaks German: {what}");
    fixture.finding_is_fixed("error", "role_login").await;
    fixture.execute("ALTER ROLE relay NOREPLICATION").await;
    fixture.finding_is_fixed("error", "role_replication").await;
    fixture.execute("ALTER ROLE relay NOLOGIN").await;
    fixture.finding_is_fixed("error", "role_login").await;
    fixture.execute(&format!("REVOKE CONNECT ON DATABASE {database} FROM public")).await;
    fixture.finding_is_fixed("error", "database_connect").await;
    fixture.execute("ALTER ROLE relay CONNECTION LIMIT 0").await;
    fixture.finding_is_fixed("error", "connection_limit").await;
    fixture.execute(&format!("ALTER DATABASE {database} CONNECTION LIMIT 0")).await;
    fixture.finding_is_fixed("error", "connection_limit").await;
    fixture.check().await.is_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managed_service_grant_statement_is_printed() {
    // Recognised by its role; the service defines the role's privileges.
    let mut fixture = Fixture::on(sound(Major::V15)).await;
    fixture.execute("CREATE ROLE rds_superuser; CREATE ROLE plain LOGIN").await;
    fixture.log_in_as("plain");
    let report = fixture.check().await;
    let finding = report.finding("error", "role_replication");
    assert_eq!(finding["fix"], "GRANT rds_replication TO \"plain\";");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_database_is_reported() {
    let mut fixture = Fixture::new().await;
    let right = fixture.source.clone();
    fixture.source = format!("postgres://postgres@127.0.0.1:{}/nosuch", fixture.postgres.port());
    let follow = async |fixture: &mut Fixture, _: &str| fixture.source.clone_from(&right);
    fixture.finding_with_advice("error", "database_missing", &["dbname"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_pooler_is_reported() {
    // A pooler that rejects a session's options also rejects the ordinary connection.
    let pooler_finding = pooler("").await;
    assert!(pooler_finding["what"].to_string().contains("startup parameter"), "{pooler_finding:#}");
    // A pooler that drops them lets the connection through.
    let pooler_finding = pooler("ignore_startup_parameters = options\n").await;
    assert!(pooler_finding["what"].to_string().contains("replication"), "{pooler_finding:#}");
}

/// The finding with a pooler of these settings in between; without the pooler it disappears.
async fn pooler(settings: &str) -> serde_json::Value {
    let mut fixture = Fixture::new().await;
    let pooler = Pooler::start(fixture.postgres.port(), settings);
    let right = fixture.source.clone();
    let database = &fixture.database;
    fixture.source = format!("postgres://postgres@127.0.0.1:{}/{database}", pooler.port);
    let follow = async |fixture: &mut Fixture, _: &str| fixture.source.clone_from(&right);
    let report = fixture
        .finding_with_advice("error", "connection_pooler", &["host and port", "6432"], follow)
        .await;
    report.finding("error", "connection_pooler").clone()
}

/// A `pgbouncer` in front of a server, stopped on drop.
struct Pooler {
    port: u16,
    child: std::process::Child,
    _directory: tempfile::TempDir,
}

impl Pooler {
    fn start(server: u16, settings: &str) -> Self {
        let directory = tempfile::TempDir::new().expect("a directory");
        let port = free_port();
        let file = directory.path().join("pgbouncer.ini");
        let users = directory.path().join("users");
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("written");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\nauth_file = {}\nlogfile = {}\n{settings}",
            users.display(),
            directory.path().join("log").display()
        );
        std::fs::write(&file, text).expect("written");
        // It refuses to run as root.
        let mut chown = std::process::Command::new("chown");
        chown.args(["-R", "postgres"]).arg(directory.path());
        succeed(chown, "");
        let mut command = std::process::Command::new("/usr/sbin/pgbouncer");
        command.args(["-q", "-u", "postgres"]).arg(&file);
        let child = command.spawn().expect("pgbouncer is there: apt-get install pgbouncer");
        let address = ("127.0.0.1", port);
        let limit = std::time::Instant::now() + walpost_bed::fixture::SHORT_TIMEOUT;
        while std::net::TcpStream::connect(address).is_err() {
            assert!(std::time::Instant::now() < limit, "pgbouncer does not listen");
            std::thread::yield_now();
        }
        Self { port, child, _directory: directory }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port without a listener.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
