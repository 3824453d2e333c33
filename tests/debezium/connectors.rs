//! `walpost import-debezium` on realistic connector configurations (`tests/corpus/connectors`),
//! each with its recorded output.
//!
//! `WALPOST_CONNECTORS=write` writes the output again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use secrecy::ExposeSecret as _;
use walpost::config::{self, Config, Environment, Flags};
use walpost::conninfo::{ConnInfo, ConnInfoError};
use walpost::tools::debezium_import;
use walpost::tools::debezium_import::Mapping;

/// The placeholder for a secret in the files.
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

/// The files in which every option can be imported.
const COMPLETE: [&str; 4] = ["binary.json", "expanded.json", "predicate.json", "strings.json"];

#[test]
fn output_matches_the_recorded_output() {
    for file in files() {
        let text = read(&file);
        let printed = debezium_import::import(&text)
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
fn every_option_is_mentioned_exactly_once() {
    for file in files() {
        let text = read(&file);
        let import = debezium_import::import(&text).unwrap();
        let mut named: Vec<String> = import
            .toml
            .lines()
            .filter_map(|line| line.strip_prefix("#   "))
            .filter(|line| !line.contains(" (not in the file)"))
            .map(|line| line.split([':', ' ']).next().unwrap().to_owned())
            .collect();
        // The last section is about options that are not in the file.
        let absent = import
            .findings
            .iter()
            .filter(|it| it.place.is_none() && it.mapping != Mapping::Refused);
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
        let import = debezium_import::import(&read(&file)).unwrap();
        for secret in SECRETS {
            assert!(!import.toml.contains(secret), "{}: {secret}", file.display());
        }
    }
}

#[test]
fn output_is_a_valid_configuration() {
    let folder = tempfile::tempdir().unwrap();
    for file in files() {
        let import = debezium_import::import(&read(&file)).unwrap();
        let path = folder.path().join("walpost.toml");
        fs::write(&path, &import.toml).unwrap();
        let config = Config::load(&Flags::new(Some(path)), &Environment::default());
        // For converters without a profile the report leaves the choice to the reader.
        if import.toml.contains("\nprofile = \"…\"") {
            let error = config.expect_err("no profile").to_string();
            assert!(
                error.contains("`record.profile`: `…` is not one of"),
                "{}: {error}",
                file.display()
            );
            continue;
        }
        let config = config.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        config::profile(&config).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let url = config.source.url.as_ref().expect("there is always a URL").expose_secret();
        let resolved =
            ConnInfo::resolve(Some(url), &|name| (name == "PGUSER").then(|| "cdc".to_owned()));
        // Certificates are on the machine that walpost will run on.
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
fn exit_code_is_1_and_unsupported_options_are_named() {
    for file in files() {
        let name = file.file_name().unwrap().to_str().unwrap();
        let output = program(&[file.to_str().unwrap()], "");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), read(&file.with_extension("toml")));
        let refused = debezium_import::import(&read(&file)).unwrap().refused().count();
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
fn stdin_is_read_and_invalid_input_is_rejected() {
    let text = read(&corpus().join("strings.json"));
    let output = program(&["-"], &text);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), read(&corpus().join("strings.toml")));
    for bytes_of in [u16::to_le_bytes, u16::to_be_bytes] {
        let utf16: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(bytes_of).collect();
        let output = program(&["-"], &utf16);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let half = program(&["-"], &utf16[..utf16.len() - 1]);
        assert!(String::from_utf8_lossy(&half.stderr).contains("half a character"), "{half:?}");
    }

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

fn program(arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    use std::io::Write as _;
    let mut child = Command::new(env!("CARGO_BIN_EXE_walpost"))
        .arg("import-debezium")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("walpost starts");
    // A process that does not read its input has exited already.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_ref());
    child.wait_with_output().expect("walpost ends")
}

/// The names of a file's options, parsed independently of walpost.
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
    // Names contain no blanks here; a continued line belongs to the value.
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
