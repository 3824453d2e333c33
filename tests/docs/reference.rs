//! `docs/configuration.md` and `docs/commands.md` are generated from the code.

use std::fmt::Write as _;

use clap::CommandFactory as _;
use walpost::cli::args::Arguments;
use walpost::config::{Setting, rejection};

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

Every setting, with its key in the file, its flag, its environment variables and its default.

A flag takes precedence over a `WALPOST_*` variable, the variable over the file, the file over
standard variables (`DATABASE_URL`, libpq's `PG*`, `KAFKA_BOOTSTRAP_SERVERS`, `RUST_LOG`), and these
over the default.

The file is `--config FILE`, `WALPOST_CONFIG`, or the first that exists of `./walpost.toml` and
`/etc/walpost/walpost.toml`. It is TOML:
`source.slot` is `slot` in the table `[source]`. If `_FILE` is appended to the name of a `WALPOST_*`
variable, the variable names a file that contains the value. An unknown key or variable is an error.
An empty value counts as a value.

`walpost config` shows the effective values and where each was given. `walpost check --offline`
checks them.
";

fn configuration() -> String {
    let mut page = CONFIGURATION.to_owned();
    for (table, title) in Setting::tables() {
        writeln!(page, "\n## {title}: `[{table}]`").unwrap();
        for setting in Setting::all().filter(|setting| setting.table() == table) {
            let about = [setting.help(), setting.details()].join(" ");
            writeln!(page, "\n### `{}`\n\n{}", setting.key(), filled(&about)).unwrap();
            let flag = setting.flag().zip(setting.value_name());
            let given_by = [
                flag.map(|(flag, value)| format!("`{flag} {value}`")),
                setting.variable().map(|name| format!("`{name}`")),
                setting.ambient().map(|name| format!("`{name}`")),
                setting.default().filter(|it| !it.is_empty()).map(|it| format!("default `{it}`")),
            ];
            let given_by: Vec<_> = given_by.into_iter().flatten().collect();
            if !given_by.is_empty() {
                writeln!(page, "\n{}", given_by.join(" · ")).unwrap();
            }
        }
        if table == "kafka" {
            page.push_str(&refused());
        }
    }
    page
}

/// In lines of at most 100 columns.
fn filled(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 100 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
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
    let mut text =
        "\nwalpost rejects these, or accepts only the values that keep its guarantee:\n\n\
                    | property | why |\n|---|---|\n"
            .to_owned();
    for (name, value) in BREAKING {
        let why = rejection(name, value).unwrap_or_else(|| panic!("{name} is not refused"));
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
