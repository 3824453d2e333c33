//! Precedence, defaults and rejections, in an explicit environment.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;

use super::super::auth::AuthMethod;
use super::*;

/// A home directory and environment variables for the test.
struct Bed {
    home: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Bed {
    fn new(environment: &[(&'static str, &str)]) -> Self {
        let own = environment.iter().map(|&(name, value)| (name, value.to_owned()));
        Self {
            home: tempfile::tempdir().expect("a directory"),
            environment: [("USER", "me".to_owned())].into_iter().chain(own).collect(),
        }
    }

    fn with_file(self, name: &str, text: &str) -> Self {
        let path = self.home.path().join(name);
        fs::create_dir_all(path.parent().expect("inside the home")).expect("made");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permitted");
        self
    }

    fn resolve(&self, text: &str) -> Result<ConnInfo, ConnInfoError> {
        let environment = |name: &str| {
            let last = self.environment.iter().rev().find(|(known, _)| *known == name);
            last.map(|(_, value)| value.clone())
        };
        ConnInfo::resolve_in(
            Some(text),
            &Env {
                home: Some(self.home.path().to_owned()),
                socket_directory: self.home.path().join("sockets"),
                ..Env::of(&environment)
            },
        )
    }

    fn info(&self, text: &str) -> ConnInfo {
        self.resolve(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refusal(&self, text: &str) -> String {
        match self.resolve(text) {
            Ok(info) => panic!("{text} became {info:?}"),
            Err(error) => error.to_string(),
        }
    }
}

fn password(info: &ConnInfo, at: usize) -> Option<&str> {
    info.password_for(&info.hosts()[at]).map(ExposeSecret::expose_secret)
}

fn tcp(name: &str, port: u16) -> Host {
    Host { address: HostAddress::Tcp { name: name.to_owned(), hostaddr: None }, port }
}

#[test]
fn an_empty_string_has_libpqs_defaults() {
    let bed = Bed::new(&[]);
    let info = bed.info("");
    assert_eq!(info.to_string(), "localhost:5432/me as me");
    assert_eq!(info.sslmode, SslMode::Prefer);
    assert_eq!(info.connect_timeout, Duration::from_secs(10));
    assert_eq!(info.target_session, TargetSession::Any);
    assert!(!info.password_in_text() && password(&info, 0).is_none());

    let sockets = bed.home.path().join("sockets");
    fs::create_dir(&sockets).expect("made");
    assert_eq!(
        bed.info("port=1").hosts()[0],
        Host { address: HostAddress::Unix(sockets), port: 1 }
    );
}

#[test]
fn a_parameter_comes_from_text_then_service_then_environment() {
    let environment = [
        ("PGSERVICE", "shop"),
        ("PGHOST", "from-environment"),
        ("PGUSER", "from-environment"),
        ("PGDATABASE", "from-environment"),
        ("PGAPPNAME", "from-environment"),
    ];
    let file = "[shop]\nhost=from-service\nuser=from-service\nuser=ignored\n";
    let bed = Bed::new(&environment).with_file(".pg_service.conf", file);
    let info = bed.info("host=from-text");
    assert_eq!(info.hosts(), [tcp("from-text", 5432)]);
    assert_eq!(info.user, "from-service");
    assert_eq!(info.dbname, "from-environment");
    assert_eq!(info.application_name.as_deref(), Some("from-environment"));
    assert!(bed.refusal("service=other").contains("`other`"));
}

#[test]
fn a_named_service_file_must_exist() {
    let bed = Bed::new(&[("PGSERVICEFILE", "/nowhere/at/all")]);
    assert_eq!(bed.refusal("service=shop"), "service file /nowhere/at/all");
}

#[test]
fn the_system_service_file_is_used_after_the_users() {
    let mut bed = Bed::new(&[])
        .with_file(".pg_service.conf", "[other]\nhost=x\n")
        .with_file("etc/pg_service.conf", "[shop]\nhost=system\n");
    bed.environment.push(("PGSYSCONFDIR", bed.home.path().join("etc").display().to_string()));
    assert_eq!(bed.info("postgres://?service=shop").hosts(), [tcp("system", 5432)]);
}

#[test]
fn hosts_addresses_and_ports_must_match() {
    let bed = Bed::new(&[]);
    let hosts = |text| bed.info(text).hosts;
    assert_eq!(hosts("postgres://a:1,b,[::1]:3"), [tcp("a", 1), tcp("b", 5432), tcp("::1", 3)]);
    assert_eq!(hosts("host=a,b port=7"), [tcp("a", 7), tcp("b", 7)]);
    let unix = |port| Host { address: HostAddress::Unix("/var/lib/pg".into()), port };
    assert_eq!(hosts("postgres://%2Fvar%2Flib%2Fpg:6/db"), [unix(6)]);
    assert_eq!(hosts("postgres:///db?host=/var/lib/pg"), [unix(5432)]);
    let address: IpAddr = "10.0.0.1".parse().expect("an address");
    let named = |name: &str| Host {
        address: HostAddress::Tcp { name: name.to_owned(), hostaddr: Some(address) },
        port: 5432,
    };
    assert_eq!(hosts("host=db hostaddr=10.0.0.1"), [named("db")]);
    assert_eq!(hosts("hostaddr=10.0.0.1"), [named("10.0.0.1")]);
    assert_eq!(
        bed.refusal("host=a,b,c port=1,2"),
        "port names 2 where host names 3: give one for each host"
    );
    for wrong in [
        "port=0",
        "port=65536",
        "port=x",
        "hostaddr=db",
        "host=@abstract",
        "host=a hostaddr=::1,::2",
    ] {
        bed.refusal(wrong);
    }
    assert_eq!(bed.info("postgres://a:1,[::1]/d").to_string(), "a:1,[::1]:5432/d as me");
}

#[test]
fn passwords_come_from_the_file_only_if_none_is_set() {
    let bed = Bed::new(&[]).with_file(".pgpass", "a:5432:*:me:one\nb:*:*:me:t\\:wo\n");
    let info = bed.info("host=a,b,c");
    assert_eq!(password(&info, 0), Some("one"));
    assert_eq!(password(&info, 1), Some("t:wo"));
    assert_eq!(password(&info, 2), None);
    assert!(!info.password_in_text());
    let info = bed.info("host=a password=given");
    assert!(info.password_in_text());
    assert_eq!(password(&info, 0), Some("given"));
    let other = bed.home.path().join("other");
    let text = format!("host=a passfile='{}'", other.display());
    assert_eq!(password(&bed.info(&text), 0), None);

    let bed = Bed::new(&[("PGPASSWORD", "environment")]);
    let info = bed.info("");
    assert!(!info.password_in_text());
    assert_eq!(password(&info, 0), Some("environment"));
}

#[test]
fn localhost_in_the_password_file_covers_only_the_default_socket() {
    let bed = Bed::new(&[]).with_file(".pgpass", "localhost:*:*:*:x\n").with_file("sockets/x", "");
    assert_eq!(password(&bed.info(""), 0), Some("x"));
    assert_eq!(password(&bed.info("host=/elsewhere"), 0), None);
}

#[test]
fn a_password_file_open_to_others_is_a_warning() {
    let bed = Bed::new(&[]).with_file(".pgpass", "*:*:*:*:hunter2\n");
    let path = bed.home.path().join(".pgpass");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("permitted");
    let info = bed.info("");
    assert_eq!(password(&info, 0), None);
    assert!(info.warnings()[0].contains("0600"), "{:?}", info.warnings());
}

#[test]
fn no_message_contains_the_password() {
    let bed = Bed::new(&[]);
    let info = bed.info("postgres://u:hunter2@h/d");
    for shown in [format!("{info:?}"), format!("{info:#?}"), info.to_string()] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    for wrong in ["postgres://u:hunter2/x@h", "postgres://u:x@hunter2@h", "postgres://u:hunter2"] {
        assert!(!bed.refusal(wrong).contains("hunter2"));
    }
}

#[test]
fn a_root_file_turns_require_into_verify_ca() {
    let bed = Bed::new(&[]).with_file("ca.pem", "").with_file(".postgresql/x", "");
    let ca = bed.home.path().join("ca.pem");
    let protection = |text: &str| {
        let info = bed.info(text);
        (info.sslmode, info.roots)
    };
    let file = Roots::File(ca.clone());
    let with_file = |mode: &str| format!("sslmode={mode} sslrootcert={}", ca.display());
    assert_eq!(protection(&with_file("require")), (SslMode::VerifyCa, file.clone()));
    assert_eq!(protection(&with_file("verify-full")), (SslMode::VerifyFull, file.clone()));
    assert_eq!(protection(&with_file("prefer")), (SslMode::Prefer, file));
    assert_eq!(protection("sslmode=require"), (SslMode::Require, Roots::System));
    assert_eq!(protection("sslmode=verify-full"), (SslMode::VerifyFull, Roots::System));
    assert_eq!(protection(&with_file("verify-ca")), (SslMode::VerifyCa, Roots::File(ca.clone())));
    // libpq rejects these too: without verifying the name, any authority's certificate proves
    // nothing.
    assert!(bed.refusal("sslmode=verify-ca").contains("sslrootcert"));
    assert!(bed.refusal("sslrootcert=system sslmode=verify-ca").contains("verify-full"));
    assert_eq!(protection("sslrootcert=system"), (SslMode::VerifyFull, Roots::System));
    assert!(bed.refusal("sslrootcert=system sslmode=require").contains("verify-full"));
    assert!(bed.refusal("sslmode=require sslrootcert=/nowhere").contains("/nowhere"));

    let bed = Bed::new(&[]).with_file(".postgresql/root.crt", "");
    assert_eq!(bed.info("sslmode=require").sslmode, SslMode::VerifyCa);
    let bed = bed.with_file(".postgresql/root.crl", "");
    assert!(bed.refusal("sslmode=require").contains("root.crl"));
}

#[test]
fn a_client_certificate_needs_its_key() {
    let bed = Bed::new(&[]).with_file(".postgresql/postgresql.crt", "");
    assert!(bed.refusal("").contains("postgresql.key"));
    assert_eq!(bed.info("sslcertmode=disable").client_certificate, None);
    let bed = bed.with_file(".postgresql/postgresql.key", "");
    let found = bed.info("").client_certificate.expect("found");
    assert_eq!(found.key, bed.home.path().join(".postgresql/postgresql.key"));
    assert!(bed.refusal("sslcert=/nowhere").contains("sslcert"));
    let home = bed.home.path().display();
    let own = bed.info(&format!("sslkey={home}/.postgresql/postgresql.crt"));
    assert!(Path::new(&own.client_certificate.expect("found").key).ends_with("postgresql.crt"));
}

#[test]
fn unsupported_security_parameters_are_rejected_with_their_origin() {
    let bed = Bed::new(&[]);
    for refused in [
        "gssencmode=require",
        "sslcrl=x",
        "sslcrldir=x",
        "sslpassword=x",
        "requirepeer=postgres",
        "ssl_min_protocol_version=TLSv1.3",
        "sslcertmode=require",
        "sslnegotiation=direct",
        "replication=database",
    ] {
        let error = bed.refusal(refused);
        let (name, _) = refused.split_once('=').expect("a pair");
        assert!(
            error.starts_with(&format!("{name} (in the connection string) cannot be honoured: ")),
            "{error}"
        );
    }
    let error = Bed::new(&[("PGGSSENCMODE", "require")]).refusal("");
    assert!(error.starts_with("gssencmode (in PGGSSENCMODE)"), "{error}");
    bed.info("channel_binding=prefer gssencmode=disable sslcrl='' krbsrvname=x sslsni=1");
}

#[test]
fn required_authentication_comes_from_text_or_environment() {
    let bed = Bed::new(&[("PGREQUIREAUTH", "scram-sha-256"), ("PGCHANNELBINDING", "require")]);
    let info = bed.info("");
    assert_eq!(info.channel_binding, ChannelBinding::Require);
    assert!(info.require_auth.allows(AuthMethod::ScramSha256));
    assert!(!info.require_auth.allows(AuthMethod::Md5));
    let info = bed.info("require_auth=!password channel_binding=disable");
    assert_eq!(info.channel_binding, ChannelBinding::Disable);
    assert!(info.require_auth.allows(AuthMethod::Md5));
    assert!(!info.require_auth.allows(AuthMethod::Password));
    let info = Bed::new(&[]).info("");
    assert_eq!(info.channel_binding, ChannelBinding::Prefer);
    assert_eq!(info.require_auth, RequireAuth::default());
    let refused = bed.refusal("require_auth=scram");
    assert!(refused.starts_with("require_auth (in the connection string) must be"), "{refused}");
    let refused = bed.refusal("channel_binding=yes");
    assert!(refused.contains("disable, prefer or require"), "{refused}");
}

#[test]
fn numbers_and_choices_are_checked() {
    let bed = Bed::new(&[]);
    let timeout = |text| bed.info(text).connect_timeout.as_secs();
    assert_eq!(timeout("connect_timeout=0"), 10);
    assert_eq!(timeout("connect_timeout=-1"), 10);
    assert_eq!(timeout("connect_timeout=1"), 2);
    assert_eq!(timeout("connect_timeout=30"), 30);
    let keepalive = bed.info("keepalives=0 keepalives_count=9 tcp_user_timeout=1500").keepalive;
    assert!(!keepalive.enabled);
    assert_eq!(keepalive.retries, 9);
    assert_eq!(keepalive.user_timeout, Duration::from_millis(1500));
    assert_eq!(keepalive.idle, Duration::from_secs(30));
    assert_eq!(
        bed.refusal("sslmode=verify_full"),
        "sslmode (in the connection string) must be disable, allow, prefer, require, verify-ca \
         or verify-full"
    );
    bed.refusal("connect_timeout=soon");
    bed.refusal("target_session_attrs=master");
    assert_eq!(bed.info("target_session_attrs=primary").target_session, TargetSession::Primary);
}

#[test]
fn a_missing_user_name_is_an_error() {
    let error = ConnInfo::resolve(None, &|_| None).expect_err("no user");
    assert!(matches!(error, ConnInfoError::NoUser));
    assert_eq!(
        ConnInfo::resolve(None, &|name| (name == "LOGNAME").then(|| "me".to_owned()))
            .expect("resolved")
            .user,
        "me"
    );
}

#[test]
fn every_mode_prints_as_written() {
    for (name, mode) in SslMode::ALL {
        assert_eq!(mode.to_string(), name);
    }
    for (name, target) in TargetSession::ALL {
        assert_eq!(target.to_string(), name);
    }
}

proptest! {
    #[test]
    fn any_text_and_environment_resolves_or_is_rejected(
        text in r"(postgres://)?[a-c0-9%:/?@,=&\[\]'\\ ]{0,30}",
        host in r"[a/@,:\[\]]{0,5}",
        port in r"[0-9,]{0,8}",
    ) {
        let environment = |name: &str| match name {
            "PGHOST" => Some(host.clone()),
            "PGPORT" => Some(port.clone()),
            "USER" => Some("me".to_owned()),
            _ => None,
        };
        if let Ok(info) = ConnInfo::resolve(Some(&text), &environment) {
            prop_assert!(!info.hosts().is_empty());
        }
    }
}
