//! `walpost init`: prints the SQL of the setup, or applies it.

use super::args::InitArguments;
use super::stdout::{complain, print};
use super::{Exit, block_on, configuration};
use crate::config::{Config, Environment};
use crate::setup::{self, InitError, InitPlan};
use crate::source::{self, Limit, SourceError};
use crate::{assembly, preflight};

pub(super) fn command(arguments: InitArguments) -> Exit {
    let InitArguments { apply, role, no_role, failover, options } = arguments;
    let config = match configuration(&options.into()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let columns = match assembly::profile(&config) {
        Ok(profile) => assembly::columns(&config, &profile),
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    let role = (!no_role).then_some(role.as_str());
    let plan = match InitPlan::new(&config, columns, role) {
        Ok(plan) => plan.with_failover(failover),
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    if !apply {
        return print(&plan.sql());
    }
    block_on(apply_plan(&config, &plan))
}

async fn apply_plan(config: &Config, plan: &InitPlan) -> Exit {
    let conninfo = match assembly::conninfo(config, &Environment::of_process()) {
        Ok(conninfo) => conninfo,
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    let control = match source::control(&conninfo, "walpost init").await {
        Ok(control) => control,
        Err(error) => {
            complain(&SourceError::from(error).to_string());
            return Exit::Failure;
        }
    };
    let mut limit = Limit::new(&conninfo, &control);
    let report = |step| {
        print(&format!("{step}\n"));
    };
    let applied = setup::apply(&control.client, &mut limit, plan, report, complain);
    if let Err(error) = applied.await {
        complain(&error.to_string());
        return exit_code(&error);
    }
    // An existing table may lack a column that an event needs.
    match limit.on(preflight::columns(config, &control.client)).await {
        Ok(Ok(())) => Exit::Ok,
        Err(silent) => {
            complain(&silent.to_string());
            Exit::Failure
        }
        Ok(Err(error)) => {
            complain(&format!("everything exists, but `walpost run` would not start: {error}"));
            Exit::Failure
        }
    }
}

/// The exit code of a failed `init --apply`.
fn exit_code(error: &InitError) -> Exit {
    match error {
        InitError::LostSlot(_) | InitError::SlotBeforePublication { .. } => Exit::Slot,
        InitError::WalLevel { .. }
        | InitError::NoFailover(_)
        | InitError::SlotWithoutFailover(_)
        | InitError::Standby
        | InitError::Denied { .. }
        | InitError::NoFreeSlot(_)
        | InitError::Publication { .. }
        | InitError::ForeignSlot { .. }
        | InitError::UnfinishedSlot(_)
        | InitError::Silent(_)
        | InitError::Database { .. } => Exit::Failure,
    }
}
