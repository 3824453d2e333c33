//! `docs/configuration.md` and `docs/commands.md` are generated from the code.

use std::fmt::Write as _;

use clap::CommandFactory as _;
use walpost::cli::args::Arguments;
use walpost::config::{Config, Environment, Flags, Setting, ShownValue, refusal};

use crate::{read, root};

#[test]
fn configuration_reference_is_up_to_date() {
    assert_is("docs/configuration.md", &configuration());
}

#[test]
fn command_reference_is_up_to_date() {
    assert_is("docs/commands.md", &commands());
}

/// With `WALPOST_DOCS=write` it is from now on.
fn assert_is(page: &str, made: &str) {
    if std::env::var_os("WALPOST_DOCS").is_some_and(|value| value == "write") {
        std::fs::write(root().join(page), made).unwrap();
    }
    assert!(read(page) == made, "{page} is not what the code makes: run `make docs`");
}

const CONFIGURATION: &str = "\
# Configuration

<!-- Made from the code by `make docs`. -->

Every setting, with its key in the file, its flag and its variable.

A flag wins over a `WALPOST_*` variable, that over the file, that over what lies around (`DATABASE_URL`, libpq's `PG*`,
`KAFKA_BOOTSTRAP_SERVERS`, `RUST_LOG`), that over the default. The file is `--config FILE`, `WALPOST_CONFIG`, or `./walpost.toml`
where it exists; it is TOML, where `source.slot` is `slot` in the table `[source]`. Each `WALPOST_*` variable may end in `_FILE` to
name a file that holds the value. An unknown key or variable is an error. An empty value is a value.

`walpost config` shows every value that is in force, and where it was given; `walpost check --offline` says what is wrong with it.
";

const TABLES: [(&str, &str); 9] = [
    ("source", "Where events come from"),
    ("outbox", "What an event is"),
    ("record", "What a record looks like"),
    ("debezium", "Debezium's event router"),
    ("kafka", "Where records go"),
    ("delivery", "How they are delivered"),
    ("poison", "Events that cannot be delivered"),
    ("admin", "Endpoints"),
    ("process", "The process"),
];

fn configuration() -> String {
    let nowhere = tempfile::TempDir::new().unwrap();
    let environment = Environment::new([], nowhere.path());
    let defaults = Config::load(&Flags::default(), &environment).expect("the defaults are sound");
    let mut page = CONFIGURATION.to_owned();
    let mut seen = 0;
    for (table, title) in TABLES.into_iter().chain([("log", "What is logged")]) {
        writeln!(page, "\n## {title}: `[{table}]`").unwrap();
        let is_in = |it: &Setting| it.key().split('.').next() == Some(table);
        for setting in Setting::ALL.into_iter().filter(is_in) {
            seen += 1;
            let names =
                [named(setting.flag()), named(setting.variable()), named(setting.ambient())];
            let names: Vec<_> = names.into_iter().flatten().collect();
            writeln!(page, "\n### `{}`\n\n{}", setting.key(), setting.about()).unwrap();
            let default = default_of(setting, &defaults).map(|text| format!("default {text}"));
            let rest: Vec<_> = names.into_iter().chain(default).collect();
            if !rest.is_empty() {
                writeln!(page, "\n{}", rest.join(" · ")).unwrap();
            }
        }
        if table == "kafka" {
            page.push_str(&refused());
        }
    }
    assert_eq!(seen, Setting::ALL.len(), "a table of the file is missing here");
    page
}

/// A flag with the name of its value, or a variable.
fn named(name: Option<&str>) -> Option<String> {
    let name = name?;
    let command = Arguments::command();
    let run = command.find_subcommand("run").expect("there is `run`");
    let argument = run.get_arguments().find(|it| {
        it.get_long().is_some_and(|long| name == format!("--{long}"))
            || it.get_short().is_some_and(|short| name == format!("-{short}"))
    });
    Some(match argument.and_then(|it| it.get_value_names()) {
        Some([value]) => format!("`{name} {value}`"),
        _ => format!("`{name}`"),
    })
}

fn default_of(setting: Setting, defaults: &Config) -> Option<String> {
    let shown = defaults.shown().into_iter().find(|it| it.key == setting.key())?;
    match shown.value? {
        ShownValue::Text(text) => Some(format!("`{text}`")),
        ShownValue::List(items) if items.is_empty() => None,
        ShownValue::List(items) => Some(format!("`{}`", items.join("`, `"))),
    }
}

/// Properties of librdkafka on which the guarantee rests, with values that break it.
const BREAKING: [(&str, &str); 15] = [
    ("acks", "1"),
    ("enable.idempotence", "false"),
    ("max.in.flight.requests.per.connection", "6"),
    ("message.timeout.ms", "300000"),
    ("retries", "3"),
    ("partitioner", "random"),
    ("queue.buffering.max.messages", "1"),
    ("queue.buffering.max.kbytes", "1"),
    ("transactional.id", "x"),
    ("enable.gapless.guarantee", "true"),
    ("delivery.report.only.error", "true"),
    ("bootstrap.servers", "x"),
    ("queuing.strategy", "lifo"),
    ("test.mock.num.brokers", "3"),
    ("dr_msg_cb", "x"),
];

fn refused() -> String {
    let mut text = "\nThese are refused, or take only the values that do no harm:\n\n\
                    | property | why |\n|---|---|\n"
        .to_owned();
    for (name, value) in BREAKING {
        let why = refusal(name, value).unwrap_or_else(|| panic!("{name} is not refused"));
        writeln!(text, "| `{name}` | {why} |").unwrap();
    }
    text
}

/// Each command's help as the program prints it.
fn commands() -> String {
    let mut command = Arguments::command().term_width(100);
    command.build();
    let mut page = "# Commands\n\n<!-- Made from the code by `make docs`. -->\n\n\
                    What `walpost help COMMAND` says, for each command.\n"
        .to_owned();
    let mut add = |name: &str, help: String| {
        let lines: Vec<_> = help.lines().map(str::trim_end).collect();
        writeln!(page, "\n## {name}\n\n```text\n{}\n```", lines.join("\n").trim_end()).unwrap();
    };
    add("walpost", command.render_long_help().to_string());
    for sub in command.get_subcommands_mut().filter(|it| it.get_name() != "help") {
        add(&format!("walpost {}", sub.get_name()), sub.render_long_help().to_string());
    }
    page
}
