//! The options of the configuration, which every command takes.

use std::iter;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

use crate::config::{Flags, Setting};

/// The settings that flags can set, built from the table of settings. No `Debug`: it may contain
/// secrets.
#[derive(Default)]
pub struct Options(Flags);

const CONFIG: &str = "config";

impl Args for Options {
    fn augment_args(command: clap::Command) -> clap::Command {
        let file = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(
                "Configuration file\n\
                 [env: WALPOST_CONFIG] [default: ./walpost.toml or /etc/walpost/walpost.toml]",
            );
        let arguments = iter::once(file).chain(Setting::all().filter_map(argument));
        command.args(arguments.map(|argument| argument.help_heading("Configuration")))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Options {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let of_setting = |flags: Flags, setting: Setting| {
            let values = matches.get_many::<String>(setting.key()).into_iter().flatten();
            flags.with(setting, values.cloned())
        };
        let flags = Flags::new(matches.get_one(CONFIG).cloned());
        let settings = Setting::all().filter(|setting| setting.flag().is_some());
        Ok(Self(settings.fold(flags, of_setting)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The argument for a setting, if it has a flag.
fn argument(setting: Setting) -> Option<Arg> {
    let flag = setting.flag()?;
    let argument = Arg::new(setting.key()).value_name(setting.value_name()?);
    let argument = match flag.strip_prefix("--") {
        Some(long) => argument.long(long),
        None => argument.short(flag.chars().nth(1)?),
    };
    let action = if setting.is_repeatable() { ArgAction::Append } else { ArgAction::Set };
    let ambient = setting.ambient().map(str::to_owned);
    let variables: Vec<_> = setting.variable().into_iter().chain(ambient).collect();
    let help = setting.help().trim_end_matches('.').replace('`', "");
    let variables = variables.join(", ");
    let default = setting.default().filter(|default| !default.is_empty());
    let default = default.map_or_else(String::new, |default| format!(" [default: {default}]"));
    let help = format!("{help}\n[env: {variables}]{default}");
    Some(argument.action(action).help(help))
}

impl From<Options> for Flags {
    fn from(options: Options) -> Self {
        options.0
    }
}
