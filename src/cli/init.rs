//! `walpost init`: prints the SQL of the setup, or applies it.

use std::path::Path;

use tokio_postgres::{Client, Error};

use super::args::InitArguments;
use super::recover::RowOptions;
use super::stdout::{complain, print, say, with_flags};
use super::{Exit, adopt, block_on, configuration, init_file, logged, recover, require_kafka};
use crate::config::{Config, Environment, Flags, Origin, Setting, SinkKind};
use crate::outbox::TableName;
use crate::recovery::{Purpose, RecoveryError, RowWish, announce, require_readable};
use crate::setup::{
    self, AdoptError, InitError, InitPlan, Object, Positions, SlotUse, Stage, Step, Wanted,
};
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
        let exit = block_on(set_up(&config, &plan, arguments.no_state));
        return match arguments.config_file {
            Some(path) if exit == Exit::Ok => write_file(&config, role, &path),
            _ => exit,
        };
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

fn write_file(config: &Config, role: Option<&str>, path: &Path) -> Exit {
    match init_file::write(config, role, path) {
        Ok(text) => print(&text),
        Err(error) => {
            complain(&format!("cannot write {}: {error}", path.display()));
            Exit::Failure
        }
    }
}

/// Applies the plan, and writes the position of a slot that has sent nothing yet.
async fn set_up(config: &Config, plan: &InitPlan, no_state: bool) -> Exit {
    let made = match apply_plan(config, plan).await {
        Ok(made) => made,
        Err(exit) => return exit,
    };
    if no_state {
        return Exit::Ok;
    }
    match write_position(config, made).await {
        Ok(text) => print(&with_flags(&text)),
        Err(error) => {
            let exit = adopt::failed(error);
            complain(
                "everything exists in PostgreSQL, but the slot's position is not written, without which \
                 `walpost run` does not start: run the same command again",
            );
            exit
        }
    }
}

/// Writes the slot's position where the configured walpost keeps it; returns what to print.
async fn write_position(config: &Config, made: Made) -> Result<String, AdoptError> {
    let Some(place) = assembly::place_of_position(config) else {
        return Ok(
            "position: none is kept, so a slot that is created again or advanced while walpost is \
                   not running is not noticed\n"
                .to_owned(),
        );
    };
    if config.sink == SinkKind::Kafka
        && *config.origin(Setting::KafkaBootstrapServers) == Origin::Default
    {
        return Ok(format!(
            "{place}: not written, since no brokers are given: run the same command with \
             --bootstrap-servers before `walpost run`, which does not start without the position\n"
        ));
    }
    let conninfo = assembly::conninfo(config, &Environment::of_process())
        .map_err(|error| SourceError::Setup(error.to_string()))?;
    let create = made.refusal.is_none();
    let wanted = Wanted { command: "walpost init", create, may_lack_slot: false };
    let positions = match Positions::read(config, &conninfo, &assembly::kafka(config), wanted).await
    {
        // Also in a catch-up, when only the lock on its name is held.
        Err(AdoptError::InUse { .. }) => return Ok(String::new()),
        read => read?,
    };
    let slot = positions.slot();
    match (positions.state.as_ref().map(|state| state.acked_upto), made.refusal) {
        (None, Some(refusal)) => Ok(format!("{place}: not written, since {refusal}\n")),
        (None, None) => {
            positions.adopt().await?;
            Ok(format!("{place}: written, {slot}\n"))
        }
        (Some(acked), _) if made.slot == SlotUse::Created => Ok(format!(
            "{place}: left as it is, {acked}, the position of an earlier slot of this name; the new one \
             begins at {slot}, and events between the two may be in neither: `walpost run` exits with \
             code 3, `walpost recover` names what is missing, and with --apply publishes it\n"
        )),
        (Some(acked), _) => Ok(format!("{place}: already there, {acked}\n")),
    }
}

/// The slot that was made or found.
struct Made {
    slot: SlotUse,
    /// Why its position is not simply taken as the one to begin at.
    refusal: Option<String>,
}

impl Made {
    /// Of a slot that was created, and the table with rows from before it, or that was found.
    async fn of(
        config: &Config,
        client: &Client,
        (is_created, former): (bool, Option<TableName>),
    ) -> Result<Self, Error> {
        let name = &config.source.slot;
        let slot = if is_created { SlotUse::Created } else { SlotUse::of(client, name).await? };
        let rows = |table: &TableName| {
            format!(
                "{table} may have rows from before the slot, which it does not send. If they are published \
                 already, or not wanted: `walpost adopt --apply`. To publish them too: SELECT \
                 pg_catalog.pg_drop_replication_slot('{name}'); and then `walpost init --apply \
                 --existing-rows`"
            )
        };
        let refusal = match slot {
            SlotUse::InUse => None,
            SlotUse::Sent => Some(
                "the slot has sent transactions, and nothing tells what became of them: `walpost adopt \
                 --apply` accepts its position"
                    .to_owned(),
            ),
            SlotUse::Created => former.as_ref().map(rows),
            SlotUse::Unused => {
                setup::former_rows(client, &config.outbox.tables).await.map(rows)
            }
        };
        Ok(Self { slot, refusal })
    }
}

/// Applies the plan, and publishes the rows from before the slot.
async fn publish_existing(
    config: &Config,
    plan: &InitPlan,
    options: RowOptions,
) -> Result<Exit, RecoveryError> {
    let environment = Environment::of_process();
    if let Err(exit) = apply_plan(config, &plan.only(Stage::BeforeSlot)).await {
        return Ok(exit);
    }
    // Before anything is announced, which keeps `walpost run` from starting.
    require_readable(config, &environment, &options.wish).await?;
    let mut positions = recover::positions(config, &environment, true).await?;
    announce(&mut positions, &config.source.slot).await?;
    // It holds the lock on the slot's name, which another session takes now.
    drop(positions);
    crate::crash_points::point!("existing_announced");
    if let Err(exit) = apply_plan(config, &plan.only(Stage::Slot)).await {
        return Ok(exit);
    }
    let positions = recover::positions(config, &environment, true).await?;
    recover::publish(config, &environment, positions, options).await
}

async fn apply_plan(config: &Config, plan: &InitPlan) -> Result<Made, Exit> {
    let conninfo = assembly::conninfo(config, &Environment::of_process()).map_err(|error| {
        complain(&error.to_string());
        Exit::Config
    })?;
    let control = source::control(&conninfo, "walpost init").await.map_err(|error| {
        complain(&SourceError::from(error).to_string());
        Exit::Failure
    })?;
    let mut limit = Limit::new(&conninfo, &control);
    let mut is_created = None;
    let report = |step: Step| {
        say(&step.to_string());
        if let Object::Slot(_) = step.object {
            is_created = Some((step.created, step.former_rows));
        }
    };
    let applied = setup::apply(&control.client, &mut limit, plan, report, complain).await;
    applied.map_err(|error| {
        complain(&error.to_string());
        exit_code(&error)
    })?;
    // An existing table may lack a column that an event needs.
    match limit.on(preflight::columns(config, &control.client)).await {
        Ok(Ok(())) => {}
        Err(silent) => {
            complain(&silent.to_string());
            return Err(Exit::Failure);
        }
        Ok(Err(error)) => {
            complain(&format!("everything exists, but `walpost run` would not start: {error}"));
            return Err(Exit::Failure);
        }
    }
    let Some(is_created) = is_created else {
        return Ok(Made { slot: SlotUse::InUse, refusal: None });
    };
    Made::of(config, &control.client, is_created).await.map_err(|error| {
        complain(&SourceError::query("looking at the slot and the outbox", &error).to_string());
        Exit::Failure
    })
}

/// The exit code of a failed `init --apply`.
fn exit_code(error: &InitError) -> Exit {
    match error {
        InitError::LostSlot(_) | InitError::SlotBeforePublication { .. } => Exit::Slot,
        InitError::WalLevel { .. }
        | InitError::Plugin(_)
        | InitError::NoFailover(_)
        | InitError::SlotWithoutFailover(_)
        | InitError::Standby
        | InitError::Denied { .. }
        | InitError::NoFreeSlot(_)
        | InitError::NoPlpgsql(_)
        | InitError::Publication { .. }
        | InitError::NotPartitioned(_)
        | InitError::ForeignSlot { .. }
        | InitError::UnfinishedSlot(_)
        | InitError::Silent(_)
        | InitError::Database { .. } => Exit::Failure,
    }
}
