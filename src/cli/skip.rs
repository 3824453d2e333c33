//! `walpost skip`: orders in the state topic that an event is not published.

use super::adopt::{failed, positions};
use super::args::SkipArguments;
use super::stdout::print;
use super::{Exit, block_on, configuration};
use crate::config::Config;
use crate::position::EventPosition;

pub(super) fn command(arguments: SkipArguments) -> Exit {
    let config = match configuration(&arguments.options.into()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let SkipArguments { position, apply, undo, .. } = arguments;
    match block_on(skip(&config, position, (apply, undo))) {
        Ok(()) => Exit::Ok,
        Err(exit) => exit,
    }
}

async fn skip(
    config: &Config,
    position: EventPosition,
    (apply, undo): (bool, bool),
) -> Result<(), Exit> {
    let mut positions = positions(config, "walpost skip", false).await?;
    let state = if undo { positions.not_skipping(position) } else { positions.skipping(position) };
    let state = state.map_err(failed)?;
    let is_published = if undo { "will be published" } else { "will not be published" };
    let place = positions.place.clone();
    print(&format!("{place}: acknowledged up to {}\n", state.acked_upto));
    if !apply {
        print(&format!(
            "nothing was changed; with --apply the event at {position} {is_published}\n"
        ));
        return Ok(());
    }
    positions.write(&state).await.map_err(failed)?;
    print(&format!("{place}: the event at {position} {is_published}; start `walpost run`\n"));
    Ok(())
}
