//! The password file (<https://www.postgresql.org/docs/current/libpq-pgpass.html>). Finds the
//! password for one connection, and keeps nothing else of the file.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use secrecy::SecretString;

/// The connection that needs a password. `host` is `localhost` for a Unix socket in the default
/// directory.
pub(super) struct Wanted<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) dbname: &'a str,
    pub(super) user: &'a str,
}

/// Reads a password file. `Ok(None)` means that it does not exist; `Err` contains the warning if it
/// exists but must not or cannot be used: like libpq, walpost then continues without it.
pub(super) fn read(path: &Path) -> Result<Option<SecretString>, String> {
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("password file {shown} is ignored: {error}")),
    };
    if !metadata.is_file() {
        return Err(format!("password file {shown} is ignored: it is not a plain file"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "password file {shown} is ignored: group or others have access to it; \
             make its permissions u=rw (0600) or less"
        ));
    }
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(SecretString::from(text))),
        Err(error) => Err(format!("password file {shown} is ignored: {error}")),
    }
}

/// The password on the first matching line.
pub(super) fn find(text: &str, wanted: &Wanted<'_>) -> Option<SecretString> {
    let port = wanted.port.to_string();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            [wanted.host, &port, wanted.dbname, wanted.user]
                .iter()
                .try_fold(line, |rest, value| after_field(rest, value))
        })
        .map(|password| {
            let mut plain = String::with_capacity(password.len());
            let mut chars = password.chars();
            while let Some(c) = chars.next() {
                plain.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
            }
            SecretString::from(plain)
        })
        .filter(|password| !secrecy::ExposeSecret::expose_secret(password).is_empty())
}

/// The rest of the line after its first field, if that is `*` or the value.
fn after_field<'a>(line: &'a str, value: &str) -> Option<&'a str> {
    if let Some(rest) = line.strip_prefix("*:") {
        return Some(rest);
    }
    let mut expected = value.chars();
    let mut chars = line.chars();
    loop {
        match chars.next()? {
            ':' => return expected.next().is_none().then_some(chars.as_str()),
            '\\' if expected.next() == chars.next() => {}
            c if c != '\\' && expected.next() == Some(c) => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use secrecy::ExposeSecret;

    const DB: Wanted<'static> = Wanted { host: "db", port: 5432, dbname: "shop", user: "me" };

    fn found(text: &str, wanted: &Wanted<'_>) -> Option<String> {
        find(text, wanted).map(|password| password.expose_secret().to_owned())
    }

    #[test]
    fn the_first_matching_line_has_the_password() {
        let text = "# db:5432:shop:me:commented\n\
                    db:5432:shop:you:no\n\
                    db:5433:shop:me:no\n\
                    db:5432:sho:me:no\n\
                    d:5432:shop:me:no\n\
                    db:*:shop:me:yes\n\
                    *:*:*:*:late\n";
        assert_eq!(found(text, &DB).as_deref(), Some("yes"));
        assert_eq!(found(text, &Wanted { host: "x", ..DB }).as_deref(), Some("late"));
        assert_eq!(found("db:5432:shop:me", &DB), None);
        assert_eq!(found("db:5432:shop:me:", &DB), None);
        assert_eq!(found("", &DB), None);
    }

    #[test]
    fn colons_and_backslashes_are_escaped_in_fields_and_in_the_password() {
        let wanted = Wanted { host: "::1", user: r"a\b", ..DB };
        let line = r"\:\:1:5432:shop:a\\b:p\:w\\d:x";
        assert_eq!(found(line, &wanted).as_deref(), Some(r"p:w\d:x"));
    }

    #[test]
    fn a_file_that_others_can_read_is_ignored_with_a_warning() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pgpass");
        assert!(read(&path).is_ok_and(|text| text.is_none()));
        fs::write(&path, "*:*:*:*:x").expect("written");
        for (mode, usable) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permitted");
            assert_eq!(read(&path).is_ok(), usable, "{mode:o}");
        }
        assert!(read(dir.path()).is_err());
    }

    proptest! {
        #[test]
        fn any_file_is_read_without_a_panic(text in r"[a-b*:\\\n]{0,40}", host in r"[ab:\\]{0,3}") {
            let _ = find(&text, &Wanted { host: &host, ..DB });
        }
    }
}
