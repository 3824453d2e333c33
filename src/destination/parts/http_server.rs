//! The server that a URL of HTTP names.

use hyper::Uri;
use hyper::header::HeaderValue;

use super::url;

/// A server of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpServer {
    /// Whether to use TLS.
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The header `host`.
    pub(crate) authority: HeaderValue,
}

impl HttpServer {
    /// The server of a URL of that `form`; a login belongs into the setting `authorization`. The error does not
    /// repeat the URL.
    pub(crate) fn of(uri: &Uri, form: &str, authorization: &str) -> Result<Self, String> {
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(form.to_owned()),
        };
        let authority = uri.authority().ok_or(form)?;
        if authority.as_str().contains('@') {
            return Err(format!("it contains a login: put `Basic …` into {authorization}"));
        }
        let after_host = authority.as_str().strip_prefix(authority.host()).ok_or(form)?;
        let port = match after_host.strip_prefix(':') {
            None => Some(if tls { 443 } else { 80 }),
            Some(port) => port.parse().ok().filter(|port| *port > 0),
        };
        Ok(Self {
            tls,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: port.ok_or("its port is not a number from 1 to 65535")?,
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| form)?,
        })
    }

    /// Host and port, for messages.
    pub(crate) fn address(&self) -> String {
        url::address(&self.host, self.port)
    }
}
