//! Removes secrets from what is displayed. If a text is ambiguous, more is hidden than necessary.

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use crate::conninfo::is_known_parameter;

/// The replacement for a secret.
pub(crate) const HIDDEN: &str = "[hidden]";

/// Whether a part of a displayed value is hidden.
pub(crate) fn is_hidden(shown: &str) -> bool {
    shown.contains(HIDDEN)
}

/// A Kafka property's value, or [`HIDDEN`] if its name indicates a secret, or is unknown to
/// librdkafka: it may be a misspelt name of a secret. Of a URL, the login and the query are hidden.
pub(crate) fn property(name: &str, value: &str) -> String {
    const SECRET: [&str; 15] = [
        "pas",
        "secret",
        "jaas",
        "key.pem",
        "private.key",
        "ssl_key",
        "token",
        "credential",
        "pwd",
        "apikey",
        "api.key",
        "api_key",
        "auth",
        "bearer",
        "signature",
    ];
    // Security properties that are not secret.
    const PLAIN: [&str; 15] = [
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.grant.type",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.curves.list",
        "ssl.sigalgs.list",
        "ssl.endpoint.identification.algorithm",
        "ssl.providers",
    ];
    let name = name.to_ascii_lowercase();
    // The path of a secret is not secret.
    let is_place = [".file", ".location"].iter().any(|end| name.ends_with(end))
        || (name == "sasl.oauthbearer.config" && value.starts_with("file="));
    let is_of_security = name.starts_with("sasl.") || name.starts_with("ssl.");
    let is_plain = is_place || PLAIN.contains(&name.as_str());
    let is_hidden = !is_plain
        && (is_of_security
            || SECRET.iter().any(|part| name.contains(part))
            || !is_librdkafkas(&name));
    if is_hidden { HIDDEN.to_owned() } else { without_query(logins(value)) }
}

/// A value without the part after a URL's `?` or `#`, which may contain secrets.
fn without_query(value: String) -> String {
    let Some(url) = value.find("://") else { return value };
    let query = value[url..].find(['?', '#']).map(|at| url + at + 1);
    query.map_or_else(|| value.clone(), |query| format!("{}{HIDDEN}", &value[..query]))
}

/// Whether librdkafka has a property with this name.
fn is_librdkafkas(name: &str) -> bool {
    let result = ClientConfig::new().set(name, "").create_native_config();
    let unknown = RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN;
    !matches!(result, Err(KafkaError::ClientConfig(code, ..)) if code == unknown)
}

/// A text without the logins of its URLs: everything between `://` and the last `@` of the same
/// URL, because a password may contain an unescaped `/` or `,`.
pub(crate) fn logins(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let mut quote = None;
    while let Some((before, after)) = rest.split_once("://") {
        let opening = before.trim_end_matches(is_of_scheme).chars().next_back();
        quote = opening.filter(|sign| is_quote(*sign)).or(quote);
        // A quoted URL may contain whitespace.
        let word = match quote.and_then(|quote| after.rfind(quote)) {
            Some(end) => &after[..end],
            None => &after[..word_end(after)],
        };
        shown.push_str(before);
        shown.push_str("://");
        rest = after;
        if let Some(at) = first_url(word).rfind('@') {
            shown.push_str(HIDDEN);
            rest = &after[at..];
        }
    }
    shown + rest
}

fn is_of_scheme(sign: char) -> bool {
    sign.is_ascii_alphanumeric() || "+-._".contains(sign)
}

fn is_quote(sign: char) -> bool {
    matches!(sign, '"' | '\'' | '`')
}

/// The end of the word at the start of `text`: the first whitespace outside of quotes.
fn word_end(text: &str) -> usize {
    let mut quoted_to = 0;
    for (at, sign) in text.char_indices() {
        if at < quoted_to {
            continue;
        }
        if sign.is_whitespace() {
            return at;
        }
        if is_quote(sign) {
            // A quote that is not closed is an ordinary character.
            quoted_to = text[at + 1..].find(sign).map_or(0, |length| at + 1 + length + 1);
        }
    }
    text.len()
}

/// The first of a list of URLs, after its `://`. A comma ends it only if another scheme follows,
/// and the text before the comma is not part of a login.
fn first_url(list: &str) -> &str {
    let end = list.match_indices(',').map(|(at, _)| at).find(|&at| {
        let next = &list[at + 1..];
        let scheme = next.trim_start_matches(is_of_scheme);
        let is_url = scheme.len() < next.len() && scheme.starts_with("://");
        is_url && (list[..at].contains('@') || has_ports(&list[..at]))
    });
    end.map_or(list, |end| &list[..end])
}

/// A PostgreSQL connection string, URL or `key=value`, without its passwords.
pub(crate) fn conninfo(text: &str) -> String {
    let text = text.trim();
    for scheme in ["postgres://", "postgresql://"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            return format!("{scheme}{}", url(rest));
        }
    }
    pairs(text).unwrap_or_else(|| HIDDEN.to_owned())
}

/// A URL after its scheme. The login is everything up to the last `@` before the query, so that a
/// password with an unescaped `/` or `@` is hidden too; if the `?` may belong to a password,
/// everything is hidden. Without an `@`, a port that is not a number may be a password.
fn url(rest: &str) -> String {
    let (head, query) = match rest.split_once('?') {
        Some((head, query)) => (head, Some(query)),
        None => (rest, None),
    };
    let (login, place) = match head.rsplit_once('@') {
        Some((login, place)) => (format!("{}@", shown_login(login)), place),
        None => (String::new(), head),
    };
    let is_torn = query.is_some_and(|query| query.contains('@') && !is_of_parameters(query));
    if is_torn || !has_ports(place) {
        return HIDDEN.to_owned();
    }
    match query {
        Some(query) => format!("{login}{place}?{}", shown_query(query)),
        None => login + place,
    }
}

/// The user name, unless it may be part of a password.
fn shown_login(login: &str) -> String {
    let (user, password) = match login.split_once(':') {
        Some((user, _)) => (user, format!(":{HIDDEN}")),
        None => (login, String::new()),
    };
    let is_doubtful =
        user.contains(['/', '@', ',', '#']) || user.to_ascii_lowercase().contains("%3a");
    if is_doubtful { HIDDEN.to_owned() } else { format!("{user}{password}") }
}

/// Whether a query is well-formed: `name=value&…`, with libpq's names.
fn is_of_parameters(query: &str) -> bool {
    query
        .split('&')
        .all(|pair| pair.split_once('=').is_some_and(|(name, _)| is_known_parameter(name)))
}

/// The parameters, or nothing if an `@` indicates a login.
fn shown_query(query: &str) -> String {
    if query.contains('@') {
        return HIDDEN.to_owned();
    }
    let shown = query.split('&').map(|pair| match pair.split_once('=') {
        // An escape in the name may conceal `password`.
        Some((name, value)) if is_secret(name) || is_doubtful(value) => format!("{name}={HIDDEN}"),
        Some(_) => pair.to_owned(),
        None if pair.is_empty() => String::new(),
        // It may be the rest of a password that contains an `&`.
        None => HIDDEN.to_owned(),
    });
    shown.collect::<Vec<_>>().join("&")
}

/// Whether a parameter's value may contain another parameter, because of a wrong separator.
fn is_doubtful(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    value.contains('?') || ["password", "secret", "pwd"].iter().any(|part| value.contains(part))
}

/// Whether all ports are numbers.
fn has_ports(rest: &str) -> bool {
    ports(rest).all(|port| port.bytes().all(|sign| sign.is_ascii_digit()))
}

/// The ports in `host:port,[host]:port/…`.
fn ports(rest: &str) -> impl Iterator<Item = &str> {
    let hosts = rest.split(['/', '?', '#']).next().unwrap_or_default();
    hosts.split(',').filter_map(|host| {
        let after = host.strip_prefix('[').and_then(|host| host.split_once(']'));
        after.map_or(host, |(_, after)| after).split_once(':').map(|(_, port)| port)
    })
}

/// A name that libpq does not know may be the misspelt name of a secret.
fn is_secret(name: &str) -> bool {
    ["password", "secret", "_key"].iter().any(|part| name.contains(part))
        || !is_known_parameter(name)
}

/// `None` if the text is not a list of `key=value`
/// (<https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-KEYWORD-VALUE>).
fn pairs(text: &str) -> Option<String> {
    let mut shown = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_end();
        // libpq's names; anything else may be part of a password.
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
            return None;
        }
        let after = after.trim_start();
        let end = value_end(after)?;
        let (value, next) = after.split_at(end);
        // libpq accepts a URL as the database name.
        let value = if is_secret(name) { HIDDEN.to_owned() } else { logins(value) };
        shown.push(format!("{name}={value}"));
        rest = next.trim_start();
    }
    Some(shown.join(" "))
}

/// The end of the value at the start of `text`; `None` for an unclosed quote.
fn value_end(text: &str) -> Option<usize> {
    let quoted = text.starts_with('\'');
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(usize::from(quoted)) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' if quoted => return Some(at + 1),
            c if !quoted && c.is_whitespace() => return Some(at),
            _ => {}
        }
    }
    (!quoted).then_some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "postgres://u:s3cret@h/db",
            "postgresql://u:s3cret@h:5432,h2/db?sslmode=require",
            "postgres://u:a/s3cret@h/db",
            "postgres://u:a@s3cret@h/db",
            "postgres://u:a?s3cret@h/db",
            "postgres://u:s3cret",
            "postgres://u:s3cret/db?sslmode=require",
            "postgres://h:1,u:s3cret?x=y",
            "postgres://[::1]:s3cret",
            "postgres://u@h/db?password=s3cret&sslmode=require",
            "postgres://h/db?sslpassword=s3cret",
            "postgres://h/db?p%61ssword=s3cret",
            "postgres://h/db?passwrd=s3cret",
            "host=h pasword=s3cret",
            "password=s3cret host=h",
            "host=h password = 's3cret'",
            r"host=h password='a\'s3cret' user=u",
            r"host=h password=a\ s3cret user=u",
            "host=h password='s3cret",
            "s3cret",
            "host=h s3cret password=x",
            "\npostgres://u:s3cret@h/db?sslmode=require",
            "POSTGRES://u:s3cret@h/db?x=y",
            "postgres+ssl://u:s3cret@h/db?a=b",
            "jdbc:postgresql://h/db?user=u&password=s3cret",
            "postgres://u@h/db?application_name=a@b&password=s3cret",
            "postgres://u:p@h/db?application_name=a@b&password=s3cret",
            "postgres://h/db?application_name=a@b&password=s3cret",
            "postgres://u@h/db?password=a@s3cret",
            "postgres://u@h/db?password=s3cret@a",
            "postgres://u@h/db?password=a&s3cret",
            "postgres://u@h/db?sslmode=require?password=s3cret",
            "postgres://u@h/db?sslmode=require;password=s3cret",
            "postgres://u:a@s3cret?b@h/db",
            "postgres://u:a@b?s3cret@h/db",
            "postgres://u:a/b?s3cret@h/db?application_name=a@b",
            "postgres://u:a#s3cret@h/db",
            "postgres://u/s3cret@h/db",
            "postgres://u%3As3cret@h/db",
            "host=h dbname=postgres://u:s3cret@h/db",
        ] {
            assert!(!conninfo(text).contains("s3cret"), "{}", conninfo(text));
        }
    }

    #[test]
    fn other_values_are_shown() {
        assert_eq!(
            conninfo("postgres://u:p@h:1/db?sslmode=require"),
            "postgres://u:[hidden]@h:1/db?sslmode=require"
        );
        for plain in ["postgres://u@h/db", "postgres://h:1,[::1]:2,[::2],h3/db", "postgres:///db"] {
            assert_eq!(conninfo(plain), plain);
        }
        assert_eq!(
            conninfo("host=h  user='a b' password=x"),
            "host=h user='a b' password=[hidden]"
        );
        assert_eq!(conninfo(""), "");
        assert_eq!(
            conninfo("postgres://u:p@h/db?application_name=a@b&password=c"),
            "postgres://u:[hidden]@h/db?[hidden]"
        );
        assert_eq!(
            conninfo("postgres://u@h/db?application_name=a&passfile=/f&sslpassword=c"),
            "postgres://u@h/db?application_name=a&passfile=/f&sslpassword=[hidden]"
        );
    }

    #[test]
    fn properties_are_hidden_by_name() {
        for name in [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "sasl.jaas.config",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.config",
            "sasl.pasword",
            "sals.pasword",
            "ssl.key.pasword",
            "ssl.keystore",
            "basic.auth.user.info",
            "x.api.key",
            "client.idd",
        ] {
            assert_eq!(property(name, "x"), HIDDEN, "{name}");
        }
        for name in [
            "linger.ms",
            "ssl.key.location",
            "sasl.oauthbearer.token.endpoint.url",
            "sasl.username",
            "security.protocol",
            "compression.type",
        ] {
            assert_eq!(property(name, "x"), "x", "{name}");
        }
    }

    #[test]
    fn the_query_of_a_propertys_url_is_hidden() {
        let shown = |value| property("sasl.oauthbearer.token.endpoint.url", value);
        for url in [
            "https://idp/token?client_secret=s3cret",
            "https://idp/token?a=b&client_secret=s3cret",
            "https://idp/token#s3cret",
            "https://u:p@idp/token?x=s3cret@y",
        ] {
            assert!(!shown(url).contains("s3cret"), "{}", shown(url));
        }
        assert_eq!(shown("https://idp/token?a=b"), "https://idp/token?[hidden]");
        assert_eq!(shown("https://idp/token"), "https://idp/token");
        assert_eq!(property("client.id", "a?b#c"), "a?b#c");
    }

    #[test]
    fn logins_are_hidden_in_any_url() {
        for text in [
            "https://u:s3cret@idp/token",
            "https://s3cret@idp/token",
            "https://u:s3/s3cret@idp/token?x=y",
            "SASL_SSL://u:s3cret@a:9092,SASL_SSL://u:s3cret@b:9092",
            "see http://a/b and ftp://u:s3cret@c",
            "https://u:s3cret,x@idp",
            "https://u:x,s3cret@idp/token",
            "https://u:s3cret,x://y@idp",
            "SASL_SSL://a:9092,SASL_SSL://u:x,s3cret@b:9092,SSL://c",
            "`https://u:a s3cret@idp` is no URI",
            "`SSL://a:1,SSL://u:a s3cret@b` is no list",
            "https://u:\"a s3cret\"@idp",
        ] {
            assert!(!logins(text).contains("s3cret"), "{}", logins(text));
            let property = property("sasl.oauthbearer.token.endpoint.url", text);
            assert!(!property.contains("s3cret"), "{property}");
        }
        let two = "SASL_SSL://u:p@a:9092,PLAINTEXT://b:9092";
        assert_eq!(logins(two), "SASL_SSL://[hidden]@a:9092,PLAINTEXT://b:9092");
        let two = "SASL_SSL://u:p@a:9092,b:1,PLAINTEXT://[::1]:9092,SSL://u@c see d@e";
        let shown =
            "SASL_SSL://[hidden]@a:9092,b:1,PLAINTEXT://[::1]:9092,SSL://[hidden]@c see d@e";
        assert_eq!(logins(two), shown);
        for plain in ["https://idp/token", "a@b", "", "/shop", "a:1,b:2", "urn://x, me@y"] {
            assert_eq!(logins(plain), plain);
        }
    }
}
