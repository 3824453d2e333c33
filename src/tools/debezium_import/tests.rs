//! Whole files, and arbitrary text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;

use super::{Finding, Mapping, import, router, rules};
use crate::property;

/// A connector without unsupported options, with additional lines.
fn with(lines: &str) -> Vec<Finding> {
    let text = format!(
        "connector.class=io.debezium.connector.postgresql.PostgresConnector\nplugin.name=pgoutput\n\
         database.hostname=db\ndatabase.user=u\ndatabase.dbname=d\ntable.include.list=public.outbox\n\
         key.converter=x.StringConverter\nvalue.converter=x.StringConverter\ntransforms=outbox\n\
         transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n{lines}"
    );
    import(&text).unwrap().findings
}

/// How an option is handled.
fn mapping(findings: &[Finding], name: &str) -> (Mapping, String) {
    let found: Vec<_> = findings.iter().filter(|finding| finding.name == name).collect();
    let [finding] = found.as_slice() else { panic!("{name}: {found:?}") };
    (finding.mapping, finding.text.clone())
}

fn printed(lines: &str) -> toml::Table {
    let text = format!("database.hostname=db\n{lines}");
    import(&text).unwrap().toml.parse().unwrap()
}

#[test]
fn a_plain_connector_is_converted_completely() {
    let findings = with("");
    let refused: Vec<_> = findings.iter().filter(|it| it.mapping == Mapping::Refused).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn a_binary_converters_delegate_selects_a_profile_or_is_rejected() {
    for (delegate, profile) in [
        (
            "org.apache.kafka.connect.json.JsonConverter\nSCHEMAS=false",
            Some("debezium-binary-json"),
        ),
        // With schemas, which is the default.
        ("org.apache.kafka.connect.json.JsonConverter", None),
        ("org.apache.kafka.connect.json.JsonConverter\nSCHEMAS=true", None),
        ("org.apache.kafka.connect.storage.StringConverter", None),
        ("io.confluent.connect.avro.AvroConverter", None),
    ] {
        let option = "value.converter.delegate.converter.type";
        let delegate = delegate.replace("SCHEMAS", &format!("{option}.schemas.enable"));
        let lines = format!(
            "key.converter=a.b.StringConverter\n\
             value.converter=io.debezium.converters.BinaryDataConverter\n{option}={delegate}\n"
        );
        let findings = with(&lines);
        let wanted = if profile.is_some() { Mapping::Carried } else { Mapping::Refused };
        let (mapping, why) = mapping(&findings, "value.converter");
        assert_eq!(mapping, wanted, "{delegate}");
        assert!(profile.is_some() || why.contains("payload column is a bytea"), "{why}");
        let record = &printed(&lines)["record"];
        let printed = record.get("profile").and_then(toml::Value::as_str);
        assert_eq!(printed, profile.or(Some("…")), "{delegate}");
    }
}

#[test]
fn the_converters_together_select_a_profile_or_are_rejected() {
    for (key, value, schemas, profile) in [
        ("StringConverter", "StringConverter", "", Some("debezium")),
        ("StringConverter", "ByteArrayConverter", "", Some("debezium-binary")),
        ("StringConverter", "BinaryDataConverter", "", Some("debezium-binary")),
        ("JsonConverter", "JsonConverter", "false", Some("debezium-json")),
        ("JsonConverter", "JsonConverter", "true", None),
        ("JsonConverter", "JsonConverter", "", None),
        ("StringConverter", "JsonConverter", "false", Some("debezium-string-json")),
        ("StringConverter", "JsonConverter", "", None),
        ("JsonConverter", "StringConverter", "false", None),
        ("ByteArrayConverter", "ByteArrayConverter", "", None),
        ("StringConverter", "AvroConverter", "", None),
        ("ProtobufConverter", "ProtobufConverter", "", None),
        ("StringConverter", "CloudEventsConverter", "", None),
        ("StringConverter", "NoSuchConverter", "", None),
    ] {
        let mut lines = format!("key.converter=a.b.{key}\nvalue.converter=a.b.{value}\n");
        if !schemas.is_empty() {
            for side in ["key", "value"] {
                let _ = writeln!(lines, "{side}.converter.schemas.enable={schemas}");
            }
        }
        let findings = with(&lines);
        let wanted = if profile.is_some() { Mapping::Carried } else { Mapping::Refused };
        for side in ["key.converter", "value.converter"] {
            assert_eq!(mapping(&findings, side).0, wanted, "{key} {value} {schemas}");
        }
        let record = &printed(&lines)["record"];
        let printed = record.get("profile").and_then(toml::Value::as_str);
        assert_eq!(printed, profile.or(Some("…")), "{key} {value}");
    }
}

#[test]
fn an_option_at_its_default_is_not_printed_and_another_value_is() {
    for (name, default, other) in [
        ("transforms.outbox.table.field.event.id", "id", "event_id"),
        ("transforms.outbox.table.field.event.key", "aggregateid", "k"),
        ("transforms.outbox.table.field.event.timestamp", "", "at"),
        ("transforms.outbox.table.fields.additional.placement", "", "type:header"),
        ("transforms.outbox.table.field.additional.missing", "error", "ignore"),
        ("transforms.outbox.table.op.invalid.behavior", "warn", "error"),
        ("transforms.outbox.table.json.payload.null.behavior", "ignore", "optional_bytes"),
        ("transforms.outbox.table.json.payload.empty.array.behavior", "ignore", "optional_string"),
        ("transforms.outbox.route.topic.regex", "(?<routedByValue>.*)", "a(.*)"),
        ("transforms.outbox.route.topic.replacement", "outbox.event.${routedByValue}", "$1"),
        ("decimal.handling.mode", "precise", "double"),
        ("time.precision.mode", "adaptive", "isostring"),
        ("binary.handling.mode", "bytes", "hex"),
        ("interval.handling.mode", "numeric", "string"),
    ] {
        let bare = name.trim_start_matches("transforms.outbox.");
        let value = |text: &str| {
            let lines = format!(
                "{name}={text}\ntransforms=outbox\n\
                 transforms.outbox.type=io.debezium.transforms.outbox.EventRouter"
            );
            let mut value = printed(&lines).get("debezium").cloned();
            for part in bare.split('.') {
                value = value.and_then(|table| table.get(part).cloned());
            }
            value.and_then(|value| value.as_str().map(str::to_owned))
        };
        assert_eq!(value(default), None, "{name}");
        assert_eq!(value(other).as_deref(), Some(other), "{name}");
        assert_eq!(mapping(&with(&format!("{name}={other}")), name).0, Mapping::Carried, "{name}");
    }
}

#[test]
fn unsupported_options_are_rejected() {
    for line in [
        "plugin.name=decoderbufs",
        "connector.class=io.debezium.connector.mysql.MySqlConnector",
        "table.include.list=public.*",
        "slot.drop.on.stop=true",
        "lsn.flush.mode=manual",
        "flush.lsn.source=false",
        "snapshot.mode=always",
        "snapshot.mode=initial_only",
        "message.prefix.include.list=x",
        "provide.transaction.metadata=true",
        "extended.headers.enabled=true",
        "skipped.operations=c,t",
        "errors.tolerance=all",
        "time.precision.mode=connect",
        "hstore.handling.mode=map",
        "transforms.outbox.table.op.invalid.behavior=fatal",
        "transforms.outbox.route.topic.regex=(?=a).*",
        "transforms.outbox.no.such=1",
        "header.converter=org.apache.kafka.connect.json.JsonConverter",
        "producer.override.partitioner.class=x",
        "producer.override.sasl.mechanism=GSSAPI",
        "producer.override.no.such=1",
        "database.user=${env:USER}",
        "no.such=1",
    ] {
        let name = line.split('=').next().unwrap();
        assert_eq!(mapping(&with(line), name).0, Mapping::Refused, "{line}");
    }
}

#[test]
fn an_envelope_works_with_text_but_not_with_bytes() {
    let name = "transforms.outbox.table.fields.additional.placement";
    for (converter, wanted) in [("String", Mapping::Carried), ("ByteArray", Mapping::Refused)] {
        let lines = format!("value.converter=x.{converter}Converter\n{name}=a:header,b: Envelope");
        assert_eq!(mapping(&with(&lines), name).0, wanted, "{converter}");
    }
}

#[test]
fn missing_options_that_matter_are_reported() {
    let findings = import("name=x").unwrap().findings;
    for name in [
        "connector.class",
        "database.hostname",
        "database.user",
        "database.dbname",
        "plugin.name",
        "table.include.list",
        "key.converter",
        "value.converter",
        "transforms",
    ] {
        assert_eq!(mapping(&findings, name).0, Mapping::Refused, "{name}");
    }
    assert_eq!(mapping(&findings, "slot.name").0, Mapping::Carried);
    assert_eq!(mapping(&findings, "extended.headers.enabled").0, Mapping::NotNeeded);
}

#[test]
fn any_text_yields_toml_or_an_error() {
    let texts = prop_oneof![any::<String>(), "[a-z.{}\":,=$\\\\ \n]{0,60}"];
    property::holds("any_text_yields_toml_or_an_error", 1_000, &texts, |text| {
        if let Ok(import) = import(&text) {
            let parsed = import.toml.parse::<toml::Table>();
            assert!(parsed.is_ok(), "{parsed:?}\n{}", import.toml);
        }
    });
}

/// Names that walpost knows, and some that it does not.
fn names() -> Vec<String> {
    let rules = rules::OPTIONS.iter().map(|rule| rule.0.replace('*', "x"));
    let router = router::ROUTER.iter().map(|rule| format!("transforms.outbox.{}", rule.0));
    let others = [
        "connector.class",
        "plugin.name",
        "database.hostname",
        "database.port",
        "database.user",
        "database.password",
        "database.dbname",
        "database.sslmode",
        "database.sslkey",
        "slot.name",
        "publication.name",
        "publication.autocreate.mode",
        "table.include.list",
        "table.exclude.list",
        "key.converter",
        "key.converter.schemas.enable",
        "value.converter",
        "header.converter",
        "transforms",
        "transforms.outbox.type",
        "transforms.outbox.predicate",
        "transforms.a.type",
        "predicates",
        "predicates.p.type",
        "predicates.p.pattern",
        "producer.override.acks",
        "producer.override.linger.ms",
        "producer.override.sasl.jaas.config",
        "producer.linger.ms",
        "producer.override.ssl.truststore.location",
        "producer.override.ssl.keystore.type",
        "bootstrap.servers",
        "debezium.source.slot.name",
        "debezium.format.key",
        "debezium.sink.type",
        "debezium.transforms",
        "debezium.format.schemas.enable",
        "odd",
        "a b",
        "",
    ];
    rules.chain(router).chain(others.map(str::to_owned)).collect()
}

#[test]
fn every_option_is_reported_once_whatever_its_value() {
    let values = prop_oneof![
        ".{0,12}",
        Just("true".to_owned()),
        Just("outbox".to_owned()),
        Just("p".to_owned()),
        Just("public.outbox,a.b".to_owned()),
        Just("${file:/a:b}".to_owned()),
        Just("org.apache.kafka.connect.json.JsonConverter".to_owned()),
        Just("io.debezium.transforms.outbox.EventRouter".to_owned()),
        Just("a.TopicNameMatches".to_owned()),
        Just("PKCS12".to_owned()),
    ];
    let options = proptest::collection::btree_map(proptest::sample::select(names()), values, 1..30);
    let case = |given: BTreeMap<String, String>| {
        let import = import(&serde_json::to_string(&given).unwrap()).unwrap();
        let parsed = import.toml.parse::<toml::Table>();
        assert!(parsed.is_ok(), "{parsed:?}\n{}", import.toml);
        let mut named: Vec<&str> = import
            .findings
            .iter()
            .filter(|it| it.place.is_some())
            .map(|it| it.name.as_str())
            .collect();
        named.sort_unstable();
        assert_eq!(named, given.keys().collect::<Vec<_>>());
        for finding in &import.findings {
            let line = format!("#   {}\n", super::line(finding));
            assert_eq!(import.toml.matches(&line).count(), 1, "{line}{}", import.toml);
        }
    };
    property::holds("every_option_is_named_once", 1_000, &options, case);
}

/// With time in proportion to their square, this would take minutes.
#[test]
fn many_options_and_converters_are_read_in_proportion_to_their_number() {
    let number = 200_000;
    let mut text = String::new();
    for n in 0..number {
        writeln!(text, "unknown.{n}=1\nunknown.{n}=2").expect("a string");
    }
    let names: Vec<_> = (0..number).map(|n| format!("c{n}")).collect();
    writeln!(text, "converters={}", names.join(",")).expect("a string");
    assert!(with(&text).len() > number);
}
