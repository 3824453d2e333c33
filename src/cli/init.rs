//! `walpost init`: prints the SQL of the setup, or applies it.

use super::args::InitArguments;
use super::recover::RowOptions;
use super::stdout::{complain, print, say};
use super::{Exit, block_on, configuration, logged, recover, require_kafka};
use crate::config::{Config, Environment, Flags};
use crate::recovery::{Purpose, RecoveryError, RowWish, announce, require_readable};
use crate::setup::{self, InitError, InitPlan, Stage, Step};
use crate::source::{self, Limit, SourceError};
use crate::{assembly, preflight};

pub(super) fn command(arguments: InitArguments) -> Exit {
    let InitArguments { apply, role, no_role, failover, existing_rows, publish_function, .. } =
        arguments;
    let partition_by = arguments.partition_by;
    let flags = Flags::from(arguments.options);
    // Publishing logs.
    let config = if existing_rows {
        logged(&flags).map(|(config, _)| config)
    } else {
        configuration(&flags)
    };
    let config = match config {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    if existing_rows && let Err(exit) = require_kafka(&config, "init --existing-rows") {
        return exit;
    }
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
    let plan = plan.with_partitions(partition_by);
    let plan = match plan.and_then(|plan| plan.with_publish_function(publish_function)) {
        Ok(plan) => plan,
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    if !apply {
        return print(&plan.sql());
    }
    if !existing_rows {
        return block_on(apply_plan(&config, &plan));
    }
    let options = RowOptions {
        wish: RowWish {
            purpose: Purpose::Existing,
            order_by: arguments.order_by,
            time_column: arguments.time_column,
            topics: Vec::new(),
            ids_alone: false,
        },
        list: false,
        publish_undecided: true,
        leave_undecided: false,
        apply: true,
    };
    match block_on(publish_existing(&config, &plan, options)) {
        Ok(exit) => exit,
        Err(error) => recover::failed(&error),
    }
}

/// Applies the plan, and publishes the rows from before the slot.
async fn publish_existing(
    config: &Config,
    plan: &InitPlan,
    options: RowOptions,
) -> Result<Exit, RecoveryError> {
    let environment = Environment::of_process();
    let applied = apply_plan(config, &plan.only(Stage::BeforeSlot)).await;
    if applied != Exit::Ok {
        return Ok(applied);
    }
    // Before anything is announced, which keeps `walpost run` from starting.
    require_readable(config, &environment, &options.wish).await?;
    let mut positions = recover::positions(config, &environment, true).await?;
    announce(&mut positions, &config.source.slot).await?;
    // It holds the lock on the slot's name, which another session takes now.
    drop(positions);
    crate::crash_points::point!("existing_announced");
    let applied = apply_plan(config, &plan.only(Stage::Slot)).await;
    if applied != Exit::Ok {
        return Ok(applied);
    }
    let positions = recover::positions(config, &environment, true).await?;
    recover::publish(config, &environment, positions, options).await
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
    let report = |step: Step| {
        say(&step.to_string());
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
        | InitError::NotPartitioned(_)
        | InitError::ForeignSlot { .. }
        | InitError::UnfinishedSlot(_)
        | InitError::Silent(_)
        | InitError::Database { .. } => Exit::Failure,
    }
}
