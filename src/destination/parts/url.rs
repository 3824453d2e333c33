//! Parts of the URLs of servers: `scheme://[user:password@]host[:port]…`. None may be in an error: a
//! password may stand anywhere in a URL that is mistyped.

use std::fmt::Display;
use std::net::IpAddr;

/// Host and port of `host[:port]`, where an IPv6 address stands in brackets; `None`: it is not of this
/// form.
pub(crate) fn host_and_port(address: &str, default: u16) -> Option<(String, u16)> {
    let (host, after) = match address.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => address.split_at(address.find(':').unwrap_or(address.len())),
    };
    let port = match after.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        None if after.is_empty() => default,
        None => return None,
    };
    // The zone of a link-local address is behind a `%`.
    let is_of_host =
        |sign: char| !sign.is_whitespace() && (sign != '%' || address.starts_with('['));
    let is_host = !host.is_empty() && host.chars().all(is_of_host);
    is_host.then(|| (host.to_owned(), port))
}

/// Host and port, for messages.
pub(crate) fn address(host: &str, port: impl Display) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Whether a host is the machine itself.
pub(crate) fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Resolves percent-encoding; `None`: a `%` is not followed by two digits, or it is not UTF-8.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        // A sign is no digit.
        if digits.starts_with('+') {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_found_or_the_form_is_wrong() {
        for (text, expected) in [
            ("h", Some(("h", 1))),
            ("h:7", Some(("h", 7))),
            ("[::1]", Some(("::1", 1))),
            ("[::1]:7", Some(("::1", 7))),
            ("[fe80::1%eth0]", Some(("fe80::1%eth0", 1))),
            ("", None),
            (":7", None),
            ("h:", None),
            ("h:0", None),
            ("h:x", None),
            ("h:99999", None),
            ("[::1", None),
            ("[::1]x", None),
            ("a b", None),
            ("a%20b", None),
        ] {
            let found = host_and_port(text, 1);
            let found = found.as_ref().map(|(host, port)| (host.as_str(), *port));
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!([address("h", 1), address("::1", 7)], ["h:1", "[::1]:7"]);
    }

    #[test]
    fn percent_encoding_is_resolved_or_wrong() {
        assert_eq!(decoded("a%40b%C3%A9").as_deref(), Some("a@bé"));
        for wrong in ["%", "%4", "%4g", "%+4", "%C3"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
