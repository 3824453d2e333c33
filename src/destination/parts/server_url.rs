//! URLs of servers: `scheme://[user[:password]@]host[:port][/path]`. None may be in an error: a password may
//! stand anywhere in a URL that is mistyped.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::{Host, Url};

use super::Failure;
use super::dial::{Stream, Tls, dial, secured};
use super::url::address;
use crate::config::{Config, ConfigError, Setting};
use crate::destination::Server;

/// Timeout for TLS, login and everything before the first record.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How the URLs of a kind of server look.
pub(crate) struct Form {
    /// The schemes without and with TLS, each with its usual port.
    pub(crate) schemes: [(&'static str, u16); 2],
    /// The form, for errors.
    pub(crate) text: &'static str,
}

/// The URL of a server. Its `Debug` has no secret.
#[derive(Clone)]
pub(crate) struct ServerUrl {
    pub(crate) scheme: &'static str,
    /// Whether to use TLS.
    pub(crate) tls: bool,
    /// An IPv6 address has no brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<SecretString>,
    /// What follows behind the `/` after the address; `None`: there is none.
    pub(crate) path: Option<String>,
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl({})", self.address())
    }
}

impl ServerUrl {
    /// The value of a setting.
    pub(crate) fn of(
        config: &Config,
        (setting, form): (Setting, &Form),
    ) -> Result<Self, ConfigError> {
        let text = config.current(setting)?.unwrap_or_default();
        let url = Self::parse(text.expose_secret(), form);
        url.map_err(|error| config.invalid(setting, &error))
    }

    /// Parses a URL of this form. The last `@` ends the login.
    pub(crate) fn parse(text: &str, form: &Form) -> Result<Self, String> {
        if text.contains(['?', '#']) {
            return Err(
                "it has a `?` or `#`: walpost takes no parameters from a URL, certificates are \
                        settings, and such characters in a password are written percent-encoded"
                    .to_owned(),
            );
        }
        Self::parsed(text, form).ok_or_else(|| {
            format!(
                "it is not of the form {}; characters such as `@`, `:`, `/`, `,` and `%` in a login or a path are \
                 written percent-encoded",
                form.text
            )
        })
    }

    fn parsed(text: &str, form: &Form) -> Option<Self> {
        let (_, rest) = text.split_once("://")?;
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        // The crate removes line ends and what is empty. Behind an unescaped `/` of a password, the rest of that
        // would be the path.
        let is_odd = text.contains(char::is_whitespace)
            || authority.starts_with('@')
            || authority.ends_with(':')
            || authority.contains(":@")
            || path.is_some_and(|path| path.contains(['@', '/']));
        let url = Url::parse(text).ok().filter(|_| !is_odd)?;
        let at = form.schemes.iter().position(|(scheme, _)| *scheme == url.scheme())?;
        let (scheme, port) = form.schemes[at];
        let host = match url.host()? {
            Host::Ipv6(address) => address.to_string(),
            other => other.to_string(),
        };
        let port = url.port().unwrap_or(port);
        let is_of_host = |sign: char| sign.is_ascii_alphanumeric() || "-._:".contains(sign);
        if host.is_empty() || !host.chars().all(is_of_host) || port == 0 {
            return None;
        }
        let optional =
            |text: Option<&str>| text.map(|text| decoded(text).ok_or(())).transpose().ok();
        let path = optional(path)?;
        // The crate resolves `..`, and takes `\` for `/`.
        let seen = decoded(url.path().strip_prefix('/').unwrap_or(url.path()))?;
        if seen != path.as_deref().unwrap_or_default() {
            return None;
        }
        let user = optional(Some(url.username()).filter(|user| !user.is_empty()))?;
        let password = optional(url.password())?.map(SecretString::from);
        Some(Self { scheme, tls: at == 1, host, port, user, password, path })
    }

    /// Host and port, for messages.
    pub(crate) fn address(&self) -> String {
        address(&self.host, self.port)
    }

    /// Connects by TCP.
    pub(crate) async fn dial(&self) -> Result<TcpStream, Failure> {
        dial((&self.host, self.port)).await
    }

    /// Sets TLS up if the scheme asks for it.
    pub(crate) async fn secured(
        &self,
        stream: TcpStream,
        tls: &Tls,
    ) -> Result<Box<dyn Stream>, Failure> {
        secured(stream, (&self.host, self.port), self.tls.then_some(tls)).await
    }

    /// Ends `login`, which follows, if the server does not answer in time.
    pub(crate) async fn answers<T>(
        &self,
        login: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let silent = || {
            Failure::Unreachable(format!(
                "{} accepts connections and does not answer within {LOGIN_TIMEOUT:?} ({}:// may be the \
                 wrong scheme for this port)",
                self.address(),
                self.scheme
            ))
        };
        timeout(LOGIN_TIMEOUT, login).await.unwrap_or_else(|_| Err(silent()))
    }

    pub(crate) fn has_login(&self) -> bool {
        self.user.is_some() || self.password.is_some()
    }

    pub(crate) fn server(self) -> Server {
        let is_exposed = !self.tls && self.has_login();
        Server { address: self.address(), hosts: vec![self.host], is_exposed }
    }
}

/// Resolves percent-encoding; `None`: it is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form { schemes: [("s", 1), ("ss", 2)], text: "s://host" };

    #[test]
    fn urls_of_the_usual_forms_are_parsed() {
        for (text, tls, address, user, password, path) in [
            ("s://localhost", false, "localhost:1", None, None, None),
            ("ss://a_b", true, "a_b:2", None, None, None),
            ("ss://[::1]:7/", true, "[::1]:7", None, None, Some("")),
            ("s://:p%40w@h/3", false, "h:1", None, Some("p@w"), Some("3")),
            ("s://u:a@b%2F@h:9", false, "h:9", Some("u"), Some("a@b/"), None),
            ("s://t%C3%B6ken@h/eu%2Fo", false, "h:1", Some("töken"), None, Some("eu/o")),
            ("s://u:100%@h", false, "h:1", Some("u"), Some("100%"), None),
            ("s://Host/\u{e9}%C3%A9", false, "Host:1", None, None, Some("\u{e9}\u{e9}")),
        ] {
            let url = ServerUrl::parse(text, &FORM).expect(text);
            let word = url.password.as_ref().map(SecretString::expose_secret);
            let found = (url.tls, &*url.address(), url.user.as_deref(), word, url.path.as_deref());
            assert_eq!(found, (tls, address, user, password, path), "{text}");
            assert_eq!(format!("{url:?}"), format!("ServerUrl({address})"));
        }
    }

    #[test]
    fn invalid_url_is_an_error_that_does_not_repeat_it() {
        for text in [
            "",
            "h:1",
            "http://s3cret@h",
            "s://",
            "s://:1",
            "s://@h",
            "s://h:",
            "s://h:/1",
            "s://a%20b",
            "s://${HOST}:1",
            "s://a,b",
            "s://h/.",
            "s://h/%2e",
            "s://h/7/../3",
            "s://u:1/s3cret@h/../2",
            "s://h:1\\x",
            "s://u:s3cret@",
            "s://h:x",
            "s://h:0",
            "s://h:99999",
            "s://h/s3cret/x",
            "s://u:1/s3cret@h",
            "s://u:s3cret/x@h",
            "s://s3cret:@h",
            "s://u:s3cret%C3@h",
            "s://u:s3cret@h?x=1",
            "s://u:s3cret@h#x",
            "s://u:s3cret@a b",
            "s://u:s3\ncret@h",
            "s://[::1",
            "s://[::1]x",
        ] {
            let error = ServerUrl::parse(text, &FORM).expect_err(text);
            assert!(!error.contains("s3cret"), "{text}: {error}");
        }
    }
}
