//! Parses a connection string into its parameters, in order. Knows libpq's two formats, but not the
//! meaning of the parameters.

use super::error::ConnInfoError;
use super::parameters::{known, unknown};

/// Parameters in the order of the text; the last of duplicates wins.
pub(super) type Pairs = Vec<(&'static str, String)>;

/// Parses a URL or `key=value` text.
pub(super) fn parse(text: &str) -> Result<Pairs, ConnInfoError> {
    let text = text.trim();
    let url = ["postgresql://", "postgres://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    if text.contains('\0') {
        return Err(ConnInfoError::Malformed("it has a zero byte"));
    }
    if text.starts_with(['"', '\'', '`', '\u{201c}', '\u{feff}']) {
        return Err(ConnInfoError::Malformed("remove the quotes or the byte-order mark around it"));
    }
    match url {
        Some(rest) => parse_url(rest),
        None if text.starts_with("jdbc:") => Err(ConnInfoError::Malformed(
            "a URL of JDBC: it must be postgres://USER:PASSWORD@HOST:PORT/DATABASE",
        )),
        None if looks_like_a_url(text) => {
            Err(ConnInfoError::Malformed("a URL must begin with postgresql:// or postgres://"))
        }
        None if !text.is_empty() && !text.contains('=') => Err(ConnInfoError::Malformed(
            "neither a URL nor NAME=VALUE: write postgres://USER@HOST:PORT/DATABASE",
        )),
        None => parse_pairs(text),
    }
}

fn looks_like_a_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

fn parse_pairs(text: &str) -> Result<Pairs, ConnInfoError> {
    const NO_EQUALS: &str = "a name without `=`; quote a value that has spaces";
    let mut pairs = Pairs::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| c == '=' || c.is_whitespace())
            .ok_or(ConnInfoError::Malformed(NO_EQUALS))?;
        let (name, after) = rest.split_at(end);
        let after =
            after.trim_start().strip_prefix('=').ok_or(ConnInfoError::Malformed(NO_EQUALS))?;
        let parameter = known(name).ok_or_else(|| {
            // The text after an unquoted password may be the rest of it.
            let after_password = pairs.last().is_some_and(|(name, _)| is_secret(name));
            unknown(name, after_password)
        })?;
        let (value, after) = parse_value(after.trim_start())?;
        pairs.push((parameter.name, value));
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// A connection string with the same parameters without secrets, for this user if one is given; `None`:
/// it is none.
pub(crate) fn for_user(text: &str, user: Option<&str>) -> Option<String> {
    let mut pairs = parse(text).ok()?;
    pairs.retain(|(name, _)| !is_secret(name) && (user.is_none() || *name != "user"));
    pairs.extend(user.map(|user| ("user", user.to_owned())));
    let quoted = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
    let words = pairs.iter().map(|(name, value)| format!("{name}='{}'", quoted(value)));
    Some(words.collect::<Vec<_>>().join(" "))
}

fn is_secret(name: &str) -> bool {
    matches!(name, "password" | "sslpassword")
}

/// One value, quoted or not, and the rest of the text.
fn parse_value(text: &str) -> Result<(String, &str), ConnInfoError> {
    let quoted = text.starts_with('\'');
    let body = if quoted { &text[1..] } else { text };
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, &body[at + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, &body[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        return Err(ConnInfoError::Malformed("a quoted value has no end"));
    }
    Ok((value, ""))
}

fn parse_url(rest: &str) -> Result<Pairs, ConnInfoError> {
    let mut pairs = Pairs::new();
    let at_sign = rest.find(['@', '/']).filter(|&at| rest[at..].starts_with('@'));
    let rest = match at_sign {
        Some(at) => {
            let (user, password) = match rest[..at].split_once(':') {
                Some((user, password)) => (user, password),
                None => (&rest[..at], ""),
            };
            push_decoded(&mut pairs, "user", user)?;
            push_decoded(&mut pairs, "password", password)?;
            &rest[at + 1..]
        }
        None => rest,
    };
    let (hosts, ports, rest) = parse_authority(rest)?;
    push_decoded(&mut pairs, "host", &hosts)?;
    push_decoded(&mut pairs, "port", &ports)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if path.contains('@') {
        return Err(ConnInfoError::Malformed(
            "`/` in a user name or password must be written %2F, and `@` in a database name %40",
        ));
    }
    push_decoded(&mut pairs, "dbname", path.strip_prefix('/').unwrap_or(path))?;
    parse_query(query, &mut pairs)?;
    Ok(pairs)
}

/// `host:port,[ipv6]:port,…` up to the path: the list of hosts, the list of ports, and the rest of
/// the text.
fn parse_authority(mut rest: &str) -> Result<(String, String, &str), ConnInfoError> {
    const ENDS: [char; 4] = [':', '/', '?', ','];
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    loop {
        let host = if let Some(inside) = rest.strip_prefix('[') {
            let (host, after) = inside
                .split_once(']')
                .filter(|(host, _)| !host.is_empty())
                .ok_or(ConnInfoError::Malformed("an IPv6 address in brackets has no end"))?;
            if !after.is_empty() && !after.starts_with(ENDS) {
                return Err(ConnInfoError::Malformed(
                    "`:`, `/`, `,` or the end must follow an IPv6 address in brackets",
                ));
            }
            rest = after;
            host
        } else {
            let (host, after) = rest.split_at(rest.find(ENDS).unwrap_or(rest.len()));
            rest = after;
            host
        };
        hosts.push(host);
        let port = match rest.strip_prefix(':') {
            Some(after) => {
                let end = after.find(['/', '?', ',']).unwrap_or(after.len());
                rest = &after[end..];
                &after[..end]
            }
            None => "",
        };
        ports.push(port);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None => break,
        }
    }
    let ports =
        if ports.iter().all(|port| port.is_empty()) { String::new() } else { ports.join(",") };
    Ok((hosts.join(","), ports, rest))
}

fn parse_query(query: &str, pairs: &mut Pairs) -> Result<(), ConnInfoError> {
    if query.is_empty() {
        return Ok(());
    }
    // An `@` this late indicates a password that should have been percent-encoded.
    let may_be_secret = query.contains('@');
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').filter(|(_, value)| !value.contains('=')).ok_or(
            ConnInfoError::Malformed(
                "each parameter after `?` must be name=value, with `=` in a value as %3D",
            ),
        )?;
        let name = decode(name)?;
        let value = decode(value)?;
        if name == "ssl" && value == "true" {
            pairs.push(("sslmode", "require".to_owned()));
            continue;
        }
        let parameter = known(&name).ok_or_else(|| unknown(&name, may_be_secret))?;
        pairs.push((parameter.name, value));
    }
    Ok(())
}

fn push_decoded(pairs: &mut Pairs, name: &'static str, encoded: &str) -> Result<(), ConnInfoError> {
    if !encoded.is_empty() {
        pairs.push((name, decode(encoded)?));
    }
    Ok(())
}

fn decode(encoded: &str) -> Result<String, ConnInfoError> {
    const WRONG: ConnInfoError =
        ConnInfoError::Malformed("a `%` must be followed by two hexadecimal digits, not %00");
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = digit().zip(digit()).ok_or(WRONG)?;
        let byte = u8::try_from(high * 16 + low).ok().filter(|&byte| byte != 0);
        bytes.push(byte.ok_or(WRONG)?);
    }
    String::from_utf8(bytes).map_err(|_| ConnInfoError::Malformed("it does not decode to UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Vec<(&'static str, String)> {
        parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn pairs(expected: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
        expected.iter().map(|&(name, value)| (name, value.to_owned())).collect()
    }

    #[test]
    fn url_that_is_written_for_another_program_is_named() {
        for (text, part) in [
            ("jdbc:postgresql://h/d?user=u&password=s3cret", "of JDBC"),
            ("\"postgres://u:s3cret@h/d\"", "quotes"),
            ("\u{feff}postgres://u:s3cret@h/d", "byte-order mark"),
            ("postgresql+asyncpg://u:s3cret@h/d", "must begin with"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part) && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn the_urls_in_libpqs_manual_are_parsed() {
        for (url, expected) in [
            ("postgresql://", &[][..]),
            ("postgresql://localhost", &[("host", "localhost")]),
            ("postgresql://localhost:5433", &[("host", "localhost"), ("port", "5433")]),
            ("postgresql://localhost/mydb", &[("host", "localhost"), ("dbname", "mydb")]),
            ("postgresql://user@localhost", &[("user", "user"), ("host", "localhost")]),
            (
                "postgresql://user:secret@localhost",
                &[("user", "user"), ("password", "secret"), ("host", "localhost")],
            ),
            (
                "postgresql://other@localhost/otherdb?connect_timeout=10&application_name=myapp",
                &[
                    ("user", "other"),
                    ("host", "localhost"),
                    ("dbname", "otherdb"),
                    ("connect_timeout", "10"),
                    ("application_name", "myapp"),
                ],
            ),
            (
                "postgresql://host1:123,host2:456/somedb?target_session_attrs=any",
                &[
                    ("host", "host1,host2"),
                    ("port", "123,456"),
                    ("dbname", "somedb"),
                    ("target_session_attrs", "any"),
                ],
            ),
            (
                "postgresql:///mydb?host=localhost&port=5433",
                &[("dbname", "mydb"), ("host", "localhost"), ("port", "5433")],
            ),
            (
                "postgresql://[2001:db8::1234]/database",
                &[("host", "2001:db8::1234"), ("dbname", "database")],
            ),
            (
                "postgresql:///dbname?host=/var/lib/pg",
                &[("dbname", "dbname"), ("host", "/var/lib/pg")],
            ),
            (
                "postgresql://%2Fvar%2Flib%2Fpg/dbname",
                &[("host", "/var/lib/pg"), ("dbname", "dbname")],
            ),
            (
                "postgresql://user@localhost:5433/mydb?options=-c%20synchronous_commit%3Doff",
                &[
                    ("user", "user"),
                    ("host", "localhost"),
                    ("port", "5433"),
                    ("dbname", "mydb"),
                    ("options", "-c synchronous_commit=off"),
                ],
            ),
            ("postgres://h?ssl=true", &[("host", "h"), ("sslmode", "require")]),
            ("postgres://h1,h2:7", &[("host", "h1,h2"), ("port", ",7")]),
            ("postgres://u:p%40%3A%2f%C3%A9@", &[("user", "u"), ("password", "p@:/é")]),
        ] {
            assert_eq!(parsed(url), pairs(expected), "{url}");
        }
    }

    #[test]
    fn key_value_texts_may_contain_quotes_backslashes_and_spaces() {
        for (text, expected) in [
            ("", &[][..]),
            (
                "host=localhost port=5432 dbname=mydb connect_timeout=10",
                &[
                    ("host", "localhost"),
                    ("port", "5432"),
                    ("dbname", "mydb"),
                    ("connect_timeout", "10"),
                ],
            ),
            (
                r"  user = 'it\'s \\ me'  password= ''dbname=d",
                &[("user", r"it's \ me"), ("password", ""), ("dbname", "d")],
            ),
            (r"password=a\ b\\c host=", &[("password", r"a b\c"), ("host", "")]),
            ("host=::1\n\tport=1", &[("host", "::1"), ("port", "1")]),
        ] {
            assert_eq!(parsed(text), pairs(expected), "{text}");
        }
    }

    #[test]
    fn malformed_texts_are_rejected_without_showing_them() {
        for text in [
            "hunter2",
            "host hunter2",
            "password='hunter2",
            "password=x hunter2",
            "password=x hunter2=y",
            "mysql://u:hunter2@h",
            "postgres://u:hunter2%@h",
            "postgres://u:hunter2%zz@h",
            "postgres://u:hunter2%00@h",
            "postgres://u:hunter2%ff@h",
            "postgres://h/?hunter2",
            "postgres://h/?options=hunter2=x",
            "postgres://u:a/b?hunter2=c@h/db",
            "postgres://u:1/hunter2@h/db",
            "postgres://[::1/hunter2",
            "postgres://[]/hunter2",
            "postgres://[::1]hunter2",
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text: String) {
            let _ = parse(&text);
            let _ = parse(&format!("postgres://{text}"));
        }

        #[test]
        fn any_text_of_syntax_characters_is_parsed_or_rejected(
            text in r"(postgres://)?[a-c%02:/?@,=&\[\]'\\ ]{0,30}",
        ) {
            let _ = parse(&text);
        }

        #[test]
        fn a_quoted_value_is_parsed_to_the_same_value(value in r"[^\x00]*") {
            let quoted = value.replace('\\', r"\\").replace('\'', r"\'");
            let read = parse(&format!("password='{quoted}' user=u")).expect("well formed");
            prop_assert_eq!(read, pairs(&[("password", &value), ("user", "u")]));
        }
    }
}
