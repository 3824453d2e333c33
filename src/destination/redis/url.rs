//! The address of a Redis server, as a URL:
//! `redis://[[user]:password@]host[:port][/database]`, `rediss://` with TLS
//! (<https://www.iana.org/assignments/uri-schemes/prov/redis>).

use secrecy::{ExposeSecret as _, SecretString};

use crate::destination::parts::url;

const FORM: &str = "not of the form redis://[[user]:password@]host[:port][/database], or \
                    rediss:// for TLS";

const PORT: u16 = 6379;

/// A server, and how to log in.
#[derive(Debug, Clone)]
pub(crate) struct RedisUrl {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<SecretString>,
    pub(crate) database: i64,
}

impl RedisUrl {
    /// Parses a URL. An error does not repeat it, since it may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let form = || FORM.to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(form)?;
        let tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return Err(form()),
        };
        if let Some(sign) = rest.find(['?', '#']) {
            return Err(format!(
                "it has a `{}`: no options are taken from a URL",
                &rest[sign..=sign]
            ));
        }
        // A password may contain an unescaped `/`.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = if database.is_empty() { Some(0) } else { database.parse::<u32>().ok() };
        let database = database.ok_or("the database is not a number")?;
        let (host, port) = url::host_and_port(address, PORT).ok_or_else(form)?;
        let (user, password) = match login {
            None => (None, None),
            Some(login) => {
                let (user, password) = login.split_once(':').ok_or(
                    "its login has no `:` before the password: write redis://:password@host",
                )?;
                let decoded = |part: &str| {
                    url::decoded(part)
                        .ok_or("a `%` in its login is not followed by two digits: write %25")
                };
                let user = Some(decoded(user)?).filter(|user| !user.is_empty());
                (user, Some(SecretString::from(decoded(password)?)))
            }
        };
        if user.is_some() && password.as_ref().is_some_and(|one| one.expose_secret().is_empty()) {
            return Err("it has a user without a password".to_owned());
        }
        Ok(Self { tls, host, port, user, password, database: i64::from(database) })
    }

    /// Host and port, for messages.
    pub(crate) fn address(&self) -> String {
        url::address(&self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (bool, String, i64, Option<String>, Option<String>) {
        let url = RedisUrl::parse(text).expect(text);
        let password = url.password.as_ref().map(|password| password.expose_secret().to_owned());
        (url.tls, url.address(), url.database, url.user, password)
    }

    #[test]
    fn urls_of_the_usual_forms_are_parsed() {
        let some = |text: &str| Some(text.to_owned());
        for (text, expected) in [
            ("redis://localhost", (false, "localhost:6379".to_owned(), 0, None, None)),
            ("redis://h:1/3", (false, "h:1".to_owned(), 3, None, None)),
            ("rediss://[::1]:7/", (true, "[::1]:7".to_owned(), 0, None, None)),
            ("redis://:p%40w@h", (false, "h:6379".to_owned(), 0, None, some("p@w"))),
            ("redis://u:a/b@c@h:9", (false, "h:9".to_owned(), 0, some("u"), some("a/b@c"))),
        ] {
            assert_eq!(parts(text), expected, "{text}");
        }
    }

    #[test]
    fn an_invalid_url_is_an_error_that_does_not_repeat_it() {
        for text in [
            "",
            "localhost:6379",
            "http://s3cret@h",
            "redis://",
            "redis://:6379",
            "redis://h:x",
            "redis://h:0",
            "redis://h/s3cret",
            "redis://s3cret@h",
            "redis://u:@h",
            "redis://:s3cret%4@h",
            "redis://:s3cret@h?db=1",
            "redis://[::1",
            "redis://[::1]x",
        ] {
            let error = RedisUrl::parse(text).expect_err(text);
            assert!(!error.contains("s3cret"), "{text}: {error}");
        }
        let shown = format!("{:?}", RedisUrl::parse("redis://:s3cret@h").expect("valid"));
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
