//! `walpost replay-dead-letters`: publishes dead letters again, as ordinary records.

use super::args::ReplayDeadLettersArguments;
use super::stdout::print;
use super::{Exit, block_on, complain, logged, run};
use crate::config::Config;
use crate::destination::dead_letters::{LettersAt, LettersError};
use crate::destination::parts::Failure;
use crate::tools::dead_letters::{Replay, ReplayError, ReplaySettings, ReplaySummary};

pub(super) fn command(arguments: ReplayDeadLettersArguments) -> Exit {
    let ReplayDeadLettersArguments { dry_run, cause, limit, from, group, options } = arguments;
    let config = match logged(&options.into()) {
        Ok((config, _)) => config,
        Err(exit) => return exit,
    };
    if group.is_some() && !config.is_kafka() {
        complain("--group is a consumer group of Kafka: leave it out");
        return Exit::Config;
    }
    let limit = limit.unwrap_or(u64::MAX);
    let settings = ReplaySettings { at: LettersAt { from, group }, cause, limit, dry_run };
    block_on(replay(&config, settings))
}

async fn replay(config: &Config, settings: ReplaySettings) -> Exit {
    let dry_run = settings.dry_run;
    let replay = match Replay::open(config, settings).await {
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
        ReplayError::NotKept(_)
        | ReplayError::Letters(
            LettersError::Config(_)
            | LettersError::Client(_)
            | LettersError::Failed(Failure::Unauthenticated(_) | Failure::Unsupported(_)),
        ) => Exit::Config,
        ReplayError::Letters(_) | ReplayError::Learn(_) | ReplayError::Stopped => Exit::Failure,
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
