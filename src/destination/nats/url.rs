//! URLs of NATS: `nats://[user:password@|token@]host[:port]`, `tls://…`; several servers of a
//! cluster are separated by commas.

use std::fmt;

use async_nats::ServerAddr;
use secrecy::SecretString;

use crate::destination::parts::url::{self, decoded};

const FORM: &str = "nats://[user:password@]host[:port], or tls://… for TLS; separate several servers by commas, \
                    and write signs such as @, / and , in a password percent-encoded";

/// Parsed URLs. Its `Debug` contains no secret.
#[derive(Clone)]
pub(crate) struct NatsUrl {
    /// Whether TLS is required.
    pub(super) tls: bool,
    /// The servers, without a login.
    pub(super) servers: Vec<ServerAddr>,
    /// User and password.
    pub(super) user: Option<(String, SecretString)>,
    /// A token.
    pub(super) token: Option<SecretString>,
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsUrl({})", self.address())
    }
}

impl NatsUrl {
    /// Parses URLs. The error does not repeat them: they may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parsed: Option<Self> = None;
        for one in text.split(',') {
            let one =
                Self::parse_one(one.trim()).ok_or_else(|| format!("is not of the form {FORM}"))?;
            match &mut parsed {
                None => parsed = Some(one),
                Some(first) => first.join(one)?,
            }
        }
        parsed.ok_or_else(|| format!("is not of the form {FORM}"))
    }

    /// Adds another server of the same cluster.
    fn join(&mut self, other: Self) -> Result<(), String> {
        if other.tls != self.tls {
            return Err("names servers with and without TLS: write tls:// for all".to_owned());
        }
        if other.user.is_some() || other.token.is_some() {
            return Err("has a second login: write the login at the first server only".to_owned());
        }
        self.servers.extend(other.servers);
        Ok(())
    }

    fn parse_one(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let tls = match scheme {
            "nats" => false,
            "tls" => true,
            _ => return None,
        };
        let (login, address) = match rest.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, rest),
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        if address.contains(['/', '?', '#']) || address.contains(char::is_whitespace) {
            return None;
        }
        let server: ServerAddr = format!("{scheme}://{address}").parse().ok()?;
        let (mut user, mut token) = (None, None);
        match login.map(|login| login.split_once(':').ok_or(login)) {
            None => {}
            Some(Ok((name, password))) => {
                let (name, password) = (decoded(name)?, decoded(password)?);
                if name.is_empty() || password.is_empty() {
                    return None;
                }
                user = Some((name, SecretString::from(password)));
            }
            Some(Err(text)) => {
                let text = decoded(text).filter(|text| !text.is_empty())?;
                token = Some(SecretString::from(text));
            }
        }
        (!server.host().is_empty() && server.port() > 0).then(|| Self {
            tls,
            servers: vec![server],
            user,
            token,
        })
    }

    /// The servers, for people: without a login.
    pub(crate) fn address(&self) -> String {
        let servers = self.servers.iter();
        let texts = servers.map(|server| url::address(server.host(), server.port()));
        texts.collect::<Vec<_>>().join(",")
    }

    /// The hosts of the servers.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.host().to_owned()).collect()
    }

    /// Whether TLS is required.
    pub(crate) fn requires_tls(&self) -> bool {
        self.tls
    }

    /// Whether it has a login.
    pub(crate) fn has_login(&self) -> bool {
        self.user.is_some() || self.token.is_some()
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    type Parts = (bool, String, Option<(String, String)>, Option<String>);

    fn parts(text: &str) -> Parts {
        let url = NatsUrl::parse(text).expect(text);
        let user = url.user.as_ref();
        let user = user.map(|(name, word)| (name.clone(), word.expose_secret().to_owned()));
        let token = url.token.as_ref().map(|token| token.expose_secret().to_owned());
        (url.tls, url.address(), user, token)
    }

    #[test]
    fn urls_of_the_usual_forms_are_parsed() {
        let some = |text: &str| Some(text.to_owned());
        let login = |name: &str, word: &str| Some((name.to_owned(), word.to_owned()));
        for (text, expected) in [
            ("nats://localhost", (false, "localhost:4222".to_owned(), None, None)),
            ("tls://[::1]:7/", (true, "[::1]:7".to_owned(), None, None)),
            ("nats://u:p%40w@h:1", (false, "h:1".to_owned(), login("u", "p@w"), None)),
            ("nats://t0ken@h", (false, "h:4222".to_owned(), None, some("t0ken"))),
            ("nats://u:w@a,nats://b:7", (false, "a:4222,b:7".to_owned(), login("u", "w"), None)),
        ] {
            assert_eq!(parts(text), expected, "{text}");
        }
    }

    #[test]
    fn an_invalid_url_is_an_error_that_does_not_repeat_it() {
        for text in [
            "",
            "localhost:4222",
            "http://s3cret@h",
            "nats://",
            "nats://:4222",
            "nats://h:x",
            "nats://h:0",
            "nats://h/s3cret",
            "nats://u:@h",
            "nats://:s3cret@h",
            "nats://u:s3cret%4@h",
            "nats://u:s3cret@h?x=1",
            "nats://a,tls://b",
            "nats://a,nats://u:s3cret@b",
            "nats://a b",
        ] {
            let error = NatsUrl::parse(text).expect_err(text);
            assert!(!error.contains("s3cret"), "{text}: {error}");
        }
        let shown = format!("{:?}", NatsUrl::parse("nats://u:s3cret@h").expect("valid"));
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
