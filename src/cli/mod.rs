//! Command line: one file a command.

pub mod args;
mod completions;
mod config;
mod exit;
pub mod init;
pub mod init_sql;
mod stdout;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Arguments, Command, InitArguments, Options};
pub use self::exit::Exit;
use self::stdout::{complain, print};
use crate::config::{Config, Environment};

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nobody is left to be told where printing fails.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Ok }.into();
        }
    };
    dispatch(arguments.command).into()
}

fn dispatch(command: Command) -> Exit {
    match command {
        Command::Init(arguments) => init(arguments),
        Command::Config(arguments) => match configuration(arguments.options) {
            Ok(config) if arguments.json => print(&config::json(&config)),
            Ok(config) => print(&config::table(&config)),
            Err(exit) => exit,
        },
        Command::Completions { shell } => print(&completions::script(shell)),
        // SEAM: these commands are wired where their parts meet.
        Command::Run(_) | Command::Tail(_) | Command::Check(_) => {
            complain("this command is not wired");
            Exit::Failure
        }
    }
}

/// The configuration that the options, the environment and the file make; what is
/// wrong with it is said here.
fn configuration(options: Options) -> Result<Config, Exit> {
    Config::load(&options.into(), &Environment::of_process()).map_err(|error| {
        complain(&error.to_string());
        Exit::Config
    })
}

fn init(arguments: InitArguments) -> Exit {
    let InitArguments { apply, role, no_role, options } = arguments;
    let config = match configuration(options) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let plan = match init_sql::InitPlan::new(&config, (!no_role).then_some(role.as_str())) {
        Ok(plan) => plan,
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    if !apply {
        return print(&plan.sql());
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start: {error}"));
            return Exit::Failure;
        }
    };
    runtime.block_on(apply_plan(&config, &plan, connect))
}

async fn apply_plan<E: std::fmt::Display>(
    config: &Config,
    plan: &init_sql::InitPlan,
    connect: impl AsyncFnOnce(&Config) -> Result<tokio_postgres::Client, E>,
) -> Exit {
    let client = match connect(config).await {
        Ok(client) => client,
        Err(error) => {
            complain(&format!("cannot connect to PostgreSQL: {error}"));
            return Exit::Failure;
        }
    };
    let applied = init::apply(&client, plan, |step| {
        print(&format!("{step}\n"));
    });
    match applied.await {
        Ok(()) => Exit::Ok,
        Err(error) => {
            complain(&error.to_string());
            error.exit()
        }
    }
}

/// SEAM: the source's own way to connect takes this one's place (it knows TLS).
async fn connect(config: &Config) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    use secrecy::ExposeSecret;
    let url = config.source.url.as_ref().map_or("", |url| url.expose_secret());
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(async move {
        // The client's next call says what went wrong.
        let _ = connection.await;
    });
    Ok(client)
}
