//! `walpost run`: the daemon.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::args::{RunArguments, Until as UntilArgument};
use super::logging::LogLevel;
use super::{Exit, block_on, complain, logged};
use crate::assembly::{self, AssemblyError};
use crate::config::{Config, Environment, Flags};
use crate::relay::core::Halt;
use crate::relay::{RelayError, StopHandle, Summary, Until};
use crate::source::SourceError;

pub(super) fn command(arguments: RunArguments) -> Exit {
    let flags = Flags::from(arguments.options);
    let (config, level) = match logged(&flags) {
        Ok(begun) => begun,
        Err(exit) => return exit,
    };
    let until = arguments.until.map(|until| match until {
        UntilArgument::Current => Until::Current,
        UntilArgument::Lsn(lsn) => Until::Lsn(lsn),
    });
    block_on(async {
        if let Err(error) = heed_hangups(flags, level) {
            complain(&format!("cannot take signals: {error}"));
            return Exit::Failure;
        }
        run(config, until).await
    })
}

async fn run(config: Config, until: Option<Until>) -> Exit {
    let (relay, stop) = match assembly::relay(&config, &Environment::of_process(), until) {
        Ok(parts) => parts,
        Err(error) => {
            complain(&error.to_string());
            return match error {
                AssemblyError::Config(_) | AssemblyError::Sink(_) => Exit::Config,
            };
        }
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        slot = %config.source.slot,
        publication = %config.source.publication,
        bootstrap_servers = %config.kafka.bootstrap_servers,
        "walpost starts"
    );
    if let Err(error) = obey_signals(stop) {
        complain(&format!("cannot take signals: {error}"));
        return Exit::Failure;
    }
    match Box::pin(relay.run()).await {
        Ok(summary) => {
            tell(&summary);
            Exit::Ok
        }
        Err(error) => {
            tracing::error!("{error}");
            exit(&error)
        }
    }
}

fn tell(summary: &Summary) {
    let counters = summary.counters;
    tracing::info!(
        delivered = summary.delivered,
        transactions = counters.transactions,
        ignored_updates = counters.ignored_updates,
        ignored_deletes = counters.ignored_deletes,
        ignored_truncates = counters.ignored_truncates,
        refused_messages = counters.refused_messages,
        dead_letters = counters.dead_letters,
        skipped = counters.skipped,
        confirmed = %summary.confirmed,
        undrained = summary.undrained,
        "walpost stops"
    );
}

/// SIGTERM and SIGINT drain; the second one, of either kind, leaves at once.
fn obey_signals(stop: StopHandle) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            let name = one_of(&mut terminate, &mut interrupt).await;
            tracing::info!(signal = name, "told to stop");
            stop.stop();
        }
    });
    Ok(())
}

/// SIGHUP reads the configuration again and takes its log level over; the rest
/// waits for a restart. (Passwords are read again at each connect anyway.)
fn heed_hangups(flags: Flags, level: LogLevel) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let set = Config::load(&flags, &Environment::of_process())
                .map_err(|error| error.to_string())
                .and_then(|config| level.set(&config.log).map(|()| config.log.level));
            match set {
                Ok(level) => tracing::info!(
                    signal = "SIGHUP",
                    level,
                    "read the log level again; anything else takes a restart"
                ),
                Err(error) => tracing::error!(
                    signal = "SIGHUP",
                    error,
                    "the configuration cannot be read, and the log level stays"
                ),
            }
        }
    });
    Ok(())
}

/// The name of the one that comes first.
pub(super) async fn one_of(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

/// The exit code of the interface for each way in which a relay fails.
fn exit(error: &RelayError) -> Exit {
    match error {
        RelayError::Halt { halt, .. } => match **halt {
            Halt::Poison { .. } | Halt::Changed { .. } => Exit::Poison,
            Halt::Plan(_) => Exit::Config,
        },
        RelayError::Source(source) => match source {
            SourceError::Slot(_) => Exit::Slot,
            SourceError::Access(_) | SourceError::Setup(_) => Exit::Config,
            SourceError::Undecodable(_) | SourceError::Encoding(_) => Exit::Poison,
            SourceError::Lost(_) | SourceError::InUse { .. } => Exit::Failure,
        },
        RelayError::Sink(_) | RelayError::Unauthenticated(_) => Exit::Config,
        RelayError::Unconfirmed(_)
        | RelayError::Unreached { .. }
        | RelayError::Unbegun
        | RelayError::Aborted => Exit::Failure,
    }
}
