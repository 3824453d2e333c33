//! The URL of an endpoint.

use hyper::Uri;
use hyper::header::HeaderValue;

use crate::destination::parts::http_server::HttpServer;
use crate::destination::parts::url;

/// What stands for the record's topic.
const TOPIC: &str = "{topic}";

/// An endpoint. Its URL may contain secrets, so that only its address is shown.
#[derive(Clone)]
pub(crate) struct HttpUrl {
    /// Whether to use TLS.
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The header `host`.
    pub(super) authority: HeaderValue,
    /// Path and query, with [`TOPIC`].
    target: String,
}

impl std::fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HttpUrl({})", self.address())
    }
}

impl HttpUrl {
    /// Parses `http://host[:port][/path]` or `https://…`, where `{topic}` may be part of path and
    /// query. The error does not repeat the URL.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let form = "it is not of the form https://host[:port]/path";
        if text.contains('#') {
            return Err("it has a fragment (`#`), which no server is sent".to_owned());
        }
        // A topic has only letters, digits, `.`, `_` and `-`.
        let uri: Uri = text.replace(TOPIC, "topic").parse().map_err(|_| form)?;
        let server = HttpServer::of(&uri, form, "http.authorization")?;
        let (scheme, rest) = text.split_once("://").ok_or(form)?;
        debug_assert!(scheme.len() <= 5);
        let start = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, target) = rest.split_at(start);
        if host.contains(TOPIC) {
            return Err("{topic} can be part of path and query only".to_owned());
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        if target.replace(TOPIC, "").contains(['{', '}']) {
            return Err("its only placeholder is {topic}".to_owned());
        }
        let HttpServer { tls, host, port, authority } = server;
        Ok(Self { tls, host, port, authority, target })
    }

    /// Whether each topic has a URL of its own.
    pub(crate) fn names_topic(&self) -> bool {
        self.target.contains(TOPIC)
    }

    /// Path and query for a record of `topic`.
    pub(super) fn target(&self, topic: &str) -> Option<Uri> {
        self.target.replace(TOPIC, topic).parse().ok()
    }

    /// Host and port, for messages.
    pub(crate) fn address(&self) -> String {
        url::address(&self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_the_usual_forms_are_parsed() {
        for (text, tls, address, authority, target) in [
            ("http://h", false, "h:80", "h", "/"),
            ("https://h/hooks/orders", true, "h:443", "h", "/hooks/orders"),
            ("https://h:8443?token=s3cret", true, "h:8443", "h:8443", "/?token=s3cret"),
            ("https://[::1]:1/a/{topic}?t={topic}", true, "[::1]:1", "[::1]:1", "/a/x.y?t=x.y"),
        ] {
            let url = HttpUrl::parse(text).expect(text);
            let found = url.target("x.y").expect("a target").to_string();
            let of = (url.tls, url.address(), url.authority.clone(), found);
            let authority = HeaderValue::from_static(authority);
            assert_eq!(of, (tls, address.to_owned(), authority, target.to_owned()), "{text}");
            assert!(!format!("{url:?}").contains("s3cret"));
        }
    }

    #[test]
    fn an_invalid_url_is_an_error_that_does_not_repeat_it() {
        for text in [
            "",
            "h/s3cret",
            "ftp://h/s3cret",
            "https://",
            "https:///s3cret",
            "https://u:s3cret@h/",
            "https://h/s3cret#x",
            "https://h/s3cret{key}",
            "https://{topic}.h/s3cret",
            "https://h:99999/s3cret",
            "https://h:/s3cret",
            "https://h:0/s3cret",
            "https://h/s3 cret",
        ] {
            let error = HttpUrl::parse(text).expect_err(text);
            assert!(!error.contains("s3cret"), "{text}: {error}");
        }
    }
}
