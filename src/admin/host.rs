//! Checks the `Host` header of requests to the endpoints. A web page can make a browser on this
//! machine send a request to loopback under a name that an attacker's DNS resolves to that address
//! (DNS rebinding): the `Host` header distinguishes it from an intended request.

use std::net::{IpAddr, SocketAddr};

use hyper::Request;
use hyper::header::HOST;

/// The hosts for which the endpoints respond.
#[derive(Debug, Clone)]
pub(super) enum Hosts {
    /// Beyond loopback: access is controlled by the network, whatever the name.
    Any,
    /// The loopback interface: its addresses, `localhost`, and this configured name.
    Loopback(String),
}

impl Hosts {
    /// The hosts of endpoints with this configured address that listen on `bound`.
    pub(super) fn of(configured: &str, bound: SocketAddr) -> Self {
        if bound.ip().to_canonical().is_loopback() {
            Self::Loopback(without_port(configured).to_ascii_lowercase())
        } else {
            Self::Any
        }
    }

    /// Whether a request is for one of these hosts. A request without a host, as in HTTP/1.0, is
    /// not from a browser.
    pub(super) fn have<B>(&self, request: &Request<B>) -> bool {
        let named = request.headers().get_all(HOST).iter();
        let mut named = named.map(|value| value.to_str().unwrap_or_default());
        named.all(|host| self.has(host)) && request.uri().host().is_none_or(|host| self.has(host))
    }

    fn has(&self, host: &str) -> bool {
        let Self::Loopback(configured) = self else { return true };
        let host = without_port(host.trim()).to_ascii_lowercase();
        host == "localhost"
            || host == *configured
            || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
    }
}

/// `host` of `host`, `host:port`, `[address]` and `[address]:port`.
fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(address, _)| address);
    }
    host.split_once(':').map_or(host, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(configured: &str, bound: &str, host: &str) -> bool {
        let hosts = Hosts::of(configured, bound.parse().expect("an address"));
        hosts.have(&Request::get("/status").header(HOST, host).body(()).expect("a request"))
    }

    #[test]
    fn on_loopback_only_its_names_and_addresses_are_accepted() {
        let here = |host| takes("127.0.0.1:9641", "127.0.0.1:9641", host);
        for host in [
            "localhost",
            "LocalHost:9641",
            "127.0.0.1:9641",
            "127.0.0.1",
            "127.0.1.1",
            "[::1]:9641",
        ] {
            assert!(here(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9641",
            "",
            "localhost.evil.example",
            "10.0.0.1:9641",
            "[::2]",
        ] {
            assert!(!here(host), "{host}");
        }
        assert!(takes("Metrics.local:9641", "[::1]:9641", "metrics.local:9641"));
        let hosts = Hosts::of("127.0.0.1:1", ([127, 0, 0, 1], 1).into());
        assert!(hosts.have(&Request::get("/livez").body(()).expect("a request")), "HTTP/1.0");
        let absolute = Request::get("http://evil.example/status").header(HOST, "localhost");
        assert!(!hosts.have(&absolute.body(()).expect("a request")));
        let two = Request::get("/").header(HOST, "localhost").header(HOST, "evil.example");
        assert!(!hosts.have(&two.body(()).expect("a request")));
    }

    #[test]
    fn beyond_loopback_every_name_is_accepted() {
        for bound in ["0.0.0.0:9641", "[::]:9641", "10.0.0.1:9641"] {
            assert!(takes("0.0.0.0:9641", bound, "pod.example:9641"), "{bound}");
        }
    }
}
