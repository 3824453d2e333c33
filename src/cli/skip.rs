//! `walpost skip`: orders in the state topic that an event is not published.

use super::adopt::{failed, positions};
use super::args::SkipArguments;
use super::stdout::print;
use super::{Exit, block_on, configuration};
use crate::config::Config;
use crate::position::EventPosition;

pub(super) fn command(arguments: SkipArguments) -> Exit {
    let SkipArguments { position, apply, options } = arguments;
    let config = match configuration(&options.into()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    match block_on(skip(&config, position, apply)) {
        Ok(()) => Exit::Ok,
        Err(exit) => exit,
    }
}

async fn skip(config: &Config, position: EventPosition, apply: bool) -> Result<(), Exit> {
    let (mut positions, topic) = positions(config, "walpost skip", false).await?;
    let state = positions.skipping(topic, position).map_err(failed)?;
    let acked = state.acked_upto;
    print(&format!("state topic {topic}: acknowledged up to {acked}\n"));
    if !apply {
        print(&format!(
            "nothing was changed; with --apply the event at {position} will not be published, and \
             no replay publishes it later\n"
        ));
        return Ok(());
    }
    positions.write(topic, &state).await.map_err(failed)?;
    print(&format!(
        "state topic {topic}: the event at {position} will not be published; start `walpost run`\n"
    ));
    Ok(())
}
