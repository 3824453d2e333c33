//! `walpost adopt`: writes the slot's position to the state topic.

use super::args::AdoptArguments;
use super::stdout::{complain, print};
use super::{Exit, block_on, configuration};
use crate::assembly;
use crate::config::Config;
use crate::lsn::Lsn;
use crate::state::{State, unix_ms};
use crate::tools::setup::{AdoptError, Positions, Wanted};

pub(super) fn command(arguments: AdoptArguments) -> Exit {
    let AdoptArguments { apply, options } = arguments;
    let config = match configuration(&options.into()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    match block_on(adopt(&config, apply)) {
        Ok(()) => Exit::Ok,
        Err(exit) => exit,
    }
}

async fn adopt(config: &Config, apply: bool) -> Result<(), Exit> {
    let positions = positions(config, "walpost adopt", apply).await?;
    let slot = &config.source.slot;
    let found = positions.slot();
    print(&format!("replication slot {slot}: confirmed up to {found}\n"));
    let state = positions.state.as_ref();
    let same_timeline = state.is_some_and(|state| state.timeline == positions.timeline);
    let without = match positions.may_lack_rows() {
        true => Without::MayLackRows,
        false if same_timeline => Without::Continues,
        false => Without::MayLackWal,
    };
    let acked = state.map(|state| state.acked_upto);
    let place = positions.place.clone();
    let accepted = positions.with_publication();
    if let Some(State { acked_upto, skipped, .. }) = &accepted {
        if state.is_some_and(|state| state.skipped.len() > skipped.len()) {
            print("orders of `walpost skip` for events that are still to come are given up\n");
        }
        print(&format!("{place}: acknowledged up to {acked_upto}, which stays\n"));
    } else {
        print(&format!("{place}: {}\n", compared(acked, found, without)));
        if let Some(end) = positions.published_beyond() {
            print(&format!(
                "events behind that, in WAL up to {end}, are published already: --apply publishes again \
                 what the slot sends of them\n"
            ));
        }
    }
    if positions.may_lack_rows() {
        print(&format!(
            "the publication was changed while walpost worked with it, or after it was killed: publish by \
             hand the rows that were committed after {found} and are not at the destination\n"
        ));
    }
    if state.is_some_and(|state| state.rows.is_some()) {
        print(
            "rows that the slot does not send are not all published yet: --apply gives them up\n",
        );
    }
    let delivered = positions.state.as_ref().and_then(|state| state.delivered.as_ref());
    if let Some(delivered) = delivered
        && !positions.may_lack_rows()
        && let Some(newest) = delivered.bookmarks.first()
    {
        print(&format!(
            "rows of the transactions with ids from {} to {} are published (seen {} s ago)\n",
            delivered.from,
            newest.below.saturating_sub(1),
            unix_ms().saturating_sub(newest.at_ms) / 1000
        ));
    }
    if !apply {
        let what = match accepted {
            Some(_) => format!("accepts the publication as it is now in {place}"),
            None => format!("writes the slot's position to {place}"),
        };
        print(&format!("nothing was changed; --apply {what}\n"));
        return Ok(());
    }
    let from = positions.adopt().await.map_err(failed)?;
    print(&format!("{place}: now {from}; `walpost run` can start\n"));
    Ok(())
}

/// What `walpost run` does if nothing is adopted.
#[derive(Clone, Copy)]
enum Without {
    Continues,
    MayLackWal,
    MayLackRows,
}

/// The position in the state topic, beside that of the slot. If the server has been promoted since,
/// it may lack what was published before the position.
fn compared(acked: Option<Lsn>, found: Lsn, run: Without) -> String {
    match acked {
        None => "no position".to_owned(),
        Some(acked) if acked < found => format!(
            "acknowledged up to {acked}; {} bytes of WAL between them were not published by walpost",
            found.bytes_since(acked)
        ),
        Some(acked) if acked > found => {
            let otherwise = match run {
                Without::Continues => format!("without that `walpost run` continues at {acked}"),
                Without::MayLackWal => format!(
                    "without that `walpost run` continues at {acked}, or exits with code 3 if this server, \
                     which was promoted since, lacks WAL before it"
                ),
                Without::MayLackRows => "without that `walpost run` does not start".to_owned(),
            };
            format!(
                "acknowledged up to {acked}. To adopt the slot's position would publish the events in {} \
                 bytes of WAL again; {otherwise}",
                acked.bytes_since(found)
            )
        }
        Some(acked) => format!("acknowledged up to {acked}"),
    }
}

/// The positions of slot and state topic.
pub(super) async fn positions(
    config: &Config,
    command: &str,
    create: bool,
) -> Result<Positions, Exit> {
    let conninfo = assembly::conninfo(config).map_err(|error| {
        complain(&error.to_string());
        Exit::Config
    })?;
    let wanted = Wanted { command, create, may_lack_slot: false, may_lack_store: false };
    let read = Positions::read(config, &conninfo, wanted).await;
    read.map_err(failed)
}

/// Prints the error.
pub(super) fn failed(error: AdoptError) -> Exit {
    complain(&error.to_string());
    match error {
        AdoptError::Source(error) => (&error).into(),
        AdoptError::Off => Exit::Config,
        _ => Exit::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuation_is_not_promised_on_another_timeline() {
        let [low, high] = [Lsn::new(0x10), Lsn::new(0x20)];
        let promise = "without that `walpost run` continues at 0/20";
        assert!(compared(Some(high), low, Without::Continues).ends_with(promise));
        let text = compared(Some(high), low, Without::MayLackWal);
        assert!(text.contains(&format!("{promise}, or exits with code 3")), "{text}");
        assert_eq!(compared(Some(low), low, Without::Continues), "acknowledged up to 0/10");
        assert!(
            compared(Some(low), high, Without::Continues)
                .contains("16 bytes of WAL between them were not")
        );
    }
}
