//! Resolves all sources of connection parameters to one `ConnInfo`, in libpq's order of precedence:
//! text, service file, environment, defaults.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use super::auth::{ChannelBinding, RequireAuth};
use super::env::Env;
use super::error::{ConnInfoError, Origin};
use super::info::{
    ClientCertificate, ConnInfo, Host, HostAddress, Keepalive, Roots, SslMode, TargetSession,
};
use super::parameters::PARAMETERS;
use super::{passfile, service, text};

const DEFAULT_PORT: u16 = 5432;
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// libpq rounds a shorter timeout up to this.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl ConnInfo {
    /// Resolves an optional connection string in that environment. Reads the service file and the
    /// password file; certificates are referred to by path.
    pub fn resolve(
        text: Option<&str>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConnInfoError> {
        Self::resolve_in(text, &Env::of(env))
    }

    /// [`ConnInfo::resolve`] in an explicit environment.
    pub fn resolve_in(text: Option<&str>, environment: &Env<'_>) -> Result<Self, ConnInfoError> {
        let settings = Settings::gather(text.unwrap_or_default(), environment)?;
        let hosts = hosts(&settings, environment)?;
        let user = ["USER", "LOGNAME"]
            .iter()
            .filter_map(|name| environment.variable(name))
            .find(|name| !name.is_empty());
        let user = settings.text("user").or(user).ok_or(ConnInfoError::NoUser)?;
        let dbname = settings.text("dbname").unwrap_or_else(|| user.clone());
        let (sslmode, roots) = protection(&settings, environment)?;
        let mut info = Self {
            hosts,
            user,
            dbname,
            password_in_text: settings.origin("password") == Origin::Text,
            password: settings.text("password").map(SecretString::from),
            passfile_passwords: Vec::new(),
            connect_timeout: match settings.integer("connect_timeout")? {
                Some(seconds @ 1..) => seconds_of(seconds).max(MIN_CONNECT_TIMEOUT),
                _ => DEFAULT_CONNECT_TIMEOUT,
            },
            options: settings.text("options"),
            application_name: settings
                .text("application_name")
                .or_else(|| settings.text("fallback_application_name")),
            sslmode,
            roots,
            client_certificate: client_certificate(&settings, environment)?,
            channel_binding: settings
                .choice("channel_binding", &ChannelBinding::ALL, "disable, prefer or require")?
                .unwrap_or(ChannelBinding::Prefer),
            require_auth: require_auth(&settings)?,
            target_session: settings
                .choice(
                    "target_session_attrs",
                    &TargetSession::ALL,
                    "any, read-write, read-only, primary, standby or prefer-standby",
                )?
                .unwrap_or(TargetSession::Any),
            keepalive: keepalive(&settings)?,
            warnings: Vec::new(),
        };
        info.ask_passfile(&settings, environment);
        Ok(info)
    }

    /// Searches the password file, unless a password is set.
    fn ask_passfile(&mut self, settings: &Settings, environment: &Env<'_>) {
        let in_home = || environment.home.as_ref().map(|home| home.join(".pgpass"));
        let named = settings.text("passfile").map(PathBuf::from);
        let Some(path) = named.or_else(in_home).filter(|_| self.password.is_none()) else {
            return;
        };
        let file = match passfile::read(&path) {
            Ok(Some(file)) => file,
            Ok(None) => return,
            Err(warning) => return self.warnings.push(warning),
        };
        let find = |host: &Host| {
            let sought = match &host.address {
                HostAddress::Tcp { name, .. } => name.clone(),
                HostAddress::Unix(path) if *path == environment.socket_directory => {
                    "localhost".to_owned()
                }
                HostAddress::Unix(path) => path.display().to_string(),
            };
            let wanted = passfile::Wanted {
                host: &sought,
                port: host.port,
                dbname: &self.dbname,
                user: &self.user,
            };
            passfile::find(file.expose_secret(), &wanted)
        };
        self.passfile_passwords = self.hosts.iter().map(find).collect();
    }
}

/// Every parameter that is set by any source.
struct Settings(BTreeMap<&'static str, (String, Origin)>);

impl Settings {
    fn gather(text: &str, environment: &Env<'_>) -> Result<Self, ConnInfoError> {
        let mut settings = Self(BTreeMap::new());
        for (name, value) in text::parse(text)? {
            settings.0.insert(name, (value, Origin::Text));
        }
        let service = match settings.0.get("service") {
            Some((service, _)) => Some(service.clone()),
            None => environment.variable("PGSERVICE"),
        };
        if let Some(service) = service.filter(|service| !service.is_empty()) {
            let mut from_service = BTreeMap::new();
            for (name, value) in service::load(&service, environment)? {
                // In a service file, libpq uses the first of two.
                from_service.entry(name).or_insert((value, Origin::Service));
            }
            for (name, setting) in from_service {
                settings.0.entry(name).or_insert(setting);
            }
        }
        for parameter in PARAMETERS {
            let Some(variable) = parameter.variable else {
                continue;
            };
            if let Some(value) = environment.variable(variable) {
                settings.0.entry(parameter.name).or_insert((value, Origin::Environment(variable)));
            }
        }
        for parameter in PARAMETERS {
            if let Some((value, origin)) = settings.0.get(parameter.name) {
                parameter.check(value, *origin)?;
            }
        }
        Ok(settings)
    }

    /// The value; an empty one counts as not set.
    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|(value, _)| value.clone()).filter(|value| !value.is_empty())
    }

    fn origin(&self, name: &str) -> Origin {
        match self.0.get(name) {
            Some((value, origin)) if !value.is_empty() => *origin,
            _ => Origin::Default,
        }
    }

    fn invalid(&self, parameter: &'static str, expected: &'static str) -> ConnInfoError {
        ConnInfoError::InvalidValue { parameter, origin: self.origin(parameter), expected }
    }

    fn integer(&self, name: &'static str) -> Result<Option<i32>, ConnInfoError> {
        self.text(name)
            .map(|value| value.trim().parse())
            .transpose()
            .map_err(|_| self.invalid(name, "a whole number"))
    }

    fn choice<T: Copy>(
        &self,
        name: &'static str,
        choices: &[(&str, T)],
        expected: &'static str,
    ) -> Result<Option<T>, ConnInfoError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        choices
            .iter()
            .find(|(known, _)| *known == value)
            .map(|&(_, choice)| Some(choice))
            .ok_or_else(|| self.invalid(name, expected))
    }

    /// A named file, which must exist.
    fn file(&self, parameter: &'static str) -> Result<Option<PathBuf>, ConnInfoError> {
        let Some(path) = self.text(parameter).map(PathBuf::from) else {
            return Ok(None);
        };
        if path.exists() {
            return Ok(Some(path));
        }
        Err(ConnInfoError::MissingFile { parameter, origin: self.origin(parameter), path })
    }

    /// A comma-separated list; empty if not set.
    fn list(&self, name: &str) -> Vec<String> {
        self.text(name).map_or_else(Vec::new, |value| {
            value.split(',').map(|item| item.trim().to_owned()).collect()
        })
    }
}

fn seconds_of(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn hosts(settings: &Settings, environment: &Env<'_>) -> Result<Vec<Host>, ConnInfoError> {
    let names = settings.list("host");
    let addresses = settings.list("hostaddr");
    let ports = settings.list("port");
    let count = if names.is_empty() { addresses.len().max(1) } else { names.len() };
    for (parameter, given, fits) in
        [("hostaddr", addresses.len(), [0, count]), ("port", ports.len().max(1), [1, count])]
    {
        if !fits.contains(&given) {
            return Err(ConnInfoError::ListLengths { parameter, given, hosts: count });
        }
    }
    let item = |list: &[String], at: usize| -> String { list.get(at).cloned().unwrap_or_default() };
    (0..count)
        .map(|at| {
            let port = match item(&ports, if ports.len() == 1 { 0 } else { at }).as_str() {
                "" => DEFAULT_PORT,
                port => port
                    .parse()
                    .ok()
                    .filter(|&port| port != 0)
                    .ok_or_else(|| settings.invalid("port", "a number from 1 to 65535"))?,
            };
            let hostaddr = match item(&addresses, at).as_str() {
                "" => None,
                address => Some(
                    address
                        .parse::<IpAddr>()
                        .map_err(|_| settings.invalid("hostaddr", "an IPv4 or IPv6 address"))?,
                ),
            };
            let address = host_address(item(&names, at), hostaddr, settings, environment)?;
            Ok(Host { address, port })
        })
        .collect()
}

fn host_address(
    name: String,
    hostaddr: Option<IpAddr>,
    settings: &Settings,
    environment: &Env<'_>,
) -> Result<HostAddress, ConnInfoError> {
    if name.contains('@') {
        // More likely part of a password than an abstract socket.
        return Err(settings.invalid(
            "host",
            "a name, an address or a directory, without `@` (write %40 for one in a password)",
        ));
    }
    Ok(match (name.as_str(), hostaddr) {
        ("", Some(address)) => HostAddress::Tcp { name: address.to_string(), hostaddr },
        ("", None) if environment.socket_directory.is_dir() => {
            HostAddress::Unix(environment.socket_directory.clone())
        }
        ("", None) => HostAddress::Tcp { name: "localhost".to_owned(), hostaddr: None },
        (directory, None) if directory.starts_with('/') => HostAddress::Unix(directory.into()),
        _ => HostAddress::Tcp { name, hostaddr },
    })
}

/// The effective mode and roots. As in libpq, `system` allows nothing less than `verify-full`, a
/// root certificate file turns `require` into `verify-ca`, and `verify-ca` needs one. A named file
/// that does not exist is an error in every mode.
fn protection(
    settings: &Settings,
    environment: &Env<'_>,
) -> Result<(SslMode, Roots), ConnInfoError> {
    let expected = "disable, allow, prefer, require, verify-ca or verify-full";
    let asked = settings.choice("sslmode", &SslMode::ALL, expected)?;
    if settings.text("sslrootcert").as_deref() == Some("system") {
        return match asked.unwrap_or(SslMode::VerifyFull) {
            SslMode::VerifyFull => Ok((SslMode::VerifyFull, Roots::System)),
            _ => Err(settings.invalid("sslmode", "verify-full where sslrootcert is system")),
        };
    }
    let mode = asked.unwrap_or(SslMode::Prefer);
    let file = settings.file("sslrootcert")?.or_else(|| environment.users_file("root.crt"));
    let mode = match (mode, &file) {
        (SslMode::Require, Some(_)) => SslMode::VerifyCa,
        _ => mode,
    };
    // Anyone can get a certificate from some authority that the system trusts: without verifying
    // the name, it proves nothing.
    if mode == SslMode::VerifyCa && file.is_none() {
        return Err(ConnInfoError::NoRoots { origin: settings.origin("sslmode") });
    }
    if mode.verifies() && environment.users_file("root.crl").is_some() {
        return Err(ConnInfoError::NotHonoured {
            parameter: "sslcrl",
            origin: Origin::Default,
            reason: "certificate revocation lists are not checked; remove ~/.postgresql/root.crl",
        });
    }
    Ok((mode, file.map_or(Roots::System, Roots::File)))
}

fn require_auth(settings: &Settings) -> Result<RequireAuth, ConnInfoError> {
    let Some(list) = settings.text("require_auth") else {
        return Ok(RequireAuth::default());
    };
    RequireAuth::parse(&list).ok_or_else(|| settings.invalid("require_auth", RequireAuth::EXPECTED))
}

fn client_certificate(
    settings: &Settings,
    environment: &Env<'_>,
) -> Result<Option<ClientCertificate>, ConnInfoError> {
    if settings.text("sslcertmode").as_deref() == Some("disable") {
        return Ok(None);
    }
    let named = settings.file("sslcert")?;
    let Some(certificate) = named.or_else(|| environment.users_file("postgresql.crt")) else {
        return Ok(None);
    };
    let in_home = || environment.users_file("postgresql.key");
    let key = settings.file("sslkey")?.or_else(in_home).ok_or_else(|| {
        let directory = environment.home.clone().unwrap_or_default().join(".postgresql");
        ConnInfoError::MissingFile {
            parameter: "sslkey",
            origin: Origin::Default,
            path: directory.join("postgresql.key"),
        }
    })?;
    Ok(Some(ClientCertificate { certificate, key }))
}

fn keepalive(settings: &Settings) -> Result<Keepalive, ConnInfoError> {
    // As in libpq, 0 means the default, which here is walpost's own.
    let positive = |name, default: i32| -> Result<i32, ConnInfoError> {
        Ok(settings.integer(name)?.filter(|&value| value > 0).unwrap_or(default))
    };
    let milliseconds = u64::try_from(positive("tcp_user_timeout", 30_000)?).unwrap_or(0);
    Ok(Keepalive {
        enabled: settings.integer("keepalives")? != Some(0),
        idle: seconds_of(positive("keepalives_idle", 30)?),
        interval: seconds_of(positive("keepalives_interval", 10)?),
        retries: u32::try_from(positive("keepalives_count", 3)?).unwrap_or(0),
        user_timeout: Duration::from_millis(milliseconds),
    })
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
