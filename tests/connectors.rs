//! `walpost import-debezium` on connectors' configurations as people write them
//! (`tests/corpus/connectors`), each with what is printed for it beside it.
//!
//! `WALPOST_CONNECTORS=write` writes that anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use secrecy::ExposeSecret as _;
use walpost::config::{Config, Environment, Flags};
use walpost::conninfo::{ConnInfo, ConnInfoError};
use walpost::import::{self, Verdict};
use walpost_bed::debezium::Connector;
use walpost_bed::{Consumed, Debezium, Follower, Kafka, Major, Postgres, Walpost, eventually};

const MINUTE: Duration = Duration::from_secs(60);

/// What stands for a secret in the files.
const SECRETS: [&str; 9] = [
    "dbz-Secret",
    "pa:ss@word",
    "registry-secret",
    "db-secret",
    "kafka-secret",
    "store-secret",
    "keystore-secret",
    "key-secret",
    "very secret",
];

/// The files without a single thing that cannot be honoured.
const COMPLETE: [&str; 4] = ["binary.json", "expanded.json", "predicate.json", "strings.json"];

#[test]
fn what_is_printed_is_what_was_recorded() {
    for file in files() {
        let text = read(&file);
        let printed = import::import(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
            .toml;
        let golden = file.with_extension("toml");
        if std::env::var_os("WALPOST_CONNECTORS").is_some_and(|value| value == "write") {
            fs::write(&golden, &printed).expect("the golden file can be written");
        }
        assert_eq!(printed, read(&golden), "{}", file.display());
    }
}

#[test]
fn every_option_of_each_file_is_named_exactly_once() {
    for file in files() {
        let text = read(&file);
        let import = import::import(&text).unwrap();
        let mut named: Vec<String> = import
            .toml
            .lines()
            .filter_map(|line| line.strip_prefix("#   "))
            .filter(|line| !line.contains(" (not in the file)"))
            .map(|line| line.split([':', ' ']).next().unwrap().to_owned())
            .collect();
        // Of what is not in the file the last section speaks.
        let absent = import
            .findings
            .iter()
            .filter(|it| it.place.is_none() && it.verdict != Verdict::Refused);
        for finding in absent {
            let last = named.pop().unwrap_or_else(|| panic!("{}: {finding:?}", file.display()));
            assert!(
                import.findings.iter().any(|it| it.place.is_none() && it.name == last),
                "{}: {last}",
                file.display()
            );
        }
        named.sort();
        let mut given: Vec<String> =
            names(&file, &text).into_iter().map(|name| name.escape_debug().to_string()).collect();
        given.sort();
        assert_eq!(named, given, "{}", file.display());
    }
}

#[test]
fn no_secret_is_printed() {
    for file in files() {
        let import = import::import(&read(&file)).unwrap();
        for secret in SECRETS {
            assert!(!import.toml.contains(secret), "{}: {secret}", file.display());
        }
    }
}

#[test]
fn what_is_printed_is_a_configuration_apart_from_the_profile() {
    let folder = tempfile::tempdir().unwrap();
    for file in files() {
        let import = import::import(&read(&file)).unwrap();
        let mut table: toml::Table = import.toml.parse().unwrap();
        // What the profiles take is their own matter.
        table.remove("debezium");
        table["record"].as_table_mut().unwrap().remove("profile");
        let path = folder.path().join("walpost.toml");
        fs::write(&path, table.to_string()).unwrap();
        let config = Config::load(&Flags::new(Some(path)), &Environment::default())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let url = config.source.url.as_ref().expect("there is always a URL").expose_secret();
        let resolved =
            ConnInfo::resolve(Some(url), &|name| (name == "PGUSER").then(|| "cdc".to_owned()));
        // Certificates lie on the machine that walpost will run on.
        let lacks_file = |error: &ConnInfoError| error.to_string().contains('/');
        match resolved {
            Err(error) if url.contains("ssl") && lacks_file(&error) => {}
            resolved => {
                drop(resolved.unwrap_or_else(|error| panic!("{}: {error}", file.display())));
            }
        }
    }
}

#[test]
fn the_program_ends_with_1_where_something_cannot_be_honoured_and_says_what() {
    for file in files() {
        let name = file.file_name().unwrap().to_str().unwrap();
        let output = program(&[file.to_str().unwrap()], "");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), read(&file.with_extension("toml")));
        let refused = import::import(&read(&file)).unwrap().refused().count();
        assert_eq!(stderr.lines().count(), refused, "{name}: {stderr}");
        assert!(
            stderr.lines().all(|line| line.starts_with("walpost: cannot be honoured: ")),
            "{stderr}"
        );
        let is_complete = COMPLETE.contains(&name);
        assert_eq!(output.status.code(), Some(i32::from(!is_complete)), "{name}: {stderr}");
    }
}

#[test]
fn standard_input_is_read_and_what_is_no_configuration_is_refused() {
    let text = read(&corpus().join("strings.json"));
    let output = program(&["-"], &text);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), read(&corpus().join("strings.toml")));

    for (argument, text, reason) in [
        ("-", "{", "JSON"),
        ("-", "", "no option"),
        ("-", "apiVersion: kafka.strimzi.io/v1beta2\n", "kubectl"),
        ("no/such/file.json", "", "cannot read no/such/file.json"),
    ] {
        let output = program(&[argument], text);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(output.stdout.is_empty() && stderr.contains(reason), "{stderr}");
    }
}

/// The move of docs/from-debezium.md, there and back, with the slot's and the brokers'
/// real behaviour. Records are walpost's own: what they look like is not looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts Kafka Connect: make debezium"]
async fn a_slot_goes_from_debezium_to_walpost_and_back_and_nothing_is_lost() {
    let (postgres, kafka) = (Postgres::start(Major::V17).await, Kafka::start().await);
    postgres
        .execute(
            "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text);
             CREATE PUBLICATION moved FOR TABLE outbox",
        )
        .await;
    postgres.execute("SELECT pg_create_logical_replication_slot('moved', 'pgoutput')").await;
    let insert = async |ids: std::ops::RangeInclusive<u32>| {
        for id in ids {
            let row =
                format!("INSERT INTO outbox VALUES ({id}, 'order', 'key', 'type', 'event {id}')");
            postgres.execute(&row).await;
        }
    };
    let follower = Follower::start(&kafka.bootstrap(), "outbox.event.order");
    let has_all_until = async |last: u32| {
        let name = format!("all events until {last}");
        follower.until(&name, MINUTE, |seen| firsts(seen) == (1..=last).collect::<Vec<_>>()).await;
    };
    let is_free = async || {
        let active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'moved'";
        postgres.query_text(active).await.as_deref() == Some("f")
    };

    let debezium = Debezium::start(&postgres, &kafka).await;
    debezium.add(&postgres, Connector::new("moved", "moved", "moved")).await;
    insert(1..=20).await;
    has_all_until(20).await;
    debezium.turn("moved", "stop").await;
    eventually(MINUTE, "a free slot", is_free).await;
    insert(21..=40).await;

    let connector = format!(
        "connector.class=io.debezium.connector.postgresql.PostgresConnector\nplugin.name=pgoutput\n\
         database.hostname=127.0.0.1\ndatabase.port={}\ndatabase.user=postgres\n\
         database.dbname=postgres\nslot.name=moved\npublication.name=moved\n\
         table.include.list=public.outbox\nbootstrap.servers={}\n",
        postgres.port(),
        kafka.bootstrap()
    );
    let mut table: toml::Table = import::import(&connector).unwrap().toml.parse().unwrap();
    table["record"].as_table_mut().unwrap().remove("profile");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("walpost.toml");
    fs::write(&config, table.to_string()).unwrap();
    let run = Walpost::builder(env!("CARGO_BIN_EXE_walpost"))
        .args(["run", "--until", "current", "--config"])
        .arg(&config)
        .start();
    let status = run.wait(MINUTE).await.expect("it ends by itself");
    assert!(status.success(), "{:?}", run.stderr());
    has_all_until(40).await;
    eventually(MINUTE, "a free slot", is_free).await;

    insert(41..=60).await;
    debezium.turn("moved", "resume").await;
    debezium.streams(&postgres).await;
    insert(61..=80).await;
    has_all_until(80).await;
}

/// The numbers of the events in the order in which each came first.
fn firsts(seen: &[Consumed]) -> Vec<u32> {
    let mut firsts = Vec::new();
    for record in seen {
        let value = record.value_text().and_then(|text| text.strip_prefix("event "));
        let id = value.and_then(|id| id.parse().ok()).expect("the writer's own values");
        if !firsts.contains(&id) {
            firsts.push(id);
        }
    }
    firsts
}

fn program(arguments: &[&str], input: &str) -> Output {
    use std::io::Write as _;
    let mut child = Command::new(env!("CARGO_BIN_EXE_walpost"))
        .arg("import-debezium")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("walpost starts");
    // One that does not read its input has gone already.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    child.wait_with_output().expect("walpost ends")
}

/// The names of a file's options, read in another way than walpost does.
fn names(file: &Path, text: &str) -> BTreeSet<String> {
    if file.extension().is_some_and(|extension| extension == "json") {
        let mut document: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).unwrap();
        let mut names: BTreeSet<String> = BTreeSet::new();
        if let Some(serde_json::Value::Object(config)) = document.remove("config") {
            names.extend(config.into_iter().map(|(name, _)| name));
            document.remove("tasks");
            document.remove("type");
        }
        names.extend(document.into_iter().map(|(name, _)| name));
        return names;
    }
    // These have no blanks in names; a line that goes on is the value's.
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| line.split([' ', '=', ':']).next().unwrap().to_owned()).collect()
}

/// The configurations of connectors, without what is printed for them.
fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus()).expect("the corpus is there");
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension != "toml"));
    files.sort();
    assert!(files.len() >= 12, "{files:?}");
    files
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/connectors")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
