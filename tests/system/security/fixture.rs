//! A PostgreSQL and a Kafka that require authentication, and walpost's ways to authenticate.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::sync::OnceCell;
use walpost_bed::fixture::Fixture;
use walpost_bed::{CertificateAuthority, Kafka, KeyPair, Major, Postgres, Walpost, WalpostBuilder};

/// The role that `walpost init` creates, and the name of the fixture's Kafka users.
pub const USER: &str = "walpost";

/// The role's initial password.
pub const ROLE_PASSWORD: &str = "p0stgres-s3cret";

/// Connection parameters: the client certificate, and its key.
pub fn showing(pair: &KeyPair) -> String {
    format!("&sslcert={}&sslkey={}", pair.certificate.display(), pair.key.display())
}

/// A CA, and a broker and a database with its certificates.
pub struct SecureFixture {
    pub kafka: Broker,
    pub fixture: Fixture,
    directory: TempDir,
}

/// A broker with TLS, and its CA.
pub struct SecureKafka {
    pub authority: CertificateAuthority,
    pub kafka: Kafka,
}

/// The test's own broker, or the shared one.
pub enum Broker {
    Own(Box<SecureKafka>),
    Shared(&'static SecureKafka),
}

impl std::ops::Deref for Broker {
    type Target = SecureKafka;
    fn deref(&self) -> &SecureKafka {
        match self {
            Self::Own(own) => own,
            Self::Shared(shared) => shared,
        }
    }
}

impl SecureKafka {
    /// With a password for SASL/PLAIN, and those of SASL/SCRAM as they are set. Each
    /// session has to show them again every two seconds.
    pub async fn new() -> Self {
        let authority = CertificateAuthority::new();
        let mut builder = Kafka::builder().tls(&authority).user(USER, "pl4in-s3cret");
        for mechanism in ["plain", "scram-sha-512", "oauthbearer"] {
            let name = format!("listener.name.secure.{mechanism}.connections.max.reauth.ms");
            builder = builder.property(&name, "2000");
        }
        Self { kafka: builder.start().await, authority }
    }

    /// The broker shared by all tests that do not change it.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<SecureKafka> = OnceCell::const_new();
        SHARED
            .get_or_init(async || {
                let new = Self::new().await;
                new.kafka.set_password(USER, "scr4m-s3cret").await;
                new
            })
            .await
    }
}

/// The lines of `pg_hba.conf`.
pub const PASSWORD: &str = "hostssl all walpost 127.0.0.1/32 scram-sha-256";
pub const CERTIFICATE: &str = "hostssl all walpost 127.0.0.1/32 cert";

impl SecureFixture {
    /// With the shared broker.
    pub async fn new(hba: &str) -> Self {
        Self::with(Broker::Shared(SecureKafka::shared().await), hba).await
    }

    /// Whose role has the password [`ROLE_PASSWORD`].
    pub async fn with(broker: Broker, hba: &str) -> Self {
        let authority = &broker.authority;
        let pair = authority.server(&format!("postgres-{}", number()));
        // The bed's own commands connect as a local superuser.
        let hba = format!("{hba}\nhostssl all postgres 127.0.0.1/32 trust\n");
        let postgres = Postgres::builder(Major::V15)
            .tls(&pair.certificate, &pair.key)
            .client_authority(&authority.root())
            .hba(&hba);
        let fixture = Fixture::with_brokers(postgres, &broker.kafka.bootstrap()).await;
        fixture.postgres.execute(&format!("ALTER ROLE walpost PASSWORD '{ROLE_PASSWORD}'")).await;
        let directory = TempDir::new().expect("a directory");
        Self { kafka: broker, fixture, directory }
    }

    /// Writes a file for walpost, and returns its path.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).expect("written");
        private(&path);
        path
    }

    /// The address of walpost's role, with these parameters in addition to those of TLS.
    pub fn source(&self, parameters: &str) -> String {
        let root = self.kafka.authority.root();
        format!(
            "{}?sslmode=verify-full&sslrootcert={}{parameters}",
            self.fixture.postgres.url_for(USER),
            root.display()
        )
    }

    /// The same with a password.
    pub fn source_with(&self, password: &str, parameters: &str) -> String {
        self.source(parameters).replace("walpost@", &format!("walpost:{password}@"))
    }

    /// Properties of a user who logs in by this mechanism.
    pub fn login(&self, mechanism: &str, user: &str, password: &str) -> String {
        format!(
            "security.protocol=SASL_SSL\nssl.ca.location={}\nsasl.mechanism={mechanism}\n\
             sasl.username={user}\nsasl.password={password}\n",
            self.kafka.authority.root().display()
        )
    }

    /// Properties of a client with this certificate.
    pub fn certified(&self, pair: &KeyPair) -> String {
        format!(
            "security.protocol=SSL\nssl.ca.location={}\nssl.certificate.location={}\n\
             ssl.key.location={}\n",
            self.kafka.authority.root().display(),
            pair.certificate.display(),
            pair.key.display()
        )
    }

    /// A command of walpost, with its address in one file and Kafka's properties in another.
    pub fn command(
        &self,
        name: &str,
        bootstrap: &str,
        source: &Path,
        kafka: &Path,
    ) -> WalpostBuilder {
        Walpost::builder(walpost_bed::fixture::program())
            .arg(name)
            .args(["--bootstrap-servers", bootstrap])
            .args(["--topic", &self.fixture.topic("{aggregate_type}")])
            .args(["-X", "allow.auto.create.topics=true"])
            .env("WALPOST_SOURCE_URL_FILE", source)
            .env("WALPOST_KAFKA_PROPERTIES_FILE", kafka)
    }
}

/// A number that is unique in this process.
pub fn number() -> usize {
    static NUMBERS: AtomicUsize = AtomicUsize::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Readable by its owner only, or walpost refuses it.
fn private(file: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("closed");
}
