//! A connection string, with its service file and password file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret;
use tempfile::TempDir;
use walpost::config::{Config, Environment, Flags, Setting};
use walpost::conninfo::{ConnInfo, Env};

use super::input::parts;

const SECRET: &str = "s3cret";

/// What a connection string may begin with so that its password is [`SECRET`],
/// whatever follows.
const WITH_A_SECRET: [&str; 4] =
    ["password=s3cret", "host=h password='s3cret", "postgres://u:s3cret", "postgresql://u:s3cret@"];

/// The first part is the connection string, the second the service file, the
/// third the password file. A digit at its beginning stands for a string with a
/// secret, which must never show.
pub fn conninfo(input: &[u8]) {
    let mut parts = parts(input);
    let Some(Ok(text)) = parts.next().map(std::str::from_utf8) else { return };
    let files = Files::new(parts.next(), parts.next());
    // The secret is where it is put, and nowhere else.
    let elsewhere = String::from_utf8_lossy(input).contains(SECRET);
    match text.as_bytes().first() {
        Some(digit @ b'0'..=b'3') if !elsewhere => {
            let start = WITH_A_SECRET[usize::from(digit - b'0')];
            resolve(&format!("{start}{}", &text[1..]), true, &files);
        }
        _ => resolve(text, false, &files),
    }
}

fn resolve(text: &str, secret: bool, files: &Files) {
    let hides = |shown: &str| assert!(!secret || !shown.contains(SECRET), "{shown}");
    let flags = Flags::default().with(Setting::SOURCE_URL, [text.to_owned()]);
    let environment = Environment::new([], Path::new("/nonexistent"));
    let config = Config::load(&flags, &environment).expect("any text may be a connection string");
    config.display().iter().for_each(|shown| hides(&format!("{:?}", shown.value)));
    hides(&format!("{config:?}"));

    let variable = |name: &str| files.variable(name);
    let env = Env { environment: &variable, home: None, socket_directory: "/nonexistent".into() };
    match ConnInfo::resolve_in(Some(text), &env) {
        Ok(info) => {
            assert!(!info.hosts().is_empty());
            assert!(!info.user.is_empty() && !info.dbname.is_empty());
            assert!(info.connect_timeout >= Duration::from_secs(2));
            for host in info.hosts() {
                assert!(host.port > 0);
                if let Some(password) = info.password_for(host) {
                    assert!(!password.expose_secret().is_empty());
                }
            }
            hides(&info.to_string());
            hides(&format!("{info:?}"));
            info.warnings().iter().for_each(|warning| hides(warning));
        }
        Err(error) => {
            hides(&error.to_string());
            hides(&format!("{error:?}"));
        }
    }
}

/// The service file and the password file, where the input has them.
struct Files(Option<TempDir>);

impl Files {
    fn new(service: Option<&[u8]>, passwords: Option<&[u8]>) -> Self {
        let Some(service) = service else { return Self(None) };
        let directory = TempDir::new().expect("a directory");
        let write = |name: &str, bytes: &[u8]| {
            let mut options = OpenOptions::new();
            let made = options.write(true).create_new(true).mode(0o600);
            let file: std::io::Result<File> = made.open(directory.path().join(name));
            file.and_then(|mut file| file.write_all(bytes)).expect("it can be written");
        };
        write("service", service);
        write("passwords", passwords.unwrap_or_default());
        Self(Some(directory))
    }

    fn variable(&self, name: &str) -> Option<String> {
        let file = |name| {
            let path = self.0.as_ref()?.path().join(name);
            Some(path.to_str().expect("the temporary directory's name is text").to_owned())
        };
        match name {
            "PGSERVICEFILE" => file("service"),
            "PGPASSFILE" => file("passwords"),
            "PGSERVICE" => self.0.as_ref().map(|_| "shop".to_owned()),
            "PGSYSCONFDIR" => Some("/nonexistent".to_owned()),
            "USER" => Some("me".to_owned()),
            _ => None,
        }
    }
}
