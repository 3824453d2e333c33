//! The command line: commands, options and their help. The configuration checks the values, so
//! that flags, variables and the file accept the same.

#![allow(clippy::doc_markdown, reason = "help is printed as it stands, without backticks")]

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use clap::{Args, ColorChoice, Parser, Subcommand};
use clap_complete::Shell;

use super::help::{
    ADOPT_EXAMPLES, CHECK_EXAMPLES, CONFIGURATION, DEAD_LETTERS_ENDS, DEAD_LETTERS_EXAMPLES,
    EXAMPLES, EXIT_CODES, IMPORT_EXAMPLES, IMPORT_EXIT_CODES, RECOVER_ACTS, RECOVER_EXAMPLES,
    REPLAY_ACTS, REPLAY_EXAMPLES, RUN_EXAMPLES, SIGNALS, SKIP_EXAMPLES, STATUS_ENDS,
    STATUS_EXAMPLES, TAIL_EXAMPLES, TAIL_LINE,
};
use super::options::Options;
use super::prune_args::PruneArguments;
use crate::lsn::{Lsn, ParseLsnError};
use crate::position::EventPosition;
use crate::record::Cause;
use crate::tools::setup::PartitionBy;

/// Streams a transactional outbox from PostgreSQL's WAL to Kafka.
#[derive(Parser)]
#[command(
    name = "walpost",
    version,
    disable_version_flag = true,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
pub struct Arguments {
    /// Print the version
    #[arg(short = 'V', long)]
    pub version: bool,
    /// With --version: print the build's components and the features of its Kafka client
    #[arg(long, requires = "version")]
    pub verbose: bool,
    /// The command; `None` with `--version` alone.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The role that `init` creates.
pub(super) const DEFAULT_ROLE: &str = "walpost";

/// The commands.
#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value exists, once")]
pub enum Command {
    /// Stream the outbox to Kafka until stopped
    Run(RunArguments),
    /// Print the records that `run` would publish, as JSON lines; needs no Kafka and changes nothing
    Tail(TailArguments),
    /// Compare the outbox with what is published, and publish what is missing and what no slot sends
    Recover(RecoverArguments),
    /// Publish chosen events again, by inserting their rows again; needs no Kafka
    Replay(ReplayArguments),
    /// Publish dead letters again, with the current configuration
    ReplayDeadLetters(ReplayDeadLettersArguments),
    /// Delete, or archive, old rows of the outbox that are proved to be delivered
    Prune(PruneArguments),
    /// Print the SQL that creates table, role, publication and slot, or run it
    Init(InitArguments),
    /// Show the positions of slot and state topic, or accept the slot's position
    Adopt(AdoptArguments),
    /// Order that one undeliverable event is not published, with a state topic
    Skip(SkipArguments),
    /// Check PostgreSQL and Kafka before `run`; prints one finding per line, with the fix
    Check(CheckArguments),
    /// Show whether a running walpost delivers, its delivery lag and the retained WAL
    Status(StatusArguments),
    /// Check the liveness of a running walpost, for container health checks
    Health(HealthArguments),
    /// Show every effective value and where it was given, without secrets
    Config(ConfigArguments),
    /// Convert a Debezium connector's configuration, with a report on each option
    #[command(after_help = IMPORT_EXAMPLES, after_long_help = format!("{IMPORT_EXAMPLES}\n\n{IMPORT_EXIT_CODES}"))]
    ImportDebezium {
        /// Kafka Connect JSON or properties, or Debezium Server properties; `-` reads standard input
        file: PathBuf,
    },
    /// Print the completion script for a shell
    #[command(after_help = "Example:\n  walpost completions bash > /etc/bash_completion.d/walpost")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write one page per command to a directory
    #[command(
        after_help = "Examples:\n  walpost man | man -l -\n  walpost man /usr/local/share/man/man1"
    )]
    Man {
        /// Directory for walpost.1, walpost-run.1 and the others
        directory: Option<PathBuf>,
    },
}

/// `walpost run`
#[derive(Args)]
#[command(
    after_help = RUN_EXAMPLES,
    after_long_help = format!("{RUN_EXAMPLES}\n\n{SIGNALS}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
pub struct RunArguments {
    /// Exit once this position is confirmed: the end of WAL at startup, or an LSN such as
    /// 16/B374D848
    #[arg(long, value_name = "current|LSN")]
    pub until: Option<Until>,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost tail`
#[derive(Args)]
#[command(
    after_help = format!("{TAIL_EXAMPLES}\n\n{TAIL_LINE}"),
    after_long_help = format!("{TAIL_EXAMPLES}\n\n{TAIL_LINE}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
pub struct TailArguments {
    /// Peek at the events that wait in the slot of `run`, without consuming them
    #[arg(long)]
    pub from_slot: bool,
    /// Exit after this many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost replay`
#[derive(Args)]
#[command(
    after_help = format!("{REPLAY_ACTS}\n\n{REPLAY_EXAMPLES}"),
    after_long_help =
        format!("{REPLAY_ACTS}\n\n{REPLAY_EXAMPLES}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
#[group(id = "which", required = true, multiple = true, args = ["id", "position", "since", "until"])]
pub struct ReplayArguments {
    /// The event with this id; can be repeated
    #[arg(long, value_name = "ID", allow_hyphen_values = true, conflicts_with_all = ["since", "until"])]
    pub id: Vec<String>,
    /// Events that were published with this position, as the header `walpost.position` has it, or from
    /// one position to another, FROM..TO, and in this order
    #[arg(long, value_name = "POSITION", value_parser = event_positions, requires = "read_topic",
          conflicts_with_all = ["id", "since", "until"])]
    pub position: Option<RangeInclusive<EventPosition>>,
    /// Topic to read for --position, from its beginning; can be repeated
    #[arg(long, value_name = "TOPIC", requires = "position",
          conflicts_with_all = ["id", "since", "until"])]
    pub read_topic: Vec<String>,
    /// Events that were written at this time or later, in PostgreSQL's notation; UTC without a zone
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<String>,
    /// Events that were written before this time [default with --since: now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<String>,
    /// Only events of this aggregate type
    #[arg(long, value_name = "TYPE")]
    pub aggregate_type: Option<String>,
    /// Only events of the aggregate with this id
    #[arg(long, value_name = "ID")]
    pub aggregate_id: Option<String>,
    /// Column with the time at which a row was written [default: outbox.columns.timestamp, or
    /// created_at]
    #[arg(long, value_name = "COLUMN")]
    pub time_column: Option<String>,
    /// Column by which the events are ordered, such as an identity column [default: time and id]
    #[arg(long, value_name = "COLUMN")]
    pub order_by: Option<String>,
    /// Insert copies with new ids, and keep the rows
    #[arg(long)]
    pub new_ids: bool,
    /// Add the header `replayed_at` to the events, and to their rows
    #[arg(long)]
    pub mark: bool,
    /// Insert the rows again, instead of only counting them
    #[arg(long)]
    pub apply: bool,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost recover`
#[derive(Args)]
#[command(
    after_help = format!("{RECOVER_ACTS}\n\n{RECOVER_EXAMPLES}"),
    after_long_help =
        format!("{RECOVER_ACTS}\n\n{RECOVER_EXAMPLES}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct RecoverArguments {
    /// Compare rows that were written at this time or later, in PostgreSQL's notation; UTC without a
    /// zone [default: those that may not be delivered, by the position that walpost keeps]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, conflicts_with = "all")]
    pub since: Option<String>,
    /// Compare all rows
    #[arg(long)]
    pub all: bool,
    /// For RabbitMQ, HTTP and SQS, which cannot be read back: publish all rows that were written at this time
    /// or later and do not wait in the slot, whether they were published or not
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, conflicts_with_all =
          ["since", "all", "read_topic", "list", "ids_alone", "publish_undecided", "leave_undecided"])]
    pub publish_since: Option<String>,
    /// Column with the time at which a row was written [default: outbox.columns.timestamp, or
    /// created_at]
    #[arg(long, value_name = "COLUMN")]
    pub time_column: Option<String>,
    /// Column by which the events are ordered, such as an identity column [default: time]
    #[arg(long, value_name = "COLUMN")]
    pub order_by: Option<String>,
    /// Kafka: read this topic too; those of the compared rows, and of the newest 10,000 rows of each table,
    /// are read anyway. Can be repeated
    #[arg(long, value_name = "TOPIC")]
    pub read_topic: Vec<String>,
    /// Name all events that are published and in no table, not only ten of them
    #[arg(long)]
    pub list: bool,
    /// Take a record with the id of a row for its event, whatever key and value it has. Without this,
    /// both have to be the same, unless the ids are the uuids of one table
    #[arg(long)]
    pub ids_alone: bool,
    /// Also publish the events of which it cannot be told whether they were published
    #[arg(long, conflicts_with = "leave_undecided")]
    pub publish_undecided: bool,
    /// With --apply: do not publish these, but the others
    #[arg(long)]
    pub leave_undecided: bool,
    /// Publish what is missing, instead of only reporting it
    #[arg(long)]
    pub apply: bool,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost replay-dead-letters`
#[derive(Args)]
#[command(
    after_help = format!("{DEAD_LETTERS_ENDS}\n\n{DEAD_LETTERS_EXAMPLES}"),
    after_long_help =
        format!("{DEAD_LETTERS_ENDS}\n\n{DEAD_LETTERS_EXAMPLES}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
pub struct ReplayDeadLettersArguments {
    /// Print what would be published, and to which topic; publish nothing and commit no offset
    #[arg(long)]
    pub dry_run: bool,
    /// Publish only dead letters with this cause; keep the others
    #[arg(long, value_name = "CAUSE", value_parser = PossibleValuesParser::new(Cause::KEYS))]
    pub cause: Option<String>,
    /// Exit after this many published dead letters
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Where the dead letters are: a topic, stream, subject, queue, or URL of a queue of SQS [default: the
    /// configured one]
    #[arg(long, value_name = "NAME")]
    pub from: Option<String>,
    /// Consumer group of Kafka that records which dead letters are done [default:
    /// walpost-replay-dead-letters]
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost init`
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    walpost init | psql postgres://postgres@db/shop\n  \
    walpost init --apply --source postgres://postgres@db/shop --bootstrap-servers kafka:9092\n  \
    walpost init --no-role --table billing.outbox --slot billing --publication billing\n  \
    walpost init --apply --partition-by day --source postgres://postgres@db/shop\n  \
    walpost init --apply --failover --source postgres://postgres@db/shop\n  \
    walpost init --apply --publish-function --source postgres://postgres@db/shop\n  \
    walpost init --apply --existing-rows --source postgres://postgres@db/shop")]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct InitArguments {
    /// Run the SQL instead of printing it, and write the position of a slot that is new to the state
    /// topic, which is created if it is missing; leaves existing objects unchanged
    #[arg(long)]
    pub apply: bool,
    /// Do not write the position, for somebody who does not reach the destination: `walpost adopt --apply`
    /// does it before the first `walpost run`
    #[arg(long, requires = "apply", conflicts_with = "existing_rows")]
    pub no_state: bool,
    /// Write the configuration that these options give to a file, without secrets, unless it exists
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "walpost.toml", requires = "apply")]
    pub config_file: Option<PathBuf>,
    /// Role to create for walpost, with REPLICATION and no other right
    #[arg(long, value_name = "NAME", default_value = DEFAULT_ROLE)]
    pub role: String,
    /// Create no role: walpost connects as an existing one
    #[arg(long, conflicts_with = "role")]
    pub no_role: bool,
    /// Create a failover slot, which standbys synchronize (PostgreSQL 17 and later)
    #[arg(long)]
    pub failover: bool,
    /// Also create the function outbox.publish, with which an application writes an event
    #[arg(long)]
    pub publish_function: bool,
    /// Create a table that is partitioned by time, of which `walpost prune` drops old partitions:
    /// hour, day or month, in UTC
    #[arg(long, value_name = "PERIOD")]
    pub(crate) partition_by: Option<PartitionBy>,
    /// Publish the rows, too, that are in the outbox before the slot is made; run again to continue
    /// if it is interrupted
    #[arg(long, requires = "apply")]
    pub existing_rows: bool,
    /// With --existing-rows: column with the time at which a row was written [default:
    /// outbox.columns.timestamp, or created_at]
    #[arg(long, value_name = "COLUMN", requires = "existing_rows")]
    pub time_column: Option<String>,
    /// With --existing-rows: column by which the events are ordered [default: time]
    #[arg(long, value_name = "COLUMN", requires = "existing_rows")]
    pub order_by: Option<String>,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost adopt`
#[derive(Args)]
#[command(
    after_help = ADOPT_EXAMPLES,
    after_long_help = format!("{ADOPT_EXAMPLES}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
pub struct AdoptArguments {
    /// Write the slot's position to the state topic, which is created if it is missing; if only the
    /// publication was changed, accept that and leave the position
    #[arg(long)]
    pub apply: bool,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost skip`
#[derive(Args)]
#[command(
    after_help = SKIP_EXAMPLES,
    after_long_help = format!("{SKIP_EXAMPLES}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
pub struct SkipArguments {
    /// Position of the event, as the error and the header `walpost.position` have it
    #[arg(long, value_parser = event_position)]
    pub position: EventPosition,
    /// Write the order to the state topic; `run` then passes over the event
    #[arg(long)]
    pub apply: bool,
    /// Take the order back
    #[arg(long)]
    pub undo: bool,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

fn event_position(text: &str) -> Result<EventPosition, String> {
    EventPosition::from_text(text).ok_or_else(|| {
        "16 hexadecimal digits, a slash and 8 digits, as in 0000000001926E68/00000002".to_owned()
    })
}

/// One position, or two with `..` between them.
fn event_positions(text: &str) -> Result<RangeInclusive<EventPosition>, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let range = event_position(from)?..=event_position(to)?;
    if range.is_empty() {
        Err("the first position is behind the second".to_owned())
    } else {
        Ok(range)
    }
}

/// `walpost check`
#[derive(Args)]
#[command(
    after_help = CHECK_EXAMPLES,
    after_long_help = format!("{CHECK_EXAMPLES}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
pub struct CheckArguments {
    /// Check the configuration only, without connecting
    #[arg(long)]
    pub offline: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost status`
#[derive(Args)]
#[command(
    after_help = format!("{STATUS_ENDS}\n\n{STATUS_EXAMPLES}"),
    after_long_help = format!("{STATUS_ENDS}\n\n{STATUS_EXAMPLES}\n\n{CONFIGURATION}"),
)]
pub struct StatusArguments {
    /// Refresh until Ctrl-C, every SECONDS seconds (2 if no number is given)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub watch: Option<u16>,
    /// Print one JSON object, on one line
    #[arg(long)]
    pub json: bool,
    /// When to use colours; `auto`: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost health`
#[derive(Args)]
#[command(after_help = "Examples:\n  walpost health\n  walpost health --ready\n\n\
    Asks the running walpost at the address in admin.listen. Exit code 0 if it is healthy, \
    otherwise 1, with the reasons.")]
pub struct HealthArguments {
    /// Check whether it delivers, not only whether it is alive
    #[arg(long)]
    pub ready: bool,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// `walpost config`
#[derive(Args)]
#[command(
    after_help = "Examples:\n  walpost config\n  walpost config --json | jq '.\"source.slot\"'"
)]
pub struct ConfigArguments {
    /// Print one JSON object: for each key its value and origin
    #[arg(long)]
    pub json: bool,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

/// Where `run --until` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The end of WAL at startup.
    Current,
    /// An LSN.
    Lsn(Lsn),
}

impl FromStr for Until {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "current" => Ok(Self::Current),
            lsn => lsn.parse().map(Self::Lsn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    use crate::config::Setting;

    fn exit_of(line: &[&str]) -> i32 {
        match Arguments::try_parse_from(line) {
            Ok(_) => 0,
            Err(error) => error.exit_code(),
        }
    }

    #[test]
    fn the_definitions_pass_claps_assertions() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_invalid_command_line_exits_with_2_and_help_with_0() {
        for line in [
            &["walpost"][..],
            &["walpost", "fly"],
            &["walpost", "run", "--no-such"],
            &["walpost", "run", "--until", "yesterday"],
            &["walpost", "run", "--slot", "a", "--slot", "b"],
            &["walpost", "init", "--role", "a", "--no-role"],
            &["walpost", "replay-dead-letters", "--cause", "age"],
            &["walpost", "replay"],
            &["walpost", "replay", "--id", "a", "--since", "now"],
            &["walpost", "--verbose"],
            &["walpost", "--version", "config"],
        ] {
            assert_eq!(exit_of(line), 2, "{line:?}");
        }
        for line in
            [&["walpost", "--help"][..], &["walpost", "--version"], &["walpost", "run", "--help"]]
        {
            assert_eq!(exit_of(line), 0, "{line:?}");
        }
    }

    #[test]
    fn every_flag_of_the_configuration_is_an_argument_whose_help_names_its_variables() {
        let command = Arguments::command();
        let run = command.find_subcommand("run").unwrap();
        for setting in Setting::all() {
            let Some(flag) = setting.flag() else { continue };
            let argument = run.get_arguments().find(|argument| {
                let long = argument.get_long().map(|long| format!("--{long}"));
                let short = argument.get_short().map(|short| format!("-{short}"));
                [long, short].into_iter().flatten().any(|name| name == flag)
            });
            let help = argument.unwrap_or_else(|| panic!("{flag}")).get_help().unwrap().to_string();
            let ambient = setting.ambient().map(str::to_owned);
            for variable in setting.variable().into_iter().chain(ambient) {
                assert!(help.contains(&variable), "{flag}: {help}");
            }
        }
    }

    #[test]
    fn every_example_in_the_help_is_a_command_line() {
        let mut command = Arguments::command();
        let mut helps = vec![command.render_long_help().to_string()];
        helps.extend(command.get_subcommands_mut().map(|sub| sub.render_long_help().to_string()));
        let lines = helps.iter().flat_map(|help| help.lines());
        let examples: Vec<_> = lines.filter(|line| line.starts_with("  walpost ")).collect();
        assert!(examples.len() > 10, "{examples:?}");
        for example in examples {
            let shell = ["#", "|", ">"];
            let words = example.split_whitespace().take_while(|word| !shell.contains(word));
            assert!(Arguments::try_parse_from(words).is_ok(), "{example}");
        }
    }

    #[test]
    fn until_accepts_current_or_an_lsn() {
        assert_eq!("current".parse(), Ok(Until::Current));
        assert_eq!("0/10".parse(), Ok(Until::Lsn(Lsn::new(16))));
        assert!("now".parse::<Until>().is_err());
    }
}
