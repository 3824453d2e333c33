//! Parsers of values: each takes a text, and returns the value or the reason why it is invalid.

use std::net::SocketAddr;
use std::time::Duration;

use super::{CatchUpMode, CoreDumps, DeliveryMode, units};

use crate::record::Policy;
use crate::record::debezium::Converters;
use crate::record::{TimestampSource, ValueFormat, check_topic};

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

pub(super) fn timestamp(text: &str) -> Result<TimestampSource, String> {
    let (commit, column) = (TimestampSource::Commit, TimestampSource::Column);
    one_of(text, &[("commit", commit), ("column", column), ("none", TimestampSource::None)])
}

/// The profile for walpost's own record format.
pub(super) const OWN_PROFILE: &str = "walpost";

pub(super) fn profile(text: &str) -> Result<Option<Converters>, String> {
    let debezium = Converters::NAMES.map(|(name, converters)| (name, Some(converters)));
    let names: Vec<_> = [(OWN_PROFILE, None)].into_iter().chain(debezium).collect();
    one_of(text, &names)
}

pub(super) fn value_format(text: &str) -> Result<ValueFormat, String> {
    one_of(text, &ValueFormat::NAMES)
}

pub(super) fn delivery_mode(text: &str) -> Result<DeliveryMode, String> {
    one_of(text, &DeliveryMode::NAMES)
}

pub(super) fn catch_up(text: &str) -> Result<CatchUpMode, String> {
    one_of(text, &CatchUpMode::NAMES)
}

/// The value with that name.
fn one_of<T: Copy>(text: &str, names: &[(&str, T)]) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = names.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("`{text}` is not one of {}", names.join(", "))
    })
}

/// What to do with an undeliverable event.
pub(super) fn policy(text: &str) -> Result<Policy, String> {
    one_of(text, &Policy::NAMES)
}

/// What [`policy_or_wait`] accepts besides the policies.
pub(super) const WAIT: &str = "wait";

/// What to do with an event whose topic may be created later; `None` means wait.
pub(super) fn policy_or_wait(text: &str) -> Result<Option<Policy>, String> {
    let policies = Policy::NAMES.map(|(name, policy)| (name, Some(policy)));
    one_of(text, &[&[(WAIT, None)], policies.as_slice()].concat())
}

/// A topic name, without placeholders.
pub(super) fn topic(text: &str) -> Result<String, String> {
    match check_topic(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(fault) => Err(format!("`{text}` {fault}")),
    }
}

pub(super) fn retries(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number of retries"))
}

/// Partitions and replicas; -1: the brokers' default.
pub(super) fn new_topics(text: &str) -> Result<(i32, i32), String> {
    if text == "default" {
        return Ok((-1, -1));
    }
    let number = |text: &str| text.parse().ok().filter(|number| (1..=10_000).contains(number));
    text.split_once(':')
        .and_then(|(partitions, replicas)| number(partitions).zip(number(replicas)))
        .ok_or_else(|| {
            format!("`{text}` is neither `default` nor `PARTITIONS:REPLICAS`, such as `6:3`")
        })
}

/// How many producers may send at the same time.
pub(super) fn max_producers(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=32).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number of producers, 1 to 32"))
}

/// Whether the kernel may write a core dump.
pub(super) fn core_dumps(text: &str) -> Result<CoreDumps, String> {
    one_of(text, &[("refuse", CoreDumps::Refuse), ("allow", CoreDumps::Allow)])
}

/// `on` or `off`.
pub(super) fn on_or_off(text: &str) -> Result<bool, String> {
    one_of(text, &[("on", true), ("off", false)])
}

/// A duration with a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    units::parse_duration(text).map_err(|error| error.to_string())
}

/// `true` or `false`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "not `true` or `false`".to_owned())
}

/// An id that can be part of a `transactional.id`.
pub(super) fn delivery_id(text: &str) -> Result<String, String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.len() > 100 || !text.chars().all(is_allowed) {
        return Err("not 1 to 100 letters, digits, `.`, `_` and `-`".to_owned());
    }
    Ok(text.to_owned())
}

/// The name of a topic, or `off`.
pub(super) fn state_topic(text: &str) -> Result<Option<String>, String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text == "off" {
        return Ok(None);
    }
    if matches!(text, "" | "." | "..") || text.len() > 249 || !text.chars().all(is_allowed) {
        return Err("not the name of a topic, and not `off`".to_owned());
    }
    Ok(Some(text.to_owned()))
}

/// Whether null keys are sent.
pub(super) fn null_keys(text: &str) -> Result<bool, String> {
    one_of(text, &[("refuse", false), ("allow", true)])
}

/// A `CloudEvent`'s `source`, a URI or a part of one.
pub(super) fn cloudevents_source(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(|sign: char| sign.is_whitespace() || sign.is_control()) {
        return Err(format!("`{text}` is not a URI reference: it is empty or contains whitespace"));
    }
    Ok(text.to_owned())
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    one_of(text, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
}

/// A slot name as PostgreSQL accepts it
/// (<https://www.postgresql.org/docs/current/warm-standby.html#STREAMING-REPLICATION-SLOTS-MANIPULATION>).
pub(super) fn slot(text: &str) -> Result<String, String> {
    let plain = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if plain && (1..=63).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "`{text}` is not a slot name: use 1 to 63 lower-case letters, digits and underscores"
        ))
    }
}

/// A name as SQL accepts it between double quotes, verbatim.
pub(super) fn identifier(text: &str) -> Result<String, String> {
    if text.contains('\0') || !(1..=63).contains(&text.len()) {
        Err(format!("`{text}` is not a valid PostgreSQL name: use 1 to 63 bytes, without NUL"))
    } else {
        Ok(text.to_owned())
    }
}

/// A list of `host:port`, or `host`, as librdkafka accepts it: with or without a security protocol.
pub(super) fn servers(text: &str) -> Result<String, String> {
    const PROTOCOLS: [&str; 4] = ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"];
    for server in text.split(',').map(str::trim) {
        if server.contains(['"', '\'', '`', '\u{feff}']) {
            return Err("remove the quotes or the byte-order mark from it".to_owned());
        }
        let (protocol, address) = server.rsplit_once("://").unwrap_or(("", server));
        if !protocol.is_empty() && !PROTOCOLS.contains(&protocol.to_ascii_lowercase().as_str()) {
            return Err("it is no URL: write `host:port`, without what ends in `://`".to_owned());
        }
        // The last colon separates host and port, unless it is inside `[…]`.
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (address, None),
        };
        let good_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        let unbracketed = host.contains(':') && !host.starts_with('[');
        if host.is_empty() || host.contains(char::is_whitespace) || unbracketed || !good_port {
            // A login that is split at a comma is not recognisable in the parts.
            let what = if text.contains('@') {
                "the value (not shown, since it may contain a login)".to_owned()
            } else {
                format!("`{server}`")
            };
            return Err(format!("{what} is not `host:port`: separate several servers by commas"));
        }
    }
    Ok(text.to_owned())
}

/// A level, or a filter by module as in `RUST_LOG`.
pub(super) fn log_level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(text));
    // As a filter, a misspelt level such as `inof` would be a module name.
    if level || (text.contains('=') && log_filter(text).is_ok()) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is not a log level: use error, warn, info, debug, trace or off, \
         or a filter such as `info,walpost=debug`"
    ))
}

/// A value of `RUST_LOG`. Other programs read it too, so it is not validated further.
#[cfg(feature = "cli")]
pub(super) fn log_filter(text: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("`{text}` is not a log filter: {error}")),
    }
}

/// A program that embeds walpost has a subscriber of its own.
#[cfg(not(feature = "cli"))]
#[allow(clippy::unnecessary_wraps, reason = "as the other one")]
pub(super) fn log_filter(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

/// The default listen address of the endpoints.
pub(super) const ADMIN_LISTEN: &str = "127.0.0.1:9641";

/// The value that turns the endpoints off.
pub(super) const ADMIN_OFF: &str = "off";

/// An address to listen on; `None`: the endpoints are off.
pub(super) fn admin_listen(text: &str) -> Result<Option<String>, String> {
    if text == ADMIN_OFF {
        return Ok(None);
    }
    let is_name = |host: &str| {
        let sign = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '.' | '-');
        !host.is_empty() && host.chars().all(sign)
    };
    let named = text
        .rsplit_once(':')
        .is_some_and(|(host, port)| is_name(host) && port.parse::<u16>().is_ok());
    if named || text.parse::<SocketAddr>().is_ok() {
        return Ok(Some(text.to_owned()));
    }
    Err(format!(
        "`{text}` is not a listen address: use an address and a port, such as {ADMIN_LISTEN}, or `off`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_names_follow_postgresqls_rules() {
        assert!(slot("walpost_2").is_ok() && slot(&"a".repeat(63)).is_ok());
        for wrong in ["", "Walpost", "wal-post", "wal post", "größe", &"a".repeat(64)] {
            assert!(slot(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_endpoints_have_an_address_and_a_port_or_are_off() {
        assert_eq!(admin_listen("off"), Ok(None));
        for right in [ADMIN_LISTEN, "0.0.0.0:0", "[::]:9641", "localhost:80", "walpost.svc:9641"] {
            assert_eq!(admin_listen(right), Ok(Some(right.to_owned())), "{right}");
        }
        for wrong in ["", "on", "9641", ":9641", "localhost", "::1:9641x", "a:99999", "a b:1"] {
            assert!(admin_listen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn topics_are_created_with_partitions_and_replicas_or_as_the_brokers_have_it() {
        assert_eq!(new_topics("default"), Ok((-1, -1)));
        assert_eq!(new_topics("6:3"), Ok((6, 3)));
        for wrong in ["", "6", "6:", ":3", "0:1", "6:0", "-1:-1", "a:b", "6:3:1"] {
            assert!(new_topics(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn servers_are_hosts_with_or_without_a_port() {
        for right in ["localhost:9092", "a:1,b:2", "a, b", "[::1]:9092", "[::1]", "SSL://a:9093"] {
            assert!(servers(right).is_ok(), "{right}");
        }
        for wrong in [
            "",
            ",",
            "a:1,",
            ":9092",
            "a:0",
            "a:99999",
            "a:b",
            "a b:1",
            "::1",
            "kafka://a:1",
            "\"a:1\"",
        ] {
            assert!(servers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_error_about_servers_contains_no_login() {
        let good = servers("a:b").unwrap_err();
        assert!(good.starts_with("`a:b` is not `host:port`"), "{good}");
        for wrong in ["u:s3cret@h:1", "SSL://u:s3cret@h:1", "a:1,u:s3cret@h:1", "u:s3cret,x@h:1"] {
            let error = servers(wrong).unwrap_err();
            assert!(!error.contains("s3cret") && error.contains("`host:port`"), "{error}");
        }
    }

    #[test]
    fn a_misspelt_level_is_not_treated_as_a_module() {
        for right in ["info", "DEBUG", "off", "info,walpost=debug", "walpost=trace"] {
            assert!(log_level(right).is_ok(), "{right}");
        }
        for wrong in ["", "inof", "verbose", "walpost=loud"] {
            assert!(log_level(wrong).is_err(), "{wrong}");
        }
    }
}
