//! `walpost run`: the daemon.

use std::ffi::OsString;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::args::{RunArguments, Until as UntilArgument};
use super::logging::LogLevel;
use super::stdout::with_flags;
use super::{Exit, block_on, complain, logged};
use crate::Walpost;
use crate::admin::{self, About};
use crate::assembly::{self, AssemblyError};
use crate::config::{Config, Flags};
use crate::destination;
use crate::relay::{RelayError, StopHandle, Summary, Until};
use crate::sink::Reloader;
use walpost_core::relay::Halt;

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
    warn_of_open_secrets(&config);
    let hosts = destination::exposed_hosts(&config);
    if !hosts.is_empty() {
        let hosts = hosts.join(",");
        tracing::warn!(
            hosts,
            "credentials are sent to the destination without TLS: use TLS, and change the password or \
             token"
        );
    }
    block_on(async {
        // From here on SIGHUP does not end the program.
        let hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => {
                complain(&format!("cannot take signals: {error}"));
                return Exit::Failure;
            }
        };
        Box::pin(run(config, until, hangup, level)).await
    })
}

/// Logs secrets that any user on the machine can read. Not an error: in a container the platform
/// sets the mode of a mounted file, and there are no other users.
fn warn_of_open_secrets(config: &Config) {
    for (name, path) in config.open_secrets() {
        tracing::warn!(
            variable = name,
            file = %path.display(),
            "a file with a secret is world-readable: make its mode 0600, or 0640 with walpost's group"
        );
    }
}

async fn run(config: Config, until: Option<Until>, hangup: Signal, level: LogLevel) -> Exit {
    let conninfo = assembly::conninfo(&config);
    let walpost = match Walpost::new(&config) {
        // All other tasks on this thread can wait for the duration of a batching pause.
        Ok(walpost) => match until {
            Some(until) => walpost.until(until).on_own_thread(),
            None => walpost.on_own_thread(),
        },
        Err(error) => {
            complain(&error.to_string());
            return match error {
                AssemblyError::Config(_) | AssemblyError::Sink(_) => Exit::Config,
            };
        }
    };
    let about = About {
        // The relay would not be there without a connection string.
        database: conninfo.map(|conninfo| conninfo.dbname).unwrap_or_default(),
        slot: config.source.slot.clone(),
        publication: config.source.publication.clone(),
        place_of_position: destination::of(&config).place_of_position(&config),
        check: options_of_this(until),
        settings: config.admin.page.then(|| super::config::rows(&config)),
        ..About::default()
    };
    let address = match admin::start(config.admin.listen.as_deref(), &walpost.metrics(), about) {
        Ok(address) => address,
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    let to = destination::of(&config).description(&config);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        slot = %config.source.slot,
        publication = %config.source.publication,
        bootstrap_servers = to.bootstrap_servers,
        stream = to.stream,
        endpoint = to.endpoint,
        endpoints = address.map(tracing::field::display),
        "walpost starts"
    );
    if let Err(error) = stop_on_signals(walpost.stop_handle()) {
        complain(&format!("cannot take signals: {error}"));
        return Exit::Failure;
    }
    let _traces = match traced(&config) {
        Ok(traces) => traces,
        Err(reason) => {
            complain(&reason);
            return Exit::Config;
        }
    };
    reload_on_hangup(hangup, config, level, walpost.reload());
    match walpost.run().await {
        Ok(summary) => {
            print_summary(&summary);
            Exit::Ok
        }
        Err(error) => {
            let exit = exit(&error);
            let error = with_flags(&error.to_string());
            tracing::error!("{error}");
            exit
        }
    }
}

/// The options of this command line, which `walpost check` has too; `None` for a run that ends by itself.
fn options_of_this(until: Option<Until>) -> Option<Vec<OsString>> {
    let mut arguments = std::env::args_os().skip(1);
    (until.is_none() && arguments.next()? == "run").then(|| arguments.collect())
}

/// Spans are exported while the returned value exists.
#[cfg(feature = "traces")]
fn traced(config: &Config) -> Result<Option<crate::traces::Traces>, String> {
    crate::traces::start(&config.source.slot)
}

/// This build exports no spans, and warns if an endpoint is set.
#[cfg(not(feature = "traces"))]
#[allow(clippy::unnecessary_wraps, reason = "as the other one")]
fn traced(_: &Config) -> Result<Option<()>, String> {
    const ENDPOINTS: [&str; 2] =
        ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    if let Some(name) = ENDPOINTS.iter().find(|name| std::env::var_os(name).is_some()) {
        tracing::warn!(
            "{name} is set, but this build of walpost sends no traces: it takes the feature `traces`"
        );
    }
    Ok(None)
}

fn print_summary(summary: &Summary) {
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
        dropped_headers = counters.dropped_headers,
        confirmed = %summary.confirmed,
        undrained = summary.undrained,
        "walpost stops"
    );
}

/// SIGTERM and SIGINT drain; the second signal of either kind aborts.
pub(super) fn stop_on_signals(stop: StopHandle) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            let name = one_of(&mut terminate, &mut interrupt).await;
            tracing::info!(signal = name, "received a stop signal");
            admin::stopping();
            stop.stop();
        }
    });
    Ok(())
}

/// SIGHUP reads the configuration again, and applies its log level, Kafka's properties and the
/// files that these name; everything else needs a restart. (PostgreSQL's address, passwords and
/// certificates are read again at each connect anyway.)
fn reload_on_hangup(mut hangup: Signal, config: Config, level: LogLevel, reload: Option<Reloader>) {
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            admin::reloading();
            let read = config.reload().map_err(|error| error.to_string());
            match read.and_then(|config| reread(&config, &level)) {
                Ok(level) => {
                    tracing::info!(
                        signal = "SIGHUP",
                        level,
                        "reloaded log level, secrets and certificates; anything else takes a \
                         restart"
                    );
                    if let Some(reload) = &reload {
                        reload();
                    }
                }
                Err(error) => tracing::error!(
                    signal = "SIGHUP",
                    error,
                    "cannot reload the configuration; keeping the current one"
                ),
            }
            admin::reloaded();
        }
    });
}

/// Applies the settings that take effect at once: validates PostgreSQL's address, and sets and
/// returns the log level.
fn reread(config: &Config, level: &LogLevel) -> Result<String, String> {
    assembly::conninfo(config).map_err(|error| error.to_string())?;
    level.set(&config.log)?;
    Ok(config.log.level.clone())
}

/// Waits for SIGTERM or SIGINT. If the handlers cannot be installed, signals end the process as usual.
pub(super) async fn stop_signal() {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
    let [Ok(mut terminate), Ok(mut interrupt)] = kinds.map(signal) else {
        return std::future::pending().await;
    };
    one_of(&mut terminate, &mut interrupt).await;
}

/// The name of the first signal.
async fn one_of(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    // Either may be named when both arrived.
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

/// The exit code for each error of a relay.
pub(super) fn exit(error: &RelayError) -> Exit {
    match error {
        RelayError::Halt { halt, .. } => match **halt {
            Halt::Poison { .. } | Halt::DeadLetter { .. } | Halt::Changed { .. } => Exit::Poison,
            Halt::Plan(_) => Exit::Config,
        },
        RelayError::Source(source) => source.into(),
        RelayError::Sink(_) | RelayError::Unauthenticated { .. } | RelayError::Registry(_) => {
            Exit::Config
        }
        RelayError::Unconfirmed(_)
        | RelayError::Regressed { .. }
        | RelayError::Unreached { .. }
        | RelayError::NeverConnected
        | RelayError::Aborted => Exit::Failure,
    }
}
