//! `walpost replay-dead-letters`: publishes dead letters again, as ordinary records.

use super::args::ReplayDeadLettersArguments;
use super::stdout::print;
use super::{Exit, block_on, complain, logged, require_kafka, run};
use crate::config::Config;
use crate::tools::dead_letters::{Replay, ReplayError, ReplaySettings, ReplaySummary};

pub(super) fn command(arguments: ReplayDeadLettersArguments) -> Exit {
    let ReplayDeadLettersArguments { dry_run, cause, limit, from, group, options } = arguments;
    let config = match logged(&options.into()) {
        Ok((config, _)) => config,
        Err(exit) => return exit,
    };
    if let Err(exit) = require_kafka(&config, "replay-dead-letters") {
        return exit;
    }
    let topic = from.unwrap_or_else(|| config.poison.dead_letter_topic.clone());
    let limit = limit.unwrap_or(u64::MAX);
    let settings = ReplaySettings { topic, group, cause, limit, dry_run };
    block_on(replay(&config, settings))
}

async fn replay(config: &Config, settings: ReplaySettings) -> Exit {
    let dry_run = settings.dry_run;
    let replay = match Replay::open(config, settings) {
        Ok(replay) => replay,
        Err(error) => {
            complain(&error.to_string());
            return exit(&error);
        }
    };
    let show = |line: &str| {
        // A closed pipe is not an error: the reader has read what it needed.
        let _ = print(&format!("{line}\n"));
    };
    let (replayed, ended) = Box::pin(replay.run(run::stop_signal(), show)).await;
    let printed = print(&format!("{}\n", summary(replayed, dry_run)));
    match ended {
        Err(error) => {
            complain(&error.to_string());
            exit(&error)
        }
        Ok(()) if replayed.poison > 0 => Exit::Poison,
        Ok(()) => printed,
    }
}

fn summary(replayed: ReplaySummary, dry_run: bool) -> String {
    let ReplaySummary { replayed, poison, held_back, skipped } = replayed;
    let verb = if dry_run { "would replay" } else { "replayed" };
    format!("{verb} {replayed}, still poison {poison}, held back {held_back}, skipped {skipped}")
}

fn exit(error: &ReplayError) -> Exit {
    match error {
        ReplayError::Config(_) | ReplayError::Sink(_) | ReplayError::Unauthenticated(_) => {
            Exit::Config
        }
        ReplayError::Unreachable(_)
        | ReplayError::NoTopic { .. }
        | ReplayError::Reading(_)
        | ReplayError::Undelivered { .. }
        | ReplayError::Scattered { .. }
        | ReplayError::Another { .. }
        | ReplayError::Stopped => Exit::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_the_dead_letters() {
        let replayed = ReplaySummary { replayed: 12, poison: 1, held_back: 2, skipped: 3 };
        let text = "replayed 12, still poison 1, held back 2, skipped 3";
        assert_eq!(summary(replayed, false), text);
        assert_eq!(
            summary(replayed, true),
            format!("would {}", text.replace("replayed", "replay"))
        );
    }
}
