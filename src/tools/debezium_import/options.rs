//! The options in a connector's file, in any of its formats.
//!
//! Each option is taken once, by the code that handles it; those left at the end are unknown. Names
//! are those of Kafka Connect: Debezium Server's names are translated, and kept for the report.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::error::ImportError;
use super::properties;

/// An option in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerValue {
    /// The option's index in the file, from 0.
    pub(crate) place: usize,
    /// The option's name in the file.
    pub(crate) name: String,
    /// Without surrounding whitespace.
    pub(crate) value: String,
}

/// The program that reads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Connect,
    /// Debezium Server, with its own sink.
    Server,
}

/// The options that are not yet taken.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) host: Host,
    /// The remaining options with their Kafka Connect names, in the order of the file.
    left: Vec<(String, LayerValue)>,
}

impl Options {
    /// Parses the content of a file.
    pub(crate) fn read(text: &str) -> Result<Self, ImportError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let pairs = if text.trim_start().starts_with('{') {
            json(serde_json::from_str(text)?)?
        } else if is_script(text) {
            json(in_script(text)?)?
        } else if is_yaml(text) {
            return Err(ImportError::Yaml);
        } else if is_toml(text) {
            return Err(ImportError::Toml);
        } else {
            properties::parse(text)?
        };
        if pairs.is_empty() {
            return Err(ImportError::Empty);
        }
        let is_server = pairs.iter().any(|(name, _)| name.starts_with("debezium."));
        let host = if is_server { Host::Server } else { Host::Connect };
        // The last option of a name wins, as in Java.
        let last: HashMap<String, usize> =
            pairs.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
        // A former name beside the present one is left over, and reported as unknown.
        let present = |name: &str| match present_name(name) {
            present if last.contains_key(&present) => name.to_owned(),
            present => present,
        };
        let mut left: Vec<(String, LayerValue)> = Vec::new();
        for (place, (name, value)) in pairs.into_iter().enumerate() {
            if last.get(&name) != Some(&place) {
                continue;
            }
            let (bare, value) = match host {
                Host::Connect => (present(&name), value.trim().to_owned()),
                Host::Server => (server_name(&name), unescape(value.trim())),
            };
            left.push((bare, LayerValue { place, name, value }));
        }
        Ok(Self { host, left })
    }

    /// The value of an option that is not yet taken.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.left.iter().find(|(bare, _)| bare == name).map(|(_, given)| given.value.as_str())
    }

    /// Takes an option.
    pub(crate) fn take(&mut self, name: &str) -> Option<LayerValue> {
        let index = self.left.iter().position(|(bare, _)| bare == name)?;
        Some(self.left.remove(index).1)
    }

    /// Takes all options whose names start with `prefix`, with the rest of their names.
    pub(crate) fn take_below(&mut self, prefix: &str) -> Vec<(String, LayerValue)> {
        self.take_all(|name| name.strip_prefix(prefix).map(str::to_owned))
    }

    /// Takes all remaining options, with their Kafka Connect names.
    pub(crate) fn take_rest(&mut self) -> Vec<(String, LayerValue)> {
        std::mem::take(&mut self.left)
    }

    fn take_all(&mut self, named: impl Fn(&str) -> Option<String>) -> Vec<(String, LayerValue)> {
        let (mut taken, mut kept) = (Vec::new(), Vec::new());
        for (bare, given) in self.take_rest() {
            match named(&bare) {
                Some(name) => taken.push((name, given)),
                None => kept.push((bare, given)),
            }
        }
        self.left = kept;
        taken
    }
}

/// A list's items, without whitespace and empty ones.
pub(crate) fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// The plain map, or that of Kafka Connect's REST interface with a map `config`, or the only connector
/// for PostgreSQL among those that `GET /connectors?expand=info` lists.
fn json(document: Map<String, Value>) -> Result<Vec<(String, String)>, ImportError> {
    let listed = |value: &Value| value.get("info").is_some_and(|info| info.get("config").is_some());
    if !document.is_empty() && document.values().all(listed) {
        return json(only_postgres(document)?);
    }
    let mut pairs = Vec::new();
    let mut config = None;
    for (name, value) in document {
        match (name.as_str(), value) {
            ("config", Value::Object(inner)) => config = Some(inner),
            // Information about a connector in the REST interface is not an option.
            ("tasks", Value::Array(_)) => {}
            (_, value) => pairs.push((name.clone(), scalar(&name, value)?)),
        }
    }
    // A connector's type in the REST interface.
    if config.is_some() {
        pairs.retain(|(name, _)| name != "type");
    }
    for (name, value) in config.into_iter().flatten() {
        let value = scalar(&name, value)?;
        pairs.push((name, value));
    }
    Ok(pairs)
}

/// What is known of the connector for PostgreSQL, or of the only one.
fn only_postgres(mut listed: Map<String, Value>) -> Result<Map<String, Value>, ImportError> {
    let is_postgres = |connector: &Value| {
        let class = connector.pointer("/info/config/connector.class").and_then(Value::as_str);
        class.is_some_and(|class| class.contains("Postgres"))
    };
    if listed.len() > 1 {
        listed.retain(|_, connector| is_postgres(connector));
    }
    let names = || listed.keys().cloned().collect::<Vec<_>>().join(", ");
    if listed.len() != 1 {
        return Err(ImportError::Several { names: names() });
    }
    match listed
        .into_iter()
        .next()
        .and_then(|(_, mut connector)| connector.get_mut("info").map(Value::take))
    {
        Some(Value::Object(info)) => Ok(info),
        _ => Err(ImportError::Empty),
    }
}

/// Whether the text is a shell script that sends a connector's configuration.
fn is_script(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
    text.starts_with("#!")
        || lines.any(|line| line.starts_with("curl ") || line.contains("| curl "))
}

/// The JSON map in a script that has the options of the connector for PostgreSQL, or of the only one.
/// References to variables are of the environment.
fn in_script(text: &str) -> Result<Map<String, Value>, ImportError> {
    let (mut found, mut rest) = (Map::new(), text);
    while let Some((_, after)) = rest.split_once('{') {
        let begun = &rest[rest.len() - after.len() - 1..];
        let mut maps = serde_json::Deserializer::from_str(begun).into_iter::<Map<String, Value>>();
        rest = after;
        if let Some(Ok(map)) = maps.next() {
            rest = &begun[maps.byte_offset()..];
            let config = map.get("config").and_then(Value::as_object).unwrap_or(&map);
            if config.contains_key("connector.class") {
                let name = map.get("name").and_then(Value::as_str).unwrap_or("without a name");
                let config = config.iter().map(|(name, value)| (name.clone(), expanded(value)));
                let config: Map<String, Value> = config.collect();
                let info = serde_json::json!({ "info": { "config": config } });
                found.insert(format!("{name}, {}.", found.len() + 1), info);
            }
        }
    }
    if found.is_empty() { Err(ImportError::Script) } else { only_postgres(found) }
}

/// The value, with references to the shell's variables in Kafka Connect's format; others are its own.
fn expanded(value: &Value) -> Value {
    let Some(text) = value.as_str() else { return value.clone() };
    let mut parts = text.split("${");
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let inside = part.split('}').next().unwrap_or_default();
        let name = inside.split(":-").next().unwrap_or_default();
        let is_variable = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        expanded += "${";
        match part.strip_prefix(inside) {
            Some(rest) if is_variable => {
                expanded += "env:";
                expanded += name;
                expanded += rest;
            }
            _ => expanded += part,
        }
    }
    expanded.into()
}

fn scalar(name: &str, value: Value) -> Result<String, ImportError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Null => Ok(String::new()),
        Value::Array(_) | Value::Object(_) => Err(ImportError::NoText { name: name.to_owned() }),
    }
}

/// Whether the text looks like a Kubernetes resource.
fn is_yaml(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("apiVersion:"))
}

/// Whether the text has tables, as walpost's own configuration.
fn is_toml(text: &str) -> bool {
    let is_of_name = |sign: char| sign.is_ascii_alphanumeric() || "._-".contains(sign);
    let is_table = |line: &str| {
        let name = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        name.is_some_and(|name| !name.is_empty() && name.chars().all(is_of_name))
    };
    text.lines().any(|line| is_table(line.trim_end()))
}

/// The name since Debezium 1.3 of an option that had another before.
fn present_name(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((kind @ ("schema" | "table" | "column"), "whitelist")) => {
            format!("{kind}.include.list")
        }
        Some((kind @ ("schema" | "table" | "column"), "blacklist")) => {
            format!("{kind}.exclude.list")
        }
        _ => name.to_owned(),
    }
}

/// The Kafka Connect name for an option of Debezium Server
/// (<https://debezium.io/documentation/reference/stable/operations/debezium-server.html>).
fn server_name(name: &str) -> String {
    let Some(bare) = name.strip_prefix("debezium.") else { return name.to_owned() };
    for (prefix, replacement) in [
        ("source.", ""),
        ("format.key.", "key.converter."),
        ("format.value.", "value.converter."),
        ("format.header.", "header.converter."),
        ("sink.kafka.producer.", "producer.override."),
    ] {
        if let Some(rest) = bare.strip_prefix(prefix) {
            return present_name(&format!("{replacement}{rest}"));
        }
    }
    match bare {
        "format.key" | "format.value" | "format.header" => {
            format!("{}.converter", &bare["format.".len()..])
        }
        other => other.to_owned(),
    }
}

/// Debezium Server itself expands `${NAME}`, so a literal `$` is doubled or preceded by a
/// backslash. Expanded references are converted to Kafka Connect's format; `${routedByValue}` can
/// only be literal.
fn unescape(value: &str) -> String {
    let mut plain = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let escaped = before.strip_suffix(['$', '\\']);
        plain.push_str(escaped.unwrap_or(before));
        plain.push_str("${");
        if escaped.is_none() && !after.starts_with("routedByValue}") {
            let name = after.split([':', '}']).next().unwrap_or_default();
            let _ = write!(plain, "env:{name}}}");
            rest = after.split_once('}').map_or("", |(_, tail)| tail);
        } else {
            rest = after;
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &Options) -> Vec<(&str, &str)> {
        options.left.iter().map(|(bare, given)| (bare.as_str(), given.value.as_str())).collect()
    }

    #[test]
    fn json_is_parsed_plain_and_in_the_rest_interfaces_formats() {
        let given = [("name", "n"), ("tasks.max", "1"), ("b", "true"), ("c", "")];
        for text in [
            r#"{"name": "n", "tasks.max": 1, "b": true, "c": null}"#,
            r#"{"name": "n", "config": {"tasks.max": "1", "b": " true ", "c": ""}}"#,
            r#"{"name": "m", "config": {"name": "n", "tasks.max": "1", "b": "true", "c": ""},
                "tasks": [{"connector": "n", "task": 0}], "type": "source"}"#,
            r#"{"m": {"info": {"name": "m", "config": {"name": "n", "tasks.max": "1", "b": "true",
                "c": ""}, "tasks": [], "type": "source"}, "status": {"tasks": []}}}"#,
        ] {
            let options = Options::read(text).unwrap();
            let mut names = names(&options);
            names.sort_by_key(|pair| given.iter().position(|one| one == pair));
            assert_eq!(names, given, "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected_with_the_reason() {
        for (text, reason) in [
            ("", "no option"),
            ("# nothing\n", "no option"),
            ("{}", "no option"),
            ("{\"a\": ", "JSON"),
            ("{\"a\": {\"b\": \"c\"}}", "`a`"),
            ("{\"config\": [1]}", "`config`"),
            ("a=\\u1", "line 1"),
            (
                r#"{"a": {"info": {"config": {}}}, "b": {"info": {"config": {}}}}"#,
                "several connectors",
            ),
            ("curl -d \"{\\\"config\\\": {}}\" http://connect:8083/connectors", "script"),
            ("apiVersion: kafka.strimzi.io/v1\nkind: KafkaConnector\n", "YAML"),
            ("[source]\nslot = 'orders'\n", "TOML"),
        ] {
            let error = Options::read(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn one_connector_is_found_in_a_list_and_in_a_script() {
        let postgres = r#""connector.class": "io.debezium.connector.postgresql.PostgresConnector""#;
        let [other, wanted] = [
            r#"{"config": {"connector.class": "x.Sink", "tasks.max": "2"}}"#.to_owned(),
            format!(r#"{{"name": "n", "config": {{{postgres}, "table.whitelist": "a.b"}}}}"#),
        ];
        for text in [
            format!(r#"{{"sink": {{"info": {other}}}, "n": {{"info": {wanted}}}}}"#),
            format!(
                "#!/bin/sh\nf() {{ echo \"${{HOST}}\"; }}\ncurl -X POST -d '{wanted}' \"$(f)\"\n"
            ),
            format!("cat <<END | curl -d @- http://connect:8083/connectors\n{wanted}\nEND\n"),
            format!(
                "curl -d '{other}' http://connect:8083/\ncurl -d '{wanted}' http://connect:8083/\n"
            ),
        ] {
            let options = Options::read(&text).unwrap();
            assert_eq!(options.value("table.include.list"), Some("a.b"), "{text}");
        }
        let two = format!("curl -d '{wanted}' a\ncurl -d '{wanted}' a\n");
        assert!(matches!(Options::read(&two), Err(ImportError::Several { .. })));
        for (given, read) in [
            ("${TABLE}", "${env:TABLE}"),
            ("a.${TABLE:-b}", "a.${env:TABLE}"),
            ("${file:/a:b}", "${file:/a:b}"),
            ("${routedByValue}", "${routedByValue}"),
        ] {
            let text = format!("cat <<END | curl -d @- a\n{}\nEND\n", wanted.replace("a.b", given));
            assert_eq!(Options::read(&text).unwrap().value("table.include.list"), Some(read));
        }
        let both = Options::read("table.whitelist=a.old\ntable.include.list=a.b").unwrap();
        assert_eq!(both.value("table.include.list"), Some("a.b"));
    }

    #[test]
    fn debezium_server_names_are_translated_to_kafka_connects() {
        let text = "debezium.source.slot.name=s\n\
                    debezium.transforms=outbox\n\
                    debezium.transforms.outbox.type=T\n\
                    debezium.format.key=json\n\
                    debezium.format.key.schemas.enable=false\n\
                    debezium.sink.type=kafka\n\
                    debezium.sink.kafka.producer.linger.ms=5\n\
                    debezium.source.a=$${b} ${routedByValue} ${HOST:db}:1 \\\\${c}\n\
                    quarkus.log.level=INFO";
        let options = Options::read(text).unwrap();
        let expected = [
            ("slot.name", "s"),
            ("transforms", "outbox"),
            ("transforms.outbox.type", "T"),
            ("key.converter", "json"),
            ("key.converter.schemas.enable", "false"),
            ("sink.type", "kafka"),
            ("producer.override.linger.ms", "5"),
            ("a", "${b} ${routedByValue} ${env:HOST}:1 ${c}"),
            ("quarkus.log.level", "INFO"),
        ];
        assert_eq!(names(&options), expected);
        assert_eq!(options.host, Host::Server);
    }

    #[test]
    fn an_option_is_taken_once_and_the_last_duplicate_wins() {
        let mut options = Options::read("a.b=1\na.c=2\nd=3\na.b=4").unwrap();
        assert_eq!(options.take("d").unwrap().value, "3");
        assert_eq!(options.take("d"), None);
        let below: Vec<_> =
            options.take_below("a.").into_iter().map(|it| (it.0, it.1.value)).collect();
        assert_eq!(below, [("c".to_owned(), "2".to_owned()), ("b".to_owned(), "4".to_owned())]);
        assert!(options.take_rest().is_empty());
    }
}
