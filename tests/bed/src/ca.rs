//! A certificate authority for server and client certificates, using openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cleanup::CleanupGuard;

/// For how long a certificate holds where nobody says.
const DAY: Duration = Duration::from_secs(86_400);

/// Of a server on 127.0.0.1.
const NAMES: &str = "DNS:localhost,IP:127.0.0.1";

/// The password of [`CertificateAuthority::encrypted`]'s keys, and of nothing else.
const KEY_PASSWORD: &str = "key-s3cret";

const CONFIGURATION: &str = "
[ca]
default_ca = own
[own]
database = index
new_certs_dir = .
serial = serial
default_md = sha256
policy = any
unique_subject = no
copy_extensions = copy
x509_extensions = leaf
[any]
commonName = supplied
[leaf]
basicConstraints = CA:FALSE
[authority]
basicConstraints = critical, CA:TRUE
[req]
distinguished_name = name
[name]
";

/// A CA and all certificates that it signed. Its files are removed on drop.
#[derive(Debug)]
pub struct CertificateAuthority {
    cleanup: CleanupGuard,
    /// One at a time, since each is written into the index.
    signing: Mutex<()>,
}

/// Where a certificate and its key lie.
#[derive(Clone, Debug)]
pub struct KeyPair {
    pub certificate: PathBuf,
    /// In PEM form (PKCS#8).
    pub key: PathBuf,
}

impl Default for CertificateAuthority {
    fn default() -> Self {
        Self::new()
    }
}

impl CertificateAuthority {
    pub fn new() -> Self {
        let cleanup = CleanupGuard::new("ca", "KILL").unwrap_or_else(|error| panic!("{error}"));
        let authority = Self { cleanup, signing: Mutex::new(()) };
        for (name, text) in [("openssl.cnf", CONFIGURATION), ("index", ""), ("serial", "01\n")] {
            fs::write(authority.path(name), text).expect("written");
        }
        authority.openssl(&[
            "req -x509 -newkey rsa:2048 -nodes -keyout root.key -out root.crt -days 2",
            "-subj /CN=authority -extensions authority",
        ]);
        authority
    }

    /// The authority's own certificate.
    pub fn root(&self) -> PathBuf {
        self.path("root.crt")
    }

    /// The same with its key, for a server that shows what it should not.
    pub fn own(&self) -> KeyPair {
        KeyPair { certificate: self.root(), key: self.path("root.key") }
    }

    /// A certificate for a server on 127.0.0.1.
    pub fn server(&self, name: &str) -> KeyPair {
        self.server_until(name, SystemTime::now() + DAY)
    }

    /// The same that holds until then, from two days before.
    pub fn server_until(&self, name: &str, until: SystemTime) -> KeyPair {
        self.sign(name, "server", Some(NAMES), until)
    }

    /// A certificate for a server of other names, such as `DNS:db.example.com`.
    pub fn server_of(&self, name: &str, names: &str) -> KeyPair {
        self.sign(name, "server", Some(names), SystemTime::now() + DAY)
    }

    /// A client's certificate, for that user; for a server it would be one without names.
    pub fn client(&self, name: &str, user: &str) -> KeyPair {
        self.sign(name, user, None, SystemTime::now() + DAY)
    }

    /// The same that holds until then, from two days before.
    pub fn client_until(&self, name: &str, user: &str, until: SystemTime) -> KeyPair {
        self.sign(name, user, None, until)
    }

    /// The same pair with its key encrypted, and the password.
    pub fn encrypted(&self, pair: &KeyPair) -> (KeyPair, &'static str) {
        let key = pair.key.with_extension("encrypted.key");
        let arguments = format!("pkcs8 -topk8 -in {} -out {}", pair.key.display(), key.display());
        self.openssl(&[&arguments, "-passout", &format!("pass:{KEY_PASSWORD}")]);
        (KeyPair { certificate: pair.certificate.clone(), key }, KEY_PASSWORD)
    }

    /// One file of key and certificate, as Kafka takes them.
    pub(crate) fn together(pair: &KeyPair) -> std::io::Result<String> {
        Ok(fs::read_to_string(&pair.key)? + &fs::read_to_string(&pair.certificate)?)
    }

    fn sign(&self, name: &str, subject: &str, names: Option<&str>, until: SystemTime) -> KeyPair {
        let request = format!(
            "req -new -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={subject}"
        );
        let names = names.map(|names| format!("-addext subjectAltName={names}"));
        self.openssl(&[&request, names.as_deref().unwrap_or_default()]);
        let _signing = self.signing.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, until) = (asn1_time(until - 2 * DAY), asn1_time(until));
        self.openssl(&[
            "ca -batch -notext -cert root.crt -keyfile root.key",
            &format!("-in {name}.csr -out {name}.crt -startdate {from} -enddate {until}"),
        ]);
        let file = |end| self.path(&format!("{name}.{end}"));
        KeyPair { certificate: file("crt"), key: file("key") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.cleanup.directory().join(name)
    }

    /// Runs openssl with these arguments, none of which has a blank in it.
    fn openssl(&self, arguments: &[&str]) {
        let arguments = arguments.iter().flat_map(|some| some.split_whitespace());
        let done = Command::new("openssl")
            .args(arguments)
            .env("OPENSSL_CONF", Path::new("openssl.cnf"))
            .current_dir(self.cleanup.directory())
            .output();
        let done = done.expect("openssl is there: apt-get install openssl");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// As certificates have it, for example `20270131235959Z`.
fn asn1_time(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let at = format!("@{seconds}");
    let done = Command::new("date").args(["-u", "-d", &at, "+%Y%m%d%H%M%SZ"]).output();
    let text = String::from_utf8(done.expect("date is there").stdout).expect("ASCII");
    text.trim().to_owned()
}
