//! Credentials, certificates, and an unavailable server (62).

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert};
use walpost_bed::{CertificateAuthority, Kafka, KeyPair, Major, Postgres, Walpost, eventually};

use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(62, "expired_certificate_is_reported_until_renewed", expires),
        Case::new(62, "expired_replacement_certificate_is_reported", replaced),
        Case::new(62, "password_changed_in_the_source_file_is_reloaded", |report| {
            rotated(report, Where::Address)
        }),
        Case::new(62, "password_changed_in_the_password_file_is_reloaded", |report| {
            rotated(report, Where::Passfile)
        }),
    ]
}

const NEW_SESSION: &str = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
const DAY: Duration = Duration::from_secs(86_400);

/// A fixture whose address asks for the certificate to be checked in full.
async fn with_tls(authority: &CertificateAuthority, pair: &KeyPair) -> Fixture {
    let postgres = Postgres::builder(Major::V15).tls(&pair.certificate, &pair.key);
    let mut fixture = Fixture::with_brokers(postgres, &Kafka::shared().await.bootstrap()).await;
    fixture.source = format!(
        "{}?sslmode=verify-full&sslrootcert={}",
        fixture.source,
        authority.root().display()
    );
    fixture
}

async fn expires(report: CaseReport) {
    let authority = CertificateAuthority::new();
    let soon = SystemTime::now() + Duration::from_secs(8);
    let fixture = with_tls(&authority, &authority.server_until("short", soon)).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let mark = walpost.mark();
    eventually(SHORT_TIMEOUT, "it has expired", async || {
        SystemTime::now() > soon + Duration::from_secs(1)
    })
    .await;
    // The sessions that it had continue.
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    refused_until_renewed(&report, &fixture, &walpost, mark, &authority).await;
}

async fn replaced(report: CaseReport) {
    let authority = CertificateAuthority::new();
    let fixture =
        with_tls(&authority, &authority.server_until("good", SystemTime::now() + DAY)).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let mark = walpost.mark();
    let expired = authority.server_until("expired", SystemTime::now() - DAY);
    fixture.postgres.change_certificate(&expired.certificate, &expired.key).await;
    refused_until_renewed(&report, &fixture, &walpost, mark, &authority).await;
}

async fn refused_until_renewed(
    report: &CaseReport,
    fixture: &Fixture,
    walpost: &Walpost,
    mark: (usize, usize),
    authority: &CertificateAuthority,
) {
    fixture.postgres.query_text(NEW_SESSION).await;
    let refused = "cannot connect to PostgreSQL; retrying";
    let line = walpost.await_line_after(mark, refused, SHORT_TIMEOUT).await;
    assert!(line.contains("renew the server's certificate"), "{line}");
    report.did("named the certificate");
    fixture.postgres.execute(&insert(10, 3)).await;
    let since = Instant::now();
    eventually(SHORT_TIMEOUT, "it has tried several times", async || since.elapsed().as_secs() > 2)
        .await;
    let logged = walpost.stderr().iter().filter(|line| line.contains(refused)).count();
    assert_eq!(logged, 1, "it says so once: {:?}", walpost.stderr());
    let mark = walpost.mark();
    let renewed = authority.server_until("renewed", SystemTime::now() + DAY);
    fixture.postgres.change_certificate(&renewed.certificate, &renewed.key).await;
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    report.still_running(walpost);
}

/// Where walpost reads its password.
#[derive(Clone, Copy)]
enum Where {
    /// In the address, in the file that `WALPOST_SOURCE_URL_FILE` names.
    Address,
    /// In the file that the address names as `passfile`.
    Passfile,
}

async fn rotated(report: CaseReport, place: Where) {
    let hba = "host all turning 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
    let fixture = Fixture::with(Postgres::builder(Major::V15).hba(hba)).await;
    fixture.postgres.execute("CREATE ROLE turning LOGIN REPLICATION PASSWORD 'one'").await;
    let directory = TempDir::new().expect("a directory");
    let (url, passfile) = (directory.path().join("url"), directory.path().join("pgpass"));
    let write = |password: &str| match place {
        Where::Address => {
            fs::write(&url, fixture.postgres.url_for(&format!("turning:{password}")))
                .expect("written");
        }
        Where::Passfile => {
            fs::write(&passfile, format!("*:*:*:turning:{password}\n")).expect("written");
            private(&passfile);
        }
    };
    let address =
        format!("{}?passfile={}", fixture.postgres.url_for("turning"), passfile.display());
    fs::write(&url, address).expect("written");
    write("one");
    // The fixture's own address comes as an argument, which would win.
    let walpost = Walpost::builder(walpost_bed::fixture::program())
        .args(["run", "--bootstrap-servers", &fixture.bootstrap])
        .args(["--topic", &fixture.topic("{aggregate_type}")])
        .args(["-X", "allow.auto.create.topics=true"])
        .env("WALPOST_SOURCE_URL_FILE", &url)
        .start();
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let mark = walpost.mark();
    fixture.postgres.execute("ALTER ROLE turning PASSWORD 'two'").await;
    fixture.postgres.query_text(NEW_SESSION).await;
    let line =
        walpost.await_line_after(mark, "password authentication failed", SHORT_TIMEOUT).await;
    assert!(line.contains("cannot connect to PostgreSQL; retrying"), "{line}");
    fixture.postgres.execute(&insert(10, 3)).await;
    write("two");
    walpost.await_line_after(mark, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.did("read the file again");
    report.exact(&fixture.judge().await);
    report.still_running(&walpost);
}

/// For its owner alone, or it is not read.
fn private(file: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("closed");
}
