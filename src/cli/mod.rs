//! The command line: one file per command.

mod adopt;
pub mod args;
mod check;
mod completions;
mod config;
mod exit;
mod health;
mod help;
mod import_debezium;
mod init;
mod init_file;
mod logging;
mod man;
mod options;
mod progress;
mod prune;
mod prune_args;
mod prune_partitions;
mod prune_rows;
mod recover;
mod replay;
mod replay_dead_letters;
mod run;
mod skip;
mod status;
mod stdout;
mod tail;
mod usage;
mod version;

use std::process::ExitCode;

use clap::Parser;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use self::args::{Arguments, Command};
pub use self::exit::Exit;
use self::logging::LogLevel;
use self::stdout::{complain, print, set_flags};
use crate::config::{Config, CoreDumps, Environment, Flags};

/// Runs the command in the process's arguments.
pub fn main() -> ExitCode {
    #[cfg(feature = "crash-points")]
    let _armed = fail::FailScenario::setup();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage::print(&error).into(),
    };
    match arguments.command {
        Some(command) => dispatch(command).into(),
        None => print(&version::text(arguments.verbose)).into(),
    }
}

fn dispatch(command: Command) -> Exit {
    match command {
        Command::Init(arguments) => init::command(arguments),
        Command::Adopt(arguments) => adopt::command(arguments),
        Command::Skip(arguments) => skip::command(arguments),
        Command::Config(arguments) => match configuration(&arguments.options.into()) {
            Ok(config) if arguments.json => print(&config::json(&config)),
            Ok(config) => print(&config::table(&config)),
            Err(exit) => exit,
        },
        Command::Status(arguments) => status::command(arguments),
        Command::Health(arguments) => health::command(arguments),
        Command::Completions { shell } => print(&completions::script(shell)),
        Command::Man { directory: None } => print(&man::page()),
        Command::Man { directory: Some(directory) } => man::write_all(&directory),
        Command::ImportDebezium { file } => import_debezium::command(&file),
        Command::Run(arguments) => run::command(arguments),
        Command::Tail(arguments) => tail::command(arguments),
        Command::Recover(arguments) => recover::command(arguments),
        Command::Replay(arguments) => replay::command(arguments),
        Command::ReplayDeadLetters(arguments) => replay_dead_letters::command(arguments),
        Command::Prune(arguments) => prune::command(arguments),
        Command::Check(arguments) => {
            check::command(&arguments.options.into(), arguments.offline, arguments.json)
        }
    }
}

/// Runs a command on a single-threaded runtime: received events are produced on the same thread,
/// which is faster than passing them to another.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a process can have a timer and a poller");
    let output = runtime.block_on(future);
    // Does not wait for a pending DNS lookup.
    runtime.shutdown_background();
    output
}

/// The configuration from options, environment and file; prints its error, if any.
fn configuration(flags: &Flags) -> Result<Config, Exit> {
    let config = Config::load(flags, &Environment::of_process()).map_err(|error| {
        complain(&error.to_string());
        Exit::Config
    })?;
    set_flags(flags.words());
    forbid_core_dumps(config.process.core_dumps)?;
    Ok(config)
}

/// A core dump would contain passwords and payloads, and a debugger attached by the same user could
/// read them (<https://man7.org/linux/man-pages/man2/pr_set_dumpable.2const.html>).
fn forbid_core_dumps(core_dumps: CoreDumps) -> Result<(), Exit> {
    if core_dumps == CoreDumps::Allow {
        return Ok(());
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| {
        complain(&format!("cannot forbid core dumps: {error}"));
        Exit::Failure
    })
}

/// The configuration of a command that logs, with the log started.
fn logged(flags: &Flags) -> Result<(Config, LogLevel), Exit> {
    let config = configuration(flags)?;
    let level = logging::start(&config.log).map_err(|error| {
        complain(&error);
        Exit::Config
    })?;
    Ok((config, level))
}
