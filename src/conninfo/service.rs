//! Service files (<https://www.postgresql.org/docs/current/libpq-pgservice.html>): INI files whose
//! sections contain connection parameters.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::env::Env;
use super::error::ConnInfoError;
use super::parameters::{known, unknown};
use super::text::Pairs;

/// The default directory of Debian's libpq, unless `PGSYSCONFDIR` is set.
const SYSTEM_DIRECTORY: &str = "/etc/postgresql-common";

/// The parameters of a service: from the user's file, or else from the system's.
pub(super) fn load(service: &str, environment: &Env<'_>) -> Result<Pairs, ConnInfoError> {
    for (path, must_exist) in files(environment) {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => continue,
            Err(source) => return Err(ConnInfoError::ServiceFile { path, source }),
        };
        if let Some(pairs) = section(&text, service, &path)? {
            return Ok(pairs);
        }
    }
    Err(ConnInfoError::ServiceNotFound(service.to_owned()))
}

fn files(environment: &Env<'_>) -> Vec<(PathBuf, bool)> {
    let users = match environment.variable("PGSERVICEFILE") {
        Some(named) => Some((PathBuf::from(named), true)),
        None => environment.home.as_ref().map(|home| (home.join(".pg_service.conf"), false)),
    };
    let directory = environment
        .variable("PGSYSCONFDIR")
        .map_or_else(|| PathBuf::from(SYSTEM_DIRECTORY), PathBuf::from);
    users.into_iter().chain([(directory.join("pg_service.conf"), false)]).collect()
}

fn section(text: &str, service: &str, path: &Path) -> Result<Option<Pairs>, ConnInfoError> {
    let mut found: Option<Pairs> = None;
    for (number, line) in text.lines().enumerate() {
        let wrong =
            |reason| ConnInfoError::ServiceLine { path: path.to_owned(), line: number + 1, reason };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            if name.strip_suffix(']') == Some(service) {
                found = Some(Pairs::new());
            }
            continue;
        }
        let Some(pairs) = &mut found else { continue };
        if line.starts_with("ldap:") || line.starts_with("ldaps:") {
            return Err(wrong("parameters from LDAP are not supported"));
        }
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("it must be name=value"))?;
        let (name, value) = (name.trim(), value.trim());
        if name == "service" {
            return Err(wrong("a service cannot name another service"));
        }
        let parameter = known(name).ok_or_else(|| unknown(name, false))?;
        pairs.push((parameter.name, value.to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Pairs>, ConnInfoError> {
        section(text, "shop", Path::new("/x/pg_service.conf"))
    }

    #[test]
    fn only_the_sections_own_lines_count() {
        let text =
            "stray\n[other]\nhost=no\n[shop]\n# comment\n\n host = db \nport=1\n[more]\nport=2";
        let pairs = read(text).expect("sound").expect("found");
        assert_eq!(pairs, [("host", "db".to_owned()), ("port", "1".to_owned())]);
        assert!(read("[other]\nhost=no").expect("sound").is_none());
    }

    #[test]
    fn a_wrong_line_is_named_by_file_and_number() {
        for line in ["nonsense", "service=x", "ldap://host/x"] {
            let error = read(&format!("[shop]\n{line}")).expect_err(line).to_string();
            assert!(error.starts_with("service file /x/pg_service.conf, line 2: "), "{error}");
        }
        let error = read("[shop]\nhots=db").expect_err("unknown").to_string();
        assert!(error.contains("is `host` meant?"), "{error}");
    }
}
