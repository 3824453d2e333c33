//! `walpost init`: prints the SQL of the setup, or applies it.

use std::error::Error;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use super::args::{DEFAULT_ROLE, InitArguments};
use super::recover::RowOptions;
use super::stdout::{complain, print, say, with_flags};
use super::{Exit, adopt, block_on, configuration, init_file, logged, progress, recover};
use crate::assembly;
use crate::config::{self, Config, Flags, Origin, Setting, quoted};
use crate::conninfo::ConnInfo;
use crate::destination;
use crate::source::{self, Limit, SourceError};
use crate::tools::check;
use crate::tools::recovery::{Purpose, RecoveryError, RowWish, announce, require_readable};
use crate::tools::setup::{
    self, AdoptError, Doubt, InitError, InitPlan, Object, Positions, Stage, Step, Wanted,
};

/// How long a slot is waited for that a client uses, and how often it is looked at.
const IN_USE_LIMIT: Duration = Duration::from_secs(10);
const IN_USE_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn command(arguments: InitArguments) -> Exit {
    let slot_options = SlotOptions::of(&arguments);
    let InitArguments { apply, role, no_role, existing_rows, config_file, .. } = arguments;
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
    let role = (!no_role).then_some(role.as_str());
    let plan = config::profile(&config).map_err(Into::into).and_then(|profile| {
        let columns = config::columns(&config, &profile);
        if config_file.is_some() && init_file::proposed_topics(&config).is_none() {
            // The file is for `run`, which refuses what this does.
            assembly::router(&config, profile)?;
        }
        let plan = InitPlan::new(&config, columns, role)?.with_failover(arguments.failover);
        let plan = plan.with_partitions(arguments.partition_by)?;
        Ok(plan.with_publish_function(arguments.publish_function)?)
    });
    let plan = match plan {
        Ok(plan) => plan,
        Err::<_, Box<dyn Error>>(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    if !apply {
        return print(&plan.sql());
    }
    let exit = if existing_rows {
        if let Err(error) = Purpose::Existing.require_possible(&config) {
            return recover::failed(&error);
        }
        let wish = RowWish {
            purpose: Purpose::Existing,
            order_by: arguments.order_by,
            time_column: arguments.time_column,
            topics: Vec::new(),
            ids_alone: false,
        };
        let options = RowOptions {
            wish,
            list: false,
            publish_undecided: true,
            leave_undecided: false,
            apply: true,
        };
        let published = block_on(publish_existing(&config, &plan, options));
        published.unwrap_or_else(|error| recover::failed(&error))
    } else {
        block_on(set_up(&config, &plan, &slot_options, arguments.no_state))
    };
    match config_file {
        Some(path) if exit == Exit::Ok => write_file(&config, role, &path),
        _ => exit,
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
async fn set_up(config: &Config, plan: &InitPlan, options: &SlotOptions, no_state: bool) -> Exit {
    let step = match apply_plan(config, plan).await {
        Ok(step) => step,
        Err(exit) => return exit,
    };
    if no_state {
        return Exit::Ok;
    }
    match Box::pin(write_position(config, step, options)).await {
        Ok(text) => print(&with_flags(&text)),
        Err(NoPosition::Refused(reason)) => {
            complain(&reason);
            Exit::Failure
        }
        Err(NoPosition::Failed(error)) => {
            let exit = adopt::failed(error);
            complain(
                "everything exists in PostgreSQL, but the slot's position is not written, without which \
                 `walpost run` does not start: run the same command again",
            );
            exit
        }
    }
}

/// Why the slot's position is not written.
enum NoPosition {
    /// A position that may not be the one to begin at, for this reason.
    Refused(String),
    /// A position that could not be read or written.
    Failed(AdoptError),
}

impl<E: Into<AdoptError>> From<E> for NoPosition {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Writes the slot's position where the configured walpost keeps it; returns what to print.
async fn write_position(
    config: &Config,
    step: Option<Step>,
    options: &SlotOptions,
) -> Result<String, NoPosition> {
    let Some(place) = destination::of(config).place_of_position(config) else {
        return Ok(
            "position: none is kept, so a slot that is created again or advanced while walpost is \
                   not running is not noticed\n"
                .to_owned(),
        );
    };
    if config.is_kafka() && *config.origin(Setting::KAFKA_BOOTSTRAP_SERVERS) == Origin::Default {
        return Ok(format!(
            "{place}: not written, since no brokers are given: run the same command with \
             --bootstrap-servers before `walpost run`, which does not start without the position\n"
        ));
    }
    let conninfo =
        assembly::conninfo(config).map_err(|error| SourceError::Setup(error.to_string()))?;
    let mut reading = pin!(positions_if_free(config, &conninfo));
    let soon = tokio::time::timeout(progress::INTERVAL, &mut reading).await;
    let positions = if let Ok(read) = soon {
        read?
    } else {
        let to = destination::of(config).description(config);
        let at = to.bootstrap_servers.map(|at| format!(" at {at}")).unwrap_or_default();
        say(&format!("waiting for the slot to be free, and for {place}{at}"));
        reading.await?
    };
    let Some(positions) = positions else {
        return Ok(format!("{place}: left as it is, since a client uses the slot\n"));
    };
    let slot = positions.slot();
    let (is_created, former) = step.map_or((false, None), |step| (step.created, step.former_rows));
    match positions.state.as_ref().map(|state| (state.acked_upto, state.rows.is_some())) {
        None => match positions.doubt(config, &conninfo, is_created, former).await? {
            None => {
                positions.adopt().await?;
                Ok(format!("{place}: written, {slot}\n"))
            }
            Some(doubt) => {
                let advice = options.advice(config, is_created, &doubt);
                Err(NoPosition::Refused(format!("{place}: not written: {advice}")))
            }
        },
        Some((_, true)) => Ok(format!(
            "{place}: left as it is: rows that the slot does not send are not all published yet: run the \
             command again that publishes them\n"
        )),
        Some((acked, false)) if is_created || acked < slot => Ok(format!(
            "{place}: left as it is, {acked}, the position of an earlier slot of this name; this one \
             begins at {slot}, and events between the two may be in neither: `walpost run` exits with \
             code 3, and says what to do\n"
        )),
        Some((acked, false)) => Ok(format!("{place}: already there, {acked}\n")),
    }
}

/// The positions of a slot that a client uses for a moment at most; `None`: one uses it for longer. A
/// walpost without a position ends within a moment.
async fn positions_if_free(
    config: &Config,
    conninfo: &ConnInfo,
) -> Result<Option<Positions>, AdoptError> {
    let wanted = Wanted {
        command: "walpost init",
        create: true,
        may_lack_slot: false,
        may_lack_store: false,
    };
    let deadline = Instant::now() + IN_USE_LIMIT;
    loop {
        match Positions::read(config, conninfo, wanted).await {
            Err(AdoptError::InUse { .. }) if Instant::now() < deadline => {
                tokio::time::sleep(IN_USE_INTERVAL).await;
            }
            Err(AdoptError::InUse { .. }) => return Ok(None),
            read => return read.map(Some),
        }
    }
}

/// The options of `init` that a command which makes the slot again needs too.
struct SlotOptions(String);

impl SlotOptions {
    fn of(arguments: &InitArguments) -> Self {
        let mut text = match arguments.role.as_str() {
            _ if arguments.no_role => " --no-role".to_owned(),
            DEFAULT_ROLE => String::new(),
            role => format!(" --role {}", quoted(role)),
        };
        if arguments.failover {
            text += " --failover";
        }
        Self(text)
    }

    /// The doubt, with what else can be done about it: a slot that was found may have to send what has
    /// no row any more.
    fn advice(&self, config: &Config, is_created: bool, doubt: &Doubt) -> String {
        if !is_created || *doubt == Doubt::Used {
            return doubt.to_string();
        }
        let (slot, options) = (&config.source.slot, &self.0);
        format!(
            "{doubt}. To publish them too: SELECT pg_catalog.pg_drop_replication_slot('{slot}'); and then \
             `walpost init --apply --existing-rows{options}`"
        )
    }
}

/// Applies the plan, and publishes the rows from before the slot.
async fn publish_existing(
    config: &Config,
    plan: &InitPlan,
    options: RowOptions,
) -> Result<Exit, RecoveryError> {
    if let Err(exit) = apply_plan(config, &plan.only(Stage::BeforeSlot)).await {
        return Ok(exit);
    }
    // Before anything is announced, which keeps `walpost run` from starting.
    require_readable(config, &options.wish).await?;
    let mut positions = recover::positions(config, true, false).await?;
    announce(&mut positions, &config.source.slot).await?;
    // It holds the lock on the slot's name, which another session takes now.
    drop(positions);
    crate::crash_points::point!("existing_announced");
    if let Err(exit) = apply_plan(config, &plan.only(Stage::Slot)).await {
        return Ok(exit);
    }
    let positions = recover::positions(config, true, false).await?;
    recover::publish(config, positions, options).await
}

/// Creates what is missing; returns what was done about the slot, if it belongs to the plan.
async fn apply_plan(config: &Config, plan: &InitPlan) -> Result<Option<Step>, Exit> {
    let conninfo = assembly::conninfo(config).map_err(|error| {
        complain(&error.to_string());
        Exit::Config
    })?;
    let control = source::control(&conninfo, "walpost init").await.map_err(|error| {
        complain(&SourceError::from(error).to_string());
        Exit::Failure
    })?;
    let mut limit = Limit::new(&conninfo, &control);
    let mut slot = None;
    let report = |step: Step| {
        say(&step.to_string());
        if let Object::Slot(_) = step.object {
            slot = Some(step);
        }
    };
    let applied = setup::apply(&control.client, &mut limit, plan, report, complain).await;
    applied.map_err(|error| {
        complain(&error.to_string());
        exit_code(&error)
    })?;
    // An existing table may lack a column that an event needs.
    match limit.on(check::columns(config, &control.client)).await {
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
    Ok(slot)
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
