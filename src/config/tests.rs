//! The configuration as a whole: precedence, files, errors, redaction.

use std::fs;
use std::path::Path;
use std::time::Duration;

use regex::Regex;
use secrecy::ExposeSecret;
use tempfile::TempDir;

use super::*;
use crate::record::Policy;
use crate::record::debezium::Converters;

fn directory(toml: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("walpost.toml"), toml).unwrap();
    directory
}

fn load(
    flags: &Flags,
    variables: &[(&str, &str)],
    directory: &Path,
) -> Result<Config, ConfigError> {
    Config::load(flags, &Environment::new(variables.iter().copied(), directory))
}

/// The configuration with this file.
pub(crate) fn of_toml(toml: &str) -> Result<Config, ConfigError> {
    let config = load(&Flags::default(), &[], directory(toml).path())?;
    Ok(Config { environment: Environment::default(), ..config })
}

fn slot_flag(name: &str) -> Flags {
    Flags::default().with(Setting::SOURCE_SLOT, [name.to_owned()])
}

fn property_flag(pair: &str) -> Flags {
    Flags::default().with(Setting::KAFKA_PROPERTIES, [pair.to_owned()])
}

#[test]
fn an_empty_configuration_has_the_documented_defaults() {
    let config = load(&Flags::default(), &[], TempDir::new().unwrap().path()).unwrap();
    assert!(config.source.url.is_none());
    assert_eq!(
        (config.source.slot.as_str(), config.source.publication.as_str()),
        ("walpost", "walpost")
    );
    assert_eq!(config.outbox.tables, ["public.outbox".parse().unwrap()]);
    assert_eq!(config.outbox.columns, ColumnNames::default());
    assert_eq!(config.outbox.message_prefix, None);
    assert_eq!(config.record.topic, "outbox.event.{aggregate_type}");
    assert_eq!((config.record.headers, config.record.timestamp), (None, TimestampSource::Commit));
    assert_eq!(config.kafka.bootstrap_servers, "localhost:9092");
    assert_eq!(config.kafka.max_producers, 8);
    assert_eq!(config.delivery.in_flight_bytes, 32 << 20);
    assert_eq!(config.delivery.drain_timeout, Duration::from_secs(20));
    assert_eq!((config.log.level.as_str(), config.log.format), ("info", None));
    assert_eq!(config.poison, Policies::default());
}

#[test]
fn every_setting_becomes_a_value() {
    let declared = |code: &str| {
        let rows = Regex::new(r#"(?s)\b([A-Z][A-Z_]+) = row\(\s*"([a-z_.]+)".*?;\n"#).unwrap();
        let names: Vec<_> =
            rows.captures_iter(code).map(|row| row.extract().1.map(str::to_owned)).collect();
        (names, rows.replace_all(code, "").into_owned())
    };
    let (general, _) = declared(include_str!("general.rs"));
    let parsed = [include_str!("load.rs"), include_str!("encoding.rs")];
    let load = parsed.concat() + include_str!("../registry/settings.rs");
    let mut all = vec![(general, "Setting::", load)];
    for (table, _) in Setting::tables() {
        let path = format!("src/destination/{table}/settings.rs");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let Ok(code) = fs::read_to_string(path) else { continue };
        let (code, _tests) = code.split_once("#[cfg(test)]").expect("tests");
        let (names, rest) = declared(code);
        all.push((names, r"\b", rest));
    }
    let mut count = 0;
    for (names, prefix, code) in all {
        for [name, key] in names {
            let read = Regex::new(&format!(r"{prefix}{name}\b")).unwrap();
            assert!(read.is_match(&code), "{key} is read by nothing");
            count += 1;
        }
    }
    assert_eq!(count, Setting::all().count());
}

#[test]
fn flags_override_variables_override_the_file_overrides_defaults() {
    let directory = directory("[source]\n\nslot = 'of_file'\n");
    let path = directory.path();
    let variable = [("WALPOST_SOURCE_SLOT", "of_variable")];
    let cases = [
        (load(&slot_flag("of_flag"), &variable, path), "of_flag", "--slot"),
        (load(&Flags::default(), &variable, path), "of_variable", "WALPOST_SOURCE_SLOT"),
        (load(&Flags::default(), &[], path), "of_file", "walpost.toml:3"),
    ];
    for (config, slot, origin) in cases {
        let config = config.unwrap();
        assert_eq!(config.source.slot, slot);
        assert_eq!(config.origin(Setting::SOURCE_SLOT).to_string(), origin);
    }
}

#[test]
fn standard_variables_rank_between_the_file_and_the_defaults() {
    let around = [
        ("DATABASE_URL", "postgres://around"),
        ("KAFKA_BOOTSTRAP_SERVERS", "around:1"),
        ("RUST_LOG", "walpost"),
    ];
    let empty = TempDir::new().unwrap();
    let config = load(&Flags::default(), &around, empty.path()).unwrap();
    assert_eq!(config.source.url.as_ref().unwrap().expose_secret(), "postgres://around");
    assert_eq!(config.kafka.bootstrap_servers, "around:1");
    assert_eq!(config.log.level, "walpost");
    assert_eq!(config.origin(Setting::SOURCE_URL).to_string(), "DATABASE_URL");

    let file = directory(
        "source.url = 'host=file'\nkafka.bootstrap_servers = 'file:2'\nlog.level = 'warn'\n",
    );
    let config = load(&Flags::default(), &around, file.path()).unwrap();
    assert_eq!(config.source.url.as_ref().unwrap().expose_secret(), "host=file");
    assert_eq!(config.kafka.bootstrap_servers, "file:2");
    assert_eq!(config.log.level, "warn");
}

#[test]
fn an_empty_value_is_not_missing() {
    let directory = directory("source.slot = 'of_file'\nsource.url = 'host=file'\n");
    let error =
        load(&Flags::default(), &[("WALPOST_SOURCE_SLOT", "")], directory.path()).unwrap_err();
    assert!(error.to_string().starts_with("WALPOST_SOURCE_SLOT: `source.slot`"), "{error}");
    let variables = [("WALPOST_SOURCE_URL", ""), ("WALPOST_OUTBOX_MESSAGE_PREFIX", "")];
    let config = load(&Flags::default(), &variables, directory.path()).unwrap();
    assert_eq!(config.source.url.unwrap().expose_secret(), "");
    assert_eq!(config.outbox.message_prefix.as_deref(), Some(""));
}

#[test]
fn a_variable_may_name_a_file_with_its_value() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    for (content, value) in
        [("a b\n", "a b"), ("a b", "a b"), ("a b\r\n", "a b"), ("a b\n\n", "a b\n")]
    {
        fs::write(path.join("secret"), content).unwrap();
        let config =
            load(&Flags::default(), &[("WALPOST_SOURCE_URL_FILE", "secret")], path).unwrap();
        assert_eq!(config.source.url.as_ref().unwrap().expose_secret(), value);
        assert_eq!(
            config.origin(Setting::SOURCE_URL).to_string(),
            "WALPOST_SOURCE_URL_FILE (secret)"
        );
        fs::write(path.join("secret"), "new").unwrap();
        for url in [config.source_url(), config.reload().map(|read| read.source.url)] {
            assert_eq!(url.unwrap().unwrap().expose_secret(), "new");
        }
        assert_eq!(config.path(Setting::SOURCE_URL), Some(path.join(value)));
    }
}

#[test]
fn a_variable_with_its_file_form_and_a_missing_file_are_rejected() {
    let directory = TempDir::new().unwrap();
    let both = [("WALPOST_SOURCE_URL", "x"), ("WALPOST_SOURCE_URL_FILE", "y")];
    let error = load(&Flags::default(), &both, directory.path()).unwrap_err();
    assert!(matches!(error, ConfigError::BothGiven { .. }), "{error}");
    let missing = [("WALPOST_SOURCE_URL_FILE", "nowhere")];
    let error = load(&Flags::default(), &missing, directory.path()).unwrap_err();
    assert!(error.to_string().contains("nowhere (named by WALPOST_SOURCE_URL_FILE)"), "{error}");
}

#[test]
fn downloaded_properties_may_name_the_brokers() {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("client"), "\u{feff}bootstrap.servers=a:1\nclient.id=x\n")
        .unwrap();
    let file = ("WALPOST_KAFKA_PROPERTIES_FILE", "client");
    let config = load(&Flags::default(), &[file], directory.path()).unwrap();
    assert_eq!(config.kafka.bootstrap_servers, "a:1");
    assert_eq!(config.kafka.properties.value("client.id"), Some("x"));
    let other = ("WALPOST_KAFKA_BOOTSTRAP_SERVERS", "b:1");
    let error = load(&Flags::default(), &[file, other], directory.path()).unwrap_err();
    assert!(error.to_string().contains("set `kafka.bootstrap_servers` instead"), "{error}");
}

#[test]
fn a_shortened_variable_is_named_in_full() {
    let empty = TempDir::new().unwrap();
    let given = [("WALPOST_KAFKA_BOOTSTRAP", "a:1")];
    let error = load(&Flags::default(), &given, empty.path()).unwrap_err().to_string();
    assert!(error.contains("did you mean `WALPOST_KAFKA_BOOTSTRAP_SERVERS`"), "{error}");
}

#[test]
fn a_named_file_must_exist_and_the_default_one_need_not() {
    let empty = TempDir::new().unwrap();
    assert!(load(&Flags::default(), &[], empty.path()).is_ok());
    let error =
        load(&Flags::default(), &[("WALPOST_CONFIG", "no.toml")], empty.path()).unwrap_err();
    assert!(error.to_string().contains("WALPOST_CONFIG"), "{error}");
    let flags = Flags::new(Some("no.toml".into()));
    let error = load(&flags, &[], empty.path()).unwrap_err();
    assert!(error.to_string().contains("--config"), "{error}");
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
    for (toml, expected) in [
        (
            "\n[source]\nslto = 'x'",
            "walpost.toml:3: unknown key `source.slto`; did you mean `source.slot`?",
        ),
        ("slot = 'x'", "walpost.toml:1: unknown key `slot`; did you mean `source.slot`?"),
        (
            "kafka.brokers = 'x'",
            "walpost.toml:1: unknown key `kafka.brokers`; did you mean `kafka.bootstrap_servers`?",
        ),
        (
            "[outbox.columns]\npayloda = 'x'",
            "walpost.toml:2: unknown key `outbox.columns.payloda`; did you mean `outbox.columns.payload`?",
        ),
        ("[colours]\nred = 1", "walpost.toml:1: unknown key `colours`"),
    ] {
        assert_eq!(of_toml(toml).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_wrong_type_is_named_with_its_key_and_line() {
    for (toml, expected) in [
        ("[source]\nslot = 5", "walpost.toml:2: `source.slot` must be a string, not an integer"),
        ("source = 5", "walpost.toml:1: `source` must be a table, not an integer"),
        (
            "outbox.table = [\n 'a',\n 5]",
            "walpost.toml:3: `outbox.table` must be strings, not an integer",
        ),
        (
            "record.headers = 'id'",
            "walpost.toml:1: `record.headers` must be an array of strings, not a string",
        ),
        (
            "delivery.in_flight_bytes = 1.5",
            "walpost.toml:1: `delivery.in_flight_bytes` must be an integer, or a string with a unit, not a float",
        ),
        (
            "kafka.properties.linger.ms = [1]",
            "walpost.toml:1: `kafka.properties.linger.ms` must be a string, an integer or a boolean, not an array",
        ),
    ] {
        assert_eq!(of_toml(toml).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_syntax_error_names_the_line_without_quoting_it() {
    let error = of_toml("\nsource.url = 'postgres://u:s3cret@h").unwrap_err().to_string();
    assert!(error.starts_with("walpost.toml:2: not valid TOML"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
}

#[test]
fn an_invalid_value_is_named_with_its_place() {
    for (toml, part) in [
        ("source.slot = 'Upper'", "walpost.toml:1: `source.slot`: `Upper` is not a slot name"),
        ("source.publication = ''", "not a valid PostgreSQL name"),
        ("outbox.table = 'a.b.c'", "not a table's name"),
        ("outbox.table = []", "at least one table"),
        ("outbox.table = ['a', 'public.a']", "listed twice"),
        ("outbox.columns.id = ''", "`outbox.columns.id`"),
        ("record.topic = ''", "`record.topic`"),
        ("source.catch_up = 'batches'", "is not one of `auto`, `stream`"),
        ("record.value = 'avro'", "not one of `payload`, `envelope`, `merged`, `cloudevents`"),
        ("record.null_keys = true", "a string"),
        ("record.null_keys = 'yes'", "not one of `refuse`, `allow`"),
        ("process.core_dumps = 'yes'", "not one of `refuse`, `allow`"),
        ("record.topic_regex = '.*'", "set `record.topic_replacement` too"),
        ("record.topic_replacement = 'x'", "set `record.topic_regex` too"),
        ("record.cloudevents_source = 'a b'", "not a URI reference"),
        ("poison.missing_topic = 'drop'", "not one of `wait`, `halt`, `dead_letter`, `skip`"),
        ("poison.refused = 'wait'", "not one of `halt`, `dead_letter`, `skip`"),
        ("poison.refused = 'drop'", "not one of `halt`, `dead_letter`, `skip`"),
        ("poison.dead_letter_topic = 'a b'", "`a b` has ' '"),
        ("poison.retries = -1", "not a number of retries"),
        ("kafka.max_producers = 0", "not a number of producers, 1 to 32"),
        ("kafka.max_producers = 33", "not a number of producers, 1 to 32"),
        ("record.timestamp = 'now'", "not one of `commit`, `column`, `none`"),
        ("record.timestamp = 'column'", "set `outbox.columns.timestamp`"),
        ("kafka.bootstrap_servers = ''", "not `host:port`"),
        ("delivery.in_flight_bytes = '1MB'", "KiB, MiB or GiB"),
        ("delivery.in_flight_bytes = 0", "not between 1KiB and 1024GiB"),
        ("delivery.in_flight_bytes = -1", "not a size"),
        ("delivery.drain_timeout = '20'", "ms, s, min, h or d"),
        ("admin.listen = '9641'", "an address and a port, such as 127.0.0.1:9641"),
        ("record.profile = 'debezuim'", "not one of `walpost`, `debezium`, `debezium-json`"),
        (
            "record.profile = 'debezium'\nrecord.key = '{a}'",
            ":2: `record.key`: has no effect with a",
        ),
        (
            "record.profile = 'debezium'\noutbox.columns.id = 'i'",
            "`outbox.columns.id`: has no effect",
        ),
        (
            "[debezium]\nroute.by.field = 'kind'",
            "`debezium`: has no effect with the profile `walpost`",
        ),
        (
            "record.profile = 'debezium'\n[debezium]\nroute.by.field = ['a']",
            "`debezium.route.by.field`",
        ),
        ("delivery.id = 'a b'", "letters, digits"),
        ("delivery.state_topic = 'a b'", "not the name of a topic"),
        ("delivery.mode = 'twice'", "not one of `at-least-once`, `exactly-once`"),
        (
            "delivery.mode = 'exactly-once'\ndelivery.state_topic = 'off'",
            "`exactly-once` needs a state topic",
        ),
        ("log.level = 'inof'", "not a log level"),
        ("log.format = 'xml'", "not one of `text`, `json`"),
    ] {
        let error = of_toml(toml).unwrap_err().to_string();
        assert!(error.contains(part), "{toml}: {error}");
    }
}

fn assert_delivery(delivery: &Delivery) {
    assert_eq!(delivery.in_flight_bytes, 1 << 20);
    assert_eq!(delivery.drain_timeout, Duration::from_secs(120));
    assert_eq!(delivery.id, "shop");
    assert_eq!(delivery.state_topic.as_deref(), Some("walpost.position"));
    assert_eq!(delivery.mode, DeliveryMode::ExactlyOnce);
    assert_eq!(delivery.commit_interval, Duration::from_secs(2));
    assert_eq!(delivery.transaction_bytes, 1 << 20);
    assert!(delivery.wait_until_visible);
}

fn is_of_another_kind(row: &Displayed) -> bool {
    let table = row.key.split('.').next();
    let mut general =
        [Setting::FIRST, Setting::KAFKA, Setting::REGISTRY, Setting::LAST].concat().into_iter();
    row.key == "sink.kind" || !general.any(|setting| Some(setting.table()) == table)
}

/// Each setting but those of other destinations, with another value than the default.
const EVERY_KEY: &str = r#"
        [source]
        url = "host=h"
        slot = "s"
        publication = "Odd name"
        catch_up = "stream"
        catch_up_threshold = "1GiB"
        [outbox]
        table = ["a.b", '"Sales"."OutBox"']
        message_prefix = "outbox"
        plain_message_prefix = "plain"
        [outbox.columns]
        id = "1"
        aggregate_type = "2"
        aggregate_id = "3"
        event_type = "4"
        payload = "5"
        headers = "6"
        timestamp = "7"
        [record]
        value_encoding = "frame"
        profile = "walpost"
        topic = "t"
        topic_regex = "(.*)"
        topic_replacement = "x.$1"
        key = "{tenant}/{aggregate_id}"
        null_keys = "allow"
        topics_allowed = ["x.*"]
        value = "envelope"
        headers = ["id", "event_type"]
        place = ["tenant:header", "region:envelope:zone"]
        cloudevents_source = "/shop"
        timestamp = "column"
        [process]
        core_dumps = "allow"
        [kafka]
        bootstrap_servers = "a:1,b:2"
        create_topics = "6:3"
        max_producers = 12
        [kafka.properties]
        linger.ms = 0x10
        "client.id" = "c"
        socket.keepalive.enable = true
        [delivery]
        in_flight_bytes = 1_048_576
        drain_timeout = "2min"
        id = "shop"
        state_topic = "walpost.position"
        mode = "exactly-once"
        commit_interval = "2s"
        transaction_bytes = 1_048_576
        wait_until_visible = true
        [poison]
        too_large = "dead_letter"
        missing_field = "skip"
        invalid_topic = "halt"
        missing_topic = "skip"
        missing_schema = "skip"
        schema_mismatch = "skip"
        refused = "dead_letter"
        undecodable = "dead_letter"
        dead_letter_topic = "dead"
        retries = 3
        [registry]
        url = "https://registry"
        authorization = "Basic c2VjcmV0"
        ca_file = "ca.pem"
        cert_file = "own.pem"
        key_file = "own.key"
        timeout = "1s"
        refresh = "1s"
        value_subject = "{topic}"
        value_version = 3
        value_id = 7
        [admin]
        page = "off"
        listen = "localhost:0"
        [log]
        level = "debug"
        format = "json"
        "#;

#[test]
fn every_key_of_the_file_is_read() {
    let config = of_toml(EVERY_KEY).unwrap();
    assert_eq!(config.source.publication, "Odd name");
    assert_eq!(config.source.catch_up, CatchUpMode::Stream);
    assert_eq!(config.source.catch_up_threshold, 1 << 30);
    assert_eq!(config.outbox.tables[1].to_string(), r#""Sales"."OutBox""#);
    assert_eq!(config.outbox.columns.timestamp.as_deref(), Some("7"));
    assert_eq!(config.kafka.create_topics, Some((6, 3)));
    assert_eq!(config.kafka.max_producers, 12);
    let record = &config.record;
    assert_eq!(record.headers.as_ref().unwrap().len(), 2);
    assert_eq!(record.topic_rewrite, Some(("(.*)".to_owned(), "x.$1".to_owned())));
    assert_eq!((record.key.as_str(), record.null_keys), ("{tenant}/{aggregate_id}", true));
    assert_eq!((record.value, record.place.len()), (ValueFormat::Envelope, 2));
    assert_eq!(record.cloudevents_source, "/shop");
    assert_eq!(record.topics_allowed, ["x.*"]);
    assert_eq!(config.record.timestamp, TimestampSource::Column);
    assert_eq!(
        config.kafka.properties.iter().collect::<Vec<_>>(),
        [("client.id", "c"), ("linger.ms", "16"), ("socket.keepalive.enable", "true")]
    );
    assert_delivery(&config.delivery);
    assert_eq!(config.poison.too_large, Policy::DeadLetter);
    assert_eq!(config.poison.missing_field, Policy::Skip);
    assert_eq!(config.poison.missing_topic, Some(Policy::Skip));
    assert_eq!(config.poison.missing_schema, Some(Policy::Skip));
    assert_eq!(config.poison.schema_mismatch, Policy::Skip);
    assert_eq!((config.poison.dead_letter_topic.as_str(), config.poison.retries), ("dead", 3));
    assert_eq!((config.admin.listen.as_deref(), config.admin.page), (Some("localhost:0"), false));
    assert_eq!(config.log.format, Some(LogFormat::Json));
    assert_eq!(config.process.core_dumps, CoreDumps::Allow);
    // Those of another destination would be an error.
    let is_unset = |row: &&Displayed| row.origin == Origin::Default && !is_of_another_kind(row);
    let unset: Vec<_> = config.display().iter().filter(is_unset).collect();
    assert_eq!(unset, [] as [&Displayed; 0]);
}

#[test]
fn the_event_routers_options_keep_their_names_and_places() {
    let toml = "record.profile = 'debezium-json'\n[debezium]\ntable.expand.json.payload = true\n\
                'route.by.field' = 'kind'\n";
    let config = of_toml(toml).unwrap();
    assert_eq!(config.record.profile, Some(Converters::Json));
    let options: Vec<_> =
        config.debezium.iter().map(|(name, it)| (name.as_str(), &*it.0)).collect();
    assert_eq!(options, [("route.by.field", "kind"), ("table.expand.json.payload", "true")]);
    let displayed = config.display();
    let displayed = displayed.iter().find(|row| row.key == "debezium.\"route.by.field\"").unwrap();
    assert!(displayed.origin.to_string().ends_with("walpost.toml:4"), "{}", displayed.origin);
}

#[test]
fn properties_of_all_layers_are_merged_and_the_highest_wins() {
    let directory = directory("[kafka.properties]\nlinger.ms = 1\nclient.id = 'file'\n");
    let variables =
        [("WALPOST_KAFKA_PROPERTIES", "# of the variable\nlinger.ms = 2\n\nclient.rack=r=1\n")];
    let config = load(&property_flag("linger.ms=3"), &variables, directory.path()).unwrap();
    assert_eq!(
        config.kafka.properties.iter().collect::<Vec<_>>(),
        [("client.id", "file"), ("client.rack", "r=1"), ("linger.ms", "3")]
    );
    let displayed = config.display();
    let linger = displayed.iter().find(|row| row.key.contains("linger")).unwrap();
    assert_eq!(linger.origin.to_string(), "-X");
    assert!(load(&property_flag("linger.ms"), &[], directory.path()).is_err());
}

#[test]
fn a_property_that_breaks_the_guarantee_is_rejected_with_place_and_reason() {
    let error = of_toml("[kafka.properties]\n\nacks = 1\n").unwrap_err().to_string();
    assert!(error.starts_with("walpost.toml:3: the Kafka property `acks`"), "{error}");
    assert!(error.contains("in-sync"), "{error}");
    // A property is rejected even if a higher layer overrides it.
    let directory = directory("[kafka.properties]\nacks = 1\n");
    assert!(load(&property_flag("acks=all"), &[], directory.path()).is_err());
}

#[test]
fn tables_in_a_variable_are_separated_by_commas() {
    let variables = [("WALPOST_OUTBOX_TABLE", r#"a.b, "Odd, one".c"#)];
    let config = load(&Flags::default(), &variables, TempDir::new().unwrap().path()).unwrap();
    let tables: Vec<_> = config.outbox.tables.iter().map(ToString::to_string).collect();
    assert_eq!(tables, ["a.b", r#""Odd, one".c"#]);
}

#[test]
fn no_secret_is_shown_by_debug_or_display() {
    let file =
        "source.url = 'postgres://u:s3cret@h/db'\n[kafka.properties]\nsasl.password = 's3cret'\n";
    let (directory, variables) = (directory(file), [("PGPASSWORD", "s3cret")]);
    let config = load(&Flags::default(), &variables, directory.path()).unwrap();
    for text in [format!("{config:?}"), format!("{:?}", config.display())] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn an_outbox_needs_a_table_or_a_message_prefix() {
    let config = of_toml("[outbox]\ntable = []\nmessage_prefix = 'outbox'\n").unwrap();
    assert_eq!(config.outbox.tables, []);
    let config = of_toml("[outbox]\ntable = []\nplain_message_prefix = 'p'\n").unwrap();
    assert_eq!(config.outbox.plain_message_prefix.as_deref(), Some("p"));
    let variables = [("WALPOST_OUTBOX_TABLE", ""), ("WALPOST_OUTBOX_MESSAGE_PREFIX", "outbox")];
    let config = load(&Flags::default(), &variables, TempDir::new().unwrap().path()).unwrap();
    assert_eq!(config.outbox.tables, []);
    let error = of_toml("outbox.table = []\n").unwrap_err().to_string();
    assert!(error.contains("walpost.toml:1") && error.contains("outbox.message_prefix"), "{error}");
    assert!(load(&Flags::default(), &variables[..1], TempDir::new().unwrap().path()).is_err());
}

#[test]
fn columns_are_read_from_variables() {
    let directory = tempfile::tempdir().unwrap();
    let given = [("WALPOST_OUTBOX_COLUMNS_PAYLOAD", "body")];
    let config = load(&Flags::default(), &given, directory.path()).unwrap();
    assert_eq!(config.outbox.columns.payload.as_deref(), Some("body"));
    let given = [given[0], ("WALPOST_RECORD_PROFILE", "debezium")];
    let error = load(&Flags::default(), &given, directory.path()).unwrap_err().to_string();
    assert!(error.contains("WALPOST_OUTBOX_COLUMNS_PAYLOAD"), "{error}");
}
